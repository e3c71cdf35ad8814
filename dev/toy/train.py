"""Trains the toy model from scratch: ``nox -s train_toy``, about a quarter of an hour on two cores.

Flow matching on ComfyUI's own Wan class: a latent is mixed with noise at a level sigma, and the model learns the
direction from the one to the other (Lipman et al., "Flow Matching for Generative Modeling", 2022). One prompt in ten
is left empty, for classifier-free guidance. What is kept is a running average of the weights.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from ..comfyui import start_comfyui

MODEL = {
    "image_model": "wan2.1",
    "model_type": "t2v",
    "dim": 128,
    "ffn_dim": 256,
    "num_heads": 1,
    "num_layers": 12,
    "text_dim": 4096,
    "in_dim": 16,
    "out_dim": 16,
    "freq_dim": 256,
    "patch_size": (1, 2, 2),
}
SIGMA_SHIFTS = (1.0, 3.0, 8.0)
SMALLEST_SCALE = 0.15


@dataclass(frozen=True)
class Training:
    """Settings of one training; they go into the file's metadata."""

    seed: int = 0
    steps: int = 1500
    batch: int = 64
    learning_rate: float = 1.5e-3
    warmup: int = 100
    weight_decay: float = 0.01
    average: float = 0.998
    empty_prompts: float = 0.1


def new_model() -> torch.nn.Module:
    """Return ComfyUI's Wan at toy size, initialised so that every block begins as the identity."""
    import comfy.ops
    from comfy.ldm.wan.model import WanModel

    model = WanModel(**MODEL, dtype=torch.float32, operations=comfy.ops.disable_weight_init)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            torch.nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
        elif name.endswith("modulation"):
            torch.nn.init.zeros_(parameter)
        else:
            torch.nn.init.xavier_uniform_(parameter.flatten(1))
    for part in (model.time_projection[1], model.head.head, *(block.cross_attn.o for block in model.blocks)):
        torch.nn.init.zeros_(part.weight)
    torch.nn.init.normal_(model.text_embedding[0].weight, std=0.5)
    return model


def draw_sigmas(count: int, generator: torch.Generator) -> torch.Tensor:
    """Return noise levels in 0..1 from the schedules of several shifts, shape (count,)."""
    uniform = torch.rand(count, generator=generator)
    shift = torch.tensor(SIGMA_SHIFTS)[torch.randint(len(SIGMA_SHIFTS), (count,), generator=generator)]
    return shift * uniform / (1 + (shift - 1) * uniform)


def learning_rate(training: Training, step: int) -> float:
    """Return the rate of a step: linear warm-up, then a cosine down to nothing."""
    if step < training.warmup:
        return training.learning_rate * (step + 1) / training.warmup
    done = (step - training.warmup) / max(1, training.steps - training.warmup)
    return training.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


def train(training: Training, output: Path) -> None:
    """Train, and write the file."""
    from pack.toy import checkpoint, digits, latents, prompts

    torch.manual_seed(training.seed)
    generator = torch.Generator().manual_seed(training.seed)
    scans, classes = digits.load_digits()
    augmented = digits.enlarge(scans.repeat(4, 1, 1), generator)
    # The finest coefficients hardly vary: at unit variance they would be noise that costs the model its strength.
    scales = latents.images_to_coefficients(augmented).std(dim=(0, 2, 3, 4)).clamp(min=SMALLEST_SCALE)
    model = new_model()
    average = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=training.learning_rate,
        betas=(0.9, 0.99),
        weight_decay=training.weight_decay,
        fused=True,
    )
    started, losses = time.perf_counter(), []
    progress = tqdm(range(training.steps), desc="training the toy model", unit="step", mininterval=5)
    for step in progress:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, step)
        chosen = torch.randint(len(scans), (training.batch,), generator=generator)
        clean = latents.images_to_coefficients(digits.enlarge(scans[chosen], generator)) / scales.reshape(
            1, -1, 1, 1, 1
        )
        labels = classes[chosen].clone()
        labels[torch.rand(training.batch, generator=generator) < training.empty_prompts] = prompts.EMPTY
        noise = torch.randn(clean.shape, generator=generator)
        sigmas = draw_sigmas(training.batch, generator)
        level = sigmas.reshape(-1, 1, 1, 1, 1)
        predicted = model((1 - level) * clean + level * noise, sigmas * 1000.0, prompts.class_tokens(labels))
        loss = torch.nn.functional.mse_loss(predicted, noise - clean)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            keep = min(training.average, (1 + step) / (10 + step))
            for name, value in model.named_parameters():
                average[name].lerp_(value, 1 - keep)
        losses.append(loss.detach())
        if step % 20 == 19:
            progress.set_postfix(loss=f"{torch.stack(losses[-100:]).mean():.3f}")
    final = float(torch.stack(losses[-100:]).mean())
    results = {"final_loss": round(final, 4), "torch": torch.__version__, "dataset": "scikit-learn digits (1797 scans)"}
    info = checkpoint.ToyInfo(
        tuple(round(float(scale), 6) for scale in scales),
        digits.SIZE // latents.BLOCK,
        {**asdict(training), **results, "sigma_shifts": SIGMA_SHIFTS},
    )
    checkpoint.save(output, average, info)
    print(
        f"{output.name}: {output.stat().st_size / 1e6:.2f} MB, loss {final:.3f}, {time.perf_counter() - started:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=Training.steps)
    parser.add_argument("--seed", type=int, default=Training.seed)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("digits_wan.safetensors"))
    arguments = parser.parse_args()
    start_comfyui("--cpu", "--use-pytorch-cross-attention")
    import comfy.model_management

    comfy.model_management.in_training = True  # ComfyUI's own switch: no in-place operations where gradients are due
    train(Training(seed=arguments.seed, steps=arguments.steps), arguments.output)


if __name__ == "__main__":
    main()
