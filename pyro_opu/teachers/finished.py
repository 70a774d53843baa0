"""A finished teacher: one look at the model tells its outcome, classes, draws, sites and cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.inputs import PLAIN, Form
from pyro_opu.programs.cost import counted
from pyro_opu.rng import preserve_rng
from pyro_opu.teachers import as_teacher
from pyro_opu.teachers.alone import check_alone
from pyro_opu.teachers.base import BaseTeacher

__all__ = ["finished_teacher", "teacher_of"]


@torch.no_grad()
def teacher_of(source: Any, x: Tensor, *, form: Form = PLAIN) -> BaseTeacher:
    """The teacher of a source, whose outcome is known by a look at two rows.

    Errors are those of :func:`finished_teacher`.
    """
    teacher: BaseTeacher = as_teacher(source)
    teacher.unpack_by(form)
    with preserve_rng():
        teacher.prepare(x)
    return _known(teacher)


@torch.no_grad()
def finished_teacher(
    source: Any,
    x: Tensor,
    *,
    form: Form = PLAIN,
    num_draws: int | None = None,
) -> BaseTeacher:
    """The teacher of a source that has looked at ``x``.

    Its kind, classes, draws, site and cost are known and stay as they are. A model or network is
    run five times at most: at two and at three rows, under one draw and under all. A Pyro model is
    run four times more, to be compared with itself as it is written; a network with dropout in
    training mode too (``pyro_opu/teachers/training_mode.py``).

    Args:
        source: What :func:`~pyro_opu.as_teacher` takes, or what it has made.
        x: Inputs ``(N, ...)``.
        form: The form of several inputs, which ``x`` holds as one tensor.
        num_draws: Draws to look at of a teacher that draws afresh; by default all that it gives.
            Where they are counted it is not asked whether it says the same of a row alone.

    Raises:
        TypeError: ``source`` cannot be made a teacher.
        ValueError: a model that cannot be run, has no such site, or one draw or one class, or
            whose answer at a row depends on the other rows.
    """
    teacher: BaseTeacher = as_teacher(source)
    teacher.unpack_by(form)
    with counted():
        teacher.finish(x, num_draws)
    if (teacher.max_draws or teacher.default_draws) == 1:
        raise ArgumentError(
            "`source` holds one posterior draw; expected at least two, or there is no uncertainty "
            "to learn. Pass more posterior samples, or more networks."
        )
    if num_draws is None:
        check_alone(teacher, x)
    return _known(teacher)


def _known(teacher: BaseTeacher) -> BaseTeacher:
    """The teacher, which is the source of what ``as_teacher`` makes of it from now on."""
    teacher.options = replace(teacher.options, source=teacher)
    return teacher
