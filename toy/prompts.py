"""The toy model's conditioning: one-hot rows that pick learned columns of the model's own text embedding."""

from __future__ import annotations

import torch

CLASSES = 10
EMPTY = CLASSES
TOKENS = 4
TEXT_WIDTH = 4096


def class_tokens(classes: torch.Tensor) -> torch.Tensor:
    """Return the text embedding of class numbers 0-9, or 10 for the empty prompt: (batch,) -> (batch, 4, 4096)."""
    columns = classes[:, None] * TOKENS + torch.arange(TOKENS)
    return torch.nn.functional.one_hot(columns, TEXT_WIDTH).float()


def parse_labels(text: str) -> list[int]:
    """Return the digits named in ``text``, separated by spaces or commas; an empty text is the empty prompt.

    Raises:
        ValueError: something in it is no digit.
    """
    labels = []
    for word in text.replace(",", " ").split():
        if len(word) != 1 or word not in "0123456789":
            raise ValueError(
                f"labels has {word!r}, which is no digit. Write the digits to draw, separated by spaces: '3 1 4'."
            )
        labels.append(int(word))
    return labels or [EMPTY]


def conditioning(text: str, batch: int) -> tuple[list, list]:
    """Return ComfyUI's (positive, negative) CONDITIONING for a batch of pictures that take the labels in turn."""
    labels = parse_labels(text)
    classes = torch.tensor([labels[index % len(labels)] for index in range(batch)])
    return [[class_tokens(classes), {}]], [[class_tokens(torch.full((batch,), EMPTY)), {}]]
