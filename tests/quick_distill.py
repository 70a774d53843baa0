"""A teacher that is a Dirichlet, short distillations of it, and how they fail and die."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from flat import distill_flat
from torch import Tensor

from pyro_opu import (
    EnergyDistance,
    MomentMatching,
    Objective,
    OnePassPredictive,
    PredictiveDirichlet,
    WassersteinELBO,
)
from pyro_opu.objectives import CrossEntropy, DirichletLikelihood
from pyro_opu.objectives.cross_entropy import cross_entropy
from pyro_opu.training.fit import Phase

C = 3
WEIGHTS = torch.tensor([[1.0, -0.5, 0.2], [0.0, 0.8, -0.6]])
NAMES: dict[str, type[Objective]] = {
    "wasserstein": WassersteinELBO,
    "moments": MomentMatching,
    "energy": EnergyDistance,
    "likelihood": DirichletLikelihood,
    "cross_entropy": CrossEntropy,
}


def truth(x: Tensor, concentration: float | None = None) -> PredictiveDirichlet:
    """The teacher's own Dirichlet; its log alpha_0 depends on x where none is given."""
    x = x.float().flatten(1)[:, :2]
    g = 2 + x[:, 0] if concentration is None else torch.full((len(x),), math.log(concentration))
    return PredictiveDirichlet((x @ WEIGHTS).log_softmax(-1), g)


def teacher(concentration: float | None = None) -> Callable[..., Tensor]:
    def probs(x: Tensor, num_draws: int) -> Tensor:
        return truth(x, concentration).sample((num_draws,))

    return probs


def inputs(rows: int = 200) -> Tensor:
    return torch.randn(rows, 2, generator=torch.Generator().manual_seed(5))


QUICK: dict[str, Any] = {
    "loss": "energy",
    "num_steps": 20,
    "batch_size": 16,
    "num_draws": 4,
    "evaluate_every": 5,
    "seed": 0,
    "progress": False,
}


def quick(source: Any = None, x: Tensor | None = None, **changes: Any) -> OnePassPredictive:
    return distill_flat(
        teacher() if source is None else source,
        inputs() if x is None else x,
        **{**QUICK, **changes},
    )


def quick_wasserstein(**changes: Any) -> WassersteinELBO:
    return WassersteinELBO(**{"critic_warmup": 3, "critic_steps": 1, "num_samples": 8, **changes})


def weights(fast: OnePassPredictive) -> dict[str, Tensor]:
    return dict(fast.guide.state_dict())


def same(one: OnePassPredictive, other: OnePassPredictive) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


class NotFiniteAt(Objective):
    """Cross-entropy that turns NaN at call ``k``."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self._calls = 0

    def parts(self, student: Any, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        self._calls += 1
        loss = cross_entropy(student, draws)
        return {"fine": loss, "broken": loss * math.nan if self._calls == self.k else loss * 0}


class Killed(Exception):
    """Stands for a power cut."""


@contextmanager
def killed(steps: int) -> Iterator[None]:
    """A distillation inside dies before the step of this number, from 1."""
    left, step = steps, Phase.step

    def mortal(phase: Phase, number: int) -> dict[str, float]:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        return step(phase, number)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Phase, "step", mortal)
        yield
