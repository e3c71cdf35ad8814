"""Training: ComfyUI's own node for it refuses a model with one of the pack's nodes, and trains the plain one."""

from __future__ import annotations

import pytest
import torch
from rigs.real_comfy import FLUX, FORCED, build, cond, sample
from rigs.tiny_models import noise


def train(model):
    """Train a LoRA for one step, by ComfyUI's node."""
    from comfy_extras.nodes_train import TrainLoraNode

    arguments = {one.id: [getattr(one, "default", None)] for one in TrainLoraNode.define_schema().inputs}
    arguments |= {"model": [model], "positive": [cond(2)], "steps": [1], "rank": [1], "batch_size": [1]}
    arguments["latents"] = [{"samples": noise(*FLUX.latent, seed=seed)} for seed in (5, 6)]
    with torch.inference_mode():
        return TrainLoraNode.execute(**arguments)


def trainable():
    plain = build(FLUX)
    plain.cached_patcher_init = (lambda **_: build(FLUX), ())  # newer versions load the model anew
    return plain


@pytest.mark.parametrize("nodes", ["offload", "dbcache", "both"])
def test_training_is_refused(offload, dbcache, nodes):
    plain = trainable()
    expected = sample(plain, FLUX)
    model = plain
    if nodes != "dbcache":
        model = offload(model, resident_blocks=0)
    if nodes != "offload":
        model = dbcache(model, **FORCED)
    with pytest.raises(ValueError, match="do not work in training"):
        train(model)
    assert torch.equal(sample(plain, FLUX), expected)


def test_the_plain_model_is_trained():
    train(trainable())
