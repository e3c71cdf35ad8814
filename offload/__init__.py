"""Skip-aware hooks around transformer blocks and the engine that streams their weights.

This room knows torch only: nothing of ComfyUI and nothing of cache-dit.
"""
