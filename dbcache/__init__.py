"""DBCache bound to ComfyUI's blocks: which calls may skip the middle of the stack, and what they return.

The maths is cache-dit's; :mod:`.cache_dit` is the only module of the pack that imports it, lazily. Nothing here
knows ComfyUI or the offload engine.
"""
