"""Quality against speed on the toy model: what each way of skipping work costs in the picture. ``nox -s quality``.

Every setting is sampled through ComfyUI's KSampler path on 32 seeds, eight in a batch, which each way decides about as
one; for each way and share of skipped block work the best setting is chosen there, and only these are sampled on 32
other seeds, whose figures are the result. Work is counted where it is done: block attentions that ran, against those
of the plain run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from dev.comfyui import LoadedPack, start_comfyui
from dev.packages import REPOSITORY

from .quality_methods import Method, all_methods
from .quality_report import choose, draw_chart, write_table

CFG = 2.5
SCHEDULER = "simple"
BATCH = 8
TUNING_SEEDS = tuple(range(1000, 1032))
HELD_OUT_SEEDS = tuple(range(2000, 2032))
RUNS = tuple((steps, sampler) for steps in (20, 50) for sampler in ("euler", "dpmpp_2m", "res_multistep"))


@dataclass(frozen=True)
class Result:
    """One setting on one set of seeds: mean PSNR in dB and its 10th percentile, mean SSIM, share of blocks skipped."""

    steps: int
    sampler: str
    group: str
    setting: str
    psnr: float
    psnr_low: float
    ssim: float
    skipped: float


class Worker:
    """Real ComfyUI with the toy model in a process of its own, counting the blocks that run."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        start_comfyui("--cpu", "--use-pytorch-cross-attention")
        self.pack = LoadedPack()
        self.model, *_, latent = self.pack.execute("DiTToyModel", labels="0", batch_size=1)
        self._latent = latent["samples"]
        self._ran = 0
        for block in self.model.model.diffusion_model.blocks:
            block.self_attn.register_forward_pre_hook(self._count)
        self._plain: dict[tuple, tuple[torch.Tensor, int]] = {}

    def _count(self, *_: Any) -> None:
        self._ran += 1

    def sample(self, model: Any, seeds: Sequence[int], steps: int, sampler: str) -> tuple[torch.Tensor, int]:
        """Return (pictures as IMAGE, blocks run), one picture a seed, sampled as one batch like KSampler does."""
        import comfy.sample

        labels = " ".join(str(seed % 10) for seed in seeds)
        positive, negative = self.pack.module("toy.prompts").conditioning(labels, len(seeds))
        noise = torch.cat([comfy.sample.prepare_noise(self._latent, seed) for seed in seeds])
        self._ran = 0
        with torch.inference_mode():
            samples = comfy.sample.sample(
                model,
                noise,
                steps,
                CFG,
                sampler,
                SCHEDULER,
                positive,
                negative,
                torch.zeros_like(noise),
                disable_pbar=True,
                seed=seeds[0],
            )
            return self.pack.execute("DiTToyDecode", {"samples": samples})[0], self._ran

    def plain(self, *run: Any) -> tuple[torch.Tensor, int]:
        """Return the plain pictures of (seeds, steps, sampler), sampled once."""
        if run not in self._plain:
            self._plain[run] = self.sample(self.model, *run)
        return self._plain[run]

    def measure(self, method: Method, steps: int, sampler: str, seeds: Sequence[int]) -> Result:
        """Return what a setting does on these seeds, sampled ``BATCH`` at a time."""
        compare = self.pack.module("pictures.compare")
        model = method.apply(self.pack, self.model)
        scores, shares = [], []
        for first in range(0, len(seeds), BATCH):
            batch = tuple(seeds[first : first + BATCH])
            reference, whole = self.plain(batch, steps, sampler)
            images, ran = self.sample(model, batch, steps, sampler)
            scores += compare.compare_frames(reference, images)
            shares.append(1 - ran / whole)
        finite = sorted(min(score.psnr, 100.0) for score in scores)  # identical pictures count as 100 dB
        return Result(
            steps,
            sampler,
            method.group,
            method.setting,
            statistics.mean(finite),
            finite[math.floor(len(finite) * 0.1)],
            statistics.mean(score.ssim for score in scores),
            statistics.mean(shares),
        )


@cache
def worker() -> Worker:
    """Return this process's worker, started on first use."""
    return Worker()


def job(arguments: tuple[Method, int, str, Sequence[int]]) -> Result:
    return worker().measure(*arguments)


class Measurements:
    """Everything measured so far, kept in a file, so that a run that was stopped goes on where it was."""

    def __init__(self, file: Path, conditions: dict[str, Any]) -> None:
        self._file = file
        self.data: dict[str, Any] = {**conditions, "tuning": [], "held_out": []}
        if file.is_file():
            before = json.loads(file.read_text(encoding="utf-8"))
            if {name: before.get(name) for name in conditions} == conditions:
                self.data = before

    def of(self, kind: str, run: tuple[int, str]) -> list[Result]:
        """Return what is known of one run, ``kind`` being ``tuning`` or ``held_out``."""
        return [Result(**one) for one in self.data[kind] if (one["steps"], one["sampler"]) == run]

    def measure(
        self, pool: ProcessPoolExecutor, kind: str, run: tuple[int, str], methods: Sequence[Method]
    ) -> list[Result]:
        """Measure those of ``methods`` that are missing; return the results of all of them."""
        known = {(one.group, one.setting) for one in self.of(kind, run)}
        seeds = self.data[f"{kind}_seeds"]
        jobs = [(one, *run, seeds) for one in methods if (one.group, one.setting) not in known]
        name = f"{run[0]} steps {run[1]}, {kind}"
        for result in tqdm(pool.map(job, jobs), total=len(jobs), desc=name, mininterval=10):
            self.data[kind].append(asdict(result))
            self._file.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        wanted = {(one.group, one.setting) for one in methods}
        return [one for one in self.of(kind, run) if (one.group, one.setting) in wanted]


def versions() -> dict[str, str]:
    """Return what the figures were made with."""
    from importlib.metadata import version

    from pack.toy.checkpoint import load_info

    host = Path(os.environ["COMFYUI_PATH"])
    text = (host / "comfyui_version.py").read_text(encoding="utf-8")
    return {
        "ComfyUI": text.split('"')[1],
        "torch": torch.__version__,
        "cache-dit": version("cache-dit"),
        "scikit-image": version("scikit-image"),
        "Python": platform.python_version(),
        "toy model": json.dumps(load_info().training),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "bench" / "results")
    parser.add_argument("--seeds", type=int, default=len(TUNING_SEEDS), help="of each set, for a quick look fewer")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2)), help="processes")
    parser.add_argument("--runs", nargs="*", default=[f"{steps}:{name}" for steps, name in RUNS])
    arguments = parser.parse_args()
    runs = [(int(one.split(":")[0]), one.split(":")[1]) for one in arguments.runs]
    methods = {(one.group, one.setting): one for one in all_methods()}
    arguments.output.mkdir(parents=True, exist_ok=True)
    conditions = {
        "versions": versions(),
        "tuning_seeds": list(TUNING_SEEDS[: arguments.seeds]),
        "held_out_seeds": list(HELD_OUT_SEEDS[: arguments.seeds]),
    }
    kept = Measurements(arguments.output / "quality.json", conditions)
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for run in runs:
            tuned = kept.measure(pool, "tuning", run, list(methods.values()))
            kept.measure(pool, "held_out", run, [methods[one.group, one.setting] for one in choose(tuned)])
            text = write_table(kept.data, arguments.output / "quality.md")
            draw_chart(kept.data, arguments.output / "quality.png")
    print(text)


if __name__ == "__main__":
    main()
