"""The training data: scikit-learn's 1797 scans of handwritten digits, enlarged and moved about a little."""

from __future__ import annotations

import math

import torch

SIZE = 32
LARGEST_VALUE = 16.0
ROTATION = math.radians(10)
ZOOM = 0.1
SHIFT = 0.08


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scans in -1..1, shape (1797, 8, 8), and their classes."""
    from sklearn.datasets import load_digits as scans

    data = scans()
    return torch.from_numpy(data.images).float() / LARGEST_VALUE * 2 - 1, torch.from_numpy(data.target).long()


def enlarge(scans: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return scans at 32x32, each rotated, zoomed and shifted at random when a ``generator`` is given."""
    count = len(scans)
    angle, zoom = torch.zeros(count), torch.ones(count)
    shift = torch.zeros(count, 2)
    if generator is not None:
        angle = (torch.rand(count, generator=generator) * 2 - 1) * ROTATION
        zoom = 1 + (torch.rand(count, generator=generator) * 2 - 1) * ZOOM
        shift = (torch.rand(count, 2, generator=generator) * 2 - 1) * SHIFT
    rows = torch.stack((torch.cos(angle), -torch.sin(angle), torch.sin(angle), torch.cos(angle)), dim=1)
    affine = torch.cat((rows.reshape(count, 2, 2) / zoom[:, None, None], shift[:, :, None]), dim=2)
    grid = torch.nn.functional.affine_grid(affine, [count, 1, SIZE, SIZE], align_corners=False)
    ink = torch.nn.functional.grid_sample(
        scans[:, None] + 1, grid, mode="bicubic", padding_mode="zeros", align_corners=False
    )
    return (ink[:, 0] - 1).clamp(-1, 1)


def shrink(images: torch.Tensor) -> torch.Tensor:
    """Return 32x32 pictures at the scans' own 8x8, by averaging."""
    return torch.nn.functional.avg_pool2d(images[:, None], SIZE // 8)[:, 0]
