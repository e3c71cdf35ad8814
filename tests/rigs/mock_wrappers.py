"""A stand-in for ComfyUI's wrappers around a model's functions."""

from __future__ import annotations


class WrappersMP:
    OUTER_SAMPLE = "outer_sample"
    PREDICT_NOISE = "predict_noise"
    APPLY_MODEL = "apply_model"
    DIFFUSION_MODEL = "diffusion_model"


class WrapperExecutor:
    """Calls the wrappers in order, then the original."""

    def __init__(self, original, class_obj, wrappers):
        self.original = original
        self.class_obj = class_obj
        self._wrappers = wrappers

    def __call__(self, *args, **kwargs):
        return WrapperExecutor(self.original, self.class_obj, self._wrappers[1:]).execute(*args, **kwargs)

    def execute(self, *args, **kwargs):
        if not self._wrappers:
            return self.original(*args, **kwargs)
        return self._wrappers[0](self, *args, **kwargs)


def wrappers_in(kind, transformer_options):
    return [one for group in transformer_options.get("wrappers", {}).get(kind, {}).values() for one in group]
