"""Every DiT family that ComfyUI ships, as data. Facts measured on ComfyUI 0.3.75 and 0.33 with tiny models.

docs/families.md is this table, rendered; ``nox -s families`` writes it anew.
"""

from __future__ import annotations

from ...stack.layout import HiddenState, PackedStates
from .entry import NEWER, BlockList, Family
from .wan import WAN_FAMILIES

_IMAGE_AND_TEXT = (HiddenState("image", "img", output=0), HiddenState("text", "txt", output=1))
_JOINT = (HiddenState("joint", "x", position=0),)
_TEXT_FIRST = (HiddenState("text", "encoder_hidden_states", output=0), HiddenState("image", "hidden_states", output=1))
_IMAGE_FIRST = (HiddenState("image", "hidden_states", output=0), HiddenState("text", "encoder_hidden_states", output=1))


def _one(name: str, argument: str = "x", position: int | None = 0) -> tuple[HiddenState, ...]:
    return (HiddenState(name, argument, position=position),)


def _doubles_and_singles() -> tuple[BlockList, ...]:
    return (BlockList("double_blocks", _IMAGE_AND_TEXT), BlockList("single_blocks", _JOINT))


_PATCHES_AND_PIXELS = (
    BlockList(
        "patch_blocks",
        (HiddenState("patches", "x", position=0, output=0), HiddenState("text", "y", position=1, output=1)),
    ),
    BlockList("pixel_blocks", _one("pixels")),
)
_CONTROL = "ControlNet's additions, the join of text and image"
_TEXT_REFINER = "txt_in.individual_token_refiner: prepares the text, two small blocks"
_REFINERS = "noise_refiner, context_refiner: before the stack, on other tokens, two blocks each"

