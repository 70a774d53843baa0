"""Judging a student by held-out draws, and recalibrating its concentration."""

from __future__ import annotations

import math

import pytest
import torch
from quick_distill import quick
from torch import Tensor, nn

from pyro_opu import PredictiveDirichlet
from pyro_opu.distributions import Empirical
from pyro_opu.judging import ClassJudge, laws
from pyro_opu.judging.laws import calibrating_shift
from pyro_opu.metrics.marginals import Marginals
from pyro_opu.metrics.uncertainty import moment_concentration
from pyro_opu.rng import seeded


class Points(nn.Module):
    """A student that answers with given draws at any inputs."""

    def __init__(self, draws: Tensor) -> None:
        super().__init__()
        self.draws = draws

    def forward(self, x: Tensor) -> Empirical:
        return Empirical(self.draws.log())


@pytest.mark.parametrize("judging", [40, 200])
def test_half_of_the_held_draws_are_not_nearer_than_the_draws(judging: int) -> None:
    posterior = torch.distributions.Dirichlet(torch.tensor([2.0, 1.0, 3.0]))
    held = posterior.sample((200, 300))
    x = torch.zeros(300, 1)
    labelled = ClassJudge(x, held[:judging], held=200)
    scores = {
        share: labelled.scores(Points(part))["energy_distance"]
        for share, part in {"half": held[::2], "tenth": held[::10], "all": held}.items()
    }
    spread = float((held[:, None] - held).abs().sum(-1).sum((0, 1)).mean()) / (200 * 199)
    # Monte Carlo of the 256 draws of the student, over 300 inputs.
    assert scores["all"] == pytest.approx(-spread / 200, abs=3e-4)
    assert scores["half"] == pytest.approx(0.0, abs=3e-4)
    enough = labelled.sampling_distance()
    assert scores["tenth"] > enough
    # 200 of 200 draws are the posterior; 40 of them are further from it than half of them.
    assert scores["half"] > enough if judging == 200 else scores["half"] < enough


def test_sampling_distance_is_what_draws_leave_of_their_posterior() -> None:
    torch.manual_seed(0)
    posterior = torch.distributions.Dirichlet(torch.tensor([2.0, 1.0, 3.0]))
    few = posterior.sample((20, 2000))
    truth = posterior.sample((2000, 1))
    # The distance of 20 draws from 2000, with the few draws' pairs with themselves counted in.
    cross = torch.stack([(few[:, n, None] - truth[:, 0]).abs().sum(-1).mean() for n in range(2000)])
    within = (few[:, None] - few).abs().sum(-1).mean((0, 1))
    other = (truth[:, 0, None] - truth[:, 0]).abs().sum(-1).sum() / (2000 * 1999)
    expected = (2 * cross - within - other).mean()
    found = ClassJudge(torch.zeros(2000, 1), few).sampling_distance()
    assert found == pytest.approx(float(expected), rel=0.05)  # 2000 repeats, error 2 %


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
    """Of a distance that is least at a known part of the shift."""

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
    assert fast.guide.calibration.tolist() == [1.0, 0.0]
    assert "recalibration" not in fast.report
    assert quick().report["recalibration"]["shift"] != 0


@pytest.mark.parametrize("concentration", [3.0, 1e3, 1e5])
def test_what_is_attainable_of_fresh_draws_is_known(concentration: float) -> None:
    """A half of S draws judges: (C - 1) / S (alpha_0 + 1), to second order."""
    alpha = concentration * torch.tensor([0.2, 0.5, 0.3])
    draws = torch.distributions.Dirichlet(alpha).sample((100, 2000))
    found = ClassJudge(torch.zeros(2000, 1), draws).attainable
    # 2,000 rows with two degrees of freedom: a standard error of 2 %; 1 % is of third order.
    assert found == pytest.approx(0.02 / (concentration + 1), rel=0.11)
    held = ClassJudge(torch.zeros(2000, 1), draws, held=100)
    assert held.attainable == pytest.approx(found / 2)


def test_no_error_below_what_float32_resolves_is_held_against_a_student() -> None:
    """Logits of a network are rounded by 1e-5, which is a KL of 1e-11, where all draws agree."""
    logits = torch.randn(300, 3)
    draws = logits.softmax(-1).expand(20, -1, -1)
    answer = (logits + 1e-5 * torch.randn(300, 3)).log_softmax(-1)
    guide = nn.Identity()
    guide.forward = lambda x: PredictiveDirichlet(answer, torch.full((300,), 16.0))
    assert ClassJudge(torch.zeros(300, 1), draws).scores(guide)["kl_ratio"] < 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_halves_do_not_follow_the_numbers_that_made_the_draws(seed: int) -> None:
    """Draws by the first numbers of a usual seed, one for each; a split by them is by size."""
    torch.manual_seed(seed)
    p = torch.rand(40, 500)
    labelled = ClassJudge(torch.zeros(500, 1), torch.stack([p, 1 - p], -1))
    one, other = (half.exp()[:, 0] for half in labelled.means)
    assert (one - other).abs().mean() < 0.15  # by size it is 0.5, by chance 0.07


def test_sticks_are_tried_for_a_hundred_classes_and_not_for_a_thousand() -> None:
    for classes, count in ((3, 2), (100, 2), (1000, 1)):
        flat = PredictiveDirichlet(torch.zeros(1, classes).log_softmax(-1), torch.zeros(1))
        assert len(laws.both_laws(flat)) == count
