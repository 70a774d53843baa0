"""Make a trained guide the object that replaces ``Predictive``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from pyro_opu.parts import SiteLayout
from pyro_opu.predictive.one_pass import OnePassPredictive
from pyro_opu.teachers.base import BaseTeacher


def student_of(
    guide: nn.Module,
    teacher: BaseTeacher,
    x: Tensor,
    sites: Sequence[SiteLayout] | None = None,
    report: Mapping[str, object] | None = None,
) -> OnePassPredictive:
    """Freeze the guide, and make the drop-in for the teacher's source that answers by it.

    How the student is called and what comes back was said to :func:`~pyro_opu.as_teacher`; the
    layouts of the ``sites`` are read where they are not given.
    """
    said = teacher.options
    if sites is None:
        teacher.prepare(x)
        sites = teacher.layouts(x, said.return_sites)
    if report is not None and teacher.latents:
        report = {**report, "latents": dict(teacher.latents)}
    return OnePassPredictive(
        guide.requires_grad_(False).eval(),
        x.shape[1:],
        teacher.outcome,
        sites=sites,
        num_samples=said.num_samples or teacher.max_draws or teacher.default_draws,
        arguments=teacher.argument_names,
        inputs=said.inputs,
        form=teacher.named_form,
        report=report,
    )
