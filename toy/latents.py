"""Between pictures and the toy model's latents: a fixed, invertible linear map instead of a VAE.

A picture is cut into blocks of 4x4 pixels, each block is transformed by an orthonormal DCT-II, and its 16
coefficients become the 16 channels of a latent with a quarter of the height and width.
"""

from __future__ import annotations

import math

import torch

BLOCK = 4
CHANNELS = BLOCK * BLOCK


def dct_matrix(size: int = BLOCK) -> torch.Tensor:
    """Return the orthonormal DCT-II matrix, one frequency a row, shape (size, size)."""
    frequency = torch.arange(size, dtype=torch.float64)[:, None]
    place = torch.arange(size, dtype=torch.float64)[None, :]
    matrix = torch.cos(math.pi * (place + 0.5) * frequency / size) * math.sqrt(2.0 / size)
    matrix[0] /= math.sqrt(2.0)
    return matrix.float()


def images_to_coefficients(images: torch.Tensor) -> torch.Tensor:
    """Return the DCT coefficients of grey pictures in -1..1, (batch, height, width) -> (batch, 16, 1, h/4, w/4)."""
    batch, height, width = images.shape
    blocks = images.reshape(batch, height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    matrix = dct_matrix().to(images)
    coefficients = torch.einsum("ui,vj,bhiwj->buvhw", matrix, matrix, blocks)
    return coefficients.reshape(batch, CHANNELS, 1, height // BLOCK, width // BLOCK)


def coefficients_to_images(coefficients: torch.Tensor) -> torch.Tensor:
    """Undo :func:`images_to_coefficients` for every frame: (batch, 16, frames, h, w) -> (batch * frames, 4h, 4w)."""
    batch, channels, frames, height, width = coefficients.shape
    if channels != CHANNELS:
        raise ValueError(f"the latent has {channels} channels, the toy model's have {CHANNELS}.")
    split = coefficients.movedim(2, 1).reshape(batch * frames, BLOCK, BLOCK, height, width)
    matrix = dct_matrix().to(coefficients)
    blocks = torch.einsum("ui,vj,buvhw->bhiwj", matrix, matrix, split)
    return blocks.reshape(batch * frames, height * BLOCK, width * BLOCK)
