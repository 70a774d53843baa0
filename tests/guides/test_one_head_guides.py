"""Students of one head, answers that are no Dirichlet, and guides chosen by name."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pyro_opu
from pyro_opu import OnePassPredictive, PredictiveDirichlet
from pyro_opu.distributions import Empirical
from pyro_opu.guides import (
    GUIDES,
    SingleHeadGuide,
)
from pyro_opu.objectives import EnergyDistance, MomentMatching
from pyro_opu.objectives.energy import energy_distance_loss

C = 3


def logistic(x: Tensor) -> Tensor:
    """Fifty logistic regressions, the same at every call."""
    weights = torch.randn(50, x.shape[1], C, generator=torch.Generator().manual_seed(0))
    return torch.einsum("nd,sdc->snc", x, weights).softmax(-1)


def test_single_head_alpha_is_the_exponential_of_the_head() -> None:
    x = torch.randn(7, 5)
    guide = SingleHeadGuide.for_inputs(x, C, hidden=(8,))
    z = guide.head(guide.trunk(x))
    # The bend at the ends of the range is below 1e-3 near zero: e^-8.
    torch.testing.assert_close(guide(x).log_alpha, z, atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", ["single_head", "point"])
def test_distill_by_name_saves_and_loads(name: str, tmp_path: Path) -> None:
    x = torch.randn(60, 2)
    fast = pyro_opu.distill(logistic, x, guide=name, num_steps=30, seed=0, progress=False)
    assert type(fast.guide) is GUIDES[name]
    fast.save(tmp_path / "fast.safetensors")
    again = OnePassPredictive.load(tmp_path / "fast.safetensors")
    assert torch.equal(again.distribution(x).log_mean, fast.distribution(x).log_mean)
    assert fast(x[:4])["obs"].shape == (50, 4)


def test_a_point_has_no_spread_and_is_measured_all_the_same() -> None:
    x = torch.randn(80, 2)
    fast = pyro_opu.distill(logistic, x, guide="point", num_steps=40, seed=0, progress=False)
    found = fast.uncertainty(x)
    assert found.epistemic.abs().max() < 1e-6 and found.variance.max() == 0
    assert found.concentration.isinf().all() and found.differential_entropy.isneginf().all()
    torch.testing.assert_close(found.total, found.aleatoric)
    dirichlet = fast.dirichlet(x)
    assert isinstance(dirichlet, PredictiveDirichlet)
    assert float(dirichlet.log_concentration.min()) == 16.0  # the end of its range
    torch.testing.assert_close(dirichlet.mean, fast.distribution(x).mean)
    report = pyro_opu.fidelity(fast, logistic, x, seed=0)
    # All of the teacher's spread is missing: the distance to a point, not to itself.
    assert report.energy_distance > 20 * abs(report.energy_distance_floor)
    assert report.kl < report.kl_trivial
    scores = pyro_opu.out_of_domain(fast, x, 3 * x, seed=0)
    assert scores["mutual_information"].auroc == pytest.approx(0.5, abs=0.05)  # all are alike


def test_atoms_against_their_own_draws() -> None:
    logs = torch.randn(4, 5, C, dtype=torch.float64).log_softmax(-1)
    atoms, points = Empirical(logs), logs.exp()
    exact, mean = atoms.measures(), points.mean(0)
    torch.testing.assert_close(atoms.mean, mean)
    torch.testing.assert_close(exact.total, -(mean * mean.log()).sum(-1))
    torch.testing.assert_close(exact.variance, ((points - mean) ** 2).mean(0).sum(-1))
    pairs = (points[:, None] * (logs[:, None] - logs[None])).sum(-1).mean((0, 1))
    torch.testing.assert_close(exact.expected_pairwise_kl, pairs)
    draws = atoms.sample((20_000,))
    # Four deviations of a share of 1/4 in 20,000 draws.
    share = (draws[:, :, None] - points.movedim(0, 1)).abs().amax(-1).lt(1e-12).double().mean(0)
    assert (share - 0.25).abs().max() < 4 * math.sqrt(0.25 * 0.75 / 20_000)


def test_moments_of_atoms_match_the_dirichlet() -> None:
    """The matched Dirichlet has the atoms' mean and summed variance."""
    atoms = Empirical(torch.randn(6, 5, C, dtype=torch.float64).log_softmax(-1))
    matched = atoms.matched()
    torch.testing.assert_close(matched.mean, atoms.mean)
    torch.testing.assert_close(matched.variance.sum(-1), atoms.measures().variance)


def test_energy_distance_of_equal_strata_is_that_of_all_draws_together() -> None:
    """With equal weights and many draws strata and one sample estimate the same number."""
    student, teacher = (torch.randn(4000, 3, C).softmax(-1) for _ in range(2))
    together = energy_distance_loss(student, teacher)
    apart = energy_distance_loss(student, teacher, torch.full((4, 3), 0.25))
    # They differ in the pairs within a stratum only: 1 / 1000 of a mean difference below 1.
    torch.testing.assert_close(apart, together, atol=2e-3, rtol=0)


def test_energy_distance_with_weights_against_the_slow_loop() -> None:
    strata, size, teachers = 3, 4, 5
    student = torch.randn(strata * size, 2, C, dtype=torch.float64).softmax(-1)
    teacher = torch.randn(teachers, 2, C, dtype=torch.float64).softmax(-1)
    weights = torch.rand(strata, 2, dtype=torch.float64)
    weights = weights / weights.sum(0)
    expected = torch.zeros(2, dtype=torch.float64)
    for n in range(2):
        for i in range(strata * size):
            w = weights[i // size, n] / size
            for j in range(teachers):
                expected[n] += 2 * w * (student[i, n] - teacher[j, n]).abs().sum() / teachers
            for other in range(strata * size):
                same, v = i // size == other // size, weights[other // size, n] / size
                part = w * v * (student[i, n] - student[other, n]).abs().sum()
                expected[n] -= part * (size / (size - 1) if same else 1.0)
        for i in range(teachers):
            for j in range(teachers):
                gap = (teacher[i, n] - teacher[j, n]).abs().sum()
                expected[n] -= gap / (teachers * (teachers - 1))
    torch.testing.assert_close(energy_distance_loss(student, teacher, weights), expected)
    student.requires_grad_(), weights.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda s, w: energy_distance_loss(s, teacher, w), (student, weights)
    )


def test_energy_distance_with_a_likelihood_term() -> None:
    x, draws = torch.randn(6, 2), torch.rand(8, 6, C).softmax(-1)
    student = PredictiveDirichlet(torch.zeros(6, C).log_softmax(-1), torch.ones(6))
    parts = EnergyDistance(likelihood=2.0).parts(student, draws, x)
    assert set(parts) == {"energy", "log_likelihood"}
    assert float(parts["log_likelihood"]) == pytest.approx(2 * math.log(C), rel=1e-5)
    with pytest.raises(
        ValueError, match="`likelihood` must be a finite number of at least 0; got -1"
    ):
        EnergyDistance(likelihood=-1.0)


def test_every_step_tells_the_objective_how_far_it_is() -> None:
    class Heard(MomentMatching):
        def __init__(self) -> None:
            super().__init__()
            self.heard: list[float] = []

        def anneal(self, progress: float) -> None:
            self.heard.append(progress)

    loss = Heard()
    pyro_opu.distill(logistic, torch.randn(20, 2), loss=loss, num_steps=5, seed=0, progress=False)
    assert loss.heard == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])
