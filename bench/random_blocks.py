"""Random transformer blocks of a given size, their host weights shared so that a big stack fits in main memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

HEAD_WIDTH = 128
HostWeights = dict[str, tuple[torch.Tensor, torch.Tensor | None]]


@dataclass(frozen=True)
class BlockShape:
    """Hidden width and inner width of the feed-forward part."""

    width: int
    inner: int

    @property
    def weights(self) -> int:
        """Number of weights: four attention matrices, two of the feed-forward part."""
        return 4 * self.width**2 + 2 * self.width * self.inner

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Sizes (out, in) of the matrices by name."""
        return {
            "attention_in": (3 * self.width, self.width),
            "attention_out": (self.width, self.width),
            "inner_in": (self.inner, self.width),
            "inner_out": (self.width, self.inner),
        }


class _Matrix(torch.nn.Module):
    """A linear layer without bias; int8 weights have a scale a row and are turned into the input's type for use."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if self.scale is not None:
            weight = weight.to(x.dtype) * self.scale
        return torch.nn.functional.linear(x, weight.to(x.dtype))


class RandomBlock(torch.nn.Module):
    """Attention and a feed-forward part on packed tokens (tokens, width); adds to its input, out of place."""

    def __init__(self, matrices: HostWeights) -> None:
        super().__init__()
        for name, (weight, scale) in matrices.items():
            self.add_module(name, _Matrix(weight, scale))
        self.width = self.attention_out.weight.shape[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = torch.nn.functional.layer_norm(x, x.shape[-1:])
        tokens, width = x.shape
        heads = max(1, width // HEAD_WIDTH)
        query, key, value = (
            part.view(tokens, heads, -1).transpose(0, 1).unsqueeze(0)
            for part in self.attention_in(normed).chunk(3, dim=-1)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.attention_out(attended.squeeze(0).transpose(0, 1).reshape(tokens, width))
        inner = self.inner_in(torch.nn.functional.layer_norm(x, x.shape[-1:]))
        return x + self.inner_out(torch.nn.functional.gelu(inner))


def host_weights(shape: BlockShape, precision: str, count: int) -> list[HostWeights]:
    """Return random weights of ``count`` blocks in pageable main memory.

    Raises:
        ValueError: ``precision`` is neither ``bf16`` nor ``int8``.
    """
    if precision not in ("bf16", "int8"):
        raise ValueError(f"precision is {precision!r}, but must be bf16 or int8.")
    generator = torch.Generator().manual_seed(0)
    return [
        {name: _random_matrix(size, precision, generator) for name, size in shape.matrices.items()}
        for _ in range(count)
    ]


def _random_matrix(
    size: tuple[int, int], precision: str, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor | None]:
    small = 0.1 / size[1] ** 0.5
    if precision == "int8":
        weight = torch.randint(-127, 128, size, dtype=torch.int8, generator=generator)
        return weight, torch.full((size[0], 1), small / 127, dtype=torch.bfloat16)
    return torch.randn(size, generator=generator).mul_(small / 2).to(torch.bfloat16), None


def pinned_weights(weights: list[HostWeights], pin: Callable[[torch.Tensor], torch.Tensor]) -> list[HostWeights]:
    """Return copies of ``weights`` in pinned memory, which ``pin`` makes."""
    return [
        {name: (pin(weight), None if scale is None else pin(scale)) for name, (weight, scale) in one.items()}
        for one in weights
    ]


def blocks_over(weights: list[HostWeights], count: int) -> list[RandomBlock]:
    """Return ``count`` blocks over these host weights, taken in turn: equal blocks share them."""
    return [RandomBlock(weights[index % len(weights)]) for index in range(count)]
