"""Tiny random-weight models of ComfyUI's own classes, and sampling through its own patcher, guider and samplers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import comfy.model_patcher
import comfy.nested_tensor
import comfy.sample
import comfy.samplers
import comfy.sd
import torch

from rigs import tiny_sizes
from rigs.tiny_models import config_of, noise, patcher_over, randomise

TEXT_WIDTH = tiny_sizes.TEXT
STEPS = 12


@dataclass(frozen=True)
class Family:
    """How to build and sample one tiny model."""

    name: str
    config: Callable[[], Any]
    latent: tuple
    list_sizes: dict[str, int]
    lora_layers: tuple[str, ...]
    scale: float = 0.5

    @property
    def blocks(self) -> int:
        return sum(self.list_sizes.values())


FLUX = Family(
    "flux",
    partial(config_of, "Flux", tiny_sizes.FLUX),
    (1, 16, 8, 8),
    {"double_blocks": 3, "single_blocks": 4},
    ("double_blocks.0.img_attn.qkv", "double_blocks.2.txt_mlp.0", "single_blocks.1.linear1", "final_layer.linear"),
)
WAN = Family(
    "wan",
    partial(config_of, "WAN21_T2V", tiny_sizes.WAN),
    (1, 16, 2, 8, 8),
    {"blocks": 8},
    ("blocks.0.self_attn.q", "blocks.3.cross_attn.v", "blocks.6.ffn.0", "head.head"),
)
FAMILIES = (FLUX, WAN)


_MINIMAX_H3_SIZES = {
    "image_model": "minimax_h3",
    "hidden_size": 128,
    "num_layers": 6,
    "token_refiner_num_layers": 1,
    "num_attention_heads": 4,
    "attention_head_dim": 32,
    "ffn_hidden_size": 128,
    "text_dim": TEXT_WIDTH,
    "timestep_input_dim": 32,
    "time_embed_hidden_size": 64,
    "time_embed_dim": 32,
    "rope_inv_freq_len": 4,
}
_LTX_2_SIZES = {
    **tiny_sizes.LTXV,
    "image_model": "ltxav",
    "audio_attention_head_dim": 16,
    "audio_num_attention_heads": 2,
    "audio_cross_attention_dim": 32,
    "connector_num_layers": 1,
    "connector_attention_head_dim": 32,
    "connector_num_attention_heads": 2,
}

# Latents of a video and an audio part, which ComfyUI nests.
MINIMAX_H3 = Family(
    "minimax_h3",
    partial(config_of, "MiniMaxH3", _MINIMAX_H3_SIZES),
    ((1, 24, 2, 4, 4), (1, 32, 2, 6)),
    {"blocks": 6},
    ("blocks.0.attn.qkv_proj", "blocks.3.mlp.fc1", "blocks.5.adaln_proj.linear"),
)
LTX_2 = Family(
    "ltx_2",
    partial(config_of, "LTXAV", _LTX_2_SIZES),
    ((1, 128, 2, 4, 4), (1, 8, 6, 16)),
    {"transformer_blocks": 6},
    ("transformer_blocks.0.attn1.to_q", "transformer_blocks.4.audio_ff.net.2"),
)
AUDIO_VIDEO_FAMILIES = (MINIMAX_H3, LTX_2)


def build(family: Family, seed: int = 0) -> comfy.model_patcher.ModelPatcher:
    """Return ComfyUI's own patcher over a new tiny model of ``family``."""
    model = family.config().get_model({}, "")
    randomise(model, family.scale, seed)
    return patcher_over(model)


def cond(seed: int, tokens: int = 8, **extras: Any) -> list:
    """Return a conditioning as text encoders make it."""
    return [[noise(1, tokens, TEXT_WIDTH, seed=seed), {"pooled_output": noise(1, 32, seed=seed + 100), **extras}]]


def sample(patcher: Any, family: Family, *, sampler: str = "euler", steps: int = STEPS, **options: Any) -> torch.Tensor:
    """Sample as the KSampler node does, in inference mode as the executor does.

    Options: ``cfg``, ``seed``, ``latent`` (shape), ``positive``, ``negative``, ``scheduler``, ``denoise`` and
    ``callback``. A nested result (video and audio) comes back flattened into one tensor.
    """
    shape = options.get("latent", family.latent)
    seed = options.get("seed", 1)
    nested = isinstance(shape[0], tuple)
    parts = shape if nested else (shape,)
    latents = [torch.zeros(part) for part in parts]
    noises = [noise(*part, seed=seed + index) for index, part in enumerate(parts)]
    nest = comfy.nested_tensor.NestedTensor if nested else (lambda tensors: tensors[0])
    with torch.inference_mode():
        samples = comfy.sample.sample(
            patcher,
            nest(noises),
            steps,
            options.get("cfg", 3.0),
            sampler,
            options.get("scheduler", "simple"),
            options.get("positive", cond(2)),
            options.get("negative", cond(3)),
            nest(latents),
            denoise=options.get("denoise", 1.0),
            callback=options.get("callback"),
            disable_pbar=True,
            seed=seed,
        )
    if not nested:
        return samples
    assert [part.shape for part in samples.unbind()] == [torch.Size(part) for part in parts]
    return torch.cat([part.flatten() for part in samples.unbind()])


def lora(patcher: Any, family: Family, *, rank: int = 4, seed: int = 50) -> dict[str, torch.Tensor]:
    """Return a LoRA file's contents for layers inside and outside the blocks of ``family``."""
    weights = patcher.model.state_dict()
    contents = {}
    for index, layer in enumerate(family.lora_layers):
        out_width, in_width = weights[f"diffusion_model.{layer}.weight"].shape[:2]
        contents[f"diffusion_model.{layer}.lora_up.weight"] = noise(out_width, rank, seed=seed + index) * 0.2
        contents[f"diffusion_model.{layer}.lora_down.weight"] = noise(rank, in_width, seed=seed + index + 20) * 0.2
        contents[f"diffusion_model.{layer}.alpha"] = torch.tensor(float(rank))
    return contents


def with_lora(patcher: Any, contents: dict[str, torch.Tensor], strength: float = 1.0) -> Any:
    """Return a clone with the LoRA, by ComfyUI's own loader."""
    patched, _ = comfy.sd.load_lora_for_models(patcher, None, contents, strength, 0.0)
    assert patched.patches, "the LoRA found no layer"
    return patched


def blocks_of(patcher: Any, family: Family) -> list[torch.nn.Module]:
    root = patcher.model.diffusion_model
    return [block for name in family.list_sizes for block in getattr(root, name)]


def weights_at_rest(patcher: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in patcher.model.state_dict().items()}


def easy_cache(model, name):
    """EasyCache or LazyCache by ComfyUI's own node."""
    from comfy_extras import nodes_easycache

    node = {"EasyCache": nodes_easycache.EasyCacheNode, "LazyCache": nodes_easycache.LazyCacheNode}[name]
    arguments = {"reuse_threshold": 0.2, "start_percent": 0.0, "end_percent": 1.0, "verbose": False}
    return node.execute(model, **arguments).result[0]


FORCED = {
    "preset": "custom",
    "Fn": 1,
    "Bn": 1,
    "warmup_steps": 3,
    "residual_diff_threshold": 1.0,
    "max_continuous_cached_steps": 2,
    "calibrator": "none",
    "compute_last_step": False,
}


def differing_prompts():
    """Prompts of different length, which ComfyUI cannot join into one call."""
    return {"positive": cond(2, tokens=8), "negative": cond(3, tokens=12)}
