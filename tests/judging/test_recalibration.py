"""Recalibrating the concentration of a student."""

from __future__ import annotations

import math

import pytest
import torch
from quick_distill import quick
from torch import Tensor, nn

from pyro_opu import PredictiveDirichlet
from pyro_opu.judging import ClassJudge, laws
from pyro_opu.judging.laws import calibrating_shift
from pyro_opu.metrics.marginals import Marginals
from pyro_opu.metrics.uncertainty import moment_concentration
from pyro_opu.rng import seeded


class AsSure(nn.Module):
    """A guide with one Dirichlet for all inputs."""

    def __init__(self, concentration: float, mean: Tensor | None = None) -> None:
        super().__init__()
        self.g = math.log(concentration)
        self.log_mean = (torch.tensor([0.2, 0.5, 0.3]) if mean is None else mean).log()

    def forward(self, x: Tensor) -> PredictiveDirichlet:
        log_mean = self.log_mean.expand(len(x), 3)
        return PredictiveDirichlet(log_mean, torch.full((len(x),), self.g))


def answers_of(concentration: float) -> ClassJudge:
    """500 draws of such a Dirichlet at 200 inputs."""
    x = torch.zeros(200, 1)
    return ClassJudge(x, AsSure(concentration)(x).sample((500,)))


@pytest.fixture(scope="module")
def twice_as_sure() -> tuple[ClassJudge, dict[str, float]]:
    """Answers of half the student's concentration, and what is found of them."""
    with seeded(0):
        inputs = answers_of(4.0)
    return inputs, calibrating_shift(AsSure(8.0), inputs)


def test_recalibration_finds_the_teachers_concentration(twice_as_sure) -> None:
    _, found = twice_as_sure
    # 100,000 draws leave the mean mutual information 1 % of itself, and log alpha_0 about as much.
    assert found["asked"] == pytest.approx(math.log(0.5), abs=0.03)
    assert found["shift"] == pytest.approx(math.log(0.5), abs=0.03)
    assert 0.9 < found["part"] <= 1 and found["after"] < 0.1 * found["before"]


@pytest.mark.parametrize("nearest", [1.2, 0.95, 0.6, 0.3, 0.1, -1.0])
def test_recalibration_takes_the_part_that_brings_nearest(
    monkeypatch: pytest.MonkeyPatch, nearest: float, twice_as_sure
) -> None:
    """The distance is least at a known part of the shift."""

    def distance(alpha: Tensor, draws: Tensor) -> Tensor:
        moved = (alpha.double().sum(-1).log() - math.log(8)) / asked
        return Marginals(draws).spread + 0.02 + (moved - nearest).square()

    inputs, exact = twice_as_sure
    asked = exact["asked"]
    monkeypatch.setattr(laws, "distance_from_dirichlet", distance)
    found = calibrating_shift(AsSure(8.0), inputs)
    assert found["part"] == pytest.approx(min(max(nearest, 0.0), 1.0), abs=1 / 16)
    assert found["part"] in (0.0, 1.0) or 0 < nearest < 1
    assert found["after"] <= found["before"] == pytest.approx(0.02 + nearest**2)
    assert found["shift"] == found["part"] * found["asked"]
    assert found["asked"] == pytest.approx(math.log(0.5), abs=0.03)


def test_recalibration_of_draws_that_are_no_dirichlet_lies_between_their_moments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Second moments ask for no shift and mutual information for all: energy for some of it."""
    monkeypatch.setattr(laws, "DISTANCE_NUMBERS", 2**20)  # all: the least is flat
    draws = (torch.tensor([0.0, 2.0, 4.0]) + 2 * torch.randn(500, 200, 3)).softmax(-1)
    student = AsSure(float(moment_concentration(draws).mean()), draws.mean((0, 1)))
    inputs = ClassJudge(torch.zeros(200, 1), draws)
    found = calibrating_shift(student, inputs)
    energies = {}
    for step in range(11):
        shifted = AsSure(math.exp(student.g + step / 10 * found["asked"]), draws.mean((0, 1)))
        energies[step / 10] = float(laws.distances(inputs, shifted(inputs.x), 0).mean())
    best = min(energies, key=energies.__getitem__)
    assert found["asked"] > 0.1 and found["part"] == pytest.approx(best, abs=0.15)
    samples = AsSure(math.exp(student.g), draws.mean((0, 1)))(inputs.x).sample((2000,))
    sampled = float(inputs.marginals.energy_distance(samples).mean())
    assert found["after"] < found["before"] == pytest.approx(sampled, rel=0.1)


def test_recalibration_of_a_perfect_student_does_nothing() -> None:
    """What mutual information asks for is by chance, and so small that any part of it is none."""
    for _ in range(2):
        found = calibrating_shift(AsSure(8.0), answers_of(8.0))
        assert abs(found["shift"]) < 0.03 and abs(found["after"]) < 1e-3


def test_recalibration_can_be_left_out() -> None:
    fast = quick(recalibrate=False)
    assert fast.guide.shift.item() == 0.0
    assert "recalibration" not in fast.report
    assert quick().report["recalibration"]["shift"] != 0


def test_sticks_are_tried_for_a_hundred_classes_and_not_for_a_thousand() -> None:
    for classes, count in ((3, 2), (100, 2), (1000, 1)):
        flat = PredictiveDirichlet(torch.zeros(1, classes).log_softmax(-1), torch.zeros(1))
        assert len(laws.both_laws(flat)) == count
