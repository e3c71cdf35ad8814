"""The pack's own calibrators: exact on the signals they are made for, finite on all others."""

from __future__ import annotations

import pytest
import torch
from pack.dbcache.calibrators import CALIBRATORS
from pack.dbcache.calibrators.secant import FARTHEST, SecantCalibrator
from pack.dbcache.calibrators.sigma_taylor import SigmaTaylorCalibrator, lagrange_weights
from pack.dbcache.residual_names import middle_residual
from rigs.gate_rig import GateRig, custom

NAME, PACKED, JOINT = middle_residual(0, "video"), middle_residual(0, "packed"), middle_residual(4, "joint")
OWN = [name for name, choice in CALIBRATORS.items() if choice.forecaster is not None]


def tensor(seed: int, shape: tuple[int, ...] = (2, 5, 4)) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def secant_forecast(path, steps, at: float, shape=(2, 5, 4), stream="video", name=NAME) -> tuple:
    """Return (forecast, truth) where both residuals are affine in ``path(step)``."""
    first, middle = (tensor(1, shape), tensor(2, shape)), (tensor(3, shape), tensor(4, shape))
    calibrator = SecantCalibrator()
    for step in steps:
        calibrator.anchor(stream, first[0] + path(step) * first[1])
        calibrator.update(middle[0] + path(step) * middle[1], name=name)
    calibrator.look({stream: first[0] + path(at) * first[1]})
    return calibrator.approximate(name=name), middle[0] + path(at) * middle[1]


@pytest.mark.parametrize(
    ("path", "steps", "at"),
    [
        (lambda t: 0.3 * t, (0, 1), 2),  # linear, one step on
        (lambda t: 0.3 * t, (0, 1, 4), 7),  # linear, uneven gaps
        (lambda t: t + 0.5 * t * t, (0, 1), 1.5),  # quadratic, speeding up
        (lambda t: 4 * t - 0.5 * t * t, (0, 2), 3),  # quadratic, slowing down
    ],
)
def test_secant_is_exact_however_the_trajectory_speeds_up(path, steps, at):
    """A count of steps would be wrong on the quadratic ones; the first block's own movement is not."""
    forecast, truth = secant_forecast(path, steps, at)
    assert torch.allclose(forecast, truth, rtol=1e-6, atol=1e-6)


def test_secant_gives_every_item_of_a_batch_its_own_step():
    base, change = tensor(1), tensor(2)
    calibrator = SecantCalibrator()
    for amount in (0.0, 1.0):
        calibrator.anchor("video", base + amount * change)
        calibrator.update(amount * change, name=NAME)
    speeds = torch.tensor([0.5, 2.0], dtype=torch.float64).reshape(2, 1, 1)
    calibrator.look({"video": base + (1 + speeds) * change})
    assert torch.allclose(calibrator.approximate(name=NAME), (1 + speeds) * change, rtol=1e-6)


def test_secant_gives_every_packed_stream_its_own_step():
    """MiniMax-H3: one hidden state (tokens, width) of which sound and picture move on their own schedules."""
    base, change = tensor(1, (8, 4)), tensor(2, (8, 4))
    calibrator = SecantCalibrator()
    spans = {"context": slice(0, 2), "audio": slice(2, 5), "video": slice(5, 8)}
    for amount in (0.0, 1.0):
        for stream, span in spans.items():
            calibrator.anchor(stream, (base + amount * change)[span])
        calibrator.update(amount * change, name=PACKED)
    speed = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2], dtype=torch.float64).reshape(8, 1)
    calibrator.look({stream: (base + (1 + speed) * change)[span] for stream, span in spans.items()})
    assert torch.allclose(calibrator.approximate(name=PACKED), (1 + speed) * change, rtol=1e-6)


def test_secant_moves_a_later_segment_by_all_first_streams_together():
    calibrator = SecantCalibrator()
    image, text, joint = tensor(1), tensor(2, (2, 3, 4)), tensor(3, (2, 8, 4))
    for amount in (0.0, 1.0):
        calibrator.anchor("image", amount * image)
        calibrator.anchor("text", amount * text)
        calibrator.update(amount * joint, name=JOINT)
    calibrator.look({"image": 1.5 * image, "text": 1.5 * text})
    assert torch.allclose(calibrator.approximate(name=JOINT), 1.5 * joint, rtol=1e-6)


@pytest.mark.parametrize(("moved", "expected"), [(-1.0, 0.0), (10.0, FARTHEST)])
def test_secant_neither_turns_back_nor_runs_away(moved, expected):
    calibrator = SecantCalibrator()
    change = tensor(1)
    for amount in (0.0, 1.0):
        calibrator.anchor("video", amount * change)
        calibrator.update(amount * change, name=NAME)
    calibrator.look({"video": (1 + moved) * change})
    assert torch.allclose(calibrator.approximate(name=NAME), (1 + expected) * change)


def test_secant_without_movement_repeats_the_last_residual():
    """Nothing kept yet, a first block that stood still, a shape that changed: the last residual, never NaN."""
    calibrator = SecantCalibrator()
    calibrator.update(tensor(1), name=NAME)
    assert torch.equal(calibrator.approximate(name=NAME), tensor(1))
    for _ in range(2):
        calibrator.anchor("video", tensor(5))
    calibrator.update(tensor(2), name=NAME)
    calibrator.look({"video": tensor(6)})
    assert torch.equal(calibrator.approximate(name=NAME), tensor(2))
    calibrator.update(tensor(3, (2, 7, 4)), name=NAME)
    assert torch.equal(calibrator.approximate(name=NAME), tensor(3, (2, 7, 4)))
    calibrator.reset_cache()
    calibrator.update(tensor(4), name=NAME)
    assert torch.equal(calibrator.approximate(name=NAME), tensor(4))


