"""Drives the gate over a toy stack, step by step, the way a sampler would."""

from __future__ import annotations

from typing import Any

import torch
from pack.comfy_adapter.families.find import find_stack
from pack.dbcache.calls import CallInfo
from pack.dbcache.gate import CallGate
from pack.dbcache.rules import DBCacheSettings
from pack.dbcache.session import DBCacheSession
from pack.stack.call import StackCall

from rigs.mock_comfy import wrap_diffusion_model
from rigs.toy_stacks import SHAPES, WIDTH, blocks_of

TOKENS = 10


def custom(**values) -> DBCacheSettings:
    defaults = {"preset": "custom", "fn": 1, "bn": 0, "warmup_steps": 2, "threshold": 1.0, "max_continuous": -1}
    return DBCacheSettings(**{**defaults, "calibrator": "none", **values})


class GateRig:
    """One toy model and one session. ``x(step)`` changes slowly with the step."""

    def __init__(self, shape: str, settings: DBCacheSettings, steps: int = 12, **session: Any) -> None:
        self.settings = settings
        self.model = SHAPES[shape](0, wrap_diffusion_model)
        self.blocks = blocks_of(self.model)
        rules = settings.rules(len(self.blocks))
        self.session = DBCacheSession(rules, steps, find_stack(self.model).layout, **session)
        self.steps = steps
        self.ran: list[int] = []
        self.announced: list[tuple[int, ...]] = []
        self.speed = 0.02

    def x(self, step: float, batch: int = 1) -> torch.Tensor:
        generator = torch.Generator().manual_seed(7)
        start, direction = (torch.randn(1, TOKENS, WIDTH, generator=generator) for _ in range(2))
        return (start + self.speed * step * direction).repeat(batch, 1, 1)

    def context(self, seed: int = 1) -> torch.Tensor:
        return torch.randn(1, 3, WIDTH, generator=torch.Generator().manual_seed(seed))

    def plain(self, step: float, *, seed: int = 1, control=None, x=None) -> torch.Tensor:
        x = self.x(step) if x is None else x
        return self.model(x, torch.full((x.shape[0],), 1 - step / self.steps), self.context(seed), control=control)

    def call(self, step: int, *, branch: str = "a", seed: int = 1, control=None, x=None, at=None, **info):
        """Make one gated call; returns (output, outcome)."""
        self.announced = []
        call = CallInfo(step=step, sigma=1 - step / self.steps, conds=(branch,), kinds=(0,), **info)
        self.gate = CallGate(self.session, call)
        heard = [lambda blocks, ran: self.announced.append(blocks)]
        call = StackCall(self.blocks, self.gate, listeners=heard)
        result = call.run(lambda: self.plain(step if at is None else at, seed=seed, control=control, x=x))
        self.ran = result.ran
        return result.output, result.outcome
