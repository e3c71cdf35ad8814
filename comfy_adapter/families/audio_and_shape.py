"""Families that make sound alone, or shapes."""

from __future__ import annotations

from .conventions import JOINT, doubles_and_singles, one_state
from .entry import NEWER, About, BlockList, Family

AUDIO_AND_SHAPE_FAMILIES = (
    Family(
        "Hunyuan3D 2",
        ("Hunyuan3Dv2",),
        doubles_and_singles(),
        about=About(between="the join of the two streams", notes="shapes"),
    ),
    Family(
        "Hunyuan3D 2.1",
        ("HunYuanDiTPlain",),
        (BlockList("blocks", one_state("shape", "hidden_states")),),
        wrapper="apply_model",
        long_skips=True,
    ),
    Family(
        "MiniMax Music 3",
        ("MiniMaxMusic3DiT",),
        (BlockList("diffusion_transformer.transformer.layers", one_state("audio")),),
        wrapper="apply_model",
        about=About(
            since=NEWER,
            notes="music longer than 8 s is computed in overlapping windows within one call, which DBCache leaves"
            " alone",
        ),
    ),
    Family(
        "ACE-Step",
        ("ACEStepTransformer2DModel",),
        (BlockList("transformer_blocks", one_state("audio", "hidden_states", None)),),
        about=About(left_alone="lyric_encoder: prepares the lyrics"),
    ),
    Family(
        "ACE-Step 1.5",
        ("AceStepConditionGenerationModel",),
        (BlockList("decoder.layers", one_state("audio", "hidden_states", None)),),
        wrapper="apply_model",
        about=About(
            since=NEWER, left_alone="lyric and timbre encoders, tokenizer, detokenizer: prepare the conditions"
        ),
    ),
    Family(
        "Stable Audio",
        ("AudioDiffusionTransformer",),
        (BlockList("transformer.layers", one_state("audio")),),
        wrapper="apply_model",
    ),
    Family(
        "TripoSplat",
        ("LatentSeqMMFlowModel",),
        (BlockList("blocks", JOINT),),
        about=About(
            since=NEWER,
            between="repo_layers look at the hidden state",
            left_alone="repo_layers and the refiners: run in cached steps as well",
        ),
    ),
)
