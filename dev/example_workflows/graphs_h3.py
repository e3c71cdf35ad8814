"""The workflows of MiniMax-H3: types, files and sampler are those of its official ComfyUI workflow."""

from __future__ import annotations

from .graph import File, Graph, Node, dbcache, offload, report

H3 = "Comfy-Org/MiniMax-H3"
H3_MODEL = "minimax_h3_fl2va_pruned_int8_convrot.safetensors"
H3_TEXT = "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors"
H3_VIDEO_VAE, H3_AUDIO_VAE = "minimax_h3_video_vae_fp16.safetensors", "minimax_h3_audio_vae_fp32.safetensors"


def h3(name: str, width: int, height: int, budget: float, first_frame: bool, api: bool = False) -> Graph:
    def file(folder: str, file_name: str) -> tuple[File, ...]:
        return (File(folder, file_name, H3, f"{folder}/{file_name}"),)

    start = [Node("image", "LoadImage", {"image": "example.png"}, size=(300, 330))] if first_frame else []
    prompt = (
        "A lighthouse keeper climbs the last steps at dusk, lights the lamp, and the beam sweeps across a stormy sea."
        " Slow camera rise, film grain, warm light against blue rain. Audio: wind, waves, the clank of the lamp, a low"
        " horn far away."
    )
    conditioning = Node(
        "conditioning",
        "MiniMaxH3ImageToVideo",
        {"prompt": prompt, "width": width, "height": height, "length": 107},
        {"clip": ("clip", 0), "vae": ("video_vae", 0)},
        size=(400, 380),
    )
    if first_frame:
        conditioning.links["first_frame"] = ("image", 0)
    loaders = [
        Node(
            "unet",
            "UNETLoader",
            {"unet_name": H3_MODEL, "weight_dtype": "default"},
            {},
            file("diffusion_models", H3_MODEL),
        ),
        Node("clip", "CLIPLoader", {"clip_name": H3_TEXT, "type": "minimax"}, {}, file("text_encoders", H3_TEXT)),
        Node("video_vae", "VAELoader", {"vae_name": H3_VIDEO_VAE}, {}, file("vae", H3_VIDEO_VAE), "Video VAE"),
        Node("audio_vae", "VAELoader", {"vae_name": H3_AUDIO_VAE}, {}, file("vae", H3_AUDIO_VAE), "Audio VAE"),
        *start,
    ]
    return Graph(
        name,
        [
            ("Load", loaders),
            (
                "Stream and skip",
                [offload("offload", ("unet", 0), vram_budget_gb=budget), dbcache("cache", ("offload", 0), "quality")],
            ),
            ("Prompt", [conditioning]),
            (
                "Sample",
                [
                    Node("noise", "RandomNoise", {"noise_seed": 1}),
                    Node("guider", "BasicGuider", {}, {"model": ("cache", 0), "conditioning": ("conditioning", 0)}),
                    Node("sampler", "KSamplerSelect", {"sampler_name": "res_multistep"}),
                    Node("sigmas", "BasicScheduler", {"scheduler": "simple", "steps": 20}, {"model": ("cache", 0)}),
                    Node(
                        "sample",
                        "SamplerCustomAdvanced",
                        {},
                        {
                            "noise": ("noise", 0),
                            "guider": ("guider", 0),
                            "sampler": ("sampler", 0),
                            "sigmas": ("sigmas", 0),
                            "latent_image": ("conditioning", 1),
                        },
                    ),
                ],
            ),
            (
                "Decode and save",
                [
                    Node("images", "VAEDecode", {}, {"samples": ("sample", 0), "vae": ("video_vae", 0)}),
                    Node("sound", "VAEDecodeAudio", {}, {"samples": ("sample", 0), "vae": ("audio_vae", 0)}),
                    Node("video", "CreateVideo", {"fps": 24.0}, {"images": ("images", 0), "audio": ("sound", 0)}),
                    Node(
                        "save",
                        "SaveVideo",
                        {"filename_prefix": "video/MiniMax_H3"},
                        {"video": ("video", 0)},
                        size=(400, 420),
                    ),
                ],
            ),
            ("Look", [report("report", "cache", ("sample", 0))]),
        ],
        api,
    )


def h3_graphs() -> list[Graph]:
    return [
        h3("MiniMax-H3-text-to-video-24GB", 1344, 768, 0.0, False, api=True),
        h3("MiniMax-H3-image-to-video-24GB", 1344, 768, 0.0, True),
        h3("MiniMax-H3-text-to-video-16GB", 864, 480, 8.0, False),
    ]
