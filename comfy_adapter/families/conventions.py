"""Calling conventions that several families share: how their blocks are given hidden states and return them."""

from __future__ import annotations

from ...stack.layout import HiddenState, Segment
from .entry import BlockList

IMAGE_AND_TEXT = Segment((HiddenState("image", "img", output=0), HiddenState("text", "txt", output=1)))
TEXT_FIRST = Segment(
    (HiddenState("text", "encoder_hidden_states", output=0), HiddenState("image", "hidden_states", output=1))
)
IMAGE_FIRST = Segment(
    (HiddenState("image", "hidden_states", output=0), HiddenState("text", "encoder_hidden_states", output=1))
)

CONTROL = "ControlNet's additions, the join of text and image"
REFINERS = "noise_refiner, context_refiner: before the stack, on other tokens, two blocks each"
TEXT_REFINER = "txt_in.individual_token_refiner: prepares the text, two small blocks"


def one_state(name: str, argument: str = "x", position: int | None = 0) -> Segment:
    """Return the convention of blocks with one hidden state, which they return bare."""
    return Segment((HiddenState(name, argument, position=position),))


JOINT = one_state("joint")


def doubles_and_singles() -> tuple[BlockList, ...]:
    """Return Flux's two lists: image and text side by side, then joined."""
    return (BlockList("double_blocks", IMAGE_AND_TEXT), BlockList("single_blocks", JOINT))
