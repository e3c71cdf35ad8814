"""A stack of transformer blocks and one model call of it: how hidden states travel, the hooks, the outlook.

This room knows torch only: nothing of ComfyUI, and neither the cache nor the copies. Both of those stand on it.
"""
