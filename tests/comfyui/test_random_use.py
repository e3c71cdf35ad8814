"""Random sequences of what users and ComfyUI do with one base model: every picture must be that of a fresh model."""

from __future__ import annotations

import gc
import random

import comfy.model_management
import pytest
import torch
from pack.comfy_adapter.streaming.settings import RESIDENCY_POLICIES
from rigs.real_comfy import FLUX, FORCED, WAN, build, lora, sample, weights_at_rest, with_lora

STEPS = 6
CACHE = {**FORCED, "warmup_steps": 1}


class Session:
    """The MODEL outputs alive on one base model, and what each of them must give."""

    def __init__(self, family, offload, dbcache, seed):
        self.family, self.offload, self.dbcache = family, offload, dbcache
        self.random = random.Random(seed)
        self.plain = build(family)
        self.at_rest = weights_at_rest(self.plain)
        self.loras = [lora(self.plain, family), lora(self.plain, family, seed=80)]
        self.models = [(self.plain, (), False)]
        self.expected = {}

    def reference(self, patches, cached):
        if (patches, cached) not in self.expected:
            model = build(self.family)
            for number, strength in patches:
                model = with_lora(model, self.loras[number], strength)
            if cached:
                model = self.dbcache(model, **CACHE)
            self.expected[patches, cached] = sample(model, self.family, steps=STEPS)
        return self.expected[patches, cached]

    def step(self):
        model, patches, cached = self.random.choice(self.models)
        action = self.random.choice(
            ["sample"] * 5 + ["offload"] * 2 + ["lora", "cache", "clone", "drop", "unload", "read"]
        )
        if action == "sample":
            expected = self.reference(patches, cached)
            assert torch.equal(sample(model, self.family, steps=STEPS), expected)
        elif action == "offload":
            settings = {
                "resident_blocks": self.random.choice([-1, 0, 2, 5, 100]),
                "prefetch_blocks": self.random.choice([0, 1, 3, 16]),
                "residency_policy": self.random.choice(RESIDENCY_POLICIES),
                "lora": self.random.choice(["auto", "bake"]),
            }
            self.models.append((self.offload(model, **settings), patches, cached))
        elif action == "lora" and len(patches) < 2:
            patch = (self.random.randrange(2), self.random.choice([1.0, 0.5, -0.3]))
            self.models.append((with_lora(model, self.loras[patch[0]], patch[1]), (*patches, patch), cached))
        elif action == "cache":
            self.models.append((self.dbcache(model, **CACHE), patches, True))
        elif action == "clone":
            self.models.append((model.clone(), patches, cached))
        elif action == "drop" and len(self.models) > 1:
            self.models.pop(self.random.randrange(1, len(self.models)))
            del model
            gc.collect()
        elif action == "unload":
            comfy.model_management.unload_all_models()
            state = self.plain.model.state_dict()
            assert all(torch.equal(state[name], weight) for name, weight in self.at_rest.items())
        elif action == "read":
            assert model.model_state_dict().keys() == self.at_rest.keys()
            assert model.model_size() > 0
            assert model.loaded_size() >= 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", [FLUX, WAN], ids=lambda family: family.name)
def test_any_order_of_use(offload, dbcache, family, seed):
    session = Session(family, offload, dbcache, seed)
    for _ in range(60):
        session.step()
