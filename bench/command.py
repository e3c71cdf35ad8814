"""The benchmarks' command line: which parts run, and where their rows go."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from . import gpu
from .bare_packages import REPOSITORY
from .costs import costs, import_time
from .scenarios import matrix, published_rows, side_by_side
from .tables import Part, write_json


def end_to_end(arguments: argparse.Namespace) -> Part:
    """Run the end-to-end part, with ComfyUI in this process."""
    from .end_to_end import ROUNDS, compare, find_example, toy_digits
    from .headless import LoadedPack, start_comfyui

    if not os.environ.get("COMFYUI_PATH"):
        return Part("end_to_end", "Sampling in ComfyUI", skipped="COMFYUI_PATH is not set")
    start_comfyui(*([] if torch.cuda.is_available() else ["--cpu"]))
    import comfy.utils

    comfy.utils.set_progress_bar_enabled(False)
    pack = LoadedPack()
    make = find_example(arguments.model) if arguments.model else toy_digits
    return compare(make(pack), pack, arguments.rounds or ROUNDS)


def imports(arguments: argparse.Namespace) -> Part:
    """Run the import part."""
    if not os.environ.get("COMFYUI_PATH"):
        return Part("import", "ComfyUI importing the pack", skipped="COMFYUI_PATH is not set")
    return import_time()


PARTS: Mapping[str, Callable[[argparse.Namespace], Part]] = {
    "import": imports,
    "costs": lambda arguments: costs(),
    "published": lambda arguments: published_rows(),
    "policies": lambda arguments: side_by_side(),
    "matrix": lambda arguments: matrix(),
    "gpu": lambda arguments: gpu.measure_card(arguments.tokens, arguments.blocks),
    "end_to_end": end_to_end,
}


def machine() -> dict[str, Any]:
    """Describe what the figures were measured on."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        **gpu.describe_card(),
    }


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="nox -s bench --")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"some of {', '.join(PARTS)}; all without any")
    parser.add_argument("--json", type=Path, default=REPOSITORY / "bench_results.json", help="where all rows go")
    parser.add_argument("--model", default="", help="end_to_end: another model, as package.module:function")
    parser.add_argument("--rounds", type=int, default=0, help="end_to_end: how many rounds")
    parser.add_argument("--tokens", type=int, default=gpu.TOKENS, help="gpu: length of the sequence")
    parser.add_argument("--blocks", type=int, default=gpu.BLOCKS, help="gpu: how many blocks")
    arguments = parser.parse_args(words)
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}: there are {', '.join(PARTS)}")
    return arguments


def main() -> None:
    """Run the parts asked for."""
    arguments = parsed()
    parts = []
    for name in arguments.parts or PARTS:
        parts.append(PARTS[name](arguments))
        print(f"\n{name}: {parts[-1].text()}", flush=True)
    write_json(arguments.json, parts, machine())
    print(f"\nAll rows: {arguments.json}")
