"""How far pictures are from a reference: PSNR and SSIM by scikit-image, frame by frame.

Pictures are ComfyUI's IMAGE: (frames, height, width, channels), float, 0..1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

SSIM_WINDOW = 7
SMALLEST_WINDOW = 3


@dataclass(frozen=True)
class FrameScore:
    """PSNR in dB, infinite for identical frames, and SSIM, at most 1."""

    psnr: float
    ssim: float


def compare_frames(reference: torch.Tensor, candidate: torch.Tensor) -> list[FrameScore]:
    """Return the score of every frame of ``candidate``.

    SSIM is Wang et al.'s ("Image quality assessment", 2004) over windows of 7x7 pixels, smaller ones in smaller
    pictures, averaged over the channels.

    Raises:
        ValueError: the batches differ in frames, size or channels, or the frames are under 3x3 pixels.
        ModuleNotFoundError: scikit-image is not installed.
    """
    _check_alike(reference, candidate)
    structural_similarity = _scikit_image_ssim()
    side = min(reference.shape[1:3])
    window = min(SSIM_WINDOW, side if side % 2 else side - 1)
    scores = []
    for one, other in zip(reference.cpu().float().numpy(), candidate.cpu().float().numpy(), strict=True):
        error = float(((one - other) ** 2).mean())
        ssim = structural_similarity(one, other, win_size=window, channel_axis=-1, data_range=1.0)
        scores.append(FrameScore(psnr_of(error), float(ssim)))
    return scores


def psnr_of(mean_square: float, peak: float = 1.0) -> float:
    """Return the peak signal-to-noise ratio in dB of a mean squared error."""
    return math.inf if mean_square == 0 else 10 * math.log10(peak**2 / mean_square)


def average(scores: list[FrameScore]) -> FrameScore:
    """Return the mean score. The mean PSNR is over the frames that differ, infinite when none does."""
    finite = [score.psnr for score in scores if math.isfinite(score.psnr)]
    psnr = sum(finite) / len(finite) if finite else math.inf
    return FrameScore(psnr, sum(score.ssim for score in scores) / len(scores))


def comparison_text(scores: list[FrameScore]) -> str:
    """Return the average and every frame's score in lines for people."""
    mean = average(scores)
    same = sum(score.psnr == math.inf for score in scores)
    lines = [f"average of {len(scores)}: PSNR {decibel(mean.psnr)}, SSIM {mean.ssim:.4f}"]
    if 0 < same < len(scores):
        lines[0] += f" ({same} identical, left out of the PSNR)"
    lines += [f"frame {n}: PSNR {decibel(s.psnr)}, SSIM {s.ssim:.4f}" for n, s in enumerate(scores)]
    return "\n".join(lines)


def decibel(psnr: float) -> str:
    """Return a PSNR for people."""
    return "identical" if psnr == math.inf else f"{psnr:.1f} dB"


def difference_image(reference: torch.Tensor, candidate: torch.Tensor, amplify: float) -> torch.Tensor:
    """Return the absolute difference times ``amplify``, cut off at 1, as IMAGE. Raises like :func:`compare_frames`."""
    _check_alike(reference, candidate)
    return ((reference.cpu().float() - candidate.cpu().float()).abs() * amplify).clamp(0, 1)


def _check_alike(reference: torch.Tensor, candidate: torch.Tensor) -> None:
    if reference.shape != candidate.shape:
        raise ValueError(
            f"reference is {_described(reference)} and candidate is {_described(candidate)}: connect two batches with"
            " the same number of frames of the same size."
        )
    if min(reference.shape[1:3]) < SMALLEST_WINDOW:
        raise ValueError(
            f"reference is {_described(reference)}: frames must have at least {SMALLEST_WINDOW} pixels a side."
        )


def _described(image: torch.Tensor) -> str:
    frames, height, width, channels = image.shape
    return f"{frames} frames of {width}x{height} with {channels} channels"


def _scikit_image_ssim() -> Callable[..., Any]:
    try:
        from skimage.metrics import structural_similarity
    except ImportError as error:
        raise ModuleNotFoundError(
            "DiT Compare needs the package scikit-image; install it in ComfyUI's own Python: python -m pip install"
            " scikit-image"
        ) from error
    return structural_similarity
