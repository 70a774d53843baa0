"""Log alpha_0 by the mutual information of normal logits; one logit: `guides/test_plug_in.py`."""

from __future__ import annotations

import pytest
import torch

from pyro_opu.distributions import PredictiveDirichlet
from pyro_opu.distributions.normal_logits import informed_concentration
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
