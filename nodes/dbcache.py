"""The node DBCache."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..dbcache.calibrators import CALIBRATORS
from ..dbcache.rules import CACHE_DEVICES, PRESET_NAMES, SCM_MASKS, SCM_POLICIES, DBCacheSettings

_CUSTOM = " Used with preset custom."


def _calibrators() -> str:
    return " ".join(f"{name}: {choice.blurb}; keeps {choice.keeps}." for name, choice in CALIBRATORS.items())


class DiTDBCache(io.ComfyNode):
    """Skips the middle blocks of calls that barely differ from the last computed one."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="DiTDBCache",
            display_name="DBCache",
            category="DiT",
            description=(
                "Runs the first blocks of each model call, compares them with the last computed call, and skips the"
                " middle blocks when little has changed. Faster, and the picture changes a little. Do not combine with"
                " EasyCache, LazyCache or TeaCache."
            ),
            inputs=[
                io.Model.Input("model", tooltip="A diffusion transformer."),
                io.Combo.Input(
                    "preset",
                    options=list(PRESET_NAMES),
                    default="quality",
                    tooltip="quality changes the picture least, fast saves most. custom uses the values from Fn to"
                    " max_cached_steps.",
                ),
                io.Int.Input(
                    "Fn", default=1, min=1, max=10000, tooltip="First blocks: always run, and compared." + _CUSTOM
                ),
                io.Int.Input("Bn", default=2, min=0, max=10000, tooltip="Last blocks that always run." + _CUSTOM),
                io.Int.Input(
                    "warmup_steps", default=8, min=0, max=10000, tooltip="First steps, always computed." + _CUSTOM
                ),
                io.Float.Input(
                    "residual_diff_threshold",
                    default=0.08,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Relative change below which a call is cached. 0 never caches, 1 always does within the"
                    " caps." + _CUSTOM,
                ),
                io.Int.Input(
                    "max_continuous_cached_steps",
                    default=2,
                    min=-1,
                    max=10000,
                    tooltip="Most cached steps in a row. -1: no limit." + _CUSTOM,
                ),
                io.Int.Input(
                    "max_cached_steps",
                    default=-1,
                    min=-1,
                    max=10000,
                    tooltip="Most cached steps of a run. -1: no limit." + _CUSTOM,
                ),
                io.Combo.Input(
                    "calibrator",
                    options=list(CALIBRATORS),
                    default="secant",
                    tooltip="Forecast of what the skipped blocks add: closer to the exact picture than repeating, for"
                    " more memory. " + _calibrators(),
                ),
                io.Int.Input(
                    "calibrator_order",
                    default=1,
                    min=1,
                    max=4,
                    tooltip="Order of taylorseer and sigma_taylor: 1 or 2, more is not measured.",
                ),
                io.Combo.Input(
                    "scm",
                    options=list(SCM_MASKS),
                    default="none",
                    tooltip="Step computation mask: which steps may be cached at all. From 9 steps up.",
                ),
                io.Combo.Input(
                    "scm_policy",
                    options=list(SCM_POLICIES),
                    default="dynamic",
                    tooltip="Steps the mask leaves open: dynamic still compares, static always caches, whatever"
                    " threshold and caps say.",
                ),
                io.Float.Input(
                    "start_percent",
                    default=0.0,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Where in the denoising process caching may begin.",
                ),
                io.Float.Input(
                    "end_percent",
                    default=1.0,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Where in the denoising process caching ends.",
                ),
                io.Combo.Input(
                    "cache_device",
                    options=list(CACHE_DEVICES),
                    default="auto",
                    tooltip="Where the cache lives between calls. cpu: in main memory, one tensor at a time on the GPU;"
                    " slower. auto and device: on the GPU.",
                ),
                io.Boolean.Input("verbose", default=False, tooltip="Log every model call: cached or not, and why."),
                io.Boolean.Input(
                    "compute_last_step",
                    default=True,
                    optional=True,
                    tooltip="Always compute the last step of the schedule, which shows most in the picture.",
                ),
            ],
            outputs=[io.Model.Output(tooltip="The same model, cached.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        preset: str,
        Fn: int,
        Bn: int,
        warmup_steps: int,
        residual_diff_threshold: float,
        max_continuous_cached_steps: int,
        max_cached_steps: int,
        calibrator: str,
        calibrator_order: int,
        scm: str,
        scm_policy: str,
        start_percent: float,
        end_percent: float,
        cache_device: str,
        verbose: bool,
        compute_last_step: bool = True,
    ) -> io.NodeOutput:
        from ..comfy_adapter.apply import apply_dbcache

        settings = DBCacheSettings(
            preset=preset,
            fn=Fn,
            bn=Bn,
            warmup_steps=warmup_steps,
            threshold=residual_diff_threshold,
            max_continuous=max_continuous_cached_steps,
            max_cached=max_cached_steps,
            calibrator=calibrator,
            calibrator_order=calibrator_order,
            scm=scm,
            scm_policy=scm_policy,
            start_percent=start_percent,
            end_percent=end_percent,
            cache_device=cache_device,
            verbose=verbose,
            compute_last_step=compute_last_step,
        )
        return io.NodeOutput(apply_dbcache(model, settings, getattr(cls.hidden, "unique_id", None)))
