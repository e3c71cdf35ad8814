"""Families that make pictures."""

from __future__ import annotations

from ...stack.layout import HiddenState, Segment
from .conventions import CONTROL, IMAGE_FIRST, JOINT, REFINERS, TEXT_FIRST, doubles_and_singles, one_state
from .entry import NEWER, About, BlockList, Family

_PATCHES_AND_PIXELS = (
    BlockList(
        "patch_blocks",
        Segment((HiddenState("patches", "x", position=0, output=0), HiddenState("text", "y", position=1, output=1))),
    ),
    BlockList("pixel_blocks", one_state("pixels")),
)

IMAGE_FAMILIES = (
    Family(
        "Flux",
        ("Flux",),
        doubles_and_singles(),
        about=About(between=CONTROL, notes="Flux.1, Flux.2, Kontext, LongCat-Image"),
    ),
    Family("Chroma", ("Chroma",), doubles_and_singles(), about=About(between=CONTROL)),
    Family(
        "Chroma Radiance",
        ("ChromaRadiance",),
        doubles_and_singles(),
        about=About(between=CONTROL, left_alone="nerf_blocks: on pixels after the stack, called once a tile"),
    ),
    Family(
        "Hunyuan-DiT",
        ("HunYuanDiT",),
        (BlockList("blocks", one_state("image")),),
        wrapper="apply_model",
        long_skips=True,
    ),
    Family(
        "Qwen-Image",
        ("QwenImageTransformer2DModel",),
        (BlockList("transformer_blocks", TEXT_FIRST),),
        about=About(between="ControlNet's additions", notes="Qwen-Image and Qwen-Image-Edit"),
    ),
    Family(
        "Mage-Flow",
        ("MageFlowTransformer2DModel",),
        (BlockList("transformer_blocks", TEXT_FIRST),),
        about=About(since=NEWER, between="ControlNet's additions"),
    ),
    Family(
        "Lens",
        ("LensTransformer2DModel",),
        (BlockList("transformer_blocks", TEXT_FIRST),),
        about=About(since=NEWER, between="ControlNet's additions"),
    ),
    Family(
        "JoyImage",
        ("JoyImageTransformer3DModel",),
        (BlockList("double_blocks", IMAGE_FIRST),),
        about=About(since=NEWER),
    ),
    Family(
        "Lumina 2",
        ("NextDiT",),
        (BlockList("layers", JOINT),),
        about=About(left_alone=REFINERS, notes="Lumina 2 and Z-Image"),
    ),
    Family(
        "Z-Image on pixels",
        ("NextDiTPixelSpace",),
        (BlockList("layers", JOINT),),
        about=About(since=NEWER, left_alone=f"{REFINERS}; dec_net: makes pixels of the stack's output"),
    ),
    Family(
        "OmniGen 2",
        ("OmniGen2Transformer2DModel",),
        (BlockList("layers", one_state("joint", "hidden_states")),),
        wrapper="apply_model",
        about=About(left_alone=REFINERS),
    ),
    Family(
        "Boogu",
        ("BooguTransformer2DModel",),
        (
            BlockList(
                "double_stream_layers",
                Segment(
                    (
                        HiddenState("image", "img_hidden_states", position=0, output=0),
                        HiddenState("text", "instruct_hidden_states", position=1, output=1),
                    )
                ),
            ),
            BlockList("single_stream_layers", one_state("joint", "hidden_states")),
        ),
        wrapper="apply_model",
        about=About(since=NEWER, between="the join of text and image", left_alone=REFINERS),
    ),
    Family(
        "HiDream-I1",
        ("HiDreamImageTransformer2DModel",),
        (
            BlockList(
                "double_stream_blocks",
                Segment((HiddenState("image", "image_tokens", output=0), HiddenState("text", "text_tokens", output=1))),
            ),
            BlockList("single_stream_blocks", one_state("joint", "image_tokens", None)),
        ),
        about=About(between="each block's own text tokens, joined before it and cut off after it"),
    ),
    Family(
        "HiDream-O1",
        ("HiDreamO1Transformer",),
        (BlockList("language_model.layers", one_state("joint", "x", None)),),
        no_cache="its blocks keep keys and values of their own from call to call",
        about=About(since=NEWER, left_alone="visual: looks at reference pictures"),
    ),
    Family(
        "Stable Diffusion 3",
        ("OpenAISignatureMMDITWrapper",),
        (
            BlockList(
                "joint_blocks",
                Segment(
                    (
                        HiddenState("text", "context", position=0, output=0, may_end=True),
                        HiddenState("image", "x", position=1, output=1),
                    )
                ),
            ),
        ),
        wrapper="apply_model",
        about=About(between="ControlNet's additions", notes="SD 3 and 3.5"),
    ),
    Family(
        "AuraFlow",
        ("MMDiT",),
        (
            BlockList(
                "double_layers",
                Segment(
                    (HiddenState("text", "c", position=0, output=0), HiddenState("image", "x", position=1, output=1))
                ),
            ),
            BlockList("single_layers", one_state("joint", "cx")),
        ),
        about=About(between="the join of text and image"),
    ),
    Family(
        "PixArt",
        ("PixArtMS",),
        (BlockList("blocks", one_state("image")),),
        wrapper="apply_model",
        about=About(notes="alpha and sigma"),
    ),
    Family(
        "Anima",
        ("Anima",),
        (BlockList("blocks", one_state("image", "x_B_T_H_W_D")),),
        about=About(since=NEWER, left_alone="llm_adapter: once a run, on the text"),
    ),
    Family("Krea 2", ("SingleStreamDiT",), (BlockList("blocks", JOINT),), about=About(since=NEWER)),
    Family(
        "ERNIE-Image",
        ("ErnieImageModel",),
        (BlockList("layers", JOINT),),
        wrapper="apply_model",
        about=About(since=NEWER),
    ),
    Family("Ideogram 4", ("Ideogram4Transformer2DModel",), (BlockList("layers", JOINT),), about=About(since=NEWER)),
    Family(
        "PixelDiT",
        ("PixDiT_T2I",),
        _PATCHES_AND_PIXELS,
        about=About(since=NEWER, between="the patches become the pixel blocks' condition"),
    ),
    Family(
        "PiD",
        ("PidNet",),
        _PATCHES_AND_PIXELS,
        about=About(
            since=NEWER,
            between="the latent to decode is mixed in before patch blocks; the patches become the pixel blocks'"
            " condition",
            left_alone="lq_proj: its gates look at the hidden state, so they run in cached steps as well",
            notes="decodes latents in 4 steps: too few for DBCache's presets",
        ),
    ),
)
