"""ComfyUI's model patcher with the blocks that do not stay on the device left to ``offload/``.

In: a patcher, and ``OffloadSettings``. Out: a patcher whose loads leave the streamed blocks alone, and for its model
the engine that copies them (``current_engine``).
Laws: a load, LoRA, save or eviction by ComfyUI gives the bits it gives without the pack; at rest every module holds its
original weights; sizes told to ComfyUI include the slots; one model has one engine, however many clones it has, and
the engine goes with its weights.
"""
