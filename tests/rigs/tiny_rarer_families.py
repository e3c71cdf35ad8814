"""Tiny models of the families that few people use, and of those that DBCache leaves alone. Data only."""

from __future__ import annotations

import torch

from rigs.tiny_family import TinyFamily
from rigs.tiny_models import noise
from rigs.tiny_sizes import LUMINA, PIXELDIT, VIDEO_LATENT, WAN


def _small_music_transformer(diffusion_model: torch.nn.Module) -> None:
    import comfy.ops
    from comfy.ldm.minimax_music.dit import RotaryEmbedding, TransformerBlock

    ops, width, like = comfy.ops.disable_weight_init, 128, {"dtype": torch.float32, "device": None}
    dit = diffusion_model.diffusion_transformer
    dit.transformer.project_in = ops.Linear(2304, width, bias=False, **like)
    dit.transformer.project_out = ops.Linear(width, 128, bias=False, **like)
    dit.transformer.rotary_pos_emb = RotaryEmbedding(32, **like)
    blocks = [TransformerBlock(width, 64, 128, operations=ops, **like) for _ in range(6)]
    dit.transformer.layers = torch.nn.ModuleList(blocks)
    dit.to_timestep_embed[2] = ops.Linear(2048, width, **like)


def _music_buffers(diffusion_model: torch.nn.Module) -> None:
    for name, buffer in diffusion_model.named_buffers():
        if name.endswith("inv_freq"):
            buffer.copy_(torch.logspace(0, -1, len(buffer)))
        else:
            buffer.copy_(noise(*buffer.shape) * 0.1)


def _seedvr2_buffers(diffusion_model: torch.nn.Module) -> None:
    for name in ("positive_conditioning", "negative_conditioning"):
        buffer = getattr(diffusion_model, name)
        buffer.copy_(noise(*buffer.shape))


_SCAIL = {**WAN, "in_dim": 20}
_REFERENCE = {"reference_latents": [noise(1, 16, 1, 8, 8)], "pose_video_latent": noise(1, 16, 2, 8, 8)}
_SEEDVR2 = {
    "image_model": "seedvr2",
    "norm_eps": 1e-5,
    "num_layers": 6,
    "mlp_type": "swiglu",
    "vid_dim": 64,
    "heads": 2,
    "head_dim": 32,
    "mm_layers": 3,
    "rope_dim": 32,
    "vid_out_norm": True,
}

RARER_FAMILIES = (
    TinyFamily("wan21_scail", "WAN21_SCAIL", {**_SCAIL, "model_type": "scail"}, VIDEO_LATENT, extras=_REFERENCE),
    TinyFamily(
        "wan21_scail2",
        "WAN21_SCAIL2",
        {**_SCAIL, "model_type": "scail2"},
        VIDEO_LATENT,
        extras={**_REFERENCE, "driving_mask_28ch": noise(1, 2, 28, 8, 8), "ref_mask_28ch": noise(1, 3, 28, 8, 8)},
    ),
    TinyFamily(
        "wan22_wandancer",
        "WAN22_WanDancer",
        {
            **WAN,
            "model_type": "wandancer",
            "in_dim": 36,
            "audio_inject_layers": [0, 2, 5],
            "music_dim": 32,
            "music_heads": 2,
            "music_feature_dim": 35,
            "music_latent_dim": 32,
        },
        VIDEO_LATENT,
        extras={"audio_embed": noise(1, 12, 35)},
    ),
    TinyFamily("wan21_causal", "WAN21_CausalAR_T2V", {**WAN, "causal_ar": True}, VIDEO_LATENT, cached=False),
    TinyFamily(
        "zimage_pixel",
        "ZImagePixelSpace",
        {
            **LUMINA,
            "image_model": "zimage_pixel",
            "dim": 96,
            "patch_size": 4,
            "in_channels": 3,
            "decoder_hidden_size": 32,
            "decoder_num_res_blocks": 2,
            "decoder_max_freqs": 4,
            "decoder_in_channels": 48,
        },
        (1, 3, 32, 32),
    ),
    TinyFamily(
        "pid",
        "PiD",
        {**PIXELDIT, "image_model": "pid", "lq_hidden_dim": 16, "lq_latent_channels": 16},
        (1, 3, 64, 64),
        extras={"lq_latent": noise(1, 16, 2, 2), "degrade_sigma": torch.tensor([0.1])},
    ),
    TinyFamily(
        "minimax_music3",
        "MiniMaxMusic3",
        {"audio_model": "minimax_music3"},
        (1, 128, 24),
        text=8 * 4096,
        extras={"conditioning_scale": torch.ones(1, 1, 1)},
        shrink=_small_music_transformer,
        fill=_music_buffers,
    ),
    TinyFamily(
        "hidream_o1",
        "HiDreamO1",
        {
            "image_model": "hidream_o1",
            "text_config_overrides": {
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 6,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 32,
                "rope_dims": [6, 5, 5],
            },
            "vision_config_overrides": {
                "hidden_size": 32,
                "num_heads": 2,
                "intermediate_size": 64,
                "depth": 1,
                "deepstack_visual_indexes": (),
            },
        },
        (1, 3, 128, 128),
        extras={"text_input_ids": torch.arange(100, 120)[None]},
        cached=False,
        varies=False,
    ),
    TinyFamily(
        "seedvr2",
        "SeedVR2",
        _SEEDVR2,
        (1, 16, 1, 8, 8),
        text=5120,
        extras={"condition": noise(1, 17, 1, 8, 8)},
        cached=False,
        varies=False,
        fill=_seedvr2_buffers,
    ),
)
