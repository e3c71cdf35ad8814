"""A stack of transformer blocks and one model call of it: how hidden states travel, the hooks, what is certain to run.

This room knows torch only: nothing of ComfyUI, and neither the cache nor the copies. Both of those stand on it.
"""
