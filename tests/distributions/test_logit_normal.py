"""Marginals with normal logits: moments by quadrature, known posteriors, and the ends."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

import pyro_opu
from pyro_opu import PredictiveDirichlet
from pyro_opu.distributions import LogitNormal
from pyro_opu.distributions.normal_logits import averaged_logit, normal_logit


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


def moments(m: float, s: float) -> tuple[float, float, float]:
    """Mean, variance and expected -p log p of a logit-normal p, by adaptive quadrature."""

    def expected(of) -> float:
        ends = (-9, 9)
        return quad(lambda z: of(sigmoid(m + s * z)) * norm.pdf(z), *ends, limit=200)[0]

    mean = expected(lambda p: p)
    entropy = expected(lambda p: -p * math.log(p) if p > 0 else 0.0)
    return mean, expected(lambda p: (p - mean) ** 2), entropy


@pytest.mark.parametrize("probability", [0.5, 0.03, 0.97, 0.999, 2e-4])
@pytest.mark.parametrize("log_concentration", [0.1, 1.5, 3.0, 6.0])
def test_moments_are_those_of_the_dirichlet(probability: float, log_concentration: float) -> None:
    mean = torch.tensor([[probability, 1 - probability]], dtype=torch.float64)
    g = torch.tensor([log_concentration], dtype=torch.float64)
    law = LogitNormal(PredictiveDirichlet(mean.log(), g))
    for k in (0, 1):
        m, s = float(law.logit[0, k]), float(law.deviation[0, k])
        found, variance, _ = moments(m, s)
        h = float(mean[0, k])
        # Interpolation in the table: 0.01 in the logit and in log alpha_0.
        assert math.log(found / (1 - found)) == pytest.approx(math.log(h / (1 - h)), abs=0.015)
        assert variance == pytest.approx(h * (1 - h) / (math.exp(log_concentration) + 1), rel=0.02)
    expected = sum(moments(float(law.logit[0, k]), float(law.deviation[0, k]))[2] for k in (0, 1))
    information = float(torch.special.entr(mean).sum()) - expected
    assert float(law.mutual_information) == pytest.approx(information, rel=0.02, abs=1e-6)


def test_the_table_inverts_the_average() -> None:
    logits, g = torch.meshgrid(
        torch.linspace(-8.9, 8.9, 60).double(),
        torch.linspace(0.0, 15.9, 60).double(),
        indexing="ij",
    )
    mean, deviation = normal_logit(logits, g)
    moments = mean.reshape(-1, 1), deviation.square().reshape(-1, 1)
    found, log_concentration = averaged_logit(*moments, count=400, reach=12.0)
    torch.testing.assert_close(found.reshape(60, 60), logits, rtol=0, atol=0.01)
    torch.testing.assert_close(log_concentration.reshape(60, 60), g, rtol=0, atol=0.01)


def test_two_classes_have_one_logit() -> None:
    law = LogitNormal(PredictiveDirichlet(torch.tensor([[0.8, 0.2]]).log(), torch.tensor([2.0])))
    torch.testing.assert_close(law.logit[:, 0], -law.logit[:, 1])
    torch.testing.assert_close(law.deviation[:, 0], law.deviation[:, 1])
    low, high = law.interval(0.9)
    torch.testing.assert_close(low[:, 0], 1 - high[:, 1])


def test_quantiles_and_distribution_function() -> None:
    torch.manual_seed(0)
    law = LogitNormal(PredictiveDirichlet(torch.randn(5, 3).log_softmax(-1), 2 + torch.randn(5)))
    for q in (0.05, 0.5, 0.9):
        torch.testing.assert_close(law.cdf(law.quantile(q)), torch.full((5, 3), q))
    low, high = law.interval(0.5)
    assert (low < high).all() and low.dtype == torch.float32
    assert law.cdf(torch.zeros(2, 5, 3)).eq(0).all() and law.cdf(torch.ones(5, 3)).eq(1).all()


@pytest.mark.parametrize("log_concentration", [-8.0, 0.0, 16.0])
@pytest.mark.parametrize("logits", [[0.0, 0.0, 0.0], [80.0, 0.0, -80.0], [9.0, 0.0, 0.0]])
def test_ends(logits: list[float], log_concentration: float) -> None:
    """Classes of no probability, and concentrations at the ends of their range."""
    answer = PredictiveDirichlet(
        torch.tensor([logits]).log_softmax(-1), torch.tensor([log_concentration])
    )
    law = LogitNormal(answer)
    assert law.logit.isfinite().all() and law.deviation.isfinite().all()
    low, high = law.interval(0.9)
    assert (low >= 0).all() and (high <= 1).all() and (low <= high).all()
    assert law.mutual_information.isfinite().all()


def normal_posterior(x: Tensor) -> Tensor:
    """Draws of a logistic regression whose weights are normal: logits are, exactly."""
    weights = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0)) + 1.5
    logits = x @ weights.mT
    return torch.stack([logits, -logits], -1).movedim(1, 0).mul(0.5).softmax(-1)


def test_a_posterior_over_logits_is_matched_where_no_dirichlet_is() -> None:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    draws = normal_posterior(x).double()
    mean, variance = draws.mean(0), draws.var(0)
    g = (mean[:, 0] * mean[:, 1] / variance[:, 0] - 1).log()
    law = LogitNormal(PredictiveDirichlet(mean.log(), g))
    for level, error in ((0.5, 0.03), (0.9, 0.02)):  # of 4,000 draws, and of the table
        low, high = law.interval(level)
        held = ((draws > low) & (draws < high)).double().mean(0)
        assert (held - level).abs().max() < error
    information = torch.special.entr(mean).sum(-1) - torch.special.entr(draws).sum(-1).mean(0)
    torch.testing.assert_close(law.mutual_information, information, rtol=0.05, atol=1e-4)
    beta = torch.distributions.Beta(mean[:, 0] * g.exp(), mean[:, 1] * g.exp()).sample((4000,))
    ends = beta.quantile(torch.tensor([0.25, 0.75]).double(), dim=0)
    held = ((draws[..., 0] > ends[0]) & (draws[..., 0] < ends[1])).double().mean(0)
    assert (held - 0.5).abs().max() > 0.15  # Dirichlets of the same moments


def test_of_a_student() -> None:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    fast = pyro_opu.distill(normal_posterior, x, num_steps=3, seed=0, progress=False)
    law = fast.marginals(x[:4])
    assert law.interval(0.9)[0].shape == (4, 2) and repr(law)
    assert torch.equal(law.log_mean, fast.dirichlet(x[:4]).log_mean)


@pytest.mark.parametrize("value", [0, 1, -0.2, math.nan, "half"])
def test_refused(value: object) -> None:
    law = LogitNormal(PredictiveDirichlet(torch.tensor([[0.8, 0.2]]).log(), torch.tensor([2.0])))
    with pytest.raises(ValueError, match="`level` must be a number in"):
        law.interval(value)
    with pytest.raises(ValueError, match="`q` must be a number in"):
        law.quantile(value)
    with pytest.raises(TypeError, match="`dirichlet` must be a PredictiveDirichlet"):
        LogitNormal(torch.ones(2, 2))
