"""Tiny DiTs in the four shapes that ComfyUI's models have, small enough to read.

Each is named like the ComfyUI class whose calling convention it copies, so that the pack's family table finds
it. All take (latent, timestep, context) and wrap their forward the way ComfyUI's models do.
"""

from __future__ import annotations

import torch

WIDTH = 16


def _linear(generator: torch.Generator, *, out: int = WIDTH) -> torch.nn.Linear:
    layer = torch.nn.Linear(WIDTH, out)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(out, WIDTH, generator=generator) * 0.3 / WIDTH**0.5)
        layer.bias.copy_(torch.randn(out, generator=generator) * 0.02)
    return layer.requires_grad_(False)


class OutOfPlaceBlock(torch.nn.Module):
    """Wan-like: keyword conditions, a raw parameter beside its layers, a new tensor out."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.modulation = torch.nn.Parameter(torch.randn(1, 1, WIDTH, generator=generator) * 0.1, requires_grad=False)
        self.inner = _linear(generator)
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, x, e, context=None, transformer_options=None):
        return x + self.scale * torch.tanh(self.inner(x * (1 + self.modulation) + e + context))


class InPlaceBlock(torch.nn.Module):
    """H3-like: works on packed tokens without a batch dimension, in place, and returns the same object."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.inner = _linear(generator)

    def forward(self, x, t_emb, mod_segments=None, rope_freqs=None, transformer_options=None):
        x.add_(0.5 * torch.tanh(self.inner(x + t_emb)))
        return x


class DoubleBlock(torch.nn.Module):
    """Flux-like double block: image and text, both in place."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.image = _linear(generator)
        self.text = _linear(generator)

    def forward(self, img, txt, vec, pe=None, attn_mask=None, transformer_options=None):
        mixed = txt.mean(dim=1, keepdim=True)
        img += 0.5 * torch.tanh(self.image(img + vec + mixed))
        txt += 0.5 * torch.tanh(self.text(txt + vec))
        return img, txt


class SingleBlock(torch.nn.Module):
    """Flux-like single block: the joint tokens, in place."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.joint = _linear(generator)

    def forward(self, x, vec, pe=None, attn_mask=None, transformer_options=None):
        x += 0.5 * torch.tanh(self.joint(x + vec))
        return x


class TwoStreamBlock(torch.nn.Module):
    """LTX-2-like: one positional argument, a tuple of video and audio, both in place."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.video = _linear(generator)
        self.audio = _linear(generator)

    def forward(self, x, v_context=None, a_context=None, v_timestep=None, transformer_options=None):
        video, audio = x
        video += 0.5 * torch.tanh(self.video(video + v_timestep + audio.mean(dim=1, keepdim=True)))
        audio += 0.5 * torch.tanh(self.audio(audio + v_timestep + a_context))
        return video, audio


class _ToyModel(torch.nn.Module):
    """Shared outside of the shapes: embed, run the blocks, project. Subclasses say how the blocks are called."""

    def __init__(self, seed: int, wrap) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embed = _linear(generator)
        self.head = _linear(generator)
        self.dtype = torch.float32
        self._wrap = wrap
        self.make_blocks(generator)

    def forward(self, x, timestep, context, control=None, transformer_options={}, **kwargs):  # noqa: B006
        return self._wrap(self._forward, self, transformer_options)(
            x, timestep, context, control, transformer_options, **kwargs
        )

    def _forward(self, x, timestep, context, control=None, transformer_options={}, **kwargs):  # noqa: B006
        vec = timestep.reshape(-1, 1, 1).to(x.dtype) + context.mean(dim=1, keepdim=True)
        return self.head(self.run_blocks(self.embed(x), vec, context, control, transformer_options))


class WanModel(_ToyModel):
    """Out of place, single stream."""

    def make_blocks(self, generator):
        self.blocks = torch.nn.ModuleList([OutOfPlaceBlock(generator) for _ in range(8)])

    def run_blocks(self, x, vec, context, control, options):
        for index, block in enumerate(self.blocks):
            x = block(x, e=vec, context=context.mean(dim=1, keepdim=True), transformer_options=options)
            if control is not None:
                x = x + control["input"][index]
        return x


class MiniMaxH3Model(_ToyModel):
    """In place, packed tokens [text | audio | video], the first four of the latent being audio: batch size 1 only."""

    def make_blocks(self, generator):
        self.blocks = torch.nn.ModuleList([InPlaceBlock(generator) for _ in range(8)])

    def run_blocks(self, x, vec, context, control, options):
        if x.shape[0] != 1:
            raise ValueError("MiniMax-H3 takes a batch of one")
        packed = torch.cat((context[0], x[0]), dim=0)
        text, total = context.shape[1], packed.shape[0]
        segments = [(0, text, 1), (text, text + 4, 2), (text + 4, total, 0)]
        for block in self.blocks:
            packed = block(packed, vec[0], segments, None, transformer_options=options)
        return packed[context.shape[1] :].unsqueeze(0)


class Flux(_ToyModel):
    """Double blocks, then single ones, in place, with ControlNet additions between them."""

    def make_blocks(self, generator):
        self.double_blocks = torch.nn.ModuleList([DoubleBlock(generator) for _ in range(3)])
        self.single_blocks = torch.nn.ModuleList([SingleBlock(generator) for _ in range(5)])

    def run_blocks(self, img, vec, context, control, options):
        txt = context.clone()
        for index, block in enumerate(self.double_blocks):
            img, txt = block(img=img, txt=txt, vec=vec, transformer_options=options)
            if control is not None:
                img += control["input"][index]
        x = torch.cat((txt, img), dim=1)
        for block in self.single_blocks:
            x = block(x, vec=vec, transformer_options=options)
        return x[:, txt.shape[1] :]


class LTXAVModel(_ToyModel):
    """Two streams in and out: the last four tokens are audio."""

    def make_blocks(self, generator):
        self.transformer_blocks = torch.nn.ModuleList([TwoStreamBlock(generator) for _ in range(8)])

    def run_blocks(self, x, vec, context, control, options):
        video, audio = x[:, :-4].clone(), x[:, -4:].clone()
        for block in self.transformer_blocks:
            video, audio = block(
                (video, audio),
                a_context=context.mean(dim=1, keepdim=True),
                v_timestep=vec,
                transformer_options=options,
            )
        return torch.cat((video, audio), dim=1)


class UNetModel(torch.nn.Module):
    """No transformer stack at all."""

    def __init__(self) -> None:
        super().__init__()
        self.input_blocks = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH)])


SHAPES = {"out_of_place": WanModel, "in_place": MiniMaxH3Model, "double_single": Flux, "two_streams": LTXAVModel}


def blocks_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return a toy's blocks in execution order."""
    names = ("double_blocks", "single_blocks", "blocks", "transformer_blocks")
    return [block for name in names for block in getattr(model, name, [])]
