"""Accuracy, NLL, Brier score and ECE against scikit-learn and slow obvious loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss

from pyro_opu.metrics.scores import calibration, expected_calibration_error

pytestmark = pytest.mark.usefixtures("brief")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def some_predictions(num_inputs: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    probs = torch.distributions.Dirichlet(torch.tensor([0.5, 1.0, 2.0])).sample((num_inputs,))
    return probs, torch.distributions.Categorical(probs).sample()


def test_equals_scikit_learn_and_the_definition() -> None:
    probs, y = some_predictions()
    scores = calibration(probs.log(), y)
    assert scores.accuracy == pytest.approx(accuracy_score(y, probs.argmax(-1)))
    assert scores.nll == pytest.approx(log_loss(y, probs.double() / probs.double().sum(-1, True)))
    brier = [sum((probs[n, k] - (y[n] == k).float()) ** 2 for k in range(3)) for n in range(400)]
    assert scores.brier == pytest.approx(float(np.mean(brier)), rel=1e-5)  # float32 rounding
    assert scores.ece == pytest.approx(expected_calibration_error(probs, y))


def test_ece_equals_the_loop_over_bins() -> None:
    probs, y = some_predictions()
    confidence, predicted = probs.double().max(-1)
    expected = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            hit = (predicted == y)[inside].double().mean()
            expected += inside.double().mean() * (hit - confidence[inside].mean()).abs()
    assert expected_calibration_error(probs, y) == pytest.approx(float(expected))


def test_a_confidence_at_an_edge_belongs_to_the_bin_below() -> None:
    """Beside a wrong answer at 0.6 one that is right at 0.5 would cancel it."""
    probs = torch.tensor([[0.5, 0.5], [0.6, 0.4]])
    found = expected_calibration_error(probs, torch.tensor([0, 1]), num_bins=2)
    assert found == pytest.approx((0.5 + 0.6) / 2)
