"""The Laplace bridge and the probit against slow loops, Monte Carlo and quadrature."""

from __future__ import annotations

import math

import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor

from pyro_opu.distributions.bridge import inverse_laplace_bridge, laplace_bridge, probit_predictive
from pyro_opu.distributions.dirichlet import PredictiveDirichlet


def random_gaussian(*shape: int) -> tuple[Tensor, Tensor]:
    """Mean (*shape), C last, and a full covariance with unequal variances."""
    mean = torch.randn(shape, dtype=torch.float64)
    factor = torch.randn(*shape, shape[-1], dtype=torch.float64)
    return mean, factor @ factor.mT + 0.1 * torch.eye(shape[-1], dtype=torch.float64)


def loop_bridge(mean: Tensor, covariance: Tensor) -> Tensor:
    """Eq. 5 for one input, term by term, after projecting onto sum zero."""
    classes = len(mean)
    p = torch.eye(classes, dtype=mean.dtype) - 1.0 / classes
    mean, covariance = p @ mean, p @ covariance @ p
    alpha = torch.empty_like(mean)
    for k in range(classes):
        total = sum(math.exp(-mean[j].item()) for j in range(classes))
        bracket = 1 - 2 / classes + math.exp(mean[k].item()) / classes**2 * total
        alpha[k] = bracket / covariance[k, k].item()
    return alpha


