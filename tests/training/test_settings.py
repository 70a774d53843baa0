"""The learning rate of a distillation whose caller names none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from taught import X, teacher
from torch import nn

from pyro_opu import PredictiveGuide, distill
from pyro_opu.training import train
from pyro_opu.training.settings import default_rate

DISTILLERS = {
    "classifier": (distill, teacher),
    "regressor": (distill, lambda x: (torch.randn(9, 1) * x[:, 0], torch.ones(9, 1))),
}


@pytest.mark.parametrize(
    ("guide", "rate"),
    [
        (PredictiveGuide.for_inputs(torch.randn(4, 3), 2), 4e-3),  # three layers of 128
        (PredictiveGuide.for_inputs(torch.randn(4, 57), 2), 4e-3),  # of 256
        (PredictiveGuide.for_inputs(torch.randn(4, 784), 10), 2e-3),  # of 512
        (PredictiveGuide.for_inputs(torch.randn(4, 5), 1000, hidden=(64,)), 4e-3),  # many classes
        (PredictiveGuide.for_inputs(torch.rand(4, 28, 28), 10), 4e-3),  # convolutions
        (nn.Sequential(nn.Linear(2000, 1024), nn.Linear(1024, 2)), 1e-3),
        (nn.BatchNorm1d(3), 4e-3),  # no matrix
    ],
)
def test_rate_by_default(guide: nn.Module, rate: float) -> None:
    assert default_rate(guide) == rate


@pytest.mark.parametrize("kind", DISTILLERS)
def test_the_default_is_taken(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def watched(*args: Any, rate: float, steps: int, **options: Any) -> Any:
        seen.extend([rate] * bool(steps))
        return own(*args, rate=rate, steps=steps, **options)

    own = train.distillation_phase
    monkeypatch.setattr(train, "distillation_phase", watched)
    monkeypatch.setattr("pyro_opu.training.settings.RATE", 1e-5)
    run, source = DISTILLERS[kind]
    run(source, X[:12], loss="moments", num_steps=6, seed=0, progress=False)
    assert seen == [1e-5]
