"""PSNR and SSIM against hand-made pictures, and what is said of pictures that cannot be compared."""

from __future__ import annotations

import math

import pytest
import torch
from pack.pictures import compare


def pictures(frames: int = 2, height: int = 16, width: int = 24, seed: int = 0) -> torch.Tensor:
    return torch.rand(frames, height, width, 3, generator=torch.Generator().manual_seed(seed))


def test_known_differences_have_known_scores():
    reference = torch.full((2, 16, 16, 3), 0.5)
    candidate = reference.clone()
    candidate[1] += 0.1
    same, other = compare.compare_frames(reference, candidate)
    assert same == compare.FrameScore(math.inf, 1.0)
    assert other.psnr == pytest.approx(20.0, abs=1e-4)
    # constant pictures: only SSIM's luminance term is left, (2ab + c) / (aa + bb + c) with c = 0.01 squared
    assert other.ssim == pytest.approx((2 * 0.5 * 0.6 + 1e-4) / (0.25 + 0.36 + 1e-4), abs=1e-5)
    assert compare.average([same, other]) == compare.FrameScore(other.psnr, (1 + other.ssim) / 2)


def test_the_text_names_every_frame():
    reference = pictures()
    candidate = reference.clone()
    candidate[1] = (candidate[1] - 0.1).clamp(0, 1)
    lines = compare.comparison_text(compare.compare_frames(reference, candidate)).splitlines()
    assert lines[0].startswith("average of 2: PSNR 2")
    assert lines[0].endswith("(1 identical, left out of the PSNR)")
    assert lines[1] == "frame 0: PSNR identical, SSIM 1.0000"
    assert lines[2].startswith("frame 1: PSNR 2")
    assert compare.comparison_text(compare.compare_frames(reference, reference)).startswith(
        "average of 2: PSNR identical, SSIM 1.0000\n"
    )


def test_more_noise_scores_lower():
    reference = pictures()
    noise = pictures(seed=1) - 0.5
    scores = [compare.average(compare.compare_frames(reference, reference + noise * s)) for s in (0.02, 0.1, 0.5)]
    assert scores[0].psnr > scores[1].psnr > scores[2].psnr
    assert scores[0].ssim > scores[1].ssim > scores[2].ssim


def test_small_pictures_get_a_smaller_window():
    assert compare.compare_frames(pictures(1, 4, 9), pictures(1, 4, 9))[0].ssim == 1.0
    with pytest.raises(ValueError, match=r"1 frames of 9x2 .* at least 3 pixels"):
        compare.compare_frames(pictures(1, 2, 9), pictures(1, 2, 9))


@pytest.mark.parametrize("other", [pictures(3), pictures(2, 16, 16), torch.rand(2, 16, 24, 4)])
@pytest.mark.parametrize("call", [compare.compare_frames, lambda a, b: compare.difference_image(a, b, 1.0)])
def test_pictures_that_differ_in_form_are_both_named(other, call):
    with pytest.raises(ValueError, match="2 frames of 24x16 with 3 channels") as caught:
        call(pictures(), other)
    frames, height, width, channels = other.shape
    assert f"candidate is {frames} frames of {width}x{height} with {channels} channels" in str(caught.value)


def test_the_difference_is_amplified_and_cut_off():
    reference = torch.zeros(1, 4, 4, 3)
    candidate = torch.full((1, 4, 4, 3), 0.05)
    candidate[0, 0] = 0.5
    difference = compare.difference_image(reference, candidate, 4.0)
    assert torch.allclose(difference[0, 1:], torch.tensor(0.2))
    assert torch.equal(difference[0, 0], torch.ones(4, 3))


def test_without_scikit_image_it_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "skimage.metrics", None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-image"):
        compare.compare_frames(pictures(), pictures())