def test_secant_measures_in_float32_and_in_pieces(monkeypatch):
    """Half precision sums would overflow; a long sequence must not be copied whole."""
    monkeypatch.setattr("pack.dbcache.calibrators.secant.TOKENS_AT_ONCE", 3)
    base = torch.full((1, 8, 4), 60.0, dtype=torch.float16)
    calibrator = SecantCalibrator()
    for amount in (0.0, 100.0):
        calibrator.anchor("video", base * amount)
        calibrator.update(base * amount, name=NAME)
    calibrator.look({"video": base * 150})
    assert torch.equal(calibrator.approximate(name=NAME), base * 150)


@pytest.mark.parametrize("order", [1, 2])
def test_sigma_taylor_is_exact_on_polynomials_of_its_order(order):
    """However unevenly the schedule steps."""
    coefficients = [tensor(seed) for seed in range(order + 1)]

    def truth(sigma: float) -> torch.Tensor:
        return sum(c * sigma**power for power, c in enumerate(coefficients))

    calibrator = SigmaTaylorCalibrator(order)
    for sigma in (1.0, 0.98, 0.9, 0.85):
        calibrator.begin(sigma)
        calibrator.update(truth(sigma), name=NAME)
    for sigma in (0.84, 0.7, 0.2):
        calibrator.begin(sigma)
        assert torch.allclose(calibrator.approximate(name=NAME), truth(sigma), rtol=1e-5, atol=1e-5)
    calibrator.begin(0.85)
    assert torch.equal(calibrator.approximate(name=NAME), truth(0.85))


def test_sigma_taylor_grows_into_its_order_and_survives_odd_schedules():
    calibrator = SigmaTaylorCalibrator(2)
    calibrator.begin(1.0)
    calibrator.update(tensor(1), name=NAME)
    calibrator.begin(0.5)
    assert torch.equal(calibrator.approximate(name=NAME), tensor(1))
    calibrator.begin(1.0)  # the same level again: the newer residual counts, no division by zero
    calibrator.update(tensor(2), name=NAME)
    calibrator.begin(0.5)
    assert torch.equal(calibrator.approximate(name=NAME), tensor(2))
    calibrator.update(tensor(3), name=NAME)
    calibrator.begin(0.25)
    assert torch.allclose(calibrator.approximate(name=NAME), 1.5 * tensor(3) - 0.5 * tensor(2))
    calibrator.begin(0.75)  # a restart: the level turns round
    calibrator.update(tensor(4), name=NAME)
    calibrator.begin(1.0)
    assert torch.allclose(calibrator.approximate(name=NAME), 2 * tensor(4) - tensor(3))
    calibrator.update(tensor(5, (2, 7, 4)), name=NAME)  # another shape
    assert torch.equal(calibrator.approximate(name=NAME), tensor(5, (2, 7, 4)))


def test_lagrange_weights_sum_to_one():
    assert sum(lagrange_weights([1.0, 0.7, 0.1], 0.03)) == pytest.approx(1.0)
    assert lagrange_weights([1.0, 0.7], 0.7) == [0.0, 1.0]


@pytest.mark.parametrize("calibrator", OWN)
def test_samples_are_not_written_to(calibrator, monkeypatch):
    """Neither by the forecaster nor by those who take its forecast: a residual stays as it was passed to ``update``."""
    given = []
    forecaster = type(CALIBRATORS[calibrator].forecaster(1))
    update = forecaster.update

    def noted(self, residual, name):
        given.append((residual, residual.clone()))
        update(self, residual, name=name)

    monkeypatch.setattr(forecaster, "update", noted)
    rig = GateRig("double_single", custom(warmup_steps=3, calibrator=calibrator))
    outcomes = [rig.call(step)[1] for step in range(4)]
    assert outcomes[3].hit
    assert len(given) == 3 * 3  # three computed calls with image, text and the joint tokens
    assert all(torch.equal(residual, as_passed) for residual, as_passed in given)


@torch.no_grad()
@pytest.mark.parametrize("order", [1, 2])
def test_sigma_taylor_of_both_orders_in_a_gated_call(order):
    """A hit after full steps 0, 1 and 4 is the last block over the polynomial in sigma, here in Newton's form."""
    rig = GateRig("out_of_place", custom(bn=1, warmup_steps=5, calibrator="sigma_taylor", calibrator_order=order))
    rig.speed = 0.3
    blocks, context = rig.model.blocks, rig.context().mean(dim=1, keepdim=True)

    def through(x, step, first, last):
        for block in blocks[first:last]:
            x = block(x, e=1 - step / 12 + context, context=context)
        return x

    entries, middles = {}, {}
    for step in (0, 1, 4, 6):
        entries[step] = through(rig.model.embed(rig.x(step)), step, 0, 1)
        middles[step] = through(entries[step], step, 1, 7) - entries[step]
    assert not any(rig.call(step)[1].hit for step in (0, 1, 4))
    output, outcome = rig.call(6)
    assert outcome.hit
    sigma = {step: 1 - step / 12 for step in (0, 1, 4, 6)}
    newer = (middles[4] - middles[1]) / (sigma[4] - sigma[1])
    older = (middles[1] - middles[0]) / (sigma[1] - sigma[0])
    curved = (newer - older) / (sigma[4] - sigma[0])
    lines = middles[4] + (sigma[6] - sigma[4]) * newer
    forecasts = {1: lines, 2: lines + (sigma[6] - sigma[4]) * (sigma[6] - sigma[1]) * curved}
    pictures = {n: rig.model.head(through(entries[6] + one, 6, 7, 8)) for n, one in forecasts.items()}
    assert torch.allclose(output, pictures[order], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(pictures[1], pictures[2], rtol=1e-3, atol=1e-4)
