"""A finished teacher: one look at the model tells its outcome, classes, draws, sites and cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from pyro_opu.teachers import as_teacher
from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.real_sources import as_regression_teacher, is_regressor

__all__ = ["finished_teacher"]


def finished_teacher(
    source: Any,
    x: Tensor,
    site: str | None = None,
    *,
    inputs: Callable[..., Tensor] | None = None,
) -> JointDraws:
    """The teacher of a source, of class probabilities or of a real y, that has looked at ``x``."""
    real = is_regressor(source, x, site, inputs)
    teacher = (as_regression_teacher if real else as_teacher)(source, site, inputs=inputs)
    held = teacher.max_draws
    draws = teacher.draws(x[:2], held)
    if teacher.max_draws == 1 or len(draws) == 1:
        raise ValueError(
            "`source` holds one posterior draw; expected at least two, or there is no uncertainty "
            "to learn. Pass more posterior samples, or more networks."
        )
    if draws.shape[-1] < 2:
        raise ValueError(
            f"`source` gives {draws.shape[-1]} class; expected at least two (for two classes "
            "[1 - p, p])."
        )
    return teacher
