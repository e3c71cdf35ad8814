"""The embedded toy model in real ComfyUI: recognisable digits, an ordinary MODEL, and what the demo shows."""

from __future__ import annotations

import argparse
import json
import math

import pytest
import torch

from dev.toy import classifier

CFG = 2.5


@pytest.fixture(scope="module")
def toy(pack):
    """Return a function that makes the toy's (MODEL, positive, negative, LATENT)."""
    return lambda labels="0 1 2 3", batch=4: pack.execute("DiTToyModel", labels=labels, batch_size=batch)


@pytest.fixture(scope="module")
def draw(pack, comfy_nodes):
    """Sample as a graph does, and decode: (model, conditioning and latent) -> IMAGE."""

    def call(model, positive, negative, latent, seed=5, steps=20):
        with torch.inference_mode():
            arguments = (seed, steps, CFG, "euler", "simple", positive, negative, latent)
            return pack.execute("DiTToyDecode", comfy_nodes.KSampler().sample(model, *arguments)[0])[0]

    return call


def test_the_digits_are_recognised(pack, toy, draw):
    """A classifier trained on the same scans names at least 90 % of 200 plain samples as their class."""
    machine, accuracy = classifier.train_classifier(held_out=0.2)
    assert accuracy > 0.95  # the judge itself, on scans it has not seen
    images = draw(*toy("0 1 2 3 4 5 6 7 8 9", 200))
    assert images.shape == (200, 32, 32, 3)
    named = classifier.name_digits(machine, images[..., 0] * 2 - 1)
    assert float((named == torch.arange(200) % 10).float().mean()) >= 0.9


def test_comfyui_detects_it_as_a_wan(toy):
    model, positive, negative, latent = toy("7", 3)
    assert type(model.model).__name__ == "WAN21"
    assert type(model.model.diffusion_model).__name__ == "WanModel"
    assert len(model.model.diffusion_model.blocks) == 12
    assert latent["samples"].shape == (3, 16, 1, 8, 8)
    assert positive[0][0].shape == negative[0][0].shape == (3, 4, 4096)


def test_the_prompt_decides_and_the_batch_takes_labels_in_turn(toy, draw):
    alone = draw(*toy("3", 1))
    pair = draw(*toy("3 8", 2))
    assert torch.allclose(pair[:1], alone, atol=1e-3)
    assert not torch.allclose(pair[1:], alone, atol=0.1)


def test_both_nodes_on_it(pack, toy, draw, offload, dbcache, report):
    model, *rest = toy()
    plain = draw(model, *rest)
    assert torch.equal(draw(offload(model, resident_blocks=3), *rest), plain)
    fast = dbcache(offload(model, resident_blocks=3), preset="fast")
    images = draw(fast, *rest)
    totals = report(fast)["totals"]
    assert totals["hits"] > 5
    assert totals["bytes_wasted"] == 0
    compare = pack.module("pictures.compare")
    score = compare.average(compare.compare_frames(plain, images))
    assert 30 < score.psnr < math.inf
    assert score.ssim > 0.98


@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m", "res_multistep"])
def test_forecasts_beat_repeating(pack, toy, dbcache, comfy_nodes, sampler):
    """On a trained model, at the same hits: every calibrator that the help recommends is nearer to the plain run."""
    model, positive, negative, latent = toy("0 1 2 3 4 5", 6)
    compare = pack.module("pictures.compare")

    def images(sampled):
        with torch.inference_mode():
            arguments = (9, 20, CFG, sampler, "simple", positive, negative, latent)
            return pack.execute("DiTToyDecode", comfy_nodes.KSampler().sample(sampled, *arguments)[0])[0]

    plain = images(model)
    settings = {"preset": "custom", "Fn": 1, "Bn": 0, "warmup_steps": 2, "max_continuous_cached_steps": -1}
    psnr, hits = {}, {}
    for calibrator in ("none", "taylorseer", "secant", "sigma_taylor"):
        cached = dbcache(model, **settings, residual_diff_threshold=0.16, calibrator=calibrator)
        psnr[calibrator] = compare.average(compare.compare_frames(plain, images(cached))).psnr
        calls = json.loads(pack.execute("DiTRunReport", cached, after=None)[1])["calls"]
        hits[calibrator] = sum(call["outcome"] == "hit" for call in calls)
    assert min(hits.values()) >= 6
    assert min(psnr["taylorseer"], psnr["secant"], psnr["sigma_taylor"]) > psnr["none"]


