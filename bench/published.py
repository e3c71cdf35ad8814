"""Published figures that the scenarios are built from, each with its source, and what had to be assumed beside them.

Sizes in bytes, times in milliseconds, rates in bytes a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass

# Pinned host-to-device rates of each PCI Express generation: about 80 % of the raw rate (31.5 GB/s for 4.0 x16), what
# pinned copies reach in practice. Assumed, except that SGLang's cookbook for H3 reckons with 25 GB/s for 4.0 x16.
BUSES = {
    "PCIe 3.0 x8": 6.25e6,
    "PCIe 3.0 x16": 12.5e6,
    "PCIe 4.0 x8": 12.5e6,
    "PCIe 4.0 x16": 25e6,
    "PCIe 5.0 x8": 25e6,
    "PCIe 5.0 x16": 50e6,
}

# Peak dense FP16/BF16 tensor rate with FP32 accumulation in TFLOPS, from NVIDIA's data sheets: for GeForce cards and
# L20 twice the FP32 rate. Only ratios between cards are used.
CARDS = {
    "RTX 3060": 25.5,
    "RTX 3090": 71.2,
    "RTX 4060 Ti": 44.1,
    "RTX 4090": 165.2,
    "RTX 4090 D": 147.1,
    "RTX 5090": 209.5,
    "L20": 119.5,
    "H200": 989.4,
}


# Those that people run ComfyUI on, with their memory in GB (of the 4060 Ti the larger version).
CARD_MEMORY_GB = {"RTX 3060": 12, "RTX 3090": 24, "RTX 4060 Ti": 16, "RTX 4090": 24, "RTX 5090": 32}


@dataclass(frozen=True)
class Measured:
    """One published measurement: what a model call took on a card without waiting for copies."""

    card: str
    call_ms: float
    source: str


@dataclass(frozen=True)
class Workload:
    """A picture or video size; ``work`` is its arithmetic for one block in TFLOP, only used as a ratio."""

    name: str
    work: float


@dataclass(frozen=True)
class Model:
    """A model's block stack.

    Attributes:
        parameters: millions of weights of each block, in execution order.
        other: millions of weights outside the blocks.
        bytes_a_weight: by name of precision.
        measured: a published timing of the first workload.
        workloads: the first is the measured one.
        assumed: what is not published.
    """

    name: str
    parameters: tuple[float, ...]
    other: float
    bytes_a_weight: dict[str, float]
    measured: Measured
    workloads: tuple[Workload, ...]
    assumed: str

    def block_bytes(self, precision: str) -> tuple[int, ...]:
        """Return the bytes of each block."""
        return tuple(round(millions * 1e6 * self.bytes_a_weight[precision]) for millions in self.parameters)

    def other_bytes(self, precision: str) -> int:
        """Return the bytes outside the blocks."""
        return round(self.other * 1e6 * self.bytes_a_weight[precision])

    def block_ms(self, card: str, workload: Workload | None = None) -> tuple[float, ...]:
        """Return the compute time of each block: the measured one, scaled by peak rate and arithmetic.

        Blocks of one stack take equally long: Flux's double and single blocks do the same arithmetic.
        """
        scale = CARDS[self.measured.card] / CARDS[card]
        if workload is not None:
            scale *= workload.work / self.workloads[0].work
        return (self.measured.call_ms * scale / len(self.parameters),) * len(self.parameters)


def block_work(tokens: int, weights_a_token: float, width: int) -> float:
    """Return one block's arithmetic in TFLOP: its matrices for every token, and attention between all of them.

    Args:
        tokens: length of the sequence.
        weights_a_token: millions of weights each token is multiplied with.
        width: of the hidden states.
    """
    return (2 * tokens * weights_a_token * 1e6 + 4 * tokens**2 * width) / 1e12


H3_BLOCKS = 50
H3_MEASURED = Measured(
    "RTX 4090 D", 700.9e3 / 50, "SGLang pull request 35858: layerwise only, denoise 700.9 s for 50 calls"
)

MINIMAX_H3 = Model(
    "MiniMax-H3",
    (617.0,) * H3_BLOCKS,
    0.0,
    {"bf16": 2.0, "int8": 1.0, "int8 pruned": 0.4e9 / 617.0e6},
    H3_MEASURED,
    (Workload("1344x768, 107 frames", 1344 * 768.0), Workload("640x352, 107 frames", 640 * 352.0)),
    "weights outside the blocks are counted in them (61.7 GB bf16 / 50); the smaller size by area, attention's larger"
    " share ignored",
)
WAN_2_2 = Model(
    "Wan 2.2 14B",
    (351.3,) * 40,
    240.0,
    {"bf16": 2.0, "fp8": 1.0},
    Measured("H200", 4.22e3 / 8, "SGLang pull request 21248: 832x480, 17 frames, 4 steps in 4.22 s without offload"),
    (
        Workload("832x480, 17 frames", block_work(7800, 298.9, 5120)),
        Workload("832x480, 81 frames", block_work(32760, 298.9, 5120)),
        Workload("1280x720, 81 frames", block_work(75600, 298.9, 5120)),
    ),
    "two calls a step (CFG); the 4.22 s are all counted as denoising, so compute is an upper estimate; one of the two"
    " experts at a time",
)
FLUX_DEV = Model(
    "Flux.1-dev",
    (339.7,) * 19 + (141.6,) * 38,
    60.0,
    {"bf16": 2.0, "fp8": 1.0},
    Measured("L20", 24.85e3 / 28, "cache-dit's README: FLUX.1-dev, 28 steps in 24.85 s"),
    (Workload("1024x1024", block_work(4608, 113.2, 3072)),),
    "1024x1024 with 512 text tokens, the 24.85 s all counted as denoising",
)
QWEN_IMAGE = Model(
    "Qwen-Image",
    (339.7,) * 60,
    100.0,
    {"bf16": 2.0, "fp8": 1.0},
    Measured(
        "L20",
        24.85e3 / 28 / 57 * 60 * block_work(4160, 113.2, 3072) / block_work(4608, 113.2, 3072),
        "Flux.1-dev's measurement, by arithmetic: blocks of the same width and matrices",
    ),
    (Workload("1024x1024", block_work(4160, 113.2, 3072)),),
    "no timing of its own: as efficient as Flux; 64 text tokens",
)
MODELS = (MINIMAX_H3, WAN_2_2, QWEN_IMAGE, FLUX_DEV)


@dataclass(frozen=True)
class H3Row:
    """One row of SGLang pull request 35858: one RTX 4090 D, fl2va, 1344x768, 107 frames, 50 calls, int8."""

    name: str
    seconds: float
    denoise_seconds: float
    bn: int = 0
    warmup: int = 0
    threshold: float = 0.0
    in_a_row: int = 0

    @property
    def cached(self) -> bool:
        return self.threshold > 0


H3_CALLS = 50
H3_ROWS = (
    H3Row("layerwise only", 721.2, 700.9),
    H3Row("quality: F1 B2 W8 R0.08 MC2", 392.3, 372.7, bn=2, warmup=8, threshold=0.08, in_a_row=2),
    H3Row("fast: F1 B0 W2 R0.24 MC16", 173.2, 153.9, bn=0, warmup=2, threshold=0.24, in_a_row=16),
)
# ComfyUI's supported_models.py, 0.33: MiniMaxH3.sampling_settings.
H3_VIDEO_SHIFT = 12.0
H3_AUDIO_SHIFT = 3.0
# How fast H3's first-block residual turns with sigma (radians a unit): what h3_drift.py finds from other hit counts.
H3_DRIFT = 1.84
