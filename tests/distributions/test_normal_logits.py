"""One normal logit against a fine sum, several classes, and many by their mutual information."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from posteriors import averages
from torch import Tensor

from pyro_opu.distributions import PredictiveDirichlet, normal_logits
from pyro_opu.distributions.normal_logits import (
    averaged_logit,
    averaged_logits,
    informed_concentration,
    logit_points,
)
from pyro_opu.metrics.uncertainty import epistemic_uncertainty


def drawn(classes: int, count: int, wide: float, off: float) -> tuple[Tensor, Tensor]:
    """Means ``(N, C - 1)`` and factors ``(N, C + 1, C - 1)`` of logits, above the first class's."""
    generator = torch.Generator().manual_seed(0)
    mean = off * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    factor = torch.randn(count, classes + 1, classes, generator=generator, dtype=torch.float64)
    factor = wide / math.sqrt(classes + 1) * factor
    return mean[:, 1:] - mean[:, :1], factor[..., 1:] - factor[..., :1]


def summed(mean: Tensor, factor: Tensor, nodes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``(N, C)`` and alpha_0 ``(N,)`` by standard normal nodes ``(M, C - 1)``, row by row."""
    means, found = [], []
    for m, f in zip(mean, factor, strict=True):
        root = torch.linalg.cholesky(f.mT @ f)
        logits = torch.nn.functional.pad(m + nodes @ root.mT, (1, 0))
        pi, rest = logits.softmax(-1), []
        for k in range(pi.shape[1]):  # 1 - pi_k, with its digits
            others = [j for j in range(pi.shape[1]) if j != k]
            rest.append(pi[:, others].sum(-1))
        h = weights @ pi
        within = weights @ (pi * torch.stack(rest, -1)).sum(-1)
        off = pi - h
        largest = int(h.argmax())
        off[:, largest] = -(off.sum(-1) - off[:, largest])
        means.append(h)
        found.append(within / (weights @ off.square().sum(-1)))
    return torch.stack(means), torch.stack(found)


def grid(outputs: int, count: int = 161) -> tuple[Tensor, Tensor]:
    """The trapezoidal rule in every direction, of which there are two."""
    nodes = torch.linspace(-8, 8, count, dtype=torch.float64)
    weights = (-0.5 * nodes.square()).softmax(0)
    every = torch.cartesian_prod(*[nodes] * outputs)
    return every, torch.cartesian_prod(*[weights] * outputs).prod(-1)


def answer(mean: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Log h ``(N, C)`` and log alpha_0 ``(N,)``."""
    logits, g = averaged_logits(mean, factor, logit_points(mean.shape[1]).to(mean))
    return torch.nn.functional.pad(logits, (1, 0)).log_softmax(-1), g.squeeze(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("wide", "off"), [(0.01, 1.0), (0.5, 1.0), (1.5, 2.0), (1.5, 6.0)])
def test_three_classes_are_as_near_as_thousands_of_draws(
    wide: float, off: float, dtype: torch.dtype
) -> None:
    mean, factor = drawn(3, 40, wide, off)
    h, alpha = summed(mean, factor, *grid(2))
    log_mean, g = answer(mean.to(dtype), factor.to(dtype))
    kl = (h * (h.log() - log_mean.double())).sum(-1)
    variance = (1 - h.square().sum(-1)) / (1 + alpha)
    assert float(kl.mean()) < float(variance.mean()) / 2 / 2000 + 1e-7
    torch.testing.assert_close(log_mean.exp().double(), h, rtol=0, atol=8e-3)
    off = (g.double() - alpha.log()).abs()
    assert float(off.median()) < 0.03 and float(off.quantile(0.9)) < 0.12


@pytest.mark.parametrize(("classes", "wide"), [(5, 1.0), (10, 0.5)])
def test_more_classes_by_many_draws(classes: int, wide: float) -> None:
    mean, factor = drawn(classes, 10, wide, 1.5)
    noise = torch.randn(
        200_000, classes - 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    h, alpha = summed(mean, factor, noise, torch.full((len(noise),), 1 / len(noise)).double())
    log_mean, g = answer(mean, factor)
    variance = (1 - h.square().sum(-1)) / (1 + alpha)
    kl = (h * (h.log() - log_mean)).sum(-1)
    assert float(kl.mean()) < float(variance.mean()) / 2 / 500
    torch.testing.assert_close(g, alpha.log(), rtol=0, atol=0.1)


@pytest.mark.parametrize("sure", [10.0, 15.0, 40.0])
def test_where_one_class_is_sure_each_of_the_others_is_a_logit_of_its_own(sure: float) -> None:
    """No points reach the tail that their probabilities are made of: 0.3 of e^2 would be left."""
    mean = torch.tensor([[-sure, -sure - 1.0]], dtype=torch.float64)
    factor = torch.tensor([[[2.0, 0.5], [0.0, 1.5]]], dtype=torch.float64)
    log_mean, g = answer(mean, factor)
    logit, _ = averaged_logit(mean.mT, factor.square().sum(1).mT)
    torch.testing.assert_close(log_mean[0, 1:], logit.squeeze(1), rtol=0, atol=0.02)
    assert sure - 10 < float(g) < sure


def test_the_ends_are_finite() -> None:
    """Logits that do not vary, that vary together alone, that are 1e6 apart, or wide as 1e4."""
    for scale, off, dtype in itertools.product(
        (0.0, 1.0, 1e4), (0.0, 1.0, 1e6), (torch.float32, torch.float64)
    ):
        mean = off * torch.tensor([[1.0, -1.0, 0.5], [-1.0, -1.0, -2.0]], dtype=dtype)
        factor = scale * torch.ones(2, 2, 3, dtype=dtype)
        log_mean, g = answer(mean, factor)
        assert bool(log_mean.isfinite().all()) and bool(g.isfinite().all())
        if scale == 0:
            expected = torch.nn.functional.pad(mean, (1, 0)).softmax(-1)
            torch.testing.assert_close(log_mean.exp(), expected)


@pytest.mark.parametrize("far", [1e10, 1e30, 3e38])
def test_far_logits_are_finite_whichever_are_the_largest(far: float) -> None:
    """Draws are labels: what is left within them is rounding, of either sign."""
    mean, factor = (far / 10 * each.float() for each in drawn(4, 50, 3.0, 1.0))
    log_mean, g = answer(mean, factor)
    assert bool(log_mean.isfinite().all()) and bool(g.isfinite().all())


def test_wide_logits_are_almost_labels() -> None:
    """Three alike: each is the largest a third of the time, and alpha_0 is near 0."""
    factor = 1e3 * torch.tensor([[[-1.0, -1.0], [1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    log_mean, alpha = answer(torch.zeros(1, 2, dtype=torch.float64), factor)
    torch.testing.assert_close(
        log_mean.exp(), torch.full((1, 3), 1 / 3).double(), rtol=0, atol=0.02
    )
    assert float(alpha) < 0.02


def test_one_logit_is_averaged_by_its_own_rule_and_rows_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mean, factor = drawn(2, 30, 1.0, 2.0)
    for found, expected in zip(
        averaged_logits(mean, factor, logit_points(1)),
        averaged_logit(mean, factor.square().sum(1)),
        strict=True,
    ):
        assert torch.equal(found, expected)
    mean, factor = drawn(4, 30, 1.0, 2.0)
    whole = answer(mean, factor)
    monkeypatch.setattr(normal_logits, "AT_ONCE", 7 * 3 * 128)
    for found, expected in zip(answer(mean, factor), whole, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e12])
def test_several_logits_that_vary_by_any_size_average_to_finite_numbers(size: float) -> None:
    """Also where all draws are corners, of which nothing is left within."""
    points, mean = logit_points(3), size * torch.tensor([[1.0, -0.5, 0.3]]).expand(50, 3)
    logit, log_concentration = averaged_logits(mean, size * torch.randn(50, 3, 3), points)
    assert logit.isfinite().all() and log_concentration.isfinite().all()


@pytest.mark.parametrize(
    # Of 500 draws the information is known to 2 %; the rest is what the second order leaves out.
    ("deviation", "tolerance"),
    [(0.1, 0.03), (0.5, 0.05), (1.0, 0.12)],
)
def test_a_dirichlet_has_the_information_of_draws_of_many_normal_logits(deviation, tolerance):
    torch.manual_seed(0)
    logits = 1.5 * torch.randn(20, 300, dtype=torch.float64)
    draws = (logits + deviation * torch.randn(500, 20, 300, dtype=torch.float64)).softmax(-1)
    log_mean = draws.mean(0).log()
    g = informed_concentration(log_mean, torch.full((20, 1), deviation**2, dtype=torch.float64))
    found = epistemic_uncertainty(PredictiveDirichlet(log_mean, g[:, 0]))
    torch.testing.assert_close(found, epistemic_uncertainty(draws), rtol=tolerance, atol=0)


def test_a_larger_variance_asks_for_less_and_extremes_stay_finite():
    log_mean = torch.tensor([[0.7, 0.2, 0.1], [0.999, 5e-4, 5e-4]]).log()
    found = torch.cat(
        [
            informed_concentration(log_mean, torch.full((2, 1), variance))
            for variance in (0.0, 1e-6, 0.1, 1.0, 1e3, 1e9)
        ],
        1,
    )
    assert found.isfinite().all()
    assert (found.diff() <= 0).all() and (found[:, 1:4].diff() < -1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    # Rounding at small deviations; at large ones the step of the rule, and the tail it leaves out.
    ("deviation", "of_logit", "of_concentration"),
    [(1e-3, 1e-6, 1e-3), (0.1, 1e-6, 1e-5), (1.0, 5e-6, 3e-4), (3.0, 2e-4, 4e-3), (8.0, 0.01, 0.1)],
)
def test_a_normal_logit_averages_as_a_fine_sum_does(deviation, of_logit, of_concentration, dtype):
    mean = torch.linspace(-25, 25, 101, dtype=dtype)[:, None]
    spread = torch.full_like(mean, deviation)
    logit, log_concentration = (each[:, 0] for each in averaged_logit(mean, spread.square()))
    average, concentration = averages(mean[:, 0], spread[:, 0])
    exact = average.logit()
    near = exact.abs() < 10  # farther out the fine sum, too, loses digits of 1 - p
    assert near.sum() > 35
    assert (logit - exact)[near].abs().max() < of_logit
    assert (log_concentration - concentration.log())[near].abs().max() < of_concentration
    torch.testing.assert_close(logit, -logit.flip(0), rtol=1e-6, atol=1e-6)  # odd
    assert (logit.diff() > 0).all()


def test_extreme_logits_average_to_finite_numbers():
    mean = torch.tensor([[-1e4], [-100.0], [0.0], [100.0], [1e4]])
    for variance in (0.0, 1e-12, 1.0, 1e4):
        mean.requires_grad_(True)
        found = averaged_logit(mean, torch.full_like(mean, variance))
        assert all(each.isfinite().all() for each in found)
        (slope,) = torch.autograd.grad(sum(each.sum() for each in found), mean)
        assert slope.isfinite().all()


def test_the_average_of_a_normal_logit_has_the_right_gradient():
    mean = torch.tensor([[-3.0], [-0.2], [0.7], [4.0]], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([[0.3], [1.0], [4.0], [0.01]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(averaged_logit, (mean, variance))
