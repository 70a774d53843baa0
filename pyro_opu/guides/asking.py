"""Asking a guide, in the dtype that it takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.distributions.dirichlet import as_predictive
from pyro_opu.guides.networks import centres


def in_dtype_of(guide: nn.Module, x: Tensor) -> Tensor:
    """Inputs in the dtype of the guide's weights; float64 stays for a guide that centres it."""
    weight = next(guide.parameters(), x)
    if x.dtype == weight.dtype or (
        x.dtype == torch.float64 and weight.dtype == torch.float32 and centres(guide)
    ):
        return x
    return x.to(weight.dtype)


def student_at(guide: nn.Module, x: Tensor) -> Any:
    """What the guide says at ``x``: any Dirichlet in this package's form, all else as it is."""
    answer = guide(in_dtype_of(guide, x))
    return as_predictive(answer) if isinstance(answer, torch.distributions.Dirichlet) else answer
