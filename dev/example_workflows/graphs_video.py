"""The workflows of Wan 2.2 and LTX-2: types, files and samplers are those of their official ComfyUI workflows."""

from __future__ import annotations

from .graph import File, Graph, Node, dbcache, offload, report, split

WAN = "Comfy-Org/Wan_2.2_ComfyUI_Repackaged"


def wan() -> Graph:
    text, vae = "umt5_xxl_fp8_e4m3fn_scaled.safetensors", "wan_2.1_vae.safetensors"
    experts = {expert: f"wan2.2_t2v_{expert}_noise_14B_fp8_scaled.safetensors" for expert in ("high", "low")}
    loaders = [
        Node(
            f"{expert}_unet",
            "UNETLoader",
            {"unet_name": name, "weight_dtype": "default"},
            {},
            (split(WAN, "diffusion_models", name),),
            f"Expert for {expert} noise",
        )
        for expert, name in experts.items()
    ]
    speed = [
        node
        for expert in experts
        for node in (
            offload(f"{expert}_offload", (f"{expert}_unet", 0)),
            dbcache(f"{expert}_cache", (f"{expert}_offload", 0), "quality"),
            Node(f"{expert}_shift", "ModelSamplingSD3", {"shift": 5.0}, {"model": (f"{expert}_cache", 0)}),
        )
    ]
    common = {"noise_seed": 1, "steps": 20, "cfg": 3.5, "sampler_name": "euler", "scheduler": "simple"}
    conditions = {"positive": ("positive", 0), "negative": ("negative", 0)}
    return Graph(
        "Wan-2.2-14B-text-to-video-24GB",
        [
            (
                "Load",
                [
                    *loaders,
                    Node(
                        "clip",
                        "CLIPLoader",
                        {"clip_name": text, "type": "wan"},
                        {},
                        (split("Comfy-Org/Wan_2.1_ComfyUI_repackaged", "text_encoders", text),),
                    ),
                    Node("vae", "VAELoader", {"vae_name": vae}, {}, (split(WAN, "vae", vae),)),
                ],
            ),
            ("Stream and skip, each expert", speed),
            (
                "Prompt and size",
                [
                    Node(
                        "positive",
                        "CLIPTextEncode",
                        {"text": "A red fox crosses a snowy clearing, stops, and looks into the camera. Slow pan."},
                        {"clip": ("clip", 0)},
                        title="Prompt",
                    ),
                    Node(
                        "negative",
                        "CLIPTextEncode",
                        {"text": "blurry, distorted, low quality, still picture, text"},
                        {"clip": ("clip", 0)},
                        title="Not wanted",
                    ),
                    Node("latent", "EmptyHunyuanLatentVideo", {"width": 640, "height": 640, "length": 81}),
                ],
            ),
            (
                "Sample",
                [
                    Node(
                        "first",
                        "KSamplerAdvanced",
                        {**common, "add_noise": "enable", "start_at_step": 0, "end_at_step": 10}
                        | {"return_with_leftover_noise": "enable"},
                        {"model": ("high_shift", 0), **conditions, "latent_image": ("latent", 0)},
                        title="Steps 0 to 10",
                    ),
                    Node(
                        "second",
                        "KSamplerAdvanced",
                        {**common, "add_noise": "disable", "start_at_step": 10, "end_at_step": 10000}
                        | {"return_with_leftover_noise": "disable"},
                        {"model": ("low_shift", 0), **conditions, "latent_image": ("first", 0)},
                        title="Steps 10 to 20",
                    ),
                ],
            ),
            (
                "Decode and save",
                [
                    Node("images", "VAEDecode", {}, {"samples": ("second", 0), "vae": ("vae", 0)}),
                    Node("video", "CreateVideo", {"fps": 16.0}, {"images": ("images", 0)}),
                    Node(
                        "save",
                        "SaveVideo",
                        {"filename_prefix": "video/Wan2.2"},
                        {"video": ("video", 0)},
                        size=(400, 420),
                    ),
                ],
            ),
            (
                "Look",
                [
                    report("high_report", "high_shift", ("second", 0), "Report: high noise"),
                    report("low_report", "low_shift", ("second", 0), "Report: low noise"),
                ],
            ),
        ],
    )