FAMILIES = (
    Family("Flux", ("Flux",), _doubles_and_singles(), between=_CONTROL, notes="Flux.1, Flux.2, Kontext, LongCat-Image"),
    Family("Chroma", ("Chroma",), _doubles_and_singles(), between=_CONTROL),
    Family(
        "Chroma Radiance",
        ("ChromaRadiance",),
        _doubles_and_singles(),
        between=_CONTROL,
        left_alone="nerf_blocks: on pixels after the stack, called once a tile",
    ),
    Family(
        "HunyuanVideo",
        ("HunyuanVideo",),
        _doubles_and_singles(),
        between=_CONTROL,
        left_alone=_TEXT_REFINER,
        notes="HunyuanVideo 1.0 and 1.5, HunyuanImage 2.1",
    ),
    Family(
        "Hunyuan3D 2", ("Hunyuan3Dv2",), _doubles_and_singles(), between="the join of the two streams", notes="shapes"
    ),
    Family(
        "Hunyuan3D 2.1",
        ("HunYuanDiTPlain",),
        (BlockList("blocks", _one("shape", "hidden_states")),),
        wrapper="apply_model",
        long_skips=True,
    ),
    Family(
        "Hunyuan-DiT", ("HunYuanDiT",), (BlockList("blocks", _one("image")),), wrapper="apply_model", long_skips=True
    ),
    *WAN_FAMILIES,
    Family(
        "Qwen-Image",
        ("QwenImageTransformer2DModel",),
        (BlockList("transformer_blocks", _TEXT_FIRST),),
        between="ControlNet's additions",
        notes="Qwen-Image and Qwen-Image-Edit",
    ),
    Family(
        "Mage-Flow",
        ("MageFlowTransformer2DModel",),
        (BlockList("transformer_blocks", _TEXT_FIRST),),
        since=NEWER,
        between="ControlNet's additions",
    ),
    Family(
        "Lens",
        ("LensTransformer2DModel",),
        (BlockList("transformer_blocks", _TEXT_FIRST),),
        since=NEWER,
        between="ControlNet's additions",
    ),
    Family("JoyImage", ("JoyImageTransformer3DModel",), (BlockList("double_blocks", _IMAGE_FIRST),), since=NEWER),
    Family("CogVideoX", ("CogVideoXTransformer3DModel",), (BlockList("blocks", _IMAGE_FIRST),), since=NEWER),
    Family("LTX-Video", ("LTXVModel",), (BlockList("transformer_blocks", _one("video")),)),
    Family(
        "LTX-2",
        ("LTXAVModel",),
        (
            BlockList(
                "transformer_blocks",
                (
                    HiddenState("video", "x", position=0, item=0, output=0),
                    HiddenState("audio", "x", position=0, item=1, output=1),
                ),
            ),
        ),
        since=NEWER,
        left_alone="embeddings connectors: once a run, on the text",
    ),
    Family(
        "MiniMax-H3",
        ("MiniMaxH3Model",),
        (
            # Packed [text | conditions | audio | video]; ``mod_segments`` has a span for each, the targets last.
            BlockList("blocks", _one("packed"), PackedStates("mod_segments", 2, ("audio", "video"), "context")),
        ),
        since=NEWER,
        left_alone="token_refiner: prepares the text, two small blocks",
        notes="one picture or video at a time",
    ),
    Family(
        "MiniMax Music 3",
        ("MiniMaxMusic3DiT",),
        (BlockList("diffusion_transformer.transformer.layers", _one("audio")),),
        wrapper="apply_model",
        since=NEWER,
        notes="music longer than 8 s is computed in overlapping windows within one call, which DBCache leaves alone",
    ),
    Family(
        "Lumina 2",
        ("NextDiT",),
        (BlockList("layers", _JOINT),),
        left_alone=_REFINERS,
        notes="Lumina 2 and Z-Image",
    ),
    Family(
        "Z-Image on pixels",
        ("NextDiTPixelSpace",),
        (BlockList("layers", _JOINT),),
        since=NEWER,
        left_alone=f"{_REFINERS}; dec_net: makes pixels of the stack's output",
    ),
    Family(
        "OmniGen 2",
        ("OmniGen2Transformer2DModel",),
        (BlockList("layers", _one("joint", "hidden_states")),),
        wrapper="apply_model",
        left_alone=_REFINERS,
    ),
    Family(
        "Boogu",
        ("BooguTransformer2DModel",),
        (
            BlockList(
                "double_stream_layers",
                (
                    HiddenState("image", "img_hidden_states", position=0, output=0),
                    HiddenState("text", "instruct_hidden_states", position=1, output=1),
                ),
            ),
            BlockList("single_stream_layers", _one("joint", "hidden_states")),
        ),
        wrapper="apply_model",
        since=NEWER,
        between="the join of text and image",
        left_alone=_REFINERS,
    ),
    Family(
        "HiDream-I1",
        ("HiDreamImageTransformer2DModel",),
        (
            BlockList(
                "double_stream_blocks",
                (HiddenState("image", "image_tokens", output=0), HiddenState("text", "text_tokens", output=1)),
            ),
            BlockList("single_stream_blocks", _one("joint", "image_tokens", None)),
        ),
        between="each block's own text tokens, joined before it and cut off after it",
    ),
    Family(
        "HiDream-O1",
        ("HiDreamO1Transformer",),
        (BlockList("language_model.layers", _one("joint", "x", None)),),
        since=NEWER,
        left_alone="visual: looks at reference pictures",
        no_cache="its blocks keep keys and values of their own from call to call",
    ),
    Family(
        "Stable Diffusion 3",
        ("OpenAISignatureMMDITWrapper",),
        (
            BlockList(
                "joint_blocks",
                (
                    HiddenState("text", "context", position=0, output=0, may_end=True),
                    HiddenState("image", "x", position=1, output=1),
                ),
            ),
        ),
        wrapper="apply_model",
        between="ControlNet's additions",
        notes="SD 3 and 3.5",
    ),
    Family(
        "AuraFlow",
        ("MMDiT",),
        (
            BlockList(
                "double_layers",
                (HiddenState("text", "c", position=0, output=0), HiddenState("image", "x", position=1, output=1)),
            ),
            BlockList("single_layers", _one("joint", "cx")),
        ),
        between="the join of text and image",
    ),
    Family(
        "PixArt", ("PixArtMS",), (BlockList("blocks", _one("image")),), wrapper="apply_model", notes="alpha and sigma"
    ),
    Family("Cosmos 1", ("GeneralDIT",), (BlockList("blocks", _one("video")),), between="position embeddings, in place"),
    Family(
        "Cosmos Predict 2",
        ("MiniTrainDIT",),
        (BlockList("blocks", _one("video", "x_B_T_H_W_D")),),
    ),
    Family(
        "Anima",
        ("Anima",),
        (BlockList("blocks", _one("image", "x_B_T_H_W_D")),),
        since=NEWER,
        left_alone="llm_adapter: once a run, on the text",
    ),
    Family(
        "Mochi",
        ("AsymmDiTJoint",),
        (
            BlockList(
                "blocks",
                (HiddenState("video", "x", position=0, output=0), HiddenState("text", "y", position=2, output=1)),
            ),
        ),
        wrapper="apply_model",
    ),
    Family(
        "Kandinsky 5",
        ("Kandinsky5",),
        (BlockList("visual_transformer_blocks", _one("video", "visual_embed")),),
        since=NEWER,
        left_alone="text_transformer_blocks: prepare the text, two small blocks",
    ),
    Family("Krea 2", ("SingleStreamDiT",), (BlockList("blocks", _JOINT),), since=NEWER),
    Family("ERNIE-Image", ("ErnieImageModel",), (BlockList("layers", _JOINT),), wrapper="apply_model", since=NEWER),
    Family("Ideogram 4", ("Ideogram4Transformer2DModel",), (BlockList("layers", _JOINT),), since=NEWER),
    Family(
        "ACE-Step",
        ("ACEStepTransformer2DModel",),
        (BlockList("transformer_blocks", _one("audio", "hidden_states", None)),),
        left_alone="lyric_encoder: prepares the lyrics",
    ),
    Family(
        "ACE-Step 1.5",
        ("AceStepConditionGenerationModel",),
        (BlockList("decoder.layers", _one("audio", "hidden_states", None)),),
        wrapper="apply_model",
        since=NEWER,
        left_alone="lyric and timbre encoders, tokenizer, detokenizer: prepare the conditions",
    ),
    Family(
        "Stable Audio",
        ("AudioDiffusionTransformer",),
        (BlockList("transformer.layers", _one("audio")),),
        wrapper="apply_model",
    ),
    Family(
        "PixelDiT",
        ("PixDiT_T2I",),
        _PATCHES_AND_PIXELS,
        since=NEWER,
        between="the patches become the pixel blocks' condition",
    ),
    Family(
        "PiD",
        ("PidNet",),
        _PATCHES_AND_PIXELS,
        since=NEWER,
        between="the latent to decode is mixed in before patch blocks; the patches become the pixel blocks' condition",
        left_alone="lq_proj: its gates look at the hidden state, so they run in cached steps as well",
        notes="decodes latents in 4 steps: too few for DBCache's presets",
    ),
    Family(
        "TripoSplat",
        ("LatentSeqMMFlowModel",),
        (BlockList("blocks", _JOINT),),
        since=NEWER,
        between="repo_layers look at the hidden state",
        left_alone="repo_layers and the refiners: run in cached steps as well",
    ),
    Family(
        "SeedVR2",
        ("NaDiT",),
        (BlockList("blocks", (HiddenState("video", "vid", output=0), HiddenState("text", "txt", output=1))),),
        wrapper="apply_model",
        since=NEWER,
        no_cache="it restores in one step, so there is nothing to skip",
    ),
)