def test_the_last_step_is_computed(toy, draw, dbcache, report):
    model, *rest = toy()
    cached = dbcache(model, preset="custom", Bn=0, warmup_steps=2, residual_diff_threshold=1.0, calibrator="none")
    draw(cached, *rest)
    call = report(cached)["calls"][-1]
    assert (call["outcome"], call["reason"]) == ("miss", "last step")


def test_the_report_draws_its_run(pack, toy, draw, dbcache, offload):
    model, *rest = toy()
    cached = dbcache(offload(model, resident_blocks=6), preset="fast")
    before = pack.execute("DiTRunReport", cached, after=None)
    draw(cached, *rest)
    node = pack.nodes["DiTRunReport"]
    output = node.execute(cached, after="passed")
    passed, text, chart = output.result
    assert passed == "passed"
    assert chart.shape == before[2].shape == (1, 768, 1024, 3)
    assert not torch.equal(chart, before[2])
    data = json.loads(text)
    assert data["threshold"] == 0.24
    assert len(data["streamed_blocks"]) == 6
    assert output.ui["text"][0].startswith("WAN21")
    assert len(output.ui["images"]) == 1


def test_the_compare_node(pack, toy, draw, dbcache):
    model, *rest = toy()
    plain, fast = draw(model, *rest), draw(dbcache(model, preset="fast"), *rest)
    text, difference = pack.execute("DiTCompare", plain, fast)
    assert text.startswith("average of 4: PSNR ")
    assert difference.shape == plain.shape
    assert 0 < float(difference.max()) <= 1
    assert pack.execute("DiTCompare", plain, plain)[0].startswith("average of 4: PSNR identical, SSIM 1.0000")
    with pytest.raises(ValueError, match=r"4 frames of 32x32 .* 3 frames of 32x32"):
        pack.execute("DiTCompare", plain, fast[:3])


def test_other_latents_and_labels_are_refused(pack):
    with pytest.raises(ValueError, match=r"\(1, 4, 8, 8\).*DiT Toy Model's latent"):
        pack.execute("DiTToyDecode", {"samples": torch.zeros(1, 4, 8, 8)})
    with pytest.raises(ValueError, match="'x', which is no digit"):
        pack.execute("DiTToyModel", labels="1 x", batch_size=1)


def test_the_demo_command(pack, tmp_path, monkeypatch, capsys):
    """The README's first command: its table and its contact sheet."""
    from PIL import Image

    from dev import demo

    monkeypatch.setattr(demo, "start_comfyui", lambda *_: None)
    monkeypatch.setattr(demo, "LoadedPack", lambda: pack)
    sheet = tmp_path / "sheet.png"
    given = argparse.Namespace(labels="0 1 2", batch=3, seed=1, steps=8, sheet=sheet)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", lambda self: given)
    demo.main()
    text = capsys.readouterr().out
    names = ("plain", "quality", "balanced", "fast", "offload", "offload + fast")
    lines = [line.strip() for line in text.splitlines() if "MiB" in line]
    rows = dict(zip(names, lines, strict=True))
    assert all(line.startswith(f"{name} ") for name, line in rows.items())
    assert "identical" in rows["plain"]
    assert "identical" in rows["offload"]
    assert "dB" in rows["offload + fast"]
    with Image.open(sheet) as image:
        assert image.width > image.height / 3 > 50
