"""Objectives: what each is least at, which gradients it gives, and its behaviour at extremes."""

from __future__ import annotations

import math

import pytest
import torch
from posteriors import CORNERS, MEAN, dirichlet_draws, sure_within
from scipy import special, stats
from torch import Tensor

from pyro_opu import (
    CrossEntropy,
    DirichletLikelihood,
    EnergyDistance,
    MomentMatching,
    Objective,
    PredictiveDirichlet,
    WassersteinELBO,
)
from pyro_opu.metrics.distances import energy_distance
from pyro_opu.metrics.marginals import mean_absolute_difference
from pyro_opu.objectives import as_objective
from pyro_opu.objectives.energy import energy_distance_loss

C = 3


def student(concentration: float, rows: int = 5) -> PredictiveDirichlet:
    g = torch.full((rows,), math.log(concentration))
    return PredictiveDirichlet(MEAN.float().log().expand(rows, C), g)


def test_repr_tells_settings_apart() -> None:
    assert "beta=0.5" in repr(WassersteinELBO(beta=0.5))
    assert repr(MomentMatching("share")) != repr(MomentMatching("variance"))


def test_objectives_by_name() -> None:
    names = ("wasserstein", "moments", "energy", "likelihood", "cross_entropy")
    kinds = (WassersteinELBO, MomentMatching, EnergyDistance, DirichletLikelihood, CrossEntropy)
    for name, kind in zip(names, kinds, strict=True):
        assert type(as_objective(name)) is kind
    own = EnergyDistance(7)
    assert as_objective(own) is own
    with pytest.raises(ValueError, match=r"`loss` must be one of \['cross_entropy'.*got 'kl'"):
        as_objective("kl")
    with pytest.raises(TypeError, match="`loss` must be .* got <function"):
        as_objective(lambda *args: 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", [MomentMatching(), EnergyDistance()])
def test_one_draw_is_refused(objective: Objective) -> None:
    with pytest.raises(ValueError, match="at least two draws per input.*says nothing"):
        objective(student(3.0), dirichlet_draws(4.0, 1, 5).float(), torch.randn(5, 2))


@pytest.mark.parametrize(
    "objective",
    [MomentMatching(), MomentMatching("variance"), DirichletLikelihood(), CrossEntropy()],
    ids=["share", "variance", "likelihood", "cross-entropy"],
)
@pytest.mark.parametrize("concentration", [0.1, 20.0])
def test_gradcheck(objective: Objective, concentration: float) -> None:
    draws = dirichlet_draws(4.0, 6, 2)

    def loss(logits: Tensor, g: Tensor) -> Tensor:
        d = PredictiveDirichlet(logits.log_softmax(-1), g)
        return objective(d, draws, draws[0])

    # The divisor of "share" is held fixed, so that differences in the logits would see it move.
    held = isinstance(objective, MomentMatching) and objective.weights == "share"
    logits = torch.randn(2, C, dtype=torch.float64, requires_grad=not held)
    g = torch.full((2,), math.log(concentration), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (logits, g))


# Cross-entropy -------------------------------------------------------------------------------


# Energy distance -----------------------------------------------------------------------------


def energy_by_loop(p: Tensor, q: Tensor) -> Tensor:
    def mean(a: Tensor, b: Tensor, same: bool) -> Tensor:
        pairs = [(i, j) for i in range(len(a)) for j in range(len(b)) if not (same and i == j)]
        return torch.stack([(a[i] - b[j]).abs().sum(-1) for i, j in pairs]).mean(0)

    return 2 * mean(p, q, False) - mean(p, p, True) - mean(q, q, True)


@pytest.mark.parametrize(("num_p", "num_q"), [(2, 2), (3, 7), (8, 5)])
def test_energy_distance_against_a_loop(num_p: int, num_q: int) -> None:
    p, q = dirichlet_draws(2.0, num_p, 4), dirichlet_draws(9.0, num_q, 4)
    torch.testing.assert_close(energy_distance_loss(p, q), energy_by_loop(p, q))
    torch.testing.assert_close(energy_distance_loss(p, q), energy_distance(p, q))


def test_energy_distance_with_ties() -> None:
    p, q = CORNERS.double(), CORNERS.double()[:, torch.tensor([1, 1, 0, 3, 2])]
    torch.testing.assert_close(energy_distance_loss(p, q), energy_by_loop(p, q))


def test_mean_absolute_difference_of_known_values() -> None:
    # |1-3|, |1-8|, |3-8| have the mean (2 + 7 + 5) / 3.
    value = mean_absolute_difference(torch.tensor([3.0, 8.0, 1.0]))
    torch.testing.assert_close(value, torch.tensor(14 / 3))


@pytest.mark.parametrize("concentration", [0.05, 3.0])
def test_energy_distance_of_equals_has_mean_zero(concentration: float) -> None:
    p, q = (dirichlet_draws(concentration, count, 5_000) for count in (8, 6))
    assert sure_within(energy_distance_loss(p, q), 0.0)


def exact_energy(alpha: Tensor, teacher: Tensor) -> float:
    """Energy distance of a Dirichlet to fixed draws ``(T, C)``, from its Beta marginals."""
    total, value = 0.0, 0.0
    for k, a in enumerate(alpha.tolist()):
        b = float(alpha.sum()) - a
        y = teacher[:, k].numpy()
        # E|X - y| = y (2 F(y) - 1) + E X - 2 E X 1(X < y), with E X 1(X < y) = m F_{a+1,b}(y).
        m, below = a / (a + b), special.betainc(a, b, y)
        to_teacher = y * (2 * below - 1) + m - 2 * m * special.betainc(a + 1, b, y)
        log_own = special.betaln(a + b, a + b) - special.betaln(a, a) - special.betaln(b, b)
        value += 2 * to_teacher.mean() - 4 / (a + b) * math.exp(log_own)
        total += float(mean_absolute_difference(teacher[:, k]))
    return value - total


def test_energy_value_against_the_exact_expectation() -> None:
    teacher, replicates = dirichlet_draws(3.0, 12, 1), 4_000
    alpha = torch.tensor([0.4, 1.0, 2.0], dtype=torch.float64)
    draws = torch.distributions.Dirichlet(alpha.expand(replicates, C)).sample((8,))
    values = energy_distance_loss(draws, teacher.expand(-1, replicates, -1))
    assert sure_within(values, exact_energy(alpha, teacher[:, 0]))


# Likelihood ----------------------------------------------------------------------------------


@pytest.mark.parametrize("concentration", [0.5, 30.0, 1e5])
def test_likelihood_is_torchs(concentration: float) -> None:
    draws = dirichlet_draws(max(concentration, 1.0), 6, 5)
    alpha = (concentration * torch.rand(5, C, dtype=torch.float64)).clamp_min(0.01)
    expected = -torch.distributions.Dirichlet(alpha).log_prob(draws).mean()
    found = DirichletLikelihood(smoothing=0.0)(
        PredictiveDirichlet.from_alpha(alpha), draws, draws[0]
    )
    # float64 gammas of 1e6 lose seven of the sixteen digits.
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-8)


