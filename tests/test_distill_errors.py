"""Distillation stops at losses that are not finite, and refuses bad arguments."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from quick_distill import C, NotFiniteAt, inputs, quick, quick_wasserstein, same
from torch import Tensor, nn

from pyro_opu import DistillationError, PredictiveGuide

pytestmark = pytest.mark.usefixtures("brief")


def test_classes_that_come_with_the_inputs_are_refused() -> None:
    def transposed(x: Tensor) -> Tensor:
        logits = x.sum(-1) * torch.ones(4, len(x), 1)  # (S, N, N): at two inputs it looks right
        return logits.softmax(-1)

    with pytest.raises(
        ValueError, match="`source` must give as many classes.* got 2 before and 16"
    ):
        quick(transposed)


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


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_steps": 0}, ValueError, "`num_steps` must be a positive integer; got 0"),
        ({"num_steps": True}, ValueError, "`num_steps` must be a positive integer; got True"),
        ({"num_steps": 2.5}, ValueError, "`num_steps` must be a positive integer; got 2.5"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be a positive integer; got 0"),
        ({"batch_size": 8.0}, ValueError, "`batch_size` must be a positive integer; got 8.0"),
        ({"num_draws": 0}, ValueError, "`num_draws` must be a positive integer; got 0"),
        (
            {"learning_rate": 0.0},
            ValueError,
            "`learning_rate` must be .*positive.* got 0.0",
        ),
        (
            {"learning_rate": math.nan},
            ValueError,
            "`learning_rate` must be .*positive.* got nan",
        ),
        ({"evaluate_every": 0}, ValueError, "`evaluate_every` must be a positive integer; got 0"),
        ({"num_samples": 0}, ValueError, "`num_samples` must be a positive integer; got 0"),
        ({"loss": "kl"}, ValueError, r"`loss` must be one of \[.*got 'kl'"),
        ({"loss": 3}, TypeError, "`loss` must be one of .* got 3"),
        ({"x": inputs(3)}, ValueError, "`x` must hold at least 4 transfer inputs.*got 3"),
        ({"x": inputs().long()}, TypeError, "`x` must have a floating dtype; got torch.int64"),
        ({"x": inputs().tolist()}, TypeError, "`x` must be a torch.Tensor.*got list"),
        ({"x": inputs() * math.inf}, ValueError, "`x` must be finite"),
        ({"x": inputs()[:, 0]}, RuntimeError, r"a tensor \(N,\).*x\[:, None\]"),
        ({"device": "warp"}, ValueError, '`device` must be such as "cpu" or "cuda"; got \'warp\''),
        ({"source": 3}, TypeError, "`source` must be .* got int"),
        ({"source": lambda x: torch.ones(1, len(x), 2) / 2}, ValueError, "one posterior draw"),
        ({"source": lambda x: torch.ones(5, len(x), 1)}, ValueError, "at least two classes"),
        ({"return_sites": ["theta"]}, ValueError, "`return_sites` asks for 'theta'"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises(error, match=message):
        quick(**changes)
    assert torch.equal(torch.get_rng_state(), before)


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match='`device` is "cuda", but this machine has no CUDA'):
        quick(device="cuda")
