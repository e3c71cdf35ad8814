"""Builds and samples the tiny families, and caches them once more by hand, to have something to compare with."""

from __future__ import annotations

from typing import Any

import comfy.model_patcher
import comfy.nested_tensor
import comfy.patcher_extension
import comfy.sample
import torch

from rigs.tiny_family import TinyFamily
from rigs.tiny_models import config_of, noise, patcher_over, randomise

STEPS = 6
WARMUP, IN_A_ROW = 2, 2
HITS = (2, 3, 5)
FORCED = {
    "preset": "custom",
    "Fn": 1,
    "Bn": 1,
    "warmup_steps": WARMUP,
    "residual_diff_threshold": 1.0,
    "max_continuous_cached_steps": IN_A_ROW,
    "calibrator": "none",
    "compute_last_step": False,
}


def build(family: TinyFamily) -> comfy.model_patcher.ModelPatcher:
    """Return ComfyUI's own patcher over a new tiny model; skips what this ComfyUI lacks."""
    model = config_of(family.config, family.unet).get_model(family.state(), "")
    family.shrink(model.diffusion_model)
    randomise(model, family.scale)
    with torch.no_grad():
        family.fill(model.diffusion_model)
    return patcher_over(model)


def cond(family: TinyFamily, seed: int, tokens: int = 8) -> list:
    """Return a conditioning as the family's text encoder makes it."""
    extras = dict(family.extras)
    if family.masked:
        extras["attention_mask"] = torch.ones(1, tokens, dtype=torch.long)
    return [[noise(1, tokens, family.text, seed=seed), {"pooled_output": noise(1, 32, seed=seed + 100), **extras}]]


def sample(
    patcher: Any, family: TinyFamily, tokens: tuple[int, int] = (8, 8), sampler: str = "euler", **options: Any
) -> torch.Tensor:
    """Sample with classifier-free guidance; ``tokens`` are the lengths of the two prompts."""
    nested = isinstance(family.latent[0], tuple)
    shapes = family.latent if nested else (family.latent,)
    noises = [noise(*shape, seed=1 + index) for index, shape in enumerate(shapes)]
    zeros = [torch.zeros(shape) for shape in shapes]
    nest = comfy.nested_tensor.NestedTensor if nested else (lambda parts: parts[0])
    with torch.inference_mode():
        samples = comfy.sample.sample(
            patcher,
            nest(noises),
            STEPS,
            3.0,
            sampler,
            "simple",
            cond(family, 2, tokens[0]),
            cond(family, 3, tokens[1]),
            nest(zeros),
            disable_pbar=True,
            seed=1,
            **options,
        )
    parts = samples.unbind() if nested else [samples]
    assert [tuple(part.shape) for part in parts] == [tuple(shape) for shape in shapes]
    return torch.cat([part.flatten() for part in parts])


class ByHand:
    """The cache written out plainly: whole steps keep ``out - in`` over a segment's middle, cached steps add it.

    It only knows which steps are cached; how arguments are read it takes from the family's table entry.
    """

    def __init__(self, stack: Any) -> None:
        self._stack = stack
        self._step = -1
        self._kept: dict[tuple, dict[str, torch.Tensor]] = {}

    def on(self, patcher: Any) -> Any:
        """Return a clone of ``patcher`` that is cached by hand."""
        copy = patcher.clone()
        kinds = comfy.patcher_extension.WrappersMP
        copy.add_wrapper_with_key(kinds.PREDICT_NOISE, "by hand", self._count)
        copy.add_wrapper_with_key(kinds.APPLY_MODEL, "by hand", self._call)
        return copy

    def _count(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        self._step += 1
        return executor(*args, **kwargs)

    def _call(self, executor: Any, x: Any, t: Any, c_concat: Any, c_crossattn: Any, control: Any, options: dict, **kw):
        branch = tuple(options["uuids"])
        for placed in self._stack.layout.segments:
            middle = self._stack.layout.middle_of(placed, FORCED["Fn"], FORCED["Bn"])
            for index in middle:
                self._replace(index, placed, middle, (branch, placed.start))
        try:
            return executor(x, t, c_concat, c_crossattn, control, options, **kw)
        finally:
            for block in self._stack.blocks:
                block.__dict__.pop("forward", None)

    def _replace(self, index: int, placed: Any, middle: range, key: tuple) -> None:
        block, segment = self._stack.blocks[index], placed.segment
        whole, hit, scratch = type(block).forward, self._step in HITS, self._kept

        def forward(*args: Any, **kwargs: Any) -> Any:
            hidden = segment.read_inputs(args, kwargs)
            before = (*key, "before")
            if index == middle[0]:
                scratch[before] = {name: value.clone() for name, value in hidden.items()}
            if not hit:
                result = whole(block, *args, **kwargs)
                if index == middle[-1]:
                    after = segment.read_outputs(result)
                    scratch[key] = {name: value - scratch[before][name] for name, value in after.items()}
                return result
            if index != middle[-1]:
                return segment.build_output(hidden)
            return segment.build_output({name: add + scratch[before][name] for name, add in scratch[key].items()})

        block.forward = forward
