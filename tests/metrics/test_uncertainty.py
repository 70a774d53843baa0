"""Measures of uncertainty: closed forms, estimates from draws, and where the two must agree."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import mpmath
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.distributions.measures import _digamma_gap
from pyro_opu.metrics.uncertainty import (
    Uncertainty,
    aleatoric_uncertainty,
    concentration,
    differential_entropy,
    entropy,
    epistemic_uncertainty,
    expected_pairwise_kl,
    max_probability,
    moment_concentration,
    mutual_information,
    total_uncertainty,
    uncertainty,
    variance,
)

FUNCTIONS = {
    "total": total_uncertainty,
    "aleatoric": aleatoric_uncertainty,
    "epistemic": epistemic_uncertainty,
    "expected_pairwise_kl": expected_pairwise_kl,
    "variance": variance,
    "max_probability": max_probability,
    "differential_entropy": differential_entropy,
    "concentration": concentration,
}
# Errors of a Monte Carlo mean are allowed this many standard errors: once in 2e6 by chance.
SIGMAS = 5.0


def plain_formulas(alpha: Tensor) -> dict[str, Tensor]:
    """The textbook forms, in float64, good where nothing cancels."""
    alpha_0, classes = alpha.sum(-1), alpha.shape[-1]
    mean = alpha / alpha_0.unsqueeze(-1)
    total = -(mean * mean.log()).sum(-1)
    aleatoric = torch.digamma(alpha_0 + 1) - (mean * torch.digamma(alpha + 1)).sum(-1)
    return {
        "total": total,
        "aleatoric": aleatoric,
        "epistemic": total - aleatoric,
        "expected_pairwise_kl": (classes - 1) / alpha_0,
        "variance": (1 - mean.square().sum(-1)) / (alpha_0 + 1),
        "max_probability": mean.amax(-1),
        "differential_entropy": torch.distributions.Dirichlet(alpha).entropy(),
        "concentration": alpha_0,
    }


@pytest.mark.parametrize("shape", [(2,), (5, 3), (2, 3, 10)])
@pytest.mark.parametrize("family", [dist.Dirichlet, PredictiveDirichlet.from_alpha])
def test_closed_forms_at_moderate_alpha(shape: tuple[int, ...], family: Callable) -> None:
    alpha = 10 ** (3 * torch.rand(shape, dtype=torch.float64) - 1)
    got = uncertainty(family(alpha))
    for name, expected in plain_formulas(alpha).items():
        torch.testing.assert_close(got[name], expected, rtol=1e-9, atol=1e-12)  # cancellation
        torch.testing.assert_close(FUNCTIONS[name](family(alpha)), got[name])
        assert got[name].shape == shape[:-1]


def slow_loops(draws: Tensor) -> dict[str, list[float]]:
    """Estimates for each input, pair by pair, from (S, N, C) without zeros."""
    out: dict[str, list[float]] = {name: [] for name in FUNCTIONS}
    count, inputs, classes = draws.shape
    for n in range(inputs):
        p = draws[:, n].tolist()
        mean = [sum(row[k] for row in p) / count for k in range(classes)]
        entropy = [-sum(x * math.log(x) for x in row) for row in [mean, *p]]
        pairs = [(r, q) for i, r in enumerate(p) for j, q in enumerate(p) if i != j]
        kl = [sum(a * math.log(a / b) for a, b in zip(r, q, strict=True)) for r, q in pairs]
        own = sum(x * x for row in p for x in row) / count
        other = sum(a * b for r, q in pairs for a, b in zip(r, q, strict=True)) / len(pairs)
        alpha_0 = (1 - own) / (own - other)
        out["total"].append(entropy[0])
        out["aleatoric"].append(sum(entropy[1:]) / count)
        out["epistemic"].append(entropy[0] - sum(entropy[1:]) / count)
        out["expected_pairwise_kl"].append(sum(kl) / len(kl))
        out["variance"].append(own - other)
        out["max_probability"].append(max(mean))
        matched = torch.distributions.Dirichlet(torch.tensor(mean, dtype=draws.dtype) * alpha_0)
        out["differential_entropy"].append(matched.entropy().item())
        out["concentration"].append(alpha_0)
    return out


@pytest.mark.parametrize("shape", [(2, 1, 2), (7, 3, 4), (3, 3, 3)])
def test_draws_against_loops(shape: tuple[int, ...]) -> None:
    draws = torch.randn(shape, dtype=torch.float64).softmax(-1)
    got = uncertainty(draws)
    for name, expected in slow_loops(draws).items():
        torch.testing.assert_close(got[name], torch.tensor(expected, dtype=torch.float64))
        torch.testing.assert_close(FUNCTIONS[name](draws), got[name])
    torch.testing.assert_close(moment_concentration(draws), got.concentration)


def test_blocks_of_draws_add_up() -> None:
    draws = torch.randn(9, 30_000, 10).softmax(-1)  # more than one block
    direct = torch.special.entr(draws.double()).sum(-1).mean(0).float()
    torch.testing.assert_close(aleatoric_uncertainty(draws), direct)


@pytest.mark.parametrize("alpha", [[0.5, 0.2, 0.1], [3.0, 1.0, 2.0], [30.0, 200.0, 70.0]])
def test_estimates_from_dirichlet_draws_converge_to_the_closed_forms(alpha: list[float]) -> None:
    torch.manual_seed(1)
    inputs, count = 200, 1_000
    d = PredictiveDirichlet.from_alpha(torch.tensor(alpha, dtype=torch.float64)).expand([inputs])
    exact, estimate = uncertainty(d), uncertainty(d.sample((count,)))
    for name in FUNCTIONS:
        got, true = estimate[name], exact[name][0]
        error = SIGMAS * got.std() / inputs**0.5
        # Plug-in estimates are biased: by about I / S the entropies, the ratio and what is
        # made of it by a few times the squared relative error of one estimate.
        bias = {
            "total": 1.5 * exact.epistemic[0] / count,
            "epistemic": 1.5 * exact.epistemic[0] / count,
            "max_probability": 1e-12,
            "concentration": 5 * (got.std() / true) ** 2 * true,
            "differential_entropy": 5 * got.std() ** 2,
        }.get(name, 0.0)
        assert (got.mean() - true).abs() < error + bias, name


def test_digamma_gap() -> None:
    a = torch.logspace(-6, 4, 2_001, dtype=torch.float64)
    direct = torch.digamma(a + 1) - a.log()
    # 3e-15: absolute rounding of the direct form; relative 1e-13 where the series begins.
    torch.testing.assert_close(_digamma_gap(a.log()), direct, rtol=1e-13, atol=3e-15)
    wide = _digamma_gap(torch.linspace(-700.0, 700.0, 5_001, dtype=torch.float64))
    assert (wide.diff() < 0).all() and (wide > 0).all()


@pytest.mark.parametrize("mean", [[0.2, 0.5, 0.3], [1e-6, 0.3, 0.7 - 1e-6], [0.999, 5e-4, 5e-4]])
def test_float32_extremes(mean: list[float]) -> None:
    log_mean = torch.tensor(mean).log().log_softmax(-1)
    log_alpha_0 = torch.linspace(math.log(1e-6), math.log(1e8), 400)
    u = uncertainty(PredictiveDirichlet(log_mean.expand(400, 3), log_alpha_0))
    for name, value in u.to_dict().items():
        assert value.dtype == torch.float32 and value.isfinite().all(), name
    # 2e-7: the three are rounded to float32 one by one.
    torch.testing.assert_close(u.aleatoric + u.epistemic, u.total, rtol=2e-7, atol=0)
    assert (u.epistemic > 0).all() and (u.aleatoric > 0).all()
    assert (u.epistemic.diff() <= 0).all() and (u.variance.diff() <= 0).all()
    # Limits, to first order in alpha_0 and in 1 / alpha_k; float32 parameters carry 1e-6.
    m = log_mean.double().exp()
    gini = 1 - m.square().sum().item()
    aleatoric = math.pi**2 / 6 * 1e-6 * gini
    assert u.aleatoric[0].item() == pytest.approx(aleatoric, rel=1e-5)
    assert u.epistemic[0].item() == pytest.approx(u.total[0].item(), rel=1e-3)
    assert u.epistemic[-1].item() == pytest.approx(2 / (2 * 1e8), rel=0.01)
    assert u.expected_pairwise_kl[-1].item() == pytest.approx(2 / 1e8, rel=1e-5)
    assert u.variance[-1].item() == pytest.approx(gini / 1e8, rel=1e-5)


def test_differential_entropy_at_large_concentration_is_gaussian() -> None:
    mean = torch.tensor([0.2, 0.5, 0.3])
    got = differential_entropy(PredictiveDirichlet(mean.log(), torch.tensor(1e8).log()))
    # Covariance (diag(m) - m m^T) / alpha_0 of the first C - 1 components; determinant prod(m).
    gaussian = math.log(2 * math.pi * math.e) + 0.5 * mean.log().sum().item() - math.log(1e8)
    assert got.item() == pytest.approx(gaussian, abs=1e-5)  # float32 rounding


def test_gradients_are_finite_at_the_extremes() -> None:
    log_alpha_0 = torch.tensor([-14.0, 0.0, 18.0], requires_grad=True)
    logits = torch.tensor([[0.0, 3.0, -30.0]]).expand(3, 3).clone().requires_grad_()
    u = uncertainty(PredictiveDirichlet(logits.log_softmax(-1), log_alpha_0))
    for name, value in u.to_dict().items():
        inputs = (logits, log_alpha_0)
        gradients = torch.autograd.grad(value.sum(), inputs, retain_graph=True, allow_unused=True)
        assert all(g is None or g.isfinite().all() for g in gradients), name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck(name: str) -> None:
    # On both sides of where the series begins.
    alpha = torch.tensor([[0.3, 5.0, 2.0], [40.0, 3.0, 900.0]], dtype=torch.float64)
    alpha.requires_grad_()
    assert torch.autograd.gradcheck(lambda a: FUNCTIONS[name](dist.Dirichlet(a)), (alpha,))
    draws = torch.randn(3, 1, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: FUNCTIONS[name](z.softmax(-1)), (draws,))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_relabelling_classes_and_reordering_draws_change_nothing(name: str) -> None:
    order = torch.tensor([2, 0, 3, 1])
    alpha = 10 * torch.rand(5, 4, dtype=torch.float64) + 0.1
    draws = torch.randn(6, 5, 4, dtype=torch.float64).softmax(-1)
    function = FUNCTIONS[name]
    torch.testing.assert_close(
        function(dist.Dirichlet(alpha[:, order])), function(dist.Dirichlet(alpha))
    )
    torch.testing.assert_close(function(draws[..., order]), function(draws))
    torch.testing.assert_close(function(draws.flip(0)), function(draws))


def test_corners_and_equal_draws() -> None:
    corners = torch.eye(3).unsqueeze(1)  # three draws that are sure of three classes
    u = uncertainty(corners)
    torch.testing.assert_close(u.total, torch.tensor([math.log(3.0)]))
    assert u.aleatoric == 0 and u.concentration == 0 and u.differential_entropy == -torch.inf
    torch.testing.assert_close(u.epistemic, u.total)
    # Every pair is a certainty against an impossibility: minus the logarithm of finfo.tiny.
    torch.testing.assert_close(u.expected_pairwise_kl, torch.tensor([126 * math.log(2.0)]))

    equal = torch.tensor([0.5, 0.25, 0.25]).expand(4, 2, 3)
    u = uncertainty(equal)
    assert (u.epistemic == 0).all() and (u.expected_pairwise_kl == 0).all()
    assert (u.concentration == torch.inf).all() and (u.differential_entropy == -torch.inf).all()
    assert (u.variance == 0).all()

    absent = torch.tensor([[[0.5, 0.5, 0.0]], [[0.25, 0.75, 0.0]]])  # a class never possible
    u = uncertainty(absent)
    assert u.differential_entropy == -torch.inf and u.concentration.isfinite()
    assert all(not value.isnan().any() for value in u.to_dict().values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_float32(dtype: torch.dtype) -> None:
    draws = torch.randn(20, 5, 10).softmax(-1)
    half, full = uncertainty(draws.to(dtype)), uncertainty(draws)
    assert half.total.dtype == torch.float32
    torch.testing.assert_close(half.total, full.total, rtol=0.02, atol=0)  # rounding of the draws
    d = PredictiveDirichlet(
        torch.zeros(3, 2, dtype=dtype) - math.log(2.0), torch.zeros(3, dtype=dtype)
    )
    assert entropy(d).dtype == torch.float32


def test_the_record() -> None:
    source = dist.Dirichlet(torch.rand(4, 3) + 0.5)
    u = uncertainty(source)
    torch.testing.assert_close(u.mean, source.mean)
    assert u.keys() == ("mean", *FUNCTIONS)
    assert u["entropy"] is u.entropy is u.total
    assert u["mutual_information"] is u.mutual_information is u.epistemic
    assert dict(u) == u.to_dict() and u.to_dict()["variance"] is u.variance
    with pytest.raises(KeyError, match=r"no measure 'doubt'; there are mean, total"):
        u["doubt"]
    with pytest.raises(KeyError):
        u["keys"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        u.total = u.variance  # type: ignore[misc]
    assert isinstance(u, Uncertainty)
    assert entropy is total_uncertainty
    assert mutual_information is epistemic_uncertainty


def test_no_inputs() -> None:
    u = uncertainty(torch.zeros(5, 0, 3))
    assert u.mean.shape == (0, 3)
    assert all(u[name].shape == (0,) for name in FUNCTIONS)
    assert uncertainty(dist.Dirichlet(torch.ones(0, 3), validate_args=False)).total.shape == (0,)


@pytest.mark.parametrize("a", [1e-3, 1.0, 20.0, 40.0, 1e3, 1e5, 1e8])
def test_digamma_gap_keeps_its_digits(a: float) -> None:
    """Against 40 digits; a part in 1e14 of log a is what the difference of two may lose."""
    with mpmath.workdps(40):
        exact = float(mpmath.digamma(mpmath.mpf(a) + 1) - mpmath.log(mpmath.mpf(a)))
    found = _digamma_gap(torch.tensor(a, dtype=torch.float64).log()).item()
    assert found == pytest.approx(exact, rel=1e-12, abs=0)
