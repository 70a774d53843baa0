"""Asking a guide, in the dtype of its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.dirichlet import as_predictive


def in_dtype_of(guide: nn.Module, x: Tensor) -> Tensor:
    """Inputs in the dtype of the guide's weights."""
    weight = next(guide.parameters(), None)
    return x if weight is None else x.to(weight.dtype)


def student_at(guide: nn.Module, x: Tensor) -> Any:
    """What the guide says at ``x``: any Dirichlet in this package's form, all else as it is."""
    answer = guide(in_dtype_of(guide, x))
    return as_predictive(answer) if isinstance(answer, torch.distributions.Dirichlet) else answer
