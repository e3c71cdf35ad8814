"""What the pack itself costs: hooks and gate in microseconds a block, import in milliseconds. Run by ``nox -s bench``.

Blocks do nothing and tensors have one element, so that what is left is the pack's own time (and cache-dit's).
Medians over many calls, on one core.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from headless import REPOSITORY, bare_package

BLOCKS = 50
REPEATS = 300


class Nothing(torch.nn.Module):
    def forward(self, x):
        return x


def median_call(call: Callable[[int], None]) -> float:
    """Return the median duration of a call in microseconds; ``call`` is told its number."""
    durations = []
    for number in range(REPEATS + 20):
        started = time.perf_counter()
        call(number)
        durations.append(time.perf_counter() - started)
    return statistics.median(durations[20:]) * 1e6


def costs() -> dict[str, float]:
    """Return microseconds a block for each part, beyond running the bare blocks."""
    from pack.dbcache.branches import CallInfo
    from pack.dbcache.layout import PlacedSegment, Segment, StackLayout, Stream
    from pack.dbcache.session import DBCacheSession
    from pack.dbcache.settings import DBCacheSettings
    from pack.offload.device import SynchronousDevice
    from pack.offload.hook_manager import HookManager
    from pack.offload.streamer import BlockStreamer

    blocks = [Nothing() for _ in range(BLOCKS)]
    layout = StackLayout((PlacedSegment(Segment((Stream("x", "x", position=0),)), 0, BLOCKS),))
    streamer = BlockStreamer({}, BLOCKS, SynchronousDevice(torch.device("cpu")), 1)
    x = torch.zeros(1)

    def run() -> None:
        for block in blocks:
            block(x)

    def bare(number: int) -> None:
        run()

    def hooked(number: int) -> None:
        streamer.begin_call(plan=None, next_head=BLOCKS)
        with HookManager(blocks, [streamer]):
            run()
        streamer.end_call()

    def gated(**values: object) -> Callable[[int], None]:
        settings = DBCacheSettings(preset="custom", fn=1, bn=0, max_continuous=-1, **values)
        session = DBCacheSession(settings, REPEATS + 20, layout)

        def call(number: int) -> None:
            gate = session.begin_call(CallInfo(step=number, sigma=0.5))
            with HookManager(blocks, [gate]):
                run()
            gate.finish()

        return call

    base = median_call(bare)
    parts = {
        "hooks, every block resident": hooked,
        "gate, computed call": gated(warmup_steps=1, threshold=1e-9),
        "gate, cached call": gated(warmup_steps=1, threshold=1.0),
    }
    return {name: (median_call(call) - base) / BLOCKS for name, call in parts.items()}


def import_time() -> float:
    """Return the median time in milliseconds that ComfyUI spends on importing the pack's entry point and nodes."""
    script = (
        "import importlib.util, sys, time; sys.path.insert(0, sys.argv[1] + '/bench');"
        "from headless import start_comfyui; start_comfyui('--cpu'); import nodes, comfy_api.latest;"
        "spec = importlib.util.spec_from_file_location('pack', sys.argv[1] + '/__init__.py');"
        "sys.modules['pack'] = module = importlib.util.module_from_spec(spec);"
        "started = time.perf_counter(); spec.loader.exec_module(module);"
        "print((time.perf_counter() - started) * 1e3)"
    )
    command = [sys.executable, "-c", script, str(REPOSITORY)]
    results = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
    return statistics.median(float(result.stdout.split()[-1]) for result in results)


def main() -> None:
    bare_package("pack")
    torch.set_num_threads(1)
    for name, microseconds in costs().items():
        print(f"{name:30s} {microseconds:7.1f} us a block")
    print(f"{'importing the pack':30s} {import_time():7.1f} ms")


if __name__ == "__main__":
    main()
