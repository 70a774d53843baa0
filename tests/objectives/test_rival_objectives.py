"""Objectives of the rivals: annealed likelihood and proxy targets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from posteriors import MEAN, dirichlet_draws
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from pyro_opu import DirichletLikelihood, Objective, PredictiveDirichlet
from pyro_opu.objectives import EnsembleDistribution, ProxyDirichlet
from pyro_opu.objectives.proxy import proxy_parts

C = 3


def student(concentration: float, rows: int) -> PredictiveDirichlet:
    g = torch.full((rows,), math.log(concentration), dtype=torch.float64)
    return PredictiveDirichlet(MEAN.log().expand(rows, C), g)


@pytest.mark.parametrize(
    "build",
    [
        lambda: EnsembleDistribution(1.0),
        EnsembleDistribution,
        ProxyDirichlet,
    ],
    ids=["likelihood", "heated", "proxy"],
)
@pytest.mark.parametrize("concentration", [0.1, 20.0])
def test_gradcheck(build: Callable[[], Objective], concentration: float) -> None:
    objective, draws = build(), dirichlet_draws(4.0, 6, 2)

    def loss(logits: Tensor, g: Tensor) -> Tensor:
        return objective(PredictiveDirichlet(logits.log_softmax(-1), g), draws, draws[0])

    logits = torch.randn(2, C, dtype=torch.float64, requires_grad=True)
    g = torch.full((2,), math.log(concentration), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (logits, g))


# Annealed likelihood -------------------------------------------------------------------------


def gradients_at(objective: Objective, alpha: Tensor, draws: Tensor) -> Tensor:
    """Gradient in log alpha ``(N, C)`` at one student for all inputs, each times N."""
    log_alpha = alpha.log().expand(draws.shape[1:]).clone().requires_grad_()
    d = PredictiveDirichlet(log_alpha.log_softmax(-1), log_alpha.logsumexp(-1))
    objective(d, draws, draws[0]).backward()
    return log_alpha.grad * len(log_alpha)


@pytest.mark.parametrize(
    ("done", "expected"),
    [(0.0, 10.0), (0.2, 10.0), (1 / 3, 10.0), (0.5, 5.5), (2 / 3, 1.0), (0.9, 1.0), (1.0, 1.0)],
)
def test_temperature_is_held_and_falls(done: float, expected: float) -> None:
    objective = EnsembleDistribution()
    assert objective._now == 10.0
    shown = repr(objective)
    objective.anneal(0.77)
    objective.anneal(done)  # where it has been before does not count
    assert objective._now == pytest.approx(expected, abs=1e-12)  # rounding
    assert repr(objective) == shown  # a resumed run is the same objective


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.01])
def test_likelihood_of_heated_draws_against_a_loop(temperature: float, smoothing: float) -> None:
    objective = EnsembleDistribution(temperature, smoothing)
    draws, alpha = dirichlet_draws(4.0, 5, 4), 6 * MEAN
    total = 0.0
    for s, n in itertools.product(range(5), range(4)):
        powers = draws[s, n] ** (1 / temperature)
        point = (1 - smoothing) * powers / powers.sum() + smoothing / C
        total -= float(Dirichlet(alpha ** (1 / temperature)).log_prob(point))
    found = objective(student(6.0, 4), draws, draws[0])
    torch.testing.assert_close(float(found), total / 20)


def test_at_the_end_it_is_the_plain_likelihood() -> None:
    objective, draws = EnsembleDistribution(), dirichlet_draws(4.0, 5, 4)
    objective.anneal(1.0)
    plain = DirichletLikelihood()(student(6.0, 4), draws, draws[0])
    torch.testing.assert_close(objective(student(6.0, 4), draws, draws[0]), plain)
    objective.anneal(0.0)
    assert abs(objective(student(6.0, 4), draws, draws[0]) - plain) > 0.1


# Proxy targets -------------------------------------------------------------------------------


def test_proxy_against_a_loop() -> None:
    draws = dirichlet_draws(5.0, 6, 4)
    mean, spread = proxy_parts(draws)
    for n in range(4):
        average = sum(draws[s, n] for s in range(6)) / 6
        gap = 0.0
        for k in range(C):
            logs = [math.log(float(draws[s, n, k])) for s in range(6)]
            gap += float(average[k]) * (math.log(float(average[k])) - sum(logs) / 6)
        torch.testing.assert_close(mean[n], average)
        assert 1 / float(spread[n]) == pytest.approx((C - 1) / (2 * gap), rel=1e-12)  # rounding


def proxies(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Parameters of the proxies ``(N, C)``, less one, and their precisions."""
    mean, spread = proxy_parts(draws)
    return mean / spread[:, None], 1 / spread


def test_loss_is_the_divergence_over_the_precision() -> None:
    draws = dirichlet_draws(5.0, 6, 1)
    beta, precision = proxies(draws)
    differences = []
    for concentration in (0.3, 5.0, 80.0):
        alpha = concentration * MEAN[None]
        divergence = kl_divergence(Dirichlet(alpha + 1), Dirichlet(beta + 1)) / precision
        loss = ProxyDirichlet()(student(concentration, 1), draws, draws[0])
        differences.append(float(loss - divergence))
    assert max(differences) - min(differences) < 1e-12  # rounding


def test_least_at_the_proxy() -> None:
    draws = dirichlet_draws(5.0, 6, 3)
    beta, _ = proxies(draws)
    slope = gradients_at(ProxyDirichlet(), beta, draws)
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-12)  # rounding
    assert gradients_at(ProxyDirichlet(), 1.1 * beta, draws).abs().max() > 1e-5


def test_proxy_of_draws_that_agree() -> None:
    mean, spread = proxy_parts(torch.tensor([0.7, 0.3, 0.0]).expand(4, 2, C))
    torch.testing.assert_close(mean, torch.tensor([[0.7, 0.3, 0.0]]).expand(2, C).double())
    assert spread.max() < 1e-14  # rounding; then only the cross-entropy is left


def thousand_classes() -> Tensor:
    """One sure class and 999 rare ones, as float32 draws ``(S, N, 1000)``."""
    logits = torch.randn(20, 2, 1000)
    logits[..., 0] += 14.0
    return logits.softmax(-1)


def test_thousand_classes_in_float32() -> None:
    draws, log_alpha = thousand_classes(), 2 * torch.randn(2, 1000)
    found = {}
    for dtype in (torch.float32, torch.float64):
        leaf = log_alpha.detach().to(dtype, copy=True).requires_grad_()
        d = PredictiveDirichlet(leaf.log_softmax(-1), leaf.logsumexp(-1))
        loss = ProxyDirichlet()(d, draws.to(dtype), torch.zeros(2, 1))
        loss.backward()
        found[dtype] = (loss.double(), leaf.grad.double())
    # float32 keeps log alpha and the result to 6e-8 of their size, about 10.
    torch.testing.assert_close(found[torch.float32], found[torch.float64], rtol=1e-5, atol=1e-6)
