"""Hooks come off exactly as they went on, whatever happens in between."""

from __future__ import annotations

import inspect

import pytest
import torch
from pack.stack.hooks import HookManager
from rigs.toy_stacks import SHAPES, blocks_of


class Passing:
    def __init__(self, name="", log=None):
        self.name, self.log = name, log if log is not None else []

    def run_block(self, index, forward, args, kwargs):
        self.log.append((self.name, index))
        return forward(*args, **kwargs)


class Skipping:
    def __init__(self, skipped):
        self.skipped = skipped

    def run_block(self, index, forward, args, kwargs):
        return args[0] if index in self.skipped else forward(*args, **kwargs)


class Add(torch.nn.Module):
    def forward(self, x, amount: int = 1):
        """Adds."""
        return x + amount


class Failing(Add):
    exception: BaseException

    def forward(self, x, amount: int = 1):
        raise self.exception


def run(blocks, x=0):
    for block in blocks:
        x = block(x)
    return x


def snapshots(blocks):
    return [dict(vars(block)) for block in blocks]


def test_runs_are_recorded_in_order_and_skipped_blocks_are_not_among_them():
    blocks = [Add() for _ in range(5)]
    with HookManager(blocks, [Skipping({1, 3})]) as hooks:
        assert run(blocks) == 3
    assert hooks.ran == [0, 2, 4]


def test_the_first_interceptor_is_outermost():
    log = []
    blocks = [Add()]
    with HookManager(blocks, [Passing("gate", log), Passing("streamer", log)]):
        run(blocks)
    assert log == [("gate", 0), ("streamer", 0)]
    inner = []
    with HookManager(blocks, [Skipping({0}), Passing("streamer", inner)]):
        run(blocks)
    assert inner == []


@pytest.mark.parametrize(
    "exception", [RuntimeError("x"), KeyboardInterrupt(), SystemExit(), torch.OutOfMemoryError("x")]
)
@pytest.mark.parametrize("index", range(6))
def test_forwards_are_restored_after_an_exception_at_every_block(index, exception):
    blocks = [Add() for _ in range(6)]
    blocks[index] = Failing()
    blocks[index].exception = exception
    before = snapshots(blocks)
    hooks = HookManager(blocks, [Passing()])
    with pytest.raises(type(exception)) as caught, hooks:
        run(blocks)
    assert caught.value is exception
    assert snapshots(blocks) == before
    assert hooks.ran == list(range(index))


def test_forwards_are_restored_after_success():
    blocks = [Add() for _ in range(3)]
    before = snapshots(blocks)
    with HookManager(blocks, [Passing()]):
        assert all("forward" in vars(block) for block in blocks)
        run(blocks)
    assert snapshots(blocks) == before


def test_a_forward_set_on_the_instance_is_used_and_put_back():
    block = Add()

    def own(x):
        return x + 10

    block.forward = own
    with HookManager([block], [Passing()]):
        assert block(0) == 10
    assert vars(block)["forward"] is own


def test_a_failure_while_the_hooks_go_on_takes_them_off_again():
    class Unhookable:
        @property
        def forward(self):
            raise RuntimeError("no forward")

    blocks = [Add(), Add(), Unhookable()]
    before = snapshots(blocks[:2])
    with pytest.raises(RuntimeError, match="no forward"), HookManager(blocks, [Passing()]):
        pass
    assert snapshots(blocks[:2]) == before


@pytest.mark.parametrize("shape", SHAPES)
def test_signatures_stay_readable(shape):
    from rigs.mock_comfy import wrap_diffusion_model

    blocks = blocks_of(SHAPES[shape](0, wrap_diffusion_model))
    before = [inspect.signature(block.forward) for block in blocks]
    with HookManager(blocks, [Passing(), Passing()]):
        assert [inspect.signature(block.forward) for block in blocks] == before


def test_two_differently_hooked_calls_alternate_on_one_stack():
    blocks = [Add() for _ in range(4)]
    for _ in range(3):
        with HookManager(blocks, [Skipping({0, 1})]):
            assert run(blocks) == 2
        with HookManager(blocks, [Skipping({3})]):
            assert run(blocks) == 3
        assert run(blocks) == 4
