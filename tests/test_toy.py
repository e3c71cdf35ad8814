"""The toy model's data: an exact map between pictures and latents, prompts, and the file's own description."""

from __future__ import annotations

import pytest
import torch
from pack.toy import checkpoint, latents, prompts


def test_pictures_and_latents_are_the_same_thing():
    images = torch.rand(3, 32, 24, generator=torch.Generator().manual_seed(0)) * 2 - 1
    coefficients = latents.images_to_coefficients(images)
    assert coefficients.shape == (3, 16, 1, 8, 6)
    assert torch.allclose(latents.coefficients_to_images(coefficients), images, atol=1e-6)
    assert float(coefficients.square().sum()) == pytest.approx(float(images.square().sum()), rel=1e-5)
    flat = latents.images_to_coefficients(torch.full((1, 4, 4), 0.5))
    assert flat.flatten().tolist() == pytest.approx([2.0] + [0.0] * 15, abs=1e-6)


def test_frames_follow_each_other():
    images = torch.rand(4, 8, 8)
    coefficients = latents.images_to_coefficients(images)
    video = torch.cat([coefficients[:2].movedim(0, 2).movedim(1, 0), coefficients[2:].movedim(0, 2).movedim(1, 0)])
    assert video.shape == (2, 16, 2, 2, 2)
    assert torch.allclose(latents.coefficients_to_images(video), images, atol=1e-6)


def test_other_latents_are_refused():
    with pytest.raises(ValueError, match="4 channels, the toy model's have 16"):
        latents.coefficients_to_images(torch.zeros(1, 4, 1, 8, 8))


def test_labels_are_taken_in_turn():
    positive, negative = prompts.conditioning("3 1,4", 5)
    tokens = positive[0][0]
    assert tokens.shape == (5, 4, 4096)
    assert (tokens.sum(dim=-1) == 1).all()
    assert (tokens.argmax(dim=-1)[:, 0] // 4).tolist() == [3, 1, 4, 3, 1]
    assert (negative[0][0].argmax(dim=-1) // 4 == prompts.EMPTY).all()
    assert torch.equal(prompts.conditioning("  ", 2)[0][0][0], negative[0][0][:2])


@pytest.mark.parametrize("text", ["cat", "12", "3 -1", "٣"])
def test_a_label_that_is_no_digit_is_named(text):
    with pytest.raises(ValueError, match=text.split()[-1]):
        prompts.parse_labels(text)


def test_the_file_describes_itself_and_is_small():
    weights, info = checkpoint.load()
    assert checkpoint.PATH.stat().st_size <= 8_000_000
    assert info.size == 8
    assert len(info.scales) == 16
    assert all(scale > 0 for scale in info.scales)
    assert {"seed", "steps", "batch", "learning_rate", "final_loss", "dataset"} <= set(info.training)
    assert {name.split(".")[1] for name in weights if name.startswith("blocks.")} == {str(n) for n in range(12)}
    assert all(value.isfinite().all() for value in weights.values())


def test_saving_and_loading(tmp_path):
    info = checkpoint.ToyInfo((0.5,) * 16, 8, {"seed": 3})
    checkpoint.save(tmp_path / "toy.safetensors", {"w": torch.ones(2, 2)}, info)
    weights, again = checkpoint.load(tmp_path / "toy.safetensors")
    assert again == info
    assert weights["w"].dtype == torch.float16
    with pytest.raises(FileNotFoundError, match="Install the pack again"):
        checkpoint.load(tmp_path / "none.safetensors")
