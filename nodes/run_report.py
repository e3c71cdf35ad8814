"""The node DiT Run Report."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io, ui


class DiTRunReport(io.ComfyNode):
    """Shows what the last sampling run did: steps, cached calls, blocks run, bytes streamed."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="DiTRunReport",
            display_name="DiT Run Report",
            category="DiT",
            description="Shows what the last sampling run with this MODEL did, as text, as JSON and as a chart.",
            inputs=[
                io.Model.Input("model", tooltip="The MODEL that DiT Layerwise Offload or DBCache put out."),
                io.AnyType.Input("after", tooltip="Connect the sampler's output, so that the report comes after it."),
            ],
            outputs=[
                io.AnyType.Output("passed", display_name="after", tooltip="What came in at 'after'."),
                io.String.Output("report", display_name="report", tooltip="The run as JSON."),
                io.Image.Output(
                    "chart", display_name="chart", tooltip="The run as a picture: steps across, blocks down."
                ),
            ],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, model: Any, after: Any) -> io.NodeOutput:
        from ..comfy_adapter.apply import last_run

        summary, report, chart = last_run(model)
        shown = {**ui.PreviewText(summary).as_dict(), **ui.PreviewImage(chart, cls=cls).as_dict()}
        return io.NodeOutput(after, report, chart, ui=shown)
