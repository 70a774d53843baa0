"""A finished teacher: one look at the model tells its outcome, classes, draws, sites and cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro.infer import Predictive
from torch import Tensor

from pyro_opu.packing import Packing
from pyro_opu.teachers import as_teacher
from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.calls import call_of
from pyro_opu.teachers.chains import posterior_of
from pyro_opu.teachers.classes import PredictiveTeacher
from pyro_opu.teachers.cost import counted
from pyro_opu.teachers.pyro_model import ModelDraws
from pyro_opu.teachers.real import RegressionTeacher, is_real
from pyro_opu.teachers.regressors import as_regression_teacher, is_regressor
from pyro_opu.teachers.several import SeveralTeacher, parts_of


@torch.no_grad()
def finished_teacher(
    source: Any,
    x: Tensor,
    site: str | None = None,
    *,
    inputs: Callable[..., Tensor] | None = None,
    arguments: Callable[[Any], Any] | None = None,
    packing: Packing | None = None,
) -> JointDraws:
    """The teacher of a source, of class probabilities or of a real y, that has looked at ``x``.

    Its kind, classes, draws, site and cost are known and stay as they are. A model or network is
    run five times at most: at two and at three rows, under one draw and under all.

    Args:
        source: What :func:`~pyro_opu.as_teacher` or ``as_regression_teacher`` takes.
        x: Inputs ``(N, ...)``.
        site: The observed site, when the model has several.
        inputs, arguments: As in :func:`~pyro_opu.as_teacher`.
        packing: The form of several inputs, which ``x`` holds as one tensor.

    Raises:
        TypeError: ``source`` cannot be made a teacher.
        ValueError: a model that cannot be run, has no such site, or one draw or one class.
    """
    teacher: JointDraws
    source = posterior_of(source)
    with counted():
        if isinstance(source, Predictive):
            model = ModelDraws(source, site, call_of(inputs, source.model, arguments))
            if packing is not None:
                model.unpack_by(packing)
            draws = model.begin(x, model.max_draws or model.default_draws)
            teacher = parts_of(model, x, site) or model.become(
                RegressionTeacher if is_real(model, site) else PredictiveTeacher
            )
            teacher.look(x[:2], draws)
        elif isinstance(source, SeveralTeacher):
            teacher = source
            teacher.look(x[:2])
        else:
            real = is_regressor(source, x, site, inputs, packing)
            called: dict[str, Any] = {"inputs": inputs, "arguments": arguments}
            teacher = (as_regression_teacher if real else as_teacher)(source, site, **called)
            if packing is not None:
                teacher.unpack_by(packing)
            teacher.look(x[:2])
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
