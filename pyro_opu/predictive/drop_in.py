"""Make a trained guide the object that replaces ``Predictive``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from pyro_opu.parts import SiteLayout
from pyro_opu.predictive.one_pass import OnePassPredictive
from pyro_opu.programs.signature import parameters_of
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.teachers.options import SourceOptions
from pyro_opu.teachers.pyro_model import PredictiveTeacher


def student_of(
    guide: nn.Module,
    teacher: BaseTeacher,
    x: Tensor,
    sites: Sequence[SiteLayout] | None = None,
    report: dict[str, Any] | None = None,
) -> OnePassPredictive:
    """Freeze the guide, and make the drop-in for the teacher's source that answers by it.

    How the student is called and what comes back was said to :func:`~pyro_opu.as_teacher`; the
    layouts of the ``sites`` are read where they are not given.
    """
    teacher.prepare(x)
    said, form = teacher.options or SourceOptions(), teacher.form
    name = None  # of the model's first parameter: the input may be passed by keyword too
    if isinstance(teacher, PredictiveTeacher):
        names = list(parameters_of(teacher.predictive.model))
        name = next(iter(names), None)
        form = form.named(names)
    if report is not None and teacher.latents:
        report = {**report, "latents": dict(teacher.latents)}
    return OnePassPredictive(
        guide.requires_grad_(False).eval(),
        x.shape[1:],
        teacher.outcome,
        sites=teacher.layouts(x, said.return_sites) if sites is None else sites,
        num_samples=said.num_samples or teacher.max_draws or teacher.default_draws,
        input_name=name,
        inputs=said.inputs,
        form=form,
        report=report,
    )