def ltx() -> Graph:
    checkpoint, text = "ltx-2-19b-dev-fp8.safetensors", "gemma_3_12B_it_fp4_mixed.safetensors"
    file = (File("checkpoints", checkpoint, "Lightricks/LTX-2", checkpoint),)
    return Graph(
        "LTX-2-text-to-video-16GB",
        [
            (
                "Load",
                [
                    Node("model", "CheckpointLoaderSimple", {"ckpt_name": checkpoint}, {}, file),
                    Node(
                        "clip",
                        "LTXAVTextEncoderLoader",
                        {"text_encoder": text, "ckpt_name": checkpoint},
                        {},
                        (split("Comfy-Org/ltx-2", "text_encoders", text), *file),
                    ),
                    Node("audio_vae", "LTXVAudioVAELoader", {"ckpt_name": checkpoint}, {}, file),
                ],
            ),
            ("Stream and skip", [offload("offload", ("model", 0)), dbcache("cache", ("offload", 0), "quality")]),
            (
                "Prompt and size",
                [
                    Node(
                        "positive",
                        "CLIPTextEncode",
                        {
                            "text": "A street musician plays the accordion under a bridge while a tram rolls by. Warm"
                            " evening light, the camera circles slowly. Accordion, steps, the tram's bell."
                        },
                        {"clip": ("clip", 0)},
                        title="Prompt",
                    ),
                    Node(
                        "negative",
                        "CLIPTextEncode",
                        {"text": "blurry, low quality, still frame, watermark, titles, subtitles"},
                        {"clip": ("clip", 0)},
                        title="Not wanted",
                    ),
                    Node(
                        "conditioning",
                        "LTXVConditioning",
                        {"frame_rate": 25.0},
                        {"positive": ("positive", 0), "negative": ("negative", 0)},
                    ),
                    Node("video_latent", "EmptyLTXVLatentVideo", {"width": 768, "height": 512, "length": 97}),
                    Node(
                        "audio_latent",
                        "LTXVEmptyLatentAudio",
                        {"frames_number": 97, "frame_rate": 25.0},
                        {"audio_vae": ("audio_vae", 0)},
                    ),
                    Node(
                        "latent",
                        "LTXVConcatAVLatent",
                        {},
                        {"video_latent": ("video_latent", 0), "audio_latent": ("audio_latent", 0)},
                    ),
                ],
            ),
            (
                "Sample",
                [
                    Node("noise", "RandomNoise", {"noise_seed": 1}),
                    Node(
                        "guider",
                        "CFGGuider",
                        {"cfg": 4.0},
                        {"model": ("cache", 0), "positive": ("conditioning", 0), "negative": ("conditioning", 1)},
                    ),
                    Node("sampler", "KSamplerSelect", {"sampler_name": "euler"}),
                    Node("sigmas", "LTXVScheduler", {"steps": 20}, {"latent": ("latent", 0)}),
                    Node(
                        "sample",
                        "SamplerCustomAdvanced",
                        {},
                        {
                            "noise": ("noise", 0),
                            "guider": ("guider", 0),
                            "sampler": ("sampler", 0),
                            "sigmas": ("sigmas", 0),
                            "latent_image": ("latent", 0),
                        },
                    ),
                ],
            ),
            (
                "Decode and save",
                [
                    Node("parts", "LTXVSeparateAVLatent", {}, {"av_latent": ("sample", 0)}),
                    Node(
                        "images",
                        "VAEDecodeTiled",
                        {"temporal_size": 4096},
                        {"samples": ("parts", 0), "vae": ("model", 2)},
                    ),
                    Node("sound", "LTXVAudioVAEDecode", {}, {"samples": ("parts", 1), "audio_vae": ("audio_vae", 0)}),
                    Node("video", "CreateVideo", {"fps": 25.0}, {"images": ("images", 0), "audio": ("sound", 0)}),
                    Node(
                        "save",
                        "SaveVideo",
                        {"filename_prefix": "video/LTX-2"},
                        {"video": ("video", 0)},
                        size=(400, 420),
                    ),
                ],
            ),
            ("Look", [report("report", "cache", ("sample", 0))]),
        ],
    )
