"""Distillation stops at losses that are not finite, and refuses bad arguments."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from quick_distill import C, NotFiniteAt, quick, quick_wasserstein, same
from torch import Tensor, nn

from pyro_opu import DistillationError, PredictiveGuide

pytestmark = pytest.mark.usefixtures("brief")


def test_a_loss_that_is_not_finite_stops(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    settings = {"warm_start": False, "checkpoint": path}
    with pytest.raises(DistillationError) as caught:
        quick(loss=NotFiniteAt(8), **settings)
    message = str(caught.value)
    for text in ("not finite at step 7", "'fine': ", "'broken': nan", "smallest alpha "):
        assert text in message
    # The file from before is whole, and a run that has no such step goes on from it.
    fixed = NotFiniteAt(8)
    fixed._calls = 8
    resumed = quick(loss=fixed, **settings)
    never = NotFiniteAt(8)
    never._calls = 8
    assert same(resumed, quick(loss=never, warm_start=False))


class Eval(nn.Module):
    """Answers NaN in evaluation mode, at once or after so many batches of training."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after: Tensor
        self.register_buffer("after", torch.tensor(after))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.after -= 1
            return x
        return x if self.after > 0 else x * math.nan


@pytest.mark.parametrize(("after", "where"), [(0, "0 of the start"), (8, "10 of the warm start")])
def test_a_student_that_is_not_finite_in_evaluation_mode_stops(after: int, where: str) -> None:
    guide = PredictiveGuide(nn.Sequential(nn.Linear(2, 4), Eval(after)), 4, C)
    message = f"not finite in evaluation mode at step {where}.*'energy_distance': nan.*guide.eval()"
    with pytest.raises(DistillationError, match=message):
        quick(guide=guide, loss="moments")


def test_a_critic_that_is_not_finite_stops() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(C))

        def forward(self, x: Tensor, pi: Tensor) -> Tensor:
            return (pi * self.weight).sum(-1) * math.inf

    loss = quick_wasserstein(critic=Broken())
    with pytest.raises(DistillationError, match="step 0: parts {'critic gain': nan"):
        quick(loss=loss, warm_start=False)


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match='`device` is "cuda", but this machine has no CUDA'):
        quick(device="cuda")
