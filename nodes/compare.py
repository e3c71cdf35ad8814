"""The node DiT Compare."""

from __future__ import annotations

import torch
from comfy_api.latest import io, ui


class DiTCompare(io.ComfyNode):
    """Says in numbers, and shows, how far pictures are from a reference."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="DiTCompare",
            display_name="DiT Compare",
            category="DiT",
            description=(
                "Compares two batches of pictures, or two videos, frame by frame: PSNR and SSIM, and an amplified"
                " difference picture. Sample twice with the same seed, with and without DBCache."
            ),
            inputs=[
                io.Image.Input("reference", tooltip="The pictures of the plain run."),
                io.Image.Input("candidate", tooltip="The pictures of the faster run: as many, of the same size."),
                io.Float.Input(
                    "amplify",
                    default=8.0,
                    min=1.0,
                    max=1000.0,
                    step=0.5,
                    tooltip="By how much the difference picture is brightened.",
                ),
            ],
            outputs=[
                io.String.Output("text", display_name="text", tooltip="PSNR and SSIM of each frame and on average."),
                io.Image.Output("difference", display_name="difference", tooltip="The amplified difference."),
            ],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, reference: torch.Tensor, candidate: torch.Tensor, amplify: float) -> io.NodeOutput:
        from ..pictures.compare import compare_frames, comparison_text, difference_image

        text = comparison_text(compare_frames(reference, candidate))
        return io.NodeOutput(text, difference_image(reference, candidate, amplify), ui=ui.PreviewText(text))
