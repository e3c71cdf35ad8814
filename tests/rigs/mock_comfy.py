"""A stand-in for the parts of ComfyUI that the adapter touches: patcher, wrappers, guider, sampler.

Small enough to read; the same ideas under the same names, none of the code. :func:`installed` puts it into
``sys.modules`` for as long as the adapter is being imported.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
import uuid
from enum import Enum

import torch

from rigs.mock_wrappers import WrapperExecutor, WrappersMP, wrappers_in

CPU = torch.device("cpu")


def wrap_diffusion_model(original, model, transformer_options):
    """What the toys' forward goes through."""
    return WrapperExecutor(original, model, wrappers_in(WrappersMP.DIFFUSION_MODEL, transformer_options)).execute


class VRAMState(Enum):
    DISABLED = 0
    NORMAL_VRAM = 3
    HIGH_VRAM = 4


def module_size(module):
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())


class ModelSampling:
    def percent_to_sigma(self, percent):
        if percent <= 0.0:
            return 1e9
        return 0.0 if percent >= 1.0 else 1.0 - percent


class BaseModel(torch.nn.Module):
    """The underlying model: the diffusion model and what loading keeps on it."""

    def __init__(self, diffusion_model):
        super().__init__()
        self.diffusion_model = diffusion_model
        self.model_sampling = ModelSampling()
        self.device = CPU
        self.model_loaded_weight_memory = 0
        self.current_weight_patches_uuid = None

    def apply_model(self, x, t, c_crossattn=None, control=None, transformer_options={}, **kwargs):  # noqa: B006
        wrappers = wrappers_in(WrappersMP.APPLY_MODEL, transformer_options)
        return WrapperExecutor(self._apply_model, self, wrappers).execute(
            x, t, c_crossattn, control, transformer_options, **kwargs
        )

    def _apply_model(self, x, t, c_crossattn=None, control=None, transformer_options={}, **kwargs):  # noqa: B006
        return x - t.reshape(-1, 1, 1) * self.diffusion_model(
            x, t, c_crossattn, control=control, transformer_options=transformer_options, **kwargs
        )


class ModelPatcher:
    """Clones share one model; a patch is a tensor to add. Loading replaces patched weights and remembers them."""

    def __init__(self, model, load_device=CPU, offload_device=CPU, size=0, weight_inplace_update=False):
        self.model = model
        self.load_device = load_device
        self.offload_device = offload_device
        self.size = size
        self.weight_inplace_update = weight_inplace_update
        self.patches = {}
        self.backup = {}
        self.hook_backup = {}
        self.weight_wrapper_patches = {}
        self.force_cast_weights = False
        self.attachments = {}
        self.wrappers = {}
        self.model_options = {"transformer_options": {}}
        self.patches_uuid = uuid.uuid4()

    def clone(self):
        n = self.__class__(self.model, self.load_device, self.offload_device, self.model_size())
        n.patches = {key: list(value) for key, value in self.patches.items()}
        n.backup = self.backup
        n.attachments = dict(self.attachments)
        n.wrappers = {kind: {key: list(v) for key, v in group.items()} for kind, group in self.wrappers.items()}
        n.patches_uuid = self.patches_uuid
        return n

    def set_attachments(self, key, value):
        self.attachments[key] = value

    def get_wrappers(self, kind, key):
        return self.wrappers.get(kind, {}).get(key, [])

    def add_wrapper_with_key(self, kind, key, wrapper):
        self.wrappers.setdefault(kind, {}).setdefault(key, []).append(wrapper)

    def add_patches(self, patches, strength=1.0):
        for key, value in patches.items():
            self.patches.setdefault(key, []).append(strength * value)
        self.patches_uuid = uuid.uuid4()

    def get_model_object(self, name):
        return getattr(self.model, name)

    def use_ejected(self):
        return contextlib.nullcontext()

    def model_size(self):
        return self.size or module_size(self.model)

    def loaded_size(self):
        return self.model.model_loaded_weight_memory

    def patch_weight_to_device(self, key, device_to=None):
        if key not in self.patches:
            return
        module, name = self._place(key)
        weight = module._parameters[name]
        self.backup.setdefault(key, weight)
        patched = weight.detach().clone()
        for value in self.patches[key]:
            patched += value
        module._parameters[name] = torch.nn.Parameter(patched, requires_grad=False)

    def _place(self, key):
        path, name = key.rsplit(".", 1)
        return self.model.get_submodule(path), name

    def _load_list(self):
        return [
            (module_size(module), name, module, [key for key, _ in module.named_parameters(recurse=False)])
            for name, module in self.model.named_modules()
            if list(module.named_parameters(recurse=False)) and not list(module.children())
        ]

    def load(self, device_to=None, lowvram_model_memory=0, force_patch_weights=False, full_load=False):
        loaded = 0
        for size, name, module, parameters in self._load_list():
            for parameter in parameters:
                self.patch_weight_to_device(f"{name}.{parameter}", device_to=device_to)
            module.to(device_to)
            loaded += size
        self.model.model_loaded_weight_memory = loaded
        self.model.current_weight_patches_uuid = self.patches_uuid

    def partially_load(self, device_to, extra_memory=0, force_patch_weights=False):
        stale = self.model.current_weight_patches_uuid not in (None, self.patches_uuid)
        self.unpatch_model(self.offload_device, unpatch_weights=stale)
        if self.model.current_weight_patches_uuid == self.patches_uuid:
            return 0
        self.load(device_to, lowvram_model_memory=self.loaded_size() + extra_memory, full_load=True)
        return self.loaded_size()

    def partially_unload(self, device_to, memory_to_free=0, force_patch_weights=False):
        return 0

    def unpatch_model(self, device_to=None, unpatch_weights=True):
        if not unpatch_weights:
            return
        for key, weight in self.backup.items():
            module, name = self._place(key)
            module._parameters[name] = weight
        self.backup.clear()
        self.model.current_weight_patches_uuid = None
        self.model.model_loaded_weight_memory = 0

    def detach(self, unpatch_all=True):
        if unpatch_all:
            self.unpatch_model(self.offload_device)

    def patch_hooks(self, hooks):
        self.hook_backup = {}