def test_likelihood_in_float32_has_the_digits_of_float64() -> None:
    draws, results = dirichlet_draws(1e6, 100, 5).float(), []
    for dtype in (torch.float32, torch.float64):
        g = torch.full((5,), math.log(1e6), requires_grad=True, dtype=dtype)
        d = PredictiveDirichlet(MEAN.to(dtype).log().expand(5, C), g, validate_args=False)
        loss = DirichletLikelihood(smoothing=0.0)(d, draws.to(dtype), draws[0])
        results.append((loss.item(), torch.autograd.grad(loss, g)[0].double()))
    (single, slope), (double, exact) = results
    # g = 13.8 and log h are themselves rounded, to 1e-6: alpha to 1, log pi to 1e-6 of 1.
    assert abs(single - double) < 0.1
    torch.testing.assert_close(slope, exact, rtol=0, atol=0.1)


def test_smoothing_moves_draws_towards_the_uniform() -> None:
    d, draws = student(3.0), CORNERS
    smooth = 0.9 * draws + 0.1 / C
    found = DirichletLikelihood(smoothing=0.1)(d, draws, draws[0])
    expected = -d.log_prob(smooth).mean()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # float32


def test_exact_energy_of_this_file_against_quadrature() -> None:
    """The reference itself: E|X - X'| and E|X - y| of Betas by quadrature."""
    grid = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    for a, b in [(2.0, 3.5), (30.0, 4.0)]:
        cdf = stats.beta(a, b).cdf(grid.numpy())
        gini = 2 * float((cdf * (1 - cdf)).mean())
        y = 0.37
        to_y = float(cdf[grid.numpy() < y].sum() + (1 - cdf[grid.numpy() >= y]).sum()) / len(grid)
        alpha = torch.tensor([a, b], dtype=torch.float64)
        teacher = torch.tensor([[y, 1 - y]] * 2, dtype=torch.float64)
        # Two equal classes' worth: the second coordinate mirrors the first. Midpoint rule: 1e-5.
        assert abs(exact_energy(alpha, teacher) - 2 * (2 * to_y - gini)) < 1e-4
