"""Families that make video, some with sound. All Wans are one stack, each with something else between its blocks."""

from __future__ import annotations

from ...stack.layout import HiddenState, PackedStates, Segment
from .conventions import CONTROL, IMAGE_FIRST, TEXT_REFINER, doubles_and_singles, one_state
from .entry import NEWER, About, BlockList, Family

_WAN = (BlockList("blocks", one_state("video")),)

VIDEO_FAMILIES = (
    Family(
        "HunyuanVideo",
        ("HunyuanVideo",),
        doubles_and_singles(),
        about=About(between=CONTROL, left_alone=TEXT_REFINER, notes="HunyuanVideo 1.0 and 1.5, HunyuanImage 2.1"),
    ),
    Family("Wan", ("WanModel",), _WAN, about=About(notes="Wan 2.1 and 2.2, text and image to video")),
    Family(
        "Wan VACE",
        ("VaceWanModel",),
        _WAN,
        about=About(
            between="hints of vace_blocks, in place",
            left_alone="vace_blocks: their hints are added in cached steps as well",
        ),
    ),
    Family("Wan Camera", ("CameraWanModel",), _WAN),
    Family(
        "Wan S2V",
        ("WanModel_S2V",),
        _WAN,
        about=About(
            between="audio, in place", left_alone="audio_injector: its additions are made in cached steps as well"
        ),
    ),
    Family("Wan HuMo", ("HumoWanModel",), _WAN),
    Family(
        "Wan Animate",
        ("AnimateWanModel",),
        _WAN,
        about=About(
            between="the face, after every fifth block",
            left_alone="face_adapter, motion_encoder: run in cached steps as well",
        ),
    ),
    Family("Wan SCAIL", ("SCAILWanModel", "SCAIL2WanModel"), _WAN, about=About(since=NEWER, notes="SCAIL and SCAIL-2")),
    Family(
        "WanDancer",
        ("WanDancerModel",),
        _WAN,
        about=About(
            since=NEWER,
            between="music, in place",
            left_alone="music_injector: its additions are made in cached steps as well; music_encoder: prepares the"
            " music",
        ),
    ),
    Family(
        "Wan causal",
        ("CausalWanModel",),
        _WAN,
        wrapper="apply_model",
        no_cache="its blocks keep keys and values of earlier frames from call to call",
        about=About(since=NEWER),
    ),
    Family(
        "CogVideoX", ("CogVideoXTransformer3DModel",), (BlockList("blocks", IMAGE_FIRST),), about=About(since=NEWER)
    ),
    Family("LTX-Video", ("LTXVModel",), (BlockList("transformer_blocks", one_state("video")),)),
    Family(
        "LTX-2",
        ("LTXAVModel",),
        (
            BlockList(
                "transformer_blocks",
                Segment(
                    (
                        HiddenState("video", "x", position=0, item=0, output=0),
                        HiddenState("audio", "x", position=0, item=1, output=1),
                    )
                ),
            ),
        ),
        about=About(since=NEWER, left_alone="embeddings connectors: once a run, on the text"),
    ),
    Family(
        "MiniMax-H3",
        ("MiniMaxH3Model",),
        (
            BlockList(
                "blocks",
                # Packed [text | conditions | audio | video]; ``mod_segments`` has a span for each, the targets last.
                Segment(
                    (HiddenState("packed", "x", position=0),),
                    PackedStates("mod_segments", 2, ("audio", "video"), "context"),
                ),
            ),
        ),
        about=About(
            since=NEWER,
            left_alone="token_refiner: prepares the text, two small blocks",
            notes="one picture or video at a time",
        ),
    ),
    Family(
        "Cosmos 1",
        ("GeneralDIT",),
        (BlockList("blocks", one_state("video")),),
        about=About(between="position embeddings, in place"),
    ),
    Family("Cosmos Predict 2", ("MiniTrainDIT",), (BlockList("blocks", one_state("video", "x_B_T_H_W_D")),)),
    Family(
        "Mochi",
        ("AsymmDiTJoint",),
        (
            BlockList(
                "blocks",
                Segment(
                    (HiddenState("video", "x", position=0, output=0), HiddenState("text", "y", position=2, output=1))
                ),
            ),
        ),
        wrapper="apply_model",
    ),
    Family(
        "Kandinsky 5",
        ("Kandinsky5",),
        (BlockList("visual_transformer_blocks", one_state("video", "visual_embed")),),
        about=About(since=NEWER, left_alone="text_transformer_blocks: prepare the text, two small blocks"),
    ),
    Family(
        "SeedVR2",
        ("NaDiT",),
        (BlockList("blocks", Segment((HiddenState("video", "vid", output=0), HiddenState("text", "txt", output=1)))),),
        wrapper="apply_model",
        no_cache="it restores in one step, so there is nothing to skip",
        about=About(since=NEWER),
    ),
)
