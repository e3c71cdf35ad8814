"""The embedded default: a small trained DiT that draws digits, so that the nodes can be tried without a download.

It is ComfyUI's own Wan class at toy size. ``latents`` maps pictures to latents and back, ``prompts`` makes its
conditioning, ``checkpoint`` reads the file; ``digits``, ``classifier`` and ``train`` made it and need scikit-learn.
"""
