"""The Dirichlet in log space: law of its draws, gradients, extremes, use as a Pyro distribution."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import special, stats
from torch import Tensor
from widest import Held

from pyro_opu.distributions.dirichlet import (
    PredictiveDirichlet,
    log_dirichlet_rsample,
    moment_matched,
)

MEAN = torch.tensor([0.2, 0.5, 0.3])

# Each goodness-of-fit test fails by chance once in 1e6; there are fewer than 100 of them here.
FALSE_ALARM = 1e-6

# Errors of a Monte Carlo mean are allowed this many standard errors: once in 2e6 by chance.
SIGMAS = 5.0


def predictive(concentration: float, dtype: torch.dtype = torch.float32) -> PredictiveDirichlet:
    mean = MEAN.to(dtype)
    return PredictiveDirichlet(mean.log(), torch.tensor(concentration, dtype=dtype).log())


def beta_cdf_of_log(t: np.ndarray, a: float, b: float) -> np.ndarray:
    """P(log X <= t) for X ~ Beta(a, b), where exp(t) may underflow."""
    far = np.minimum(t, -40.0)
    tail = np.exp(a * far - np.log(a) - special.betaln(a, b))  # up to a factor 1 + O(exp(t))
    return np.where(t < -40.0, tail, special.betainc(a, b, np.exp(np.maximum(t, -40.0))))


@pytest.mark.parametrize("concentration", [1e-6, 1e-3, 0.3, 1.0, 8.0, 1e4, 1e8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_marginals_are_beta(concentration: float, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    draws = 5_000
    log_pi = predictive(concentration, dtype).log_rsample((draws,)).double().numpy()
    # Close to 1 a float32 logarithm is 0, an atom; below the cut the law is continuous.
    cut = np.log(0.99)
    for k, mean in enumerate(MEAN.tolist()):
        a, b = concentration * mean, concentration * (1.0 - mean)
        below = log_pi[log_pi[:, k] < cut, k]
        share = float(beta_cdf_of_log(np.array(cut), a, b))
        assert stats.binomtest(len(below), draws, min(share, 1.0)).pvalue > FALSE_ALARM
        fit = stats.kstest(below, lambda t, a=a, b=b, c=share: beta_cdf_of_log(t, a, b) / c)
        assert fit.pvalue > FALSE_ALARM


def test_small_alpha_draws_are_corners_with_probability_m() -> None:
    torch.manual_seed(3)
    draws = 20_000
    log_pi = predictive(1e-6).log_rsample((draws,))
    assert log_pi.isfinite().all()
    assert log_pi.amin() < -1e6
    # Off the corners (largest component below 0.99) with probability about 2e-5.
    assert (log_pi.amax(-1) < np.log(0.99)).sum() <= 5
    wins = torch.bincount(log_pi.argmax(-1), minlength=3)
    expected = MEAN.double() / MEAN.double().sum()
    assert stats.chisquare(wins.numpy(), draws * expected.numpy()).pvalue > FALSE_ALARM


@pytest.mark.parametrize("alpha", [5e-3, 1e-4, 1e-6])
def test_no_uniform_vectors(alpha: float) -> None:
    # Where every Gamma variate underflows; torch's own sampler gives 80 % of them at 1e-4.
    pi = PredictiveDirichlet.from_alpha(torch.full((3,), alpha)).sample((2_000,))
    assert (pi.amax(-1) > 0.34).all()


def test_a_very_improbable_class_never_wins_a_corner() -> None:
    torch.manual_seed(5)
    log_alpha = torch.tensor([0.0, -46.0]).log_softmax(-1) + np.log(1e-3)  # m_1 = 1e-20
    assert (log_dirichlet_rsample(log_alpha, (1_000_000,))[:, 0] == 0).all()


@pytest.mark.parametrize("log_mean", [-60.0, -200.0, -1e4])
def test_vanishing_components_give_finite_draws_and_gradients(log_mean: float) -> None:
    log_mean_ = torch.tensor([0.0, log_mean]).requires_grad_()
    log_concentration = torch.tensor(-1.0, requires_grad=True)
    d = PredictiveDirichlet(log_mean_, log_concentration)
    pi = d.rsample((1_000,))
    assert (pi == torch.tensor([1.0, 0.0])).all()
    pi.square().sum().backward()
    assert log_mean_.grad is not None and log_mean_.grad.isfinite().all()
    assert log_concentration.grad is not None and log_concentration.grad.isfinite()


def per_draw_gradient(alpha: Tensor, k: int, function: str, draws: int) -> Tensor:
    """Pathwise gradient with respect to log alpha of each of the draws, (draws, C)."""
    log_alpha = alpha.log().expand(draws, -1).clone().requires_grad_()
    log_pi = log_dirichlet_rsample(log_alpha)
    value = log_pi[:, k] if function == "log" else log_pi[:, k].exp().square()
    (gradient,) = torch.autograd.grad(value.sum(), log_alpha)
    return gradient.double()


def expectation(alpha: Tensor, k: int, function: str) -> Tensor:
    if function == "log":
        return torch.digamma(alpha[k]) - torch.digamma(alpha.sum())
    return alpha[k] * (alpha[k] + 1) / (alpha.sum() * (alpha.sum() + 1))


# No "square" at 1e-6: one draw in a million carries that gradient.
@pytest.mark.parametrize(
    ("function", "scale"),
    [("log", s) for s in (1e-6, 0.01, 0.5, 3.0, 40.0, 1e4)]
    + [("square", s) for s in (0.01, 0.5, 3.0, 40.0, 1e4)],
)
def test_gradient_of_known_expectations(function: str, scale: float) -> None:
    torch.manual_seed(6)
    alpha = torch.tensor([0.2, 1.0, 0.6], dtype=torch.float64) * scale
    exact_alpha = alpha.clone().requires_grad_()
    # d/d log alpha; for "log" this is alpha_j (trigamma(alpha_k) 1[j = k] - trigamma(alpha_0)).
    (exact,) = torch.autograd.grad(expectation(exact_alpha, 0, function), exact_alpha)
    exact = exact * alpha
    gradient = per_draw_gradient(alpha.float(), 0, function, 40_000)
    assert gradient.isfinite().all()
    error = gradient.std(0) / len(gradient) ** 0.5
    # 1e-3: torch's implicit gradient of the Gamma variate is an approximation of that order.
    allowed = SIGMAS * error + 1e-3 * exact.abs().max()
    assert ((gradient.mean(0) - exact).abs() < allowed).all()


def test_gradcheck_of_log_prob_and_entropy() -> None:
    torch.manual_seed(8)
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    log_concentration = torch.randn(4, dtype=torch.float64, requires_grad=True)
    point = torch.randn(5, 4, 3, dtype=torch.float64).softmax(-1)

    def make(logits: Tensor, log_concentration: Tensor) -> PredictiveDirichlet:
        return PredictiveDirichlet(logits.log_softmax(-1), log_concentration)

    inputs = (logits, log_concentration)
    assert torch.autograd.gradcheck(lambda m, c: make(m, c).log_prob(point), inputs)
    assert torch.autograd.gradcheck(lambda m, c: make(m, c).entropy(), inputs)
    assert torch.autograd.gradcheck(lambda m, c: make(m, c).variance, inputs)


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3)])
def test_agrees_with_torch(shape: tuple[int, ...]) -> None:
    torch.manual_seed(9)
    alpha = 5 * torch.rand(shape, dtype=torch.float64) + 0.1
    ours, theirs = PredictiveDirichlet.from_alpha(alpha), torch.distributions.Dirichlet(alpha)
    point = theirs.sample((7,))
    assert ours.batch_shape == theirs.batch_shape and ours.event_shape == theirs.event_shape
    for name in ("concentration", "mean", "variance", "mode"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))
    torch.testing.assert_close(ours.log_prob(point), theirs.log_prob(point))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    kl = torch.distributions.kl_divergence(ours, theirs)
    torch.testing.assert_close(kl, torch.zeros_like(kl), atol=1e-9, rtol=0.0)  # rounding
    assert ours.rsample((6, 5)).shape == (6, 5, *shape)


def test_float32_log_prob_and_entropy_at_large_concentration() -> None:
    narrow, wide = predictive(1e8), predictive(1e8, torch.float64)
    assert narrow.log_prob(MEAN).dtype == torch.float32
    # float32 parameters: alpha is rounded by 1e-6, which moves both by that relative amount.
    torch.testing.assert_close(
        narrow.log_prob(MEAN).double(), wide.log_prob(MEAN), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(narrow.entropy().double(), wide.entropy(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    log_mean = MEAN.log().to(dtype)
    d = PredictiveDirichlet(log_mean, torch.tensor(-12.0, dtype=dtype), validate_args=True)
    torch.testing.assert_close(d.mean.sum(), torch.tensor(1.0))
    log_pi = d.log_rsample((100,))
    assert log_pi.dtype == d.mean.dtype == d.entropy().dtype == torch.float32
    assert log_pi.isfinite().all() and log_pi.amin() < -65_504  # beyond float16
    assert log_dirichlet_rsample(log_mean).dtype == torch.float32


def test_draws_take_four_times_their_memory() -> None:
    """Gamma variates, exponential ones in twice the digits and in one, and nothing beside them."""
    log_alpha = torch.zeros(50, 100)
    with Held() as held:
        draws = log_dirichlet_rsample(log_alpha, (20,))
    assert held.bytes < 4.3 * draws.nbytes


def test_parameters_are_computed_when_asked_for() -> None:
    d = PredictiveDirichlet(MEAN.log(), torch.tensor(0.0), validate_args=False)
    assert not {"log_alpha", "concentration", "_float64"} & vars(d).keys()
    assert d.concentration is d.concentration


def test_a_value_first_read_under_no_grad_keeps_its_graph() -> None:
    log_concentration = torch.tensor(0.0, requires_grad=True)
    d = PredictiveDirichlet(MEAN.log(), log_concentration)
    with torch.no_grad():
        d.rsample()
    d.concentration.sum().backward()
    torch.testing.assert_close(log_concentration.grad, torch.tensor(1.0))


def test_is_a_pyro_distribution() -> None:
    d = PredictiveDirichlet(torch.randn(4, 3).log_softmax(-1), torch.rand(4) + 3.0)
    assert isinstance(d, dist.Dirichlet) and isinstance(d, torch.distributions.Dirichlet)
    wider = d.expand([2, 4])
    assert isinstance(wider, PredictiveDirichlet) and wider.rsample().shape == (2, 4, 3)
    torch.testing.assert_close(wider.mean[1], d.mean)
    torch.testing.assert_close(d.expand_by([2]).concentration, wider.concentration)
    event = d.to_event(1)
    assert event.batch_shape == () and event.event_shape == (4, 3)
    assert event.log_prob(event.sample()).shape == ()
    assert d.mask(False).log_prob(d.sample()).eq(0).all()
    shapes = {"log_mean": torch.Size([4, 3]), "log_concentration": torch.Size([4])}
    assert PredictiveDirichlet.infer_shapes(**shapes) == (d.batch_shape, d.event_shape)

    def model() -> Tensor:
        with pyro.plate("repeats", 5, dim=-2), pyro.plate("inputs", 4, dim=-1):
            return pyro.sample("probs", d)

    trace = pyro.poutine.trace(model).get_trace()
    trace.compute_log_prob()
    assert trace.nodes["probs"]["value"].shape == (5, 4, 3)
    assert trace.nodes["probs"]["log_prob"].shape == (5, 4)


def test_pickle_and_deepcopy() -> None:
    d = predictive(3.0)
    _ = d.concentration, d.entropy()  # with what has been computed
    for copied in (pickle.loads(pickle.dumps(d)), copy.deepcopy(d)):
        assert isinstance(copied, PredictiveDirichlet)
        torch.testing.assert_close(copied.concentration, d.concentration)
        torch.testing.assert_close(copied.log_mean, d.log_mean)


def test_a_measured_concentration_is_kept_unless_it_is_none() -> None:
    """Draws that all agree ask for infinity, draws that are labels for nothing."""
    asked = torch.tensor([0.0, 1e-4, 1.0, 1e6, math.inf])
    found = moment_matched(torch.tensor([0.2, 0.5, 0.3]).expand(5, 3), asked).concentration.sum(-1)
    torch.testing.assert_close(found[1:4], asked[1:4])
    assert found[[0, 4]].isfinite().all() and 0 < found[0] < 1e-4 and found[4] > 1e6
