"""The workflow of the embedded toy model, which runs on any machine."""

from __future__ import annotations

from .graph import Graph, Node, dbcache, offload, report


def toy() -> Graph:
    seed = {"seed": 7, "steps": 20, "cfg": 2.5, "sampler_name": "euler", "scheduler": "simple"}
    conditions = {"positive": ("toy", 1), "negative": ("toy", 2), "latent_image": ("toy", 3)}
    return Graph(
        "DiT-Toy-compare",
        [
            ("Model", [Node("toy", "DiTToyModel", {"labels": "0 1 2 3 4 5 6 7 8 9", "batch_size": 10})]),
            (
                "Stream and skip",
                [offload("offload", ("toy", 0), resident_blocks=3), dbcache("cache", ("offload", 0), "fast")],
            ),
            (
                "Sample twice, same seed",
                [
                    Node("plain", "KSampler", seed, {"model": ("toy", 0), **conditions}, title="Plain"),
                    Node("fast", "KSampler", seed, {"model": ("cache", 0), **conditions}, title="Streamed and cached"),
                ],
            ),
            (
                "Decode",
                [
                    Node("plain_images", "DiTToyDecode", {}, {"samples": ("plain", 0)}),
                    Node(
                        "plain_view",
                        "PreviewImage",
                        {},
                        {"images": ("plain_images", 0)},
                        title="Plain",
                        size=(300, 300),
                    ),
                    Node("fast_images", "DiTToyDecode", {}, {"samples": ("fast", 0)}),
                    Node(
                        "fast_view", "PreviewImage", {}, {"images": ("fast_images", 0)}, title="Cached", size=(300, 300)
                    ),
                ],
            ),
            (
                "Look",
                [
                    Node(
                        "compare",
                        "DiTCompare",
                        {"amplify": 8.0},
                        {"reference": ("plain_images", 0), "candidate": ("fast_images", 0)},
                        size=(430, 240),
                    ),
                    report("report", "cache", ("fast", 0)),
                ],
            ),
        ],
        api=True,
    )
