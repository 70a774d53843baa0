"""Steps and learning rate of a distillation whose caller names none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from taught import X, teacher
from torch import nn

from pyro_opu import PredictiveGuide, distill, loop
from pyro_opu.plan import chosen_rate, chosen_steps
from pyro_opu.regression import distill_regression

DISTILLERS = {
    "classifier": (distill, teacher),
    "regressor": (distill_regression, lambda x: (torch.randn(9, 1) * x[:, 0], torch.ones(9, 1))),
}


@pytest.mark.parametrize(
    ("rows", "batch_size", "steps"),
    [
        (4, 256, 3000),
        (19_200, 256, 3000),  # 40 passes
        (60_000, 256, 9375),
        (60_000, 1024, 3000),
        (10**9, 256, 12_000),
    ],
)
def test_steps_by_default(rows: int, batch_size: int, steps: int) -> None:
    assert chosen_steps(None, rows, batch_size) == steps
    assert chosen_steps(5, rows, batch_size) == 5


@pytest.mark.parametrize(
    ("guide", "rate"),
    [
        (PredictiveGuide.for_inputs(torch.randn(4, 3), 2), 4e-3),  # three layers of 128
        (PredictiveGuide.for_inputs(torch.randn(4, 57), 2), 4e-3),  # of 256
        (PredictiveGuide.for_inputs(torch.randn(4, 784), 10), 2e-3),  # of 512
        (PredictiveGuide.for_inputs(torch.randn(4, 5), 1000, hidden=(64,)), 4e-3),  # many classes
        (PredictiveGuide.for_inputs(torch.randn(4, 28, 28), 10), 4e-3),  # convolutions
        (nn.Sequential(nn.Linear(2000, 1024), nn.Linear(1024, 2)), 1e-3),
        (nn.BatchNorm1d(3), 4e-3),  # no matrix
    ],
)
def test_rate_by_default(guide: nn.Module, rate: float) -> None:
    assert chosen_rate(None, guide) == rate
    assert chosen_rate(0.5, guide) == 0.5


@pytest.mark.parametrize("kind", DISTILLERS)
def test_defaults_are_taken(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, float]] = []

    def watched(name: str, objective: Any, guide: Any, steps: int, rate: float, draws: int) -> Any:
        seen.append((steps, rate))
        return loop_phase(name, objective, guide, steps, rate, draws)

    loop_phase = loop.init_phase
    monkeypatch.setattr(loop, "init_phase", watched)
    monkeypatch.setattr("pyro_opu.plan.FEWEST_STEPS", 6)
    monkeypatch.setattr("pyro_opu.plan.RATE", 1e-5)
    run, source = DISTILLERS[kind]
    run(source, X[:12], loss="moments", seed=0, progress=False)
    assert seen == [(6, 1e-5)]
