"""Prints the family table's row for a model class of ComfyUI, from one call of a tiny model on the CPU.

``nox -s describe -- comfy.ldm.wan.model.WanModel ARGUMENTS --inputs INPUTS``. ARGUMENTS are the constructor's, as JSON;
dtype, device and operations are filled in. INPUTS are those of ``forward``, as JSON: a list of whole numbers is the
shape of a random tensor, ``{"shape": [1, 8], "dtype": "int64"}`` one of another type, anything else is passed as it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import json
from typing import Any

import torch
from pack.comfy_adapter.families.find import find_stack, lists_left_alone
from pack.comfy_adapter.families.row import table_row, with_argument_names
from pack.dbcache.calls import CallInfo
from pack.dbcache.proving import StackProver
from pack.stack.call import StackCall

from .comfyui import start_comfyui

EXAMPLE = """--inputs '{"x": [1, 16, 1, 8, 8], "timesteps": [1], "context": [1, 4, 32]}'"""


def build(path: str, arguments: dict[str, Any]) -> torch.nn.Module:
    """Return a model of the class at ``path``, ``module.Class``, with small random weights.

    Raises:
        SystemExit: there is no such class, or it does not take the arguments.
    """
    module, _, name = path.rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SystemExit(f"{path} is no class of this ComfyUI: {error}. Name it as module.Class.") from error
    import comfy.ops

    usual = {"dtype": torch.float32, "device": "cpu", "operations": comfy.ops.disable_weight_init}
    parameters = inspect.signature(made).parameters
    filled = {key: value for key, value in usual.items() if key in parameters} | arguments
    try:
        model = made(**filled)
    except Exception as error:  # whatever it is, the arguments are to be changed
        shown = ", ".join(str(one) for one in parameters.values())
        raise SystemExit(
            f"{name} could not be built with {arguments or 'no arguments'}: {type(error).__name__}: {error}\nGive small"
            f" sizes as JSON behind the class. It takes: {shown}"
        ) from error
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)
    return model.eval()


def tensors(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``forward`` that ``inputs`` describes (see the module's docstring)."""
    return {name: _tensor(value) for name, value in inputs.items()}


def _tensor(value: Any) -> Any:
    if isinstance(value, dict) and "shape" in value:
        return torch.rand(value["shape"]).to(getattr(torch, value.get("dtype", "float32")))
    is_shape = isinstance(value, list) and all(isinstance(one, int) for one in value)
    return torch.rand(value) if is_shape else value


def describe(model: torch.nn.Module, inputs: dict[str, Any]) -> str:
    """Return the row for ``model``, proven in one call of its forward with ``inputs``.

    Raises:
        SystemExit: ``forward`` does not take the inputs, or the stack could not be proven.
    """
    try:
        stack = find_stack(model, families=())
    except ValueError as error:
        raise SystemExit(str(error)) from error
    seen: list[Any] = []

    def wrapper(executor: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(executor)
        return executor(*args, **kwargs)

    parameters = inspect.signature(model.forward).parameters
    missing = [name for name, one in parameters.items() if _is_missing(one, inputs)]
    if missing:
        raise SystemExit(f"forward also takes {', '.join(missing)}. Give shapes as in {EXAMPLE}")
    if "transformer_options" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        inputs = {"transformer_options": {"wrappers": {"diffusion_model": {"describe": [wrapper]}}}, **inputs}
    prover = StackProver(len(stack.blocks), CallInfo(step=0, sigma=1.0))
    try:
        with torch.no_grad():
            StackCall(stack.blocks, prover).run(lambda: model(**inputs))
    except Exception as error:  # whatever it is, the inputs are to be changed
        raise SystemExit(
            f"forward failed: {type(error).__name__}: {error}\nGive other shapes as in {EXAMPLE}"
        ) from error
    layout = prover.layout()
    if layout is None:
        raise SystemExit(
            f"{stack.family.name} cannot be described by watching it: {prover.why}. Write its row by hand, see"
            " comfy_adapter/families/entry.py."
        )
    family = dataclasses.replace(stack.family, wrapper="diffusion_model" if seen else "apply_model")
    return table_row(family, with_argument_names(layout, stack.blocks[0]))


def warning(model: torch.nn.Module) -> str:
    """Return a warning of the lists of blocks that the row of ``model`` leaves out, empty where it has them all."""
    family = find_stack(model, families=()).family
    others = ", ".join(lists_left_alone(model, family))
    if not others:
        return ""
    return (
        f"Warning: the row has the blocks of {family.lists[0].path} only. Those of {others} would not be streamed and"
        " would always run. If the hidden states pass through them too, write the row by hand: one BlockList for each"
        " list in execution order, as comfy_adapter/families/conventions.py: doubles_and_singles does for Flux. If not,"
        " say so in About(left_alone=...)."
    )


def _is_missing(parameter: inspect.Parameter, inputs: dict[str, Any]) -> bool:
    variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    return not variadic and parameter.default is parameter.empty and parameter.name not in inputs


def main() -> None:
    """Print the row."""
    parser = argparse.ArgumentParser(prog="nox -s describe --", description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="the diffusion model's class, as module.Class")
    parser.add_argument("arguments", nargs="?", type=json.loads, default={}, help="the constructor's, as JSON")
    parser.add_argument("--inputs", type=json.loads, default={}, help="shapes of forward's arguments, as JSON")
    given = parser.parse_args()
    start_comfyui("--cpu")
    model = build(given.model, given.arguments)
    print(f"{describe(model, tensors(given.inputs))}\n")
    left_out = warning(model)
    if left_out:
        print(f"{left_out}\n")
    print(
        "Paste the row into the tuple of its kind, in comfy_adapter/families/image.py, video.py or audio_and_shape.py."
    )
    print("Give family and hidden states the names users know, and run 'nox -s families'. Add a tiny model to the tiny")
    print("families in tests/rigs/: the tests then run on the family.")


if __name__ == "__main__":
    main()
