"""Sizes of tiny models that others share or change a little, by the names of ComfyUI's own settings. Data only."""

from __future__ import annotations

import torch

TEXT = 64

FLUX = {
    "image_model": "flux",
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": 2,
    "vec_in_dim": 32,
    "context_in_dim": TEXT,
    "hidden_size": 64,
    "mlp_ratio": 4.0,
    "num_heads": 2,
    "depth": 3,
    "depth_single_blocks": 4,
    "axes_dim": [8, 12, 12],
    "theta": 10000,
    "qkv_bias": True,
    "guidance_embed": True,
    "txt_ids_dims": [],
}
FLUX2 = {
    **FLUX,
    "image_model": "flux2",
    "in_channels": 128,
    "out_channels": 128,
    "patch_size": 1,
    "vec_in_dim": None,
    "mlp_ratio": 3.0,
    "axes_dim": [8, 8, 8, 8],
    "theta": 2000,
    "qkv_bias": False,
    "guidance_embed": True,
    "txt_ids_dims": [3],
    "global_modulation": True,
    "mlp_silu_act": True,
    "ops_bias": False,
}
CHROMA = {
    **{key: value for key, value in FLUX.items() if key != "guidance_embed"},
    "image_model": "chroma",
    "in_channels": 64,
    "out_channels": 64,
    "in_dim": 64,
    "out_dim": 64,
    "hidden_dim": 64,
    "n_layers": 2,
}
RADIANCE = {
    **CHROMA,
    "image_model": "chroma_radiance",
    "in_channels": 3,
    "out_channels": 3,
    "patch_size": 16,
    "nerf_hidden_size": 16,
    "nerf_mlp_ratio": 2,
    "nerf_depth": 2,
    "nerf_max_freqs": 4,
    "nerf_tile_size": 512,
    "nerf_final_head_type": "conv",
    "nerf_embedder_dtype": torch.float32,
    "use_x0": False,
    "use_sequential_txt_ids": False,
}
HUNYUAN_VIDEO = {
    **FLUX,
    "image_model": "hunyuan_video",
    "theta": 256,
    "patch_size": [1, 2, 2],
    "guidance_embed": False,
    "byt5": False,
    "meanflow": False,
    "use_cond_type_embedding": False,
    "vision_in_dim": None,
    "meanflow_sum": False,
}
WAN = {
    "image_model": "wan2.1",
    "model_type": "t2v",
    "dim": 64,
    "ffn_dim": 128,
    "num_heads": 2,
    "num_layers": 8,
    "text_dim": TEXT,
    "in_dim": 16,
    "out_dim": 16,
    "freq_dim": 64,
    "patch_size": (1, 2, 2),
    "text_len": 32,
}
VIDEO_LATENT = (1, 16, 2, 8, 8)
QWEN = {
    "image_model": "qwen_image",
    "patch_size": 2,
    "in_channels": 64,
    "out_channels": 16,
    "num_layers": 6,
    "attention_head_dim": 32,
    "num_attention_heads": 2,
    "joint_attention_dim": TEXT,
    "axes_dims_rope": (8, 12, 12),
}
SD3 = {
    "in_channels": 16,
    "patch_size": 2,
    "depth": 4,
    "num_patches": 1024,
    "input_size": None,
    "pos_embed_scaling_factor": None,
    "pos_embed_max_size": 32,
    "adm_in_channels": 32,
    "context_embedder_config": {"target": "torch.nn.Linear", "params": {"in_features": TEXT, "out_features": 256}},
    "context_size": TEXT,
    "qk_norm": "rms",
}
LUMINA = {
    "image_model": "lumina2",
    "patch_size": 2,
    "in_channels": 16,
    "dim": 96,
    "cap_feat_dim": TEXT,
    "n_layers": 6,
    "n_heads": 2,
    "n_kv_heads": 1,
    "qk_norm": True,
    "axes_dims": [16, 16, 16],
    "axes_lens": [300, 512, 512],
    "multiple_of": 32,
}
COSMOS = {
    "max_img_h": 64,
    "max_img_w": 64,
    "max_frames": 16,
    "in_channels": 16,
    "out_channels": 16,
    "patch_spatial": 2,
    "patch_temporal": 1,
    "model_channels": 64,
    "num_blocks": 6,
    "num_heads": 2,
    "crossattn_emb_channels": TEXT,
    "pos_emb_cls": "rope3d",
    "use_adaln_lora": True,
    "adaln_lora_dim": 16,
}
COSMOS2 = {
    **COSMOS,
    "image_model": "cosmos_predict2",
    "pos_emb_learnable": True,
    "extra_per_block_abs_pos_emb": False,
    "rope_enable_fps_modulation": False,
}
LTXV = {
    "image_model": "ltxv",
    "in_channels": 128,
    "cross_attention_dim": 64,
    "attention_head_dim": 32,
    "num_attention_heads": 2,
    "caption_channels": TEXT,
    "num_layers": 6,
}
PIXART = {
    "input_size": 16,
    "hidden_size": 96,
    "depth": 6,
    "num_heads": 2,
    "caption_channels": TEXT,
    "pe_interpolation": 1,
}
OMNIGEN = {
    "in_channels": 16,
    "hidden_size": 96,
    "num_layers": 6,
    "num_refiner_layers": 2,
    "num_attention_heads": 2,
    "num_kv_heads": 1,
    "multiple_of": 32,
    "axes_dim_rope": (16, 16, 16),
}
KANDINSKY5 = {
    "image_model": "kandinsky5",
    "in_visual_dim": 16,
    "out_visual_dim": 16,
    "in_text_dim": TEXT,
    "in_text_dim2": 32,
    "time_dim": 32,
    "model_dim": 64,
    "ff_dim": 128,
    "num_text_blocks": 2,
    "num_visual_blocks": 6,
    "axes_dims": (8, 12, 12),
}
PIXELDIT = {
    "hidden_size": 64,
    "num_groups": 2,
    "pixel_hidden_size": 8,
    "pixel_attn_hidden_size": 32,
    "pixel_num_groups": 2,
    "patch_depth": 4,
    "pixel_depth": 4,
    "patch_size": 16,
    "txt_embed_dim": TEXT,
    "txt_max_length": 32,
}
