"""Short students of a teacher of 20 draws, with rows kept for their bound and watch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import pyro_opu
from pyro_opu import OnePassPredictive

WEIGHTS = torch.randn(20, 4, 3, generator=torch.Generator().manual_seed(3))


def teacher(x: Tensor) -> Tensor:
    return (x @ WEIGHTS.to(x)).softmax(-1)


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def quick(source: Any, x: Any, **options: Any) -> OnePassPredictive:
    return pyro_opu.distill(source, x, **{"num_steps": 30, "seed": 0, "progress": False} | options)
