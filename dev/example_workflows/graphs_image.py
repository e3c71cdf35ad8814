"""The workflows of Qwen-Image and Flux.1-dev: types, files and samplers are those of their official ComfyUI ones."""

from __future__ import annotations

from .graph import File, Graph, Node, dbcache, offload, report, split


def qwen() -> Graph:
    repository = "Comfy-Org/Qwen-Image_ComfyUI"
    unet, clip, vae = (
        "qwen_image_fp8_e4m3fn.safetensors",
        "qwen_2.5_vl_7b_fp8_scaled.safetensors",
        "qwen_image_vae.safetensors",
    )
    return _image_graph(
        "Qwen-Image-16GB",
        [
            Node("unet", "UNETLoader", {"unet_name": unet}, {}, (split(repository, "diffusion_models", unet),)),
            Node(
                "clip",
                "CLIPLoader",
                {"clip_name": clip, "type": "qwen_image"},
                {},
                (split(repository, "text_encoders", clip),),
            ),
            Node("vae", "VAELoader", {"vae_name": vae}, {}, (split(repository, "vae", vae),)),
        ],
        [Node("shift", "ModelSamplingAuraFlow", {"shift": 3.1}, {"model": ("cache", 0)})],
        "A tea house sign reading 'OPEN ALL NIGHT' in a rainy side street, reflections on the wet stones, 35 mm.",
        [Node("negative", "CLIPTextEncode", {"text": ""}, {"clip": ("clip", 0)}, title="Not wanted")],
        ("positive", 0),
        "shift",
        1328,
        4.0,
    )


def flux() -> Graph:
    unet, clip, text, vae = "flux1-dev.safetensors", "clip_l.safetensors", "t5xxl_fp16.safetensors", "ae.safetensors"
    encoders = "comfyanonymous/flux_text_encoders"
    return _image_graph(
        "Flux.1-dev-12GB",
        [
            Node(
                "unet",
                "UNETLoader",
                {"unet_name": unet},
                {},
                (File("diffusion_models", unet, "Comfy-Org/flux1-dev", unet),),
            ),
            Node(
                "clip",
                "DualCLIPLoader",
                {"clip_name1": clip, "clip_name2": text, "type": "flux"},
                {},
                tuple(File("text_encoders", name, encoders, name) for name in (clip, text)),
            ),
            Node(
                "vae", "VAELoader", {"vae_name": vae}, {}, (split("Comfy-Org/Lumina_Image_2.0_Repackaged", "vae", vae),)
            ),
        ],
        [],
        "A glass greenhouse in a winter forest at night, lit from inside, snow on the roof, people at a table.",
        [
            Node("guidance", "FluxGuidance", {"guidance": 3.5}, {"conditioning": ("positive", 0)}),
            Node("negative", "ConditioningZeroOut", {}, {"conditioning": ("positive", 0)}),
        ],
        ("guidance", 0),
        "cache",
        1024,
        1.0,
    )


def _image_graph(
    name: str,
    loaders: list[Node],
    after_cache: list[Node],
    prompt: str,
    more_conditions: list[Node],
    positive: tuple[str, int],
    model: str,
    side: int,
    cfg: float,
) -> Graph:
    """A text to image graph with KSampler, 20 steps euler."""
    sampler = {"seed": 1, "steps": 20, "cfg": cfg, "sampler_name": "euler", "scheduler": "simple"}
    links = {"model": (model, 0), "positive": positive, "negative": ("negative", 0), "latent_image": ("latent", 0)}
    return Graph(
        name,
        [
            ("Load", loaders),
            (
                "Stream and skip",
                [offload("offload", ("unet", 0)), dbcache("cache", ("offload", 0), "quality"), *after_cache],
            ),
            (
                "Prompt and size",
                [
                    Node("positive", "CLIPTextEncode", {"text": prompt}, {"clip": ("clip", 0)}, title="Prompt"),
                    *more_conditions,
                    Node("latent", "EmptySD3LatentImage", {"width": side, "height": side}),
                ],
            ),
            (
                "Sample and save",
                [
                    Node("sample", "KSampler", sampler, links),
                    Node("images", "VAEDecode", {}, {"samples": ("sample", 0), "vae": ("vae", 0)}),
                    Node(
                        "save",
                        "SaveImage",
                        {"filename_prefix": name.rsplit("-", 1)[0]},
                        {"images": ("images", 0)},
                        size=(300, 330),
                    ),
                ],
            ),
            ("Look", [report("report", model, ("sample", 0))]),
        ],
    )
