"""Tiny random-weight models of every DiT family that ComfyUI ships, built through ComfyUI's own model classes.

Data only: the class in ``comfy.supported_models``, its sizes, a latent, and what a text encoder would give it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from rigs.tiny_models import noise
from rigs.tiny_sizes import (
    CHROMA,
    COSMOS,
    COSMOS2,
    FLUX,
    FLUX2,
    HUNYUAN_VIDEO,
    KANDINSKY5,
    LTXV,
    LUMINA,
    OMNIGEN,
    PIXART,
    PIXELDIT,
    QWEN,
    RADIANCE,
    SD3,
    TEXT,
    VIDEO_LATENT,
    WAN,
)


@dataclass(frozen=True)
class TinyFamily:
    """How to build and sample one tiny model.

    Attributes:
        name: the variant's name, as used in the project's notes on families.
        config: class in ``comfy.supported_models``.
        unet: its sizes.
        latent: shape of a latent.
        text: width of a text embedding, or a function (tokens, seed) -> tensor.
        extras: further entries of a conditioning.
        scale: of the random matrices; smaller ones make a smoother model.
        varies: whether prompts of different lengths can be sampled.
        masked: whether text encoders give an attention mask with it.
        state: weights that are needed to make the model at all.
        cached: whether DBCache can be used on it.
        shrink: makes a diffusion model small whose sizes are fixed in its class.
        fill: gives buffers values that come with a checkpoint.
    """

    name: str
    config: str
    unet: dict[str, Any]
    latent: tuple
    text: int = TEXT
    extras: dict[str, Any] = field(default_factory=dict)
    scale: float = 0.5
    varies: bool = True
    masked: bool = False
    state: Callable[[], dict[str, Any]] = dict
    cached: bool = True
    shrink: Callable[[torch.nn.Module], None] = lambda model: None
    fill: Callable[[torch.nn.Module], None] = lambda model: None


def _seconds() -> dict[str, torch.Tensor]:
    """Return weights for Stable Audio's two number embedders, which ComfyUI makes of uninitialised memory."""
    from comfy.ldm.audio.embedders import NumberConditioner

    prefixes = ("conditioner.conditioners.seconds_start.", "conditioner.conditioners.seconds_total.")
    weights = NumberConditioner(768, 0, 512).state_dict()
    return {prefix + key: 0.1 * noise(*value.shape, seed=7) for prefix in prefixes for key, value in weights.items()}


