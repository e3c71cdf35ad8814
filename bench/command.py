"""The benchmarks' command line: which parts run, and where their rows go."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from dev.packages import REPOSITORY

from . import gpu
from .costs import costs, import_time
from .gpu_comfyui import measure_comfyui
from .machine import describe_machine
from .results_file import ResultsFile
from .scenarios import matrix, published_rows, side_by_side
from .tables import Part

log = logging.getLogger("dit_layerwise_offload.bench")


def end_to_end(arguments: argparse.Namespace) -> Part:
    """Run the end-to-end part, with ComfyUI in this process."""
    from dev.comfyui import LoadedPack, start_comfyui

    from .end_to_end import ROUNDS, compare, find_example, toy_digits

    if not os.environ.get("COMFYUI_PATH"):
        return Part("end_to_end", "Sampling in ComfyUI", skipped="COMFYUI_PATH is not set")
    start_comfyui(*limited_to(arguments.vram_gb))
    import comfy.utils

    comfy.utils.set_progress_bar_enabled(False)
    pack = LoadedPack()
    make = find_example(arguments.model) if arguments.model else toy_digits
    return compare(make(pack), pack, arguments.rounds or ROUNDS)


def limited_to(vram_gb: float) -> list[str]:
    """Limit this process to that many GB of the card, 0 for all of it, and return ComfyUI's arguments to know of it."""
    if not torch.cuda.is_available():
        return ["--cpu"]
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / 1e9
    if not 0 < vram_gb < total:
        return []
    torch.cuda.set_per_process_memory_fraction(vram_gb / total)
    return ["--reserve-vram", str((total - vram_gb) * 1e9 / 2**30)]


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
    "gpu_comfyui": lambda arguments: measure_comfyui(),
    "end_to_end": end_to_end,
}


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="nox -s bench --")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"some of {', '.join(PARTS)}; all without any")
    parser.add_argument("--json", type=Path, default=REPOSITORY / "bench_results.json", help="where all rows go")
    parser.add_argument("--verbose", action="store_true", help="log where a part failed")
    parser.add_argument("--model", default="", help="end_to_end: another model, as package.module:function")
    parser.add_argument("--vram-gb", type=float, default=0.0, help="end_to_end: use that much of the card; 0: all")
    parser.add_argument("--rounds", type=int, default=0, help="end_to_end: how many rounds")
    parser.add_argument("--tokens", type=int, default=gpu.TOKENS, help="gpu: length of the sequence")
    parser.add_argument("--blocks", type=int, default=gpu.BLOCKS, help="gpu: how many blocks")
    arguments = parser.parse_args(words)
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}: there are {', '.join(PARTS)}")
    return arguments


def measured(name: str, arguments: argparse.Namespace) -> Part:
    """Run one part; an error becomes its result, so that the others' are not lost."""
    try:
        return PARTS[name](arguments)
    except Exception as error:
        log.debug("%s", name, exc_info=True)
        return Part(name, "Failed", failed=f"{type(error).__name__}: {error}")


def main(words: list[str] | None = None) -> None:
    """Run the parts asked for.

    Raises:
        SystemExit: a part failed (status 1), or the command line is wrong (status 2).
    """
    arguments = parsed(words)
    logging.basicConfig(level=logging.DEBUG if arguments.verbose else logging.WARNING)
    try:
        results = ResultsFile(arguments.json, tuple(PARTS))
    except ValueError as error:
        raise SystemExit(f"bench: {error}") from error
    described = describe_machine()
    failed = []
    for name in arguments.parts or PARTS:
        part = measured(name, arguments)
        results.put(part, described)
        print(f"\n{name}: {part.text()}", flush=True)
        failed += [name] if part.failed else []
    print(f"\nAll rows: {arguments.json}")
    if failed:
        raise SystemExit(f"bench: failed: {', '.join(failed)}; --verbose says where.")
