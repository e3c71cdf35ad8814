"""Everything that touches ComfyUI: patcher, wrappers, model families, run report, version differences.

Imported when a node executes, not when the pack loads, so that a ComfyUI that lacks something still loads the
pack and the node can say what is missing.
"""