TINY_FAMILIES = (
    TinyFamily("flux", "Flux", FLUX, (1, 16, 8, 8)),
    TinyFamily("flux2", "Flux2", FLUX2, (1, 128, 8, 8)),
    TinyFamily(
        "longcat_image",
        "LongCatImage",
        {**FLUX, "image_model": "longcat_image", "guidance_embed": False, "vec_in_dim": None, "txt_ids_dims": [1, 2]},
        (1, 16, 8, 8),
    ),
    TinyFamily("chroma", "Chroma", CHROMA, (1, 16, 8, 8)),
    TinyFamily("chroma_radiance", "ChromaRadiance", RADIANCE, (1, 3, 64, 64)),
    TinyFamily(
        "hunyuan3d2",
        "Hunyuan3Dv2",
        {
            "image_model": "hunyuan3d2",
            "in_channels": 16,
            "context_in_dim": TEXT,
            "hidden_size": 64,
            "num_heads": 2,
            "depth": 3,
            "depth_single_blocks": 4,
            "qkv_bias": True,
            "guidance_embed": False,
        },
        (1, 16, 32),
    ),
    TinyFamily(
        "hunyuan3d2_1",
        "Hunyuan3Dv2_1",
        {
            "image_model": "hunyuan3d2_1",
            "in_channels": 16,
            "hidden_size": 64,
            "context_dim": TEXT,
            "depth": 7,
            "num_heads": 2,
            "num_moe_layers": 2,
            "num_experts": 2,
            "moe_top_k": 1,
            "guidance_cond_proj_dim": 64,
        },
        (1, 16, 32),
        varies=False,
    ),
    TinyFamily("qwen_image", "QwenImage", QWEN, (1, 16, 1, 8, 8)),
    TinyFamily(
        "qwen_image_edit", "QwenImage", QWEN, (1, 16, 1, 8, 8), extras={"reference_latents": [noise(1, 16, 1, 8, 8)]}
    ),
    TinyFamily(
        "mage_flow",
        "MageFlow",
        {
            "image_model": "mage_flow",
            "in_channels": 128,
            "out_channels": 128,
            "num_layers": 6,
            "attention_head_dim": 32,
            "num_attention_heads": 2,
            "joint_attention_dim": TEXT,
            "axes_dims_rope": (8, 12, 12),
        },
        (1, 128, 8, 8),
    ),
    TinyFamily(
        "lens",
        "Lens",
        {
            "image_model": "lens",
            "in_channels": 128,
            "out_channels": 32,
            "num_layers": 6,
            "attention_head_dim": 32,
            "num_attention_heads": 2,
            "enc_hidden_dim": 16,
            "axes_dims_rope": (8, 12, 12),
        },
        (1, 128, 8, 8),
    ),
    TinyFamily(
        "joyimage",
        "JoyImage",
        {
            "image_model": "joyimage",
            "patch_size": [1, 2, 2],
            "in_channels": 16,
            "hidden_size": 128,
            "num_attention_heads": 1,
            "text_dim": TEXT,
            "num_layers": 6,
        },
        (1, 16, 1, 8, 8),
    ),
    TinyFamily("sd3", "SD3", SD3, (1, 16, 8, 8)),
    TinyFamily("sd35_medium", "SD3", {**SD3, "x_block_self_attn_layers": [0, 1, 2]}, (1, 16, 8, 8)),
    TinyFamily(
        "auraflow",
        "AuraFlow",
        {
            "cond_seq_dim": TEXT,
            "max_seq": 64,
            "dim": 64,
            "n_layers": 6,
            "n_double_layers": 2,
            "n_heads": 2,
            "global_conddim": 64,
            "in_channels": 4,
            "out_channels": 4,
            "patch_size": 2,
        },
        (1, 4, 8, 8),
    ),
    TinyFamily(
        "pixart_alpha",
        "PixArtAlpha",
        {**PIXART, "image_model": "pixart_alpha", "micro_condition": True},
        (1, 4, 48, 48),
    ),
    TinyFamily(
        "pixart_sigma",
        "PixArtSigma",
        {**PIXART, "image_model": "pixart_sigma", "micro_condition": False},
        (1, 4, 48, 48),
    ),
    TinyFamily(
        "hunyuan_dit",
        "HunyuanDiT",
        {
            "image_model": "hydit",
            "hidden_size": 64,
            "depth": 8,
            "num_heads": 2,
            "text_states_dim": TEXT,
            "text_states_dim_t5": TEXT,
            "text_len": 8,
            "text_len_t5": 8,
            "mlp_ratio": 4.0,
            "size_cond": True,
            "use_style_cond": True,
            "in_channels": 4,
        },
        (1, 4, 16, 16),
        extras={
            "attention_mask": torch.ones(1, 8),
            "conditioning_mt5xl": noise(1, 8, TEXT),
            "attention_mask_mt5xl": torch.ones(1, 8),
        },
        varies=False,
    ),
    TinyFamily("hunyuan_video", "HunyuanVideo", HUNYUAN_VIDEO, (1, 16, 3, 8, 8)),
    TinyFamily(
        "hunyuan_image21",
        "HunyuanImage21",
        {
            **HUNYUAN_VIDEO,
            "in_channels": 64,
            "out_channels": 64,
            "patch_size": [1, 1],
            "axes_dim": [16, 16],
            "vec_in_dim": None,
        },
        (1, 64, 8, 8),
    ),
    TinyFamily(
        "hunyuan_video15",
        "HunyuanVideo15",
        {
            **HUNYUAN_VIDEO,
            "in_channels": 65,
            "out_channels": 32,
            "patch_size": [1, 1, 1],
            "vec_in_dim": None,
            "use_cond_type_embedding": True,
        },
        (1, 32, 3, 6, 6),
    ),
    TinyFamily(
        "ltxv",
        "LTXV",
        LTXV,
        (1, 128, 3, 4, 4),
        masked=True,
    ),
    TinyFamily("wan21_t2v", "WAN21_T2V", WAN, VIDEO_LATENT),
    TinyFamily("wan21_i2v", "WAN21_I2V", {**WAN, "model_type": "i2v", "in_dim": 36}, VIDEO_LATENT),
    TinyFamily(
        "wan21_vace",
        "WAN21_Vace",
        {**WAN, "model_type": "vace", "vace_layers": 4, "vace_in_dim": 96},
        VIDEO_LATENT,
        extras={"vace_frames": [noise(1, 32, 2, 8, 8)], "vace_mask": [noise(1, 64, 2, 8, 8)], "vace_strength": [1.0]},
    ),
    TinyFamily(
        "wan21_camera",
        "WAN21_Camera",
        {**WAN, "model_type": "camera", "in_dim": 32},
        VIDEO_LATENT,
        extras={"camera_conditions": noise(1, 24, 2, 64, 64)},
    ),
    TinyFamily("wan22_t2v5b", "WAN22_T2V", {**WAN, "in_dim": 48, "out_dim": 48}, (1, 48, 2, 8, 8)),
    TinyFamily(
        "wan22_s2v",
        "WAN22_S2V",
        {
            **WAN,
            "model_type": "s2v",
            "audio_dim": 32,
            "num_audio_token": 2,
            "audio_inject_layers": [0, 2, 5],
            "cond_dim": 16,
        },
        VIDEO_LATENT,
        extras={"audio_embed": noise(1, 25, 32, 8)},
    ),
    TinyFamily(
        "wan22_animate",
        "WAN22_Animate",
        {**WAN, "num_layers": 10, "model_type": "animate", "in_dim": 36, "motion_encoder_dim": 512},
        VIDEO_LATENT,
        extras={"pose_video_latent": noise(1, 16, 2, 8, 8)},
    ),
    TinyFamily(
        "wan21_humo",
        "WAN21_HuMo",
        {**WAN, "model_type": "humo", "in_dim": 36, "audio_token_num": 16},
        VIDEO_LATENT,
        extras={"audio_embed": noise(1, 2, 8, 5, 1280)},
    ),
    TinyFamily("lumina2", "Lumina2", LUMINA, (1, 16, 8, 8)),
    TinyFamily(
        "zimage",
        "ZImage",
        {
            **LUMINA,
            "dim": 256,
            "axes_dims": [32, 48, 48],
            "n_kv_heads": 2,
            "z_image_modulation": True,
            "time_scale": 1000.0,
            "pad_tokens_multiple": 32,
            "ffn_dim_multiplier": 2.0,
        },
        (1, 16, 8, 8),
    ),
    TinyFamily(
        "omnigen2",
        "Omnigen2",
        {**OMNIGEN, "image_model": "omnigen2", "text_feat_dim": TEXT},
        (1, 16, 8, 8),
        masked=True,
    ),
    TinyFamily(
        "boogu",
        "Boogu",
        {**OMNIGEN, "image_model": "boogu", "num_double_stream_layers": 2, "instruction_feat_dim": TEXT},
        (1, 16, 8, 8),
        masked=True,
    ),
    TinyFamily(
        "hidream",
        "HiDream",
        {
            "image_model": "hidream",
            "patch_size": 2,
            "in_channels": 16,
            "out_channels": 16,
            "num_layers": 3,
            "num_single_layers": 4,
            "attention_head_dim": 32,
            "num_attention_heads": 2,
            "caption_channels": [TEXT, TEXT],
            "text_emb_dim": 32,
            "num_routed_experts": 2,
            "num_activated_experts": 1,
            "axes_dims_rope": (8, 12, 12),
            "max_resolution": (32, 32),
            "llama_layers": [0, 1, 2, 3, 3, 3, 3],
        },
        (1, 16, 8, 8),
        extras={"conditioning_llama3": noise(1, 4, 6, TEXT)},
    ),
    TinyFamily("cosmos_predict2", "CosmosT2IPredict2", COSMOS2, (1, 16, 1, 16, 16)),
    TinyFamily("anima", "Anima", {**COSMOS2, "image_model": "anima"}, (1, 16, 1, 16, 16)),
    TinyFamily(
        "cosmos1",
        "CosmosT2V",
        {
            **COSMOS,
            "block_config": "FA-CA-MLP",
            "block_x_format": "THWBD",
            "affline_emb_norm": True,
            "extra_per_block_abs_pos_emb": True,
            "extra_per_block_abs_pos_emb_type": "learnable",
        },
        (1, 16, 2, 16, 16),
    ),
    TinyFamily(
        "mochi",
        "GenmoMochi",
        {
            "image_model": "mochi_preview",
            "patch_size": 2,
            "in_channels": 12,
            "hidden_size_x": 64,
            "hidden_size_y": 32,
            "depth": 6,
            "num_heads": 2,
            "mlp_ratio_x": 192.0,
            "mlp_ratio_y": 4.0,
            "use_t5": True,
            "t5_feat_dim": TEXT,
            "t5_token_length": 16,
            "learn_sigma": False,
            "qkv_bias": False,
            "out_bias": True,
            "qk_norm": True,
            "rope_theta": 10000.0,
        },
        (1, 12, 2, 8, 8),
        masked=True,
    ),
    TinyFamily(
        "kandinsky5",
        "Kandinsky5",
        {**KANDINSKY5, "visual_embed_dim": 132},
        (1, 16, 2, 8, 8),
    ),
    TinyFamily(
        "kandinsky5_image",
        "Kandinsky5Image",
        {**KANDINSKY5, "visual_embed_dim": 64},
        (1, 16, 8, 8),
    ),
    TinyFamily(
        "krea2",
        "Krea2",
        {
            "image_model": "krea2",
            "features": 64,
            "tdim": 32,
            "txtdim": 16,
            "heads": 2,
            "kvheads": 1,
            "layers": 6,
            "txtlayers": 4,
            "txtheads": 2,
            "txtkvheads": 2,
            "channels": 16,
        },
        (1, 16, 1, 8, 8),
    ),
    TinyFamily(
        "ernie_image",
        "ErnieImage",
        {
            "image_model": "ernie",
            "hidden_size": 64,
            "num_attention_heads": 2,
            "num_layers": 6,
            "ffn_hidden_size": 128,
            "in_channels": 128,
            "out_channels": 128,
            "text_in_dim": TEXT,
            "rope_axes_dim": (8, 12, 12),
        },
        (1, 128, 8, 8),
    ),
    TinyFamily(
        "cogvideox",
        "CogVideoX_T2V",
        {
            "image_model": "cogvideox",
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "in_channels": 16,
            "out_channels": 16,
            "time_embed_dim": 32,
            "text_embed_dim": TEXT,
            "num_layers": 6,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 5,
            "max_text_seq_length": 32,
            "use_rotary_positional_embeddings": True,
        },
        (1, 16, 2, 8, 8),
    ),
    TinyFamily(
        "ideogram4",
        "Ideogram4",
        {
            "image_model": "ideogram4",
            "in_channels": 128,
            "num_layers": 6,
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "intermediate_size": 128,
            "adaln_dim": 32,
            "mrope_section": (4, 6, 6),
            "llm_features_dim": TEXT,
        },
        (1, 128, 8, 8),
    ),
    TinyFamily(
        "ace_step",
        "ACEStep",
        {
            "audio_model": "ace",
            "in_channels": 8,
            "num_layers": 6,
            "inner_dim": 64,
            "attention_head_dim": 32,
            "num_attention_heads": 2,
            "mlp_ratio": 2.0,
            "text_embedding_dim": TEXT,
            "ssl_encoder_depths": [2, 2],
            "ssl_latent_dims": [16, 16],
            "lyric_encoder_vocab_size": 50,
            "lyric_hidden_size": 1024,
        },
        (1, 8, 16, 24),
        extras={"conditioning_lyrics": torch.arange(10)[None]},
    ),
    TinyFamily(
        "stable_audio",
        "StableAudio",
        {
            "audio_model": "dit1.0",
            "io_channels": 16,
            "embed_dim": 768,
            "cond_token_dim": 768,
            "project_cond_tokens": False,
            "global_cond_dim": 1536,
            "depth": 6,
            "num_heads": 12,
        },
        (1, 16, 24),
        text=768,
        state=_seconds,
    ),
    TinyFamily(
        "pixeldit",
        "PixelDiTT2I",
        {**PIXELDIT, "image_model": "pixeldit_t2i"},
        (1, 3, 64, 64),
    ),
    TinyFamily(
        "triposplat",
        "TripoSplat",
        {
            "image_model": "triposplat",
            "q_token_length": 32,
            "in_channels": 16,
            "model_channels": 64,
            "cond_channels": TEXT,
            "out_channels": 16,
            "num_blocks": 6,
            "num_refiner_blocks": 2,
            "num_head_channels": 32,
            "cond2_channels": 16,
        },
        ((1, 32, 16), (1, 1, 5)),
    ),
)
