"""A teacher of 12 draws, its inputs, batches laid down beforehand, and a guide to begin with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu import as_teacher
from pyro_opu.guides import PredictiveGuide, guide_at
from pyro_opu.guides.beginning import find_beginning

WEIGHTS = torch.randn(12, 2, 3, generator=torch.Generator().manual_seed(1))
X = torch.randn(60, 2, generator=torch.Generator().manual_seed(2))


def teacher(x: Tensor) -> Tensor:
    return (x @ WEIGHTS.to(x.device)).softmax(-1)


class Scripted:
    """A transfer policy of fixed batches."""

    def __init__(self, *batches: Tensor) -> None:
        self.batches = list(batches)

    def sample(self, n: int) -> Tensor:
        batch = self.batches.pop(0)
        assert len(batch) == n
        return batch


def as_network(x: Tensor, classes: int) -> Any:
    """A guide that begins as a dropout network on the inputs, 40 units wide."""
    first = nn.Linear(x.shape[1], 40)
    rest = nn.ReLU(), nn.Dropout(0.2), nn.Linear(40, classes)
    source = nn.Sequential(nn.Dropout(0.2), first, *rest).eval()
    teacher = as_teacher(source, output="classes")
    return guide_at(PredictiveGuide, find_beginning(teacher.plug_ins(x), x, teacher.probs(x)), x)
