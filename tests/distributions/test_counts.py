"""Counts, and successes of so many trials: draws, moments and probabilities."""

from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch
from mpmath import hyperu  # which torch brings; SciPy's is not right everywhere
from posteriors import sure_within

from pyro_opu.distributions import PredictiveCount, PredictiveDirichlet, PredictiveTrials


@pytest.mark.parametrize("mean", [0.02, 3.0, 1e5])
@pytest.mark.parametrize("over", [0.0, 0.7])
def test_draws_of_a_count_have_its_moments(mean: float, over: float) -> None:
    """The law of total variance: noise m + r m^2 given m, at means near zero and far from it."""
    torch.manual_seed(0)
    epistemic = 0.3 * mean**2
    aleatoric = mean + over * (mean**2 + epistemic)
    moments = torch.tensor([mean, aleatoric, epistemic]).log().expand(20_000, 3)
    answer = PredictiveCount(*moments.unbind(1))
    assert torch.allclose(answer.stddev, answer.variance.sqrt())
    y, f = answer.predict(20)
    assert bool((y == y.round()).all())
    assert sure_within(f.mean(0), torch.tensor(mean)) and sure_within(y.mean(0), torch.tensor(mean))
    assert sure_within(f.var(0), torch.tensor(epistemic))
    assert sure_within((y - f).square().mean(0), torch.tensor(aleatoric))


def test_a_poisson_of_a_gamma_is_a_negative_binomial() -> None:
    """Its probabilities in closed form: shape 2, rate 0.5."""
    torch.manual_seed(0)
    shape, rate = 2.0, 0.5
    moments = torch.tensor([shape / rate, shape / rate, shape / rate**2]).log()
    y = PredictiveCount(*moments.expand(4000, 3).unbind(1)).sample((50,)).flatten()
    exact = torch.distributions.NegativeBinomial(shape, 1 / (1 + rate))
    for value in range(6):
        share = (y == value).float().mean()
        p = exact.log_prob(torch.tensor(float(value))).exp()
        assert (share - p).abs() < 5 * (p * (1 - p) / len(y)).sqrt()


@pytest.mark.parametrize("mean", [0.01, 3.0, 40.0])
@pytest.mark.parametrize("epistemic", [1e-14, 0.1, 1.0])
@pytest.mark.parametrize("over", [0.0, 1e-5, 0.05, 0.5, 3.0])
def test_probabilities_of_counts_have_the_moments(mean, epistemic, over) -> None:
    """Summed over all counts: one, the mean and the variance."""
    epistemic = epistemic * mean**2
    aleatoric = mean + over * (mean**2 + epistemic)
    law = PredictiveCount(*torch.tensor([mean, aleatoric, epistemic]).double().log())
    last = 8000 if mean > 10 else 1000
    y = torch.arange(float(last)).double()
    p = law.log_prob(y).exp()
    assert float(p.sum()) == pytest.approx(1, abs=1e-6)
    assert float((p * y).sum()) == pytest.approx(mean, rel=1e-4)  # the tail beyond the last
    spread = float((p * (y - mean).square()).sum())
    assert spread == pytest.approx(aleatoric + epistemic, rel=1e-2)  # likewise


@pytest.mark.parametrize("shape", [0.01, 2.0, 50.0, 1e5])
@pytest.mark.parametrize("mean", [1.0, 100.0, 1e4])
def test_without_overdispersion_they_are_a_negative_binomials(shape, mean) -> None:
    logs = torch.tensor([mean, mean, mean**2 / shape], dtype=torch.float64).log()
    logit = torch.tensor(mean / shape, dtype=torch.float64).log()
    exact = torch.distributions.NegativeBinomial(torch.tensor(shape).double(), logits=logit)
    y = torch.tensor([[0.0, 1.0, 2.0], [10.0, 100.0, 1000.0]]).double()
    torch.testing.assert_close(
        PredictiveCount(*logs.expand(3, 3).mT.unbind()).log_prob(y),
        exact.log_prob(y),
        rtol=1e-7,
        atol=1e-6,
    )


def test_probabilities_of_counts_have_gradients() -> None:
    logs = torch.tensor([[4.0, 0.3], [9.0, 0.4], [2.0, 0.5]]).double().log().requires_grad_()
    y = torch.tensor([[0.0, 2.0], [7.0, 1.0]]).double()
    assert torch.autograd.gradcheck(lambda z: PredictiveCount(*z.unbind()).log_prob(y), logs)
    poisson = torch.tensor([4.0, 4.0, 0.0]).log().requires_grad_()
    found = PredictiveCount(*poisson.unbind()).log_prob(torch.tensor(3))
    torch.testing.assert_close(found, dist.Poisson(4.0).log_prob(torch.tensor(3.0)))
    (slope,) = torch.autograd.grad(found, poisson)
    assert slope.isfinite().all()


def test_measures_of_trials_are_those_of_a_beta_binomial() -> None:
    alpha = torch.tensor([[2.0, 3.0], [400.0, 0.5], [0.2, 0.1]], dtype=torch.float64)
    n = torch.tensor([5.0, 100.0, 1.0], dtype=torch.float64)
    total = alpha.sum(-1)
    law = PredictiveTrials(PredictiveDirichlet((alpha / total[:, None]).log(), total.log()), n)
    answer = law.measures()
    p = alpha[:, 1] / total
    variance = n * p * (1 - p) * (total + n) / (total + 1)  # of a beta-binomial
    assert torch.allclose(answer.total, variance)
    y = torch.arange(101.0).double()[:, None]
    shares = torch.where(y <= n, law.log_prob(torch.minimum(y, n)).exp(), 0)
    assert torch.allclose(shares.sum(0), torch.ones(3).double())
    assert torch.allclose((shares * y).sum(0), n * p)
    assert torch.allclose(law.variance, variance) and torch.allclose(law.stddev, variance.sqrt())
    assert torch.allclose(answer.epistemic, n**2 * p * (1 - p) / (total + 1))
    assert torch.allclose(answer.mean, n * p)


@pytest.mark.parametrize("over", [0.2, 5.0, 1e3])
@pytest.mark.parametrize("epistemic", [0.5, 20.0, 1e3])
def test_probability_of_no_count_where_rates_are_mostly_near_zero(epistemic, over) -> None:
    """Of a rate that is a product of two gamma variates, by Tricomi's function."""
    a, b = 1 / epistemic, 1 / over
    moments = torch.tensor([1.0, 1 + over * (1 + epistemic), epistemic]).double().log()
    exact = a * math.log(a * b) + math.log(hyperu(a, a + 1 - b, a * b))
    found = PredictiveCount(*moments).log_prob(torch.tensor(0.0).double())
    assert float(found) == pytest.approx(exact, rel=0, abs=1e-6)
