"""The node DiT Toy Model."""

from __future__ import annotations

from comfy_api.latest import io


class DiTToyModel(io.ComfyNode):
    """A small trained DiT that draws digits, ready to sample: nothing to download."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="DiTToyModel",
            display_name="DiT Toy Model",
            category="DiT/demo",
            description=(
                "A small trained video transformer (Wan at toy size) that draws 32x32 digits. It is an ordinary MODEL:"
                " put any node on it, sample it with KSampler (euler, simple, 20 steps, cfg 2.5), decode with DiT Toy"
                " Decode."
            ),
            inputs=[
                io.String.Input(
                    "labels",
                    default="0 1 2 3 4 5 6 7 8 9",
                    tooltip="The digits to draw, separated by spaces; the pictures of the batch take them in turn."
                    " Empty: any digit.",
                ),
                io.Int.Input("batch_size", default=10, min=1, max=4096, tooltip="How many pictures."),
            ],
            outputs=[
                io.Model.Output(tooltip="The toy model."),
                io.Conditioning.Output("positive", display_name="positive", tooltip="The digits asked for."),
                io.Conditioning.Output("negative", display_name="negative", tooltip="The empty prompt."),
                io.Latent.Output("latent", display_name="latent", tooltip="An empty latent of that batch size."),
            ],
        )

    @classmethod
    def execute(cls, labels: str, batch_size: int) -> io.NodeOutput:
        from ..comfy_adapter.toy_model import load_toy_model
        from ..toy.prompts import conditioning

        model, latent = load_toy_model(batch_size)
        return io.NodeOutput(model, *conditioning(labels, batch_size), latent)
