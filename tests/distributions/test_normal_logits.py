"""One normal logit against a fine sum, and many by their mutual information."""

from __future__ import annotations

import pytest
import torch
from posteriors import averages

from pyro_opu.distributions import PredictiveDirichlet
from pyro_opu.distributions.normal_logits import averaged_logit, informed_concentration
from pyro_opu.metrics.uncertainty import epistemic_uncertainty


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
