"""Distillation of guides of one's own, of two networks, and of trained ones."""

from __future__ import annotations

import pytest
import torch
from quick_distill import NAMES, C, inputs, quick, quick_wasserstein, truth, weights
from torch import Tensor, nn

from pyro_opu import PredictiveDirichlet, PredictiveGuide
from pyro_opu.metrics.distances import energy_distance

pytestmark = pytest.mark.usefixtures("brief")


class Plain(nn.Module):
    """A user's guide that returns torch's own Dirichlet."""

    def __init__(self, classes: int = C) -> None:
        super().__init__()
        self.layer = nn.Linear(2, classes)

    def forward(self, x: Tensor) -> torch.distributions.Dirichlet:
        return torch.distributions.Dirichlet(nn.functional.softplus(self.layer(x)) + 0.01)


@pytest.mark.parametrize("loss", NAMES)
def test_a_guide_of_ones_own(loss: str) -> None:
    guide = Plain()
    before = {name: value.clone() for name, value in guide.state_dict().items()}
    fast = quick(
        guide=guide,
        loss=quick_wasserstein() if loss == "wasserstein" else loss,
        learning_rate=0.05,
    )
    assert fast.guide is guide  # trained in place
    assert any(not torch.equal(before[name], value) for name, value in weights(fast).items())
    assert fast.report["energy_distance"] < fast.report["history"][0]["energy_distance"]
    assert isinstance(fast.dirichlet(inputs(4)), PredictiveDirichlet)


def test_two_networks() -> None:
    guide = PredictiveGuide.for_inputs(inputs(), C, shared=False, hidden=(8,))
    fast = quick(guide=guide, loss=quick_wasserstein(), num_steps=40)
    assert fast.report["energy_distance"] < fast.report["history"][0]["energy_distance"]


def test_a_distilled_guide_can_be_distilled_again() -> None:
    first = quick(num_steps=4)
    again = quick(guide=first.guide, num_steps=30)
    assert again.report["energy_distance"] < again.report["history"][0]["energy_distance"]


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.Dropout(0.5)], ids=["norm", "dropout"])
def test_a_guide_that_differs_between_training_and_use(layer: nn.Module) -> None:
    guide = PredictiveGuide(nn.Sequential(nn.Linear(2, 4), layer, nn.Tanh()), 4, C)
    fast = quick(guide=guide, num_steps=30)
    assert not fast.guide.training
    scores = [record["energy_distance"] for record in fast.report["history"]]
    assert fast.report["energy_distance"] == min(scores)
    # What was judged is what is returned: two readings on the same noise agree.
    held_out = fast.report["energy_distance"]
    x = inputs(2000)
    torch.manual_seed(0)
    fresh = energy_distance(truth(x).sample((64,)), fast.dirichlet(x).sample((64,))).mean()
    # 30 held-out inputs against 2000 fresh ones: they differ by the inputs, not by a factor.
    assert 0.5 * held_out < fresh < 2 * held_out
