"""Coverage of draws by the central intervals of Beta marginals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.metrics.coverage import _others, central_coverage, central_coverage_of_draws


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def equal_weights(num_inputs: int, num_classes: int) -> torch.Tensor:
    return torch.full((num_inputs, num_classes), 1 / num_classes)


def test_equals_the_loop_over_distribution_functions() -> None:
    alpha = torch.tensor([[0.5, 2.0, 7.0], [30.0, 1.0, 1.0]])
    draws = torch.distributions.Dirichlet(torch.ones(3)).sample((20, 2)).double()
    weights = torch.tensor([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]]).double()
    expected = np.zeros((2, 2))
    for i, level in enumerate((0.5, 0.9)):
        for n in range(2):
            for k in range(3):
                a = alpha[n, k].item()
                u = stats.beta(a, alpha[n].sum().item() - a).cdf(draws[:, n, k].numpy())
                inside = np.mean(np.abs(u - 0.5) <= level / 2)
                expected[i, n] += weights[n, k].item() * inside
    covered = central_coverage(PredictiveDirichlet.from_alpha(alpha), draws, weights, (0.5, 0.9))
    np.testing.assert_allclose(covered.numpy(), expected, atol=1e-9)  # rounding


def test_impossible_draws_are_outside() -> None:
    dirichlet = PredictiveDirichlet.from_alpha(torch.tensor([[50.0, 50.0]]))
    corners = torch.eye(2)[:, None]
    assert central_coverage(dirichlet, corners, equal_weights(1, 2), (0.9,)).item() == 0


def test_vanishing_components_do_not_break_the_quantiles() -> None:
    log_mean = torch.tensor([[0.0, -800.0, -90.0]])
    dirichlet = PredictiveDirichlet(log_mean, torch.tensor([2.0]))
    draws = dirichlet.sample((50,))
    assert central_coverage(dirichlet, draws, equal_weights(1, 3), (0.5, 0.9)).isfinite().all()


def test_draws_in_the_place_of_a_dirichlet() -> None:
    """Empirical quantiles of many draws cover what those of the Dirichlet do."""
    alpha = torch.tensor([[0.5, 2.0, 7.0], [30.0, 1.0, 1.0], [900.0, 0.01, 0.02]])
    dirichlet = PredictiveDirichlet.from_alpha(alpha.double())
    draws = PredictiveDirichlet.from_alpha(1.5 * alpha.double()).sample((4000,))
    weights = equal_weights(3, 3).double()
    exact = central_coverage(dirichlet, draws, weights, (0.5, 0.9))
    found = central_coverage_of_draws(dirichlet.sample((40_000,)), draws, weights, (0.5, 0.9))
    # Four standard errors, of a quantile's level from 40,000 draws: 0.0025 for each end.
    torch.testing.assert_close(found, exact, atol=0.015, rtol=0)


def test_other_classes_keep_their_digits() -> None:
    values = torch.tensor([[1.0, 1e-20, 3e-20]])
    torch.testing.assert_close(_others(values), torch.tensor([[4e-20, 1.0, 1.0]]))
