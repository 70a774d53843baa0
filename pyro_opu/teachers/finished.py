"""A finished teacher: one look at the model tells its outcome, classes, draws, sites and cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from pyro.infer import Predictive
from torch import Tensor

from pyro_opu.inputs import PLAIN, Form
from pyro_opu.programs.cost import counted
from pyro_opu.programs.program import Program
from pyro_opu.programs.samples import Latents, posterior_of
from pyro_opu.programs.signature import call_of
from pyro_opu.rng import preserve_rng
from pyro_opu.teachers import as_teacher
from pyro_opu.teachers.agreement import ComparedDraws
from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.classes import PredictiveTeacher
from pyro_opu.teachers.function import FunctionDraws, FunctionTeacher
from pyro_opu.teachers.numpyro import NumpyroTeacher
from pyro_opu.teachers.options import SourceOptions
from pyro_opu.teachers.posteriors import PosteriorTeacher
from pyro_opu.teachers.pyro_model import ModelDraws
from pyro_opu.teachers.real import RegressionTeacher, is_real
from pyro_opu.teachers.regressors import as_regression_teacher, gives_pair
from pyro_opu.teachers.several import SeveralTeacher, parts_of

#: Teachers that ``as_teacher`` makes of sources which may be of another outcome.
UNKNOWN = (PredictiveTeacher, FunctionTeacher, NumpyroTeacher, PosteriorTeacher)


def teacher_of(
    source: Any,
    x: Tensor,
    site: str | None = None,
    *,
    inputs: Callable[..., Tensor] | None = None,
    form: Form = PLAIN,
) -> JointDraws:
    """The teacher of a source of any outcome, which its ``kind`` names.

    Errors are those of :func:`finished_teacher`. A model is run at two and at three rows. What is
    said by ``site`` and ``inputs`` is as in :func:`~pyro_opu.as_teacher`.
    """
    with preserve_rng():
        return _begun(_said(source, site, inputs), x, form, 2)[0]


def is_regressor(
    source: Any,
    x: Tensor,
    site: str | None,
    inputs: Callable[..., Tensor] | None,
    form: Form = PLAIN,
) -> bool:
    """Whether the source's y is real: its observed site is normal, or it returns (loc, scale).

    A source that cannot be run is no regressor; arguments are those of
    :func:`~pyro_opu.as_teacher`.
    """
    try:
        return teacher_of(source, x, site, inputs=inputs, form=form).kind == "real"
    except Exception:  # noqa: BLE001 - whatever is wrong with it is explained where it is used
        return False


def _said(
    source: Any, site: str | None = None, inputs: Callable[..., Tensor] | None = None
) -> SourceOptions:
    """The source of a teacher whose outcome is not known yet, or this one, and what is said of it.

    ``as_teacher`` makes a teacher of classes, as long as nobody has looked at inputs.
    """
    said = SourceOptions(source, site, inputs)
    if not isinstance(source, JointDraws) or source.options is None:
        return said
    known = source.options.updated(said)
    again = isinstance(source, UNKNOWN) and not source.has_answered
    return known if again else replace(known, source=source)


@torch.no_grad()
def _begun(
    said: SourceOptions, x: Tensor, form: Form, most: float = math.inf
) -> tuple[JointDraws, Latents | None]:
    """The teacher of a source; and of a model, which has been run, at most so many draws."""
    source, site, inputs = posterior_of(said.source), said.site, said.inputs
    teacher, draws = source, None
    if isinstance(source, Predictive):
        call = call_of(inputs, source.model, said.arguments)
        model: ModelDraws = PredictiveTeacher(source, site, call)
        model.unpack_by(form)
        most = int(min(most, source.num_samples))
        program = Program.of(source, model.call, x, most, form)
        if parts := parts_of(program, x, site):
            model = SeveralTeacher(source, parts, model.call)
        elif is_real(program, site):
            model = RegressionTeacher(source, site, model.call)
        model.form = form
        teacher, draws = model.know(program), program.picked
    elif not isinstance(source, JointDraws):
        real = gives_pair(source, x, site, inputs, form)
        make = as_regression_teacher if real else as_teacher
        teacher = make(source, site, inputs=inputs, arguments=said.arguments)
        teacher.unpack_by(form)
    else:
        if site is not None and (source.options is None or site != source.options.site):
            teacher = as_teacher(source, site)
        teacher.unpack_by(form)
    if teacher is not source:
        teacher.options = replace(said, source=teacher)  # its outcome is known
    return teacher, draws


@torch.no_grad()
def finished_teacher(
    source: Any,
    x: Tensor,
    *,
    form: Form = PLAIN,
    num_draws: int | None = None,
) -> JointDraws:
    """The teacher of a source, of class probabilities or of a real y, that has looked at ``x``.

    Its kind, classes, draws, site and cost are known and stay as they are. A model or network is
    run five times at most: at two and at three rows, under one draw and under all. A Pyro model is
    run four times more, to be compared with itself as it is written; a network with dropout in
    training mode too (``pyro_opu/teachers/training_mode.py``).

    Args:
        source: What :func:`~pyro_opu.as_teacher` or ``as_regression_teacher`` takes, or what
            they have made.
        x: Inputs ``(N, ...)``.
        form: The form of several inputs, which ``x`` holds as one tensor.
        num_draws: Draws to look at of a teacher that draws afresh; by default all that it gives.

    Raises:
        TypeError: ``source`` cannot be made a teacher.
        ValueError: a model that cannot be run, has no such site, or one draw or one class.
    """
    with counted():
        said = _said(source)
        teacher, draws = _begun(said, x, form)
        if isinstance(teacher, ComparedDraws):
            few = min(2, teacher.max_draws or 2)
            with preserve_rng():
                teacher.compare(teacher._pick(x, few) if draws is None else draws, x)
        teacher.look(x[:2], draws, None if teacher.max_draws else num_draws)
        if isinstance(teacher, FunctionDraws) and callable(said.source):
            teacher.queries += 2 * (teacher.max_draws or 2)  # by `gives_pair`
    if (teacher.max_draws or teacher.default_draws) == 1:
        raise ValueError(
            "`source` holds one posterior draw; expected at least two, or there is no uncertainty "
            "to learn. Pass more posterior samples, or more networks."
        )
    if teacher.num_outputs < 2:
        raise ValueError(
            f"`source` gives {teacher.num_outputs} class; expected at least two (for two classes "
            "[1 - p, p])."
        )
    return teacher
