"""The ways of skipping work that are compared for quality, each as a recipe that can be sent to a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pack.dbcache.calibrators import CALIBRATORS

from dev.comfyui import LoadedPack

THRESHOLDS = (0.05, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65)
FEWER_THRESHOLDS = (0.08, 0.12, 0.2, 0.3, 0.4, 0.5)
ORDERS = {"taylorseer": (1, 2)}
FEWER_TRIED = (("taylorseer", 2), ("foca", 1), ("dmd", 1))
WHOLE_STEP_THRESHOLDS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.3, 1.6)
STARTS = (0.0, 0.15)
MASKS = ("slow", "medium", "fast", "ultra")
PRESETS = ("quality", "balanced", "fast")
EASY, LAZY = "EasyCache tuned", "LazyCache tuned"


@dataclass(frozen=True)
class Method:
    """One setting of one way: ``group`` is the curve it belongs to, ``setting`` how it is told from the others."""

    group: str
    setting: str
    inputs: tuple[tuple[str, Any], ...]

    def apply(self, pack: LoadedPack, model: Any) -> Any:
        """Return ``model`` with this way of skipping on it."""
        inputs = dict(self.inputs)
        if self.group in (EASY, LAZY):
            return _whole_step_cache(self.group, model, **inputs)
        return pack.execute("DiTDBCache", model, **inputs)[0]


def all_methods() -> Iterator[Method]:
    """Yield every setting that is tried."""
    plain = {"preset": "custom", "Fn": 1, "Bn": 0, "warmup_steps": 1, "max_continuous_cached_steps": -1}
    for group, calibrator, order in _calibrators():
        for threshold in FEWER_THRESHOLDS if (calibrator, order) in FEWER_TRIED else THRESHOLDS:
            inputs = {**plain, "residual_diff_threshold": threshold, "calibrator": calibrator}
            yield _method(group, f"threshold {threshold}", calibrator_order=order, **inputs)
    for mask in MASKS:
        for policy in ("static", "dynamic"):
            inputs = {**plain, "residual_diff_threshold": 0.3, "scm": mask, "scm_policy": policy}
            yield _method("DBCache SCM, taylorseer 1", f"{mask}, {policy}", calibrator="taylorseer", **inputs)
    for preset in PRESETS:
        yield _method("DBCache presets", preset, preset=preset)
    for group in (EASY, LAZY):
        for start in STARTS:
            for threshold in WHOLE_STEP_THRESHOLDS:
                yield _method(group, f"threshold {threshold}, start {start}", threshold=threshold, start=start)


def _calibrators() -> Iterator[tuple[str, str, int]]:
    """Yield (group, calibrator, order)."""
    for calibrator in CALIBRATORS:
        orders = ORDERS.get(calibrator, (1,))
        for order in orders:
            yield f"DBCache {calibrator}" + (f" {order}" if len(orders) > 1 else ""), calibrator, order


def _method(group: str, setting: str, **inputs: Any) -> Method:
    return Method(group, setting, tuple(inputs.items()))


def _whole_step_cache(group: str, model: Any, threshold: float, start: float) -> Any:
    """ComfyUI's own node at its defaults but for threshold and start, looking at every pixel of the small latent."""
    from comfy_extras import nodes_easycache

    node = nodes_easycache.EasyCacheNode if group == EASY else nodes_easycache.LazyCacheNode
    model = node.execute(model, threshold, start, 0.95, False).result[0]
    options = model.model_options["transformer_options"]
    holder = options["easycache"]
    if group == EASY:
        holder = _copying_holder(nodes_easycache)(
            threshold, start, 0.95, 1, False, output_channels=holder.output_channels
        )
    holder.subsample_factor = 1
    options["easycache"] = holder
    return model


def _copying_holder(nodes_easycache: Any) -> type:
    """EasyCache adds its difference to the tensor it was given, which in float32 is the sampler's own latent: a copy
    is what it means to work on, and to measure it without one would be to beat a bug."""

    class CopyingHolder(nodes_easycache.EasyCacheHolder):
        def apply_cache_diff(self, x, uuids):
            return super().apply_cache_diff(x.clone(), uuids)

        def clone(self):
            settings = (self.reuse_threshold, self.start_percent, self.end_percent, self.subsample_factor)
            return CopyingHolder(*settings, self.offload_cache_diff, self.verbose, self.output_channels)

    return CopyingHolder