def load_models_gpu(patcher):
    patcher.detach(unpatch_all=False)
    patcher.partially_load(patcher.load_device, 1e32)


class Guider:
    """Euler over a schedule, with positive and negative conditions joined in one call or split in two.

    Args:
        layout: how the conditions of step i are called: a list of lists of condition indices, for example
            ``[[1, 0]]`` (joined) or ``[[0], [1]]`` (split). A function of the step index may be given.
    """

    def __init__(self, model_patcher, conds, cfg=3.0, layout=((1, 0),)):
        self.model_patcher = model_patcher
        self.model_options = model_patcher.model_options
        self.conds = conds
        self.cfg = cfg
        self.layout = layout if callable(layout) else lambda step: layout
        self.uuids = [uuid.uuid4() for _ in conds]

    def sample(self, noise, sigmas, control=None):
        options = {**self.model_options["transformer_options"], "wrappers": self.model_patcher.wrappers}
        original, self.model_options = self.model_options, {"transformer_options": options}
        try:
            wrappers = wrappers_in(WrappersMP.OUTER_SAMPLE, options)
            return WrapperExecutor(self.outer_sample, self, wrappers).execute(noise, None, None, sigmas, control)
        finally:
            self.model_options = original

    def outer_sample(self, noise, latent_image, sampler, sigmas, control=None):
        load_models_gpu(self.model_patcher)
        x = noise.clone()
        for step, sigma in enumerate(sigmas[:-1]):
            denoised = self.denoise(x, sigma, self.layout(step), control)
            x = x + (x - denoised) / sigma * (sigmas[step + 1] - sigma)
        return x

    def denoise(self, x, sigma, groups, control=None):
        results = {}
        for group in groups:
            batch = torch.cat([x] * len(group))
            context = torch.cat([self.conds[index].expand(x.shape[0], -1, -1) for index in group])
            options = {
                **self.model_options["transformer_options"],
                "cond_or_uncond": list(group),
                "uuids": [self.uuids[index] for index in group],
                "sigmas": sigma.reshape(1),
            }
            output = self.model_patcher.model.apply_model(
                batch, sigma.expand(batch.shape[0]), context, control=control, transformer_options=options
            )
            results.update(zip(group, output.chunk(len(group)), strict=True))
        positive = results[0]
        return positive if 1 not in results else results[1] + self.cfg * (positive - results[1])


@contextlib.contextmanager
def installed():
    """Put the stand-in into ``sys.modules`` under ComfyUI's names, and take it out again."""
    comfy = types.ModuleType("comfy")
    comfy.__path__ = []
    patcher_extension = types.ModuleType("comfy.patcher_extension")
    patcher_extension.WrappersMP = WrappersMP
    model_management = types.ModuleType("comfy.model_management")
    model_management.module_size = module_size
    model_management.is_device_cpu = lambda device: device.type == "cpu"
    model_management.vram_state = VRAMState.NORMAL_VRAM
    model_management.VRAMState = VRAMState
    model_management.get_free_memory = lambda device: 1e12
    model_patcher = types.ModuleType("comfy.model_patcher")
    model_patcher.ModelPatcher = ModelPatcher
    comfy.patcher_extension = patcher_extension
    comfy.model_patcher = model_patcher
    comfy.model_management = model_management
    samplers = types.ModuleType("comfy.samplers")
    samplers.KSAMPLER = type("KSAMPLER", (), {})
    comfy.samplers = samplers
    modules = {
        "comfy": comfy,
        "comfy.samplers": samplers,
        "comfy.patcher_extension": patcher_extension,
        "comfy.model_management": model_management,
        "comfy.model_patcher": model_patcher,
    }
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "comfy"}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


def import_adapter(package):
    """Import every module of ``package``'s adapter against the stand-in and return ``apply``."""
    with installed():
        return importlib.import_module(f"{package}.comfy_adapter.apply")
