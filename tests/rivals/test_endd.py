"""Ensemble distribution distillation and its form with proxy targets, as whole methods."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyro_opu import OnePassPredictive
from pyro_opu.guides import SingleHeadGuide
from pyro_opu.rivals.ensemble_distillation import endd, proxy_dirichlet
from pyro_opu.transfer import HeldOut

ALPHA = torch.tensor([3.0, 1.5, 0.5])


def dirichlet_teacher(x: Tensor, num_draws: int) -> Tensor:
    """A teacher that is Dirichlet, the same everywhere, with fresh draws ``(S, N, 3)``."""
    return torch.distributions.Dirichlet(ALPHA.expand(len(x), 3)).sample((num_draws,))


def logistic_teacher(x: Tensor) -> Tensor:
    """Forty draws ``(S, N, 3)`` of a logistic regression."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.tensor([[2.0, -1.0, -1.0], [0.0, 1.5, -1.5]])
    draws = weights + 0.7 * torch.randn(40, 2, 3, generator=generator)
    return torch.softmax(x.to(draws) @ draws, -1)


def fitted(
    method: Callable[..., OnePassPredictive],
    teacher: Callable[..., Tensor] = logistic_teacher,
    **settings: object,
) -> OnePassPredictive:
    x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    options: dict[str, object] = {"num_steps": 150, "batch_size": 32, "learning_rate": 1e-2}
    return method(teacher, x, **{**options, "seed": 0, "progress": False, **settings})


@pytest.mark.slow
def test_endd_recovers_a_dirichlet_teacher() -> None:
    fast = fitted(endd, dirichlet_teacher, transfer=HeldOut(), num_steps=1200)
    found = fast.dirichlet(torch.randn(200, 2)).concentration.log().mean(0).exp()
    # Smoothing lifts the smallest draws, and the steps are few: over seeds, up to 5 % off.
    torch.testing.assert_close(found, ALPHA, rtol=0.1, atol=0)


def test_proxy_recovers_the_mean_and_the_stirling_precision() -> None:
    fast = fitted(proxy_dirichlet, dirichlet_teacher, transfer=HeldOut(), num_steps=300)
    found = fast.dirichlet(torch.randn(200, 2))
    mean = ALPHA.double() / ALPHA.sum()
    # Few steps, and the 32 draws of a step, whose mean hides 1 / 32 of their spread: over seeds,
    # 1.5 % off in the mean and 4 % in the precision.
    torch.testing.assert_close(found.mean.mean(0).double(), mean, rtol=0.05, atol=0)
    expected_log = torch.digamma(ALPHA.double()) - torch.digamma(ALPHA.sum().double())
    stirling = float(1 / (mean @ (mean.log() - expected_log)))  # (C - 1) / 2 is one here
    assert stirling == pytest.approx(4.17, abs=0.01)  # and not 5, the truth
    precision = float(found.log_concentration.mean().exp())
    assert precision == pytest.approx(stirling, rel=0.08)


def test_heat_may_leave_the_range_of_a_cold_student() -> None:
    fast, x = fitted(endd, num_steps=5), torch.randn(20, 2)
    guide = fast.guide
    with torch.no_grad():
        guide.head.bias.add_(50.0)  # as at T = 10
    cold = SingleHeadGuide.from_config(guide.config)
    cold.load_state_dict(guide.state_dict())
    torch.testing.assert_close(guide(x).log_concentration, cold(x).log_concentration)
    assert guide(x).log_concentration.max() < 16.1
    hot = guide.train()(x)
    assert hot.log_concentration.min() > 40
    torch.testing.assert_close(hot.log_alpha, guide.head(guide.trunk(x)))


def test_temperature_and_smoothing_matter() -> None:
    x = torch.randn(20, 2)
    answers = [
        fitted(endd, num_steps=5, **settings).dirichlet(x).concentration
        for settings in ({}, {"temperature": 1.0}, {"smoothing": 0.1})
    ]
    assert not torch.equal(answers[0], answers[1]) and not torch.equal(answers[0], answers[2])
