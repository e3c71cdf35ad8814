"""Wan and what was made of it: one stack, one stream, and something else between its blocks each time."""

from __future__ import annotations

from ...stack.layout import HiddenState
from .entry import NEWER, BlockList, Family

_BLOCKS = (BlockList("blocks", (HiddenState("video", "x", position=0),)),)

WAN_FAMILIES = (
    Family("Wan", ("WanModel",), _BLOCKS, notes="Wan 2.1 and 2.2, text and image to video"),
    Family(
        "Wan VACE",
        ("VaceWanModel",),
        _BLOCKS,
        between="hints of vace_blocks, in place",
        left_alone="vace_blocks: their hints are added in cached steps as well",
    ),
    Family("Wan Camera", ("CameraWanModel",), _BLOCKS),
    Family(
        "Wan S2V",
        ("WanModel_S2V",),
        _BLOCKS,
        between="audio, in place",
        left_alone="audio_injector: its additions are made in cached steps as well",
    ),
    Family("Wan HuMo", ("HumoWanModel",), _BLOCKS),
    Family(
        "Wan Animate",
        ("AnimateWanModel",),
        _BLOCKS,
        between="the face, after every fifth block",
        left_alone="face_adapter, motion_encoder: run in cached steps as well",
    ),
    Family("Wan SCAIL", ("SCAILWanModel", "SCAIL2WanModel"), _BLOCKS, since=NEWER, notes="SCAIL and SCAIL-2"),
    Family(
        "WanDancer",
        ("WanDancerModel",),
        _BLOCKS,
        since=NEWER,
        between="music, in place",
        left_alone="music_injector: its additions are made in cached steps as well; music_encoder: prepares the music",
    ),
    Family(
        "Wan causal",
        ("CausalWanModel",),
        _BLOCKS,
        wrapper="apply_model",
        since=NEWER,
        no_cache="its blocks keep keys and values of earlier frames from call to call",
    ),
)