def loop_inverse(alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Eqs. 6 and 7 for one input, term by term."""
    classes = len(alpha)
    mean = torch.stack([alpha[k].log() - alpha.log().sum() / classes for k in range(classes)])
    covariance = torch.empty(classes, classes, dtype=alpha.dtype)
    for k in range(classes):
        for j in range(classes):
            inner = 1 / alpha[k] + 1 / alpha[j] - (1 / alpha).sum() / classes
            covariance[k, j] = (k == j) / alpha[k] - inner / classes
    return mean, covariance


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_formulas_against_loops(classes: int) -> None:
    mean, covariance = random_gaussian(4, classes)
    expected = torch.stack([loop_bridge(m, s) for m, s in zip(mean, covariance, strict=True)])
    torch.testing.assert_close(laplace_bridge(mean, covariance), expected)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    independent = torch.stack(
        [loop_bridge(m, v.diag()) for m, v in zip(mean, variance, strict=True)]
    )
    torch.testing.assert_close(laplace_bridge(mean, variance), independent)

    alpha = torch.rand(4, classes, dtype=torch.float64) * 5 + 0.1
    means, covariances = zip(*map(loop_inverse, alpha), strict=True)
    got_mean, got_covariance = inverse_laplace_bridge(alpha, full=True)
    torch.testing.assert_close(got_mean, torch.stack(means))
    torch.testing.assert_close(got_covariance, torch.stack(covariances))


@pytest.mark.parametrize("shape", [(2,), (5, 3), (2, 4, 10), (0, 3)])
def test_round_trip(shape: tuple[int, ...]) -> None:
    alpha = 10 ** (4 * torch.rand(shape, dtype=torch.float64) - 1)
    mean, variance = inverse_laplace_bridge(alpha)
    full_mean, covariance = inverse_laplace_bridge(alpha, full=True)
    torch.testing.assert_close(full_mean, mean)
    torch.testing.assert_close(covariance.diagonal(dim1=-2, dim2=-1), variance)
    zero = torch.zeros(shape, dtype=torch.float64)
    # 1e-12: rounding of sums of terms up to 10 = 1 / min(alpha).
    torch.testing.assert_close(covariance.sum(-1), zero, atol=1e-12, rtol=0.0)
    torch.testing.assert_close(laplace_bridge(mean, variance, project=False), alpha)
    for project in (True, False):
        torch.testing.assert_close(laplace_bridge(mean, covariance, project=project), alpha)
    # Back again: a Gaussian that came from a Dirichlet is recovered.
    again = inverse_laplace_bridge(laplace_bridge(mean, covariance), full=True)
    torch.testing.assert_close(again, (mean, covariance))


def test_projection_sees_the_law_on_the_simplex_only() -> None:
    mean, covariance = random_gaussian(4, 3)
    alpha = laplace_bridge(mean, covariance)
    # softmax does not see a common random shift c of the logits, correlated with them or not
    with_logits = torch.randn(4, 3, 1, dtype=torch.float64)
    shifted = covariance + with_logits + with_logits.mT + 50.0
    torch.testing.assert_close(laplace_bridge(mean + 7.0, shifted), alpha)
    order = torch.tensor([2, 0, 1])
    permuted = laplace_bridge(mean[:, order], covariance[:, order][:, :, order])
    torch.testing.assert_close(permuted, alpha[:, order])


@pytest.mark.parametrize(
    ("alpha", "mean_error", "variance_error"),
    [  # errors of the Laplace approximation; Monte Carlo adds at most 0.002 and 1 %
        ([50.0, 50.0], 0.002, 0.02),
        ([10.0, 5.0, 20.0], 0.012, 0.04),
        ([100.0, 50.0, 80.0, 200.0], 0.003, 0.02),
        ([2.0, 1.0, 3.0], 0.04, 0.03),
    ],
)
def test_softmax_of_gaussian_draws(
    alpha: list[float], mean_error: float, variance_error: float
) -> None:
    torch.manual_seed(1)
    d = PredictiveDirichlet.from_alpha(torch.tensor(alpha, dtype=torch.float64))
    mean, covariance = inverse_laplace_bridge(d.concentration, full=True)
    values, vectors = torch.linalg.eigh(covariance)
    noise = torch.randn(200_000, len(alpha), dtype=torch.float64)
    pi = (mean + noise * values.clamp(min=0).sqrt() @ vectors.mT).softmax(-1)
    assert (pi.mean(0) - d.mean).abs().max() < mean_error
    assert (pi.var(0).sum() / d.variance.sum() - 1).abs() < variance_error


def test_inverse_against_dirichlet_draws() -> None:
    torch.manual_seed(2)
    alpha = torch.tensor([20.0, 60.0, 30.0], dtype=torch.float64)
    z = PredictiveDirichlet.from_alpha(alpha).log_rsample((100_000,))
    z = z - z.mean(-1, keepdim=True)
    mean, covariance = inverse_laplace_bridge(alpha, full=True)
    # log Gamma(a) has mean log a - 1/(2a) + ... and variance 1/a + 1/(2a^2) + ..., a >= 20 here.
    assert (z.mean(0) - mean).abs().max() < 0.5 / 20
    torch.testing.assert_close(z.T.cov(), covariance, rtol=1.0 / 20, atol=1e-3)


def quadrature(mean: Tensor, covariance: Tensor) -> Tensor:
    """E sigmoid of a Gaussian logit difference, by 200-point Gauss-Hermite."""
    nodes, weights = (torch.from_numpy(x) for x in hermegauss(200))
    v = covariance[..., 0, 0] + covariance[..., 1, 1] - 2 * covariance[..., 0, 1]
    difference = (mean[..., 0] - mean[..., 1]).unsqueeze(-1) + v.sqrt().unsqueeze(-1) * nodes
    first = (difference.sigmoid() * weights).sum(-1) / weights.sum()
    return torch.stack((first, 1 - first), -1)


def test_probit_of_two_classes_against_quadrature() -> None:
    torch.manual_seed(3)
    mean, covariance = random_gaussian(500, 2)
    mean = 4 * mean
    exact = quadrature(mean, covariance)
    # 0.02: the approximation's own error.
    assert (probit_predictive(mean, covariance) - exact).abs().max() < 0.02
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    exact = quadrature(mean, torch.diag_embed(variance))
    assert (probit_predictive(mean, variance) - exact).abs().max() < 0.02
    # Perfectly correlated logits have a certain difference.
    torch.testing.assert_close(
        probit_predictive(mean, torch.ones_like(covariance)), mean.softmax(-1)
    )


def test_probit_of_several_classes_against_draws() -> None:
    torch.manual_seed(4)
    mean = torch.randn(50, 10, dtype=torch.float64)
    pi = (mean + torch.randn(5_000, 50, 10, dtype=torch.float64)).softmax(-1).mean(0)
    got = probit_predictive(mean, torch.ones_like(mean))
    torch.testing.assert_close(got.sum(-1), torch.ones(50, dtype=torch.float64))
    # 0.03: the approximation's own error at variance 1 (largest seen 0.014), Monte Carlo 0.005.
    assert (got - pi).abs().max() < 0.03
    full = probit_predictive(mean, torch.diag_embed(torch.ones_like(mean)))
    torch.testing.assert_close(full, got)
    torch.testing.assert_close(probit_predictive(mean, torch.zeros_like(mean)), mean.softmax(-1))


@pytest.mark.parametrize("classes", [2, 3])
def test_gradcheck(classes: int) -> None:
    mean, covariance = random_gaussian(2, classes)
    variance = covariance.diagonal(dim1=-2, dim2=-1).clone()
    factor = torch.linalg.cholesky(covariance)
    for x in (mean, variance, factor):
        x.requires_grad_()
    alpha = variance.detach().clone().requires_grad_()
    check = torch.autograd.gradcheck
    for project in (True, False):
        assert check(lambda m, v, p=project: laplace_bridge(m, v, project=p), (mean, variance))
        assert check(lambda m, f, p=project: laplace_bridge(m, f @ f.mT, project=p), (mean, factor))
    assert check(lambda a: inverse_laplace_bridge(a, full=True), (alpha,))
    assert check(inverse_laplace_bridge, (alpha,))
    assert check(probit_predictive, (mean, variance))
    assert check(lambda m, f: probit_predictive(m, f @ f.mT), (mean, factor))


@pytest.mark.parametrize("gap", [50.0, 80.0, 300.0, 1e4])
def test_big_logits_do_not_overflow(gap: float) -> None:
    mean = torch.tensor([[gap, 0.0, 0.0], [gap + 1e4, 1e4, 1e4]], requires_grad=True)
    alpha = laplace_bridge(mean, torch.full((2, 3), 0.01))
    assert alpha.isfinite().all() and alpha.sum(-1).isfinite().all()
    torch.testing.assert_close(alpha[0], alpha[1])  # only differences of logits count
    PredictiveDirichlet.from_alpha(alpha.detach(), validate_args=True)
    alpha.log().sum().backward()
    assert mean.grad is not None and mean.grad.isfinite().all()
    expected = laplace_bridge(mean.detach().double()[:1], torch.full((1, 3), 0.01).double())
    # 1e-5: float32 rounding of an exponent of up to 80; beyond, the largest number over C.
    largest = torch.finfo(torch.float32).max / 3
    torch.testing.assert_close(
        alpha[:1].detach(), expected.clamp(max=largest).float(), rtol=1e-5, atol=0
    )


def test_inputs_are_left_alone() -> None:
    mean, covariance = random_gaussian(4, 3)
    alpha = torch.rand(4, 3) + 0.1
    copies = mean.clone(), covariance.clone(), alpha.clone()
    laplace_bridge(mean, covariance)
    laplace_bridge(mean, covariance.diagonal(dim1=-2, dim2=-1))
    laplace_bridge(mean, covariance, project=False)
    inverse_laplace_bridge(alpha)
    probit_predictive(mean, covariance)
    for now, before in zip((mean, covariance, alpha), copies, strict=True):
        assert torch.equal(now, before)


@pytest.mark.parametrize(("classes", "error"), [(2, 0.001), (3, 0.09), (10, 0.26)])
def test_stated_error_of_the_mean_outside_the_family(classes: int, error: float) -> None:
    torch.manual_seed(5)
    mean = torch.randn(400, classes, dtype=torch.float64)
    variance = torch.full_like(mean, 0.01)
    pi = (mean + 0.1 * torch.randn(1_000, 400, classes, dtype=torch.float64)).softmax(-1).mean(0)

    def distance(probs: Tensor) -> float:
        return (probs - pi).abs().sum(-1).mean().item() / 2

    alpha = laplace_bridge(mean, variance)
    # 10 %: the means differ between sets of 400 inputs; 0.0006: Monte Carlo, and digits stated.
    assert distance(alpha / alpha.sum(-1, keepdim=True)) == pytest.approx(error, rel=0.1, abs=6e-4)
    assert distance(probit_predictive(mean, variance)) < 0.001 + 6e-4


def loop_normalized(mean: Tensor, covariance: Tensor) -> Tensor:
    """Eq. 5 for one input after the rescaling, term by term."""
    classes = len(mean)
    p = torch.eye(classes, dtype=mean.dtype) - 1.0 / classes
    covariance = p @ covariance @ p
    c = sum(covariance[k, k].item() for k in range(classes)) / classes / (classes / 2) ** 0.5
    return loop_bridge(mean / c**0.5, covariance / c)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_normalized_against_loop(classes: int) -> None:
    mean, covariance = random_gaussian(4, classes)
    expected = torch.stack([loop_normalized(m, s) for m, s in zip(mean, covariance, strict=True)])
    alpha = laplace_bridge(mean, covariance, normalize=True)
    torch.testing.assert_close(alpha, expected)
    # The law on the simplex is all that counts, here too.
    torch.testing.assert_close(
        laplace_bridge(mean + 7.0, covariance + 50.0, normalize=True), expected
    )
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    expected = torch.stack(
        [loop_normalized(m, v.diag()) for m, v in zip(mean, variance, strict=True)]
    )
    torch.testing.assert_close(laplace_bridge(mean, variance, normalize=True), expected)


def test_normalized_gradient_and_extremes() -> None:
    mean, covariance = random_gaussian(2, 3)
    variance = covariance.diagonal(dim1=-2, dim2=-1).clone()
    for x in (mean, variance):
        x.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda m, v: laplace_bridge(m, v, normalize=True), (mean, variance)
    )
    # A mean stretched by 1e10 ends at the largest legal parameter.
    alpha = laplace_bridge(mean.detach().float(), torch.full((2, 3), 1e-20), normalize=True)
    assert alpha.isfinite().all() and alpha.sum(-1).isfinite().all()
