"""The node DiT Toy Decode."""

from __future__ import annotations

from comfy_api.latest import io


class DiTToyDecode(io.ComfyNode):
    """Turns the toy model's latents into pictures: it has no VAE."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="DiTToyDecode",
            display_name="DiT Toy Decode",
            category="DiT/demo",
            description="Turns latents that DiT Toy Model was sampled to into 32x32 pictures.",
            inputs=[io.Latent.Input("samples", tooltip="What the sampler made of DiT Toy Model's latent.")],
            outputs=[io.Image.Output(tooltip="One picture for each latent, grey.")],
        )

    @classmethod
    def execute(cls, samples: dict) -> io.NodeOutput:
        from ..comfy_adapter.toy_model import decode_toy_latent

        return io.NodeOutput(decode_toy_latent(samples))
