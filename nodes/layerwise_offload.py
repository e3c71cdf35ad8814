"""The node DiT Layerwise Offload."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..comfy_adapter.streaming.settings import (
    AUTO,
    ENGINES,
    LORA_MODES,
    MOST_PREFETCH,
    PIN_MEMORY,
    RESIDENCY_POLICIES,
    OffloadSettings,
)

DEFAULT = OffloadSettings()


class DiTLayerwiseOffload(io.ComfyNode):
    """Streams the transformer blocks that do not stay on the device."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="DiTLayerwiseOffload",
            display_name="DiT Layerwise Offload",
            category="DiT",
            description=(
                "Keeps transformer blocks' weights in main memory and copies each block to the GPU just before it runs,"
                " so that a big video or image model fits. The picture does not change by one bit."
            ),
            inputs=[
                io.Model.Input("model", tooltip="A diffusion transformer. LoRAs may come before or after this node."),
                io.Combo.Input(
                    "engine",
                    options=list(ENGINES),
                    default=DEFAULT.engine,
                    tooltip="Who streams. auto leaves a model under ComfyUI's dynamic VRAM to ComfyUI and takes"
                    " layerwise for all others. With --highvram or --gpu-only nothing is streamed.",
                ),
                io.Int.Input(
                    "resident_blocks",
                    default=DEFAULT.resident_blocks,
                    min=AUTO,
                    max=10000,
                    tooltip="How many blocks may stay on the GPU. -1: as many as ComfyUI's memory budget allows.",
                ),
                io.Float.Input(
                    "vram_budget_gb",
                    default=DEFAULT.vram_budget_gb,
                    min=0.0,
                    max=1024.0,
                    step=0.1,
                    tooltip="GPU memory for this model's weights, in GiB. 0: ComfyUI's own figure.",
                ),
                io.Combo.Input(
                    "residency_policy",
                    options=list(RESIDENCY_POLICIES),
                    default=DEFAULT.residency_policy,
                    tooltip="Which blocks stay. leading: the first ones. strided: streamed ones spread evenly."
                    " cache_aware: first those that DBCache always runs. auto: cache_aware with DBCache, else strided,"
                    " or leading where a run's measured times say that it is faster.",
                ),
                io.Int.Input(
                    "prefetch_blocks",
                    default=DEFAULT.prefetch_blocks,
                    min=AUTO,
                    max=MOST_PREFETCH,
                    tooltip="Blocks copied ahead of the running one. Each costs one block of GPU memory. -1: one, or"
                    " what the times measured in an earlier run ask for; the run report says what and why.",
                ),
                io.Combo.Input(
                    "pin_memory",
                    options=list(PIN_MEMORY),
                    default=DEFAULT.pin_memory,
                    tooltip="Pin the streamed weights in main memory, so that copies overlap with compute. auto and on"
                    " pin as much as ComfyUI allows.",
                ),
                io.Combo.Input(
                    "lora",
                    options=list(LORA_MODES),
                    default=DEFAULT.lora,
                    tooltip="How LoRAs reach streamed blocks. bake: patched once and kept in main memory, as exact as a"
                    " full load. on_the_fly: patched at each use, no extra memory, not as exact. auto: bake while"
                    " memory has room.",
                ),
            ],
            outputs=[io.Model.Output(tooltip="The same model, streamed.")],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        engine: str,
        resident_blocks: int,
        vram_budget_gb: float,
        residency_policy: str,
        prefetch_blocks: int,
        pin_memory: str,
        lora: str,
    ) -> io.NodeOutput:
        from ..comfy_adapter.apply import apply_layerwise_offload

        settings = OffloadSettings(
            engine=engine,
            resident_blocks=resident_blocks,
            vram_budget_gb=vram_budget_gb,
            residency_policy=residency_policy,
            prefetch_blocks=prefetch_blocks,
            pin_memory=pin_memory,
            lora=lora,
        )
        return io.NodeOutput(apply_layerwise_offload(model, settings))
