"""The prover: what it takes for a stack, and what it does not, on toy blocks called in every which way."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from pack.dbcache.calls import CallInfo
from pack.dbcache.proving import StackProver
from pack.stack.hooks import HookManager

BLOCKS = 5


class Block(torch.nn.Module):
    def __init__(self, compute) -> None:
        super().__init__()
        self._compute = compute

    def forward(self, *args, **kwargs):
        return self._compute(*args, **kwargs)


def prove(compute, loop):
    """Run ``loop(blocks)`` over blocks that do ``compute`` and return the prover, closed."""
    blocks = [Block(compute) for _ in range(BLOCKS)]
    prover = StackProver(BLOCKS, CallInfo(step=0, sigma=1.0, kinds=(0,)))
    with HookManager(blocks, [prover]):
        loop(blocks)
    outcome = prover.finish()
    assert not outcome.hit
    assert not prover.must_recompute
    return prover


def start():
    return torch.zeros(1, 4, 2)


def chain(blocks, call=lambda block, x: block(x)):
    x = start()
    for block in blocks:
        x = call(block, x)


def segment_of(prover):
    assert prover.why == ""
    [placed] = prover.layout().segments
    assert (placed.start, placed.stop) == (0, BLOCKS)
    return placed.segment


def test_one_positional_stream():
    [state] = segment_of(prove(lambda x: x + 1, chain)).states
    assert (state.position, state.item, state.output) == (0, None, None)


def test_in_place_blocks_return_one_object():
    [state] = segment_of(prove(lambda x: x.add_(1), chain)).states
    assert (state.position, state.output) == (0, None)


def test_a_keyword_stream():
    prover = prove(lambda temb, x: x + temb, lambda blocks: chain(blocks, lambda b, x: b(temb=1.0, x=x)))
    [state] = segment_of(prover).states
    assert (state.argument, state.position) == ("x", None)


def test_two_streams_that_return_in_the_other_order():
    def loop(blocks):
        image, text = start(), start()
        for block in blocks:
            text, image = block(img=image, txt=text)

    first, second = segment_of(prove(lambda img, txt: (txt + 1, img + 1), loop)).states
    assert [(one.argument, one.output) for one in (first, second)] == [("txt", 0), ("img", 1)]


def test_a_tuple_of_streams_in_one_argument():
    def loop(blocks):
        pair = (start(), start())
        for block in blocks:
            pair = block(pair)

    states = segment_of(prove(lambda x: (x[0].add_(1), x[1].add_(1)), loop)).states
    assert [(one.position, one.item, one.output) for one in states] == [(0, 0, 0), (0, 1, 1)]


def pairs(blocks):
    x, other = start(), start()
    for block in blocks:
        x, other = block(x)[0], other


def backwards(blocks):
    chain(reversed(blocks))


def twice(blocks):
    chain(blocks)
    chain(blocks)


NOT_A_STACK = {
    "joined before each block": (
        lambda x: x[:, :4] + 1,
        lambda blocks: chain(blocks, lambda b, x: b(torch.cat((x, x), 1))),
        "block 1 is not given what block 0 returned",
    ),
    "added to between blocks": (
        lambda x: x + 1,
        lambda blocks: chain(blocks, lambda b, x: b(x) + 1),
        "block 1 is not given what block 0 returned",
    ),
    "long skips": (lambda x, skip: x + 1, lambda blocks: skipping(blocks), "block 4 is given what a block before"),
    "a stream that is dropped": (lambda x: (x + 1, x + 2), pairs, "block 1 is not given what block 0 returned"),
    "backwards": (lambda x: x + 1, backwards, "block 4 ran where block 0 was due"),
    "twice": (lambda x: x + 1, twice, "block 0 ran where block 5 was due"),
    "not all": (lambda x: x + 1, lambda blocks: chain(blocks[:3]), "not every block ran"),
    "none": (lambda x: x + 1, lambda blocks: None, "no block ran"),
    "no tensors": (lambda x: {"x": x}, lambda blocks: blocks[0](start()), "block 0 returns something else than"),
}


def skipping(blocks):
    """The last block is given what the first one returned, as in a U-ViT."""
    x = first = blocks[0](start(), None)
    for block in blocks[1:-1]:
        x = block(x, None)
    blocks[-1](x, first)


@pytest.mark.parametrize("name", NOT_A_STACK)
def test_what_is_no_stack_is_said_why(name):
    compute, loop, why = NOT_A_STACK[name]
    prover = prove(compute, loop)
    assert why in prover.why
    assert prover.layout() is None


def test_a_block_may_not_change_its_form_half_way():
    blocks = iter(range(BLOCKS))
    prover = prove(lambda x: x + 1 if next(blocks) < 2 else (x + 1,), lambda blocks: chain(blocks[:3]))
    assert "block 2 returns something else than the block before it" in prover.why


def test_nothing_is_kept_while_or_after_watching():
    made = []

    def compute(x):
        result = x + 1
        assert sum(ref() is not None for ref in made) <= 1
        made.append(weakref.ref(result))
        return result

    prove(compute, chain)
    gc.collect()
    assert all(ref() is None for ref in made)
