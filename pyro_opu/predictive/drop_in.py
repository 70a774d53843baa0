"""From a trained guide to the object that replaces ``Predictive``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor, nn

from pyro_opu.outcomes import SiteLayout, outcome_of
from pyro_opu.predictive.one_pass import STUDENTS, OnePassPredictive
from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.calling import parameters_of
from pyro_opu.teachers.pyro_model import ModelDraws


def drop_in(
    guide: nn.Module,
    teacher: JointDraws,
    x: Tensor,
    sites: Sequence[SiteLayout] | None = None,
    *,
    return_sites: Collection[str] | None = None,
    num_samples: int | None = None,
    inputs: Callable[..., Tensor] | None = None,
    report: dict[str, Any] | None = None,
) -> OnePassPredictive:
    """Make the drop-in for a teacher's source that answers by this guide, frozen from now on.

    Args:
        guide: ``x -> Dirichlet`` or another answer of the teacher's kind.
        teacher: The teacher, which has seen an input.
        x: Inputs ``(N, *input_shape)``; a few rows are looked at.
        sites: Layouts of the sites that come back, where they have been read already.
        return_sites: Else their names; by default those of the ``Predictive``.
        num_samples: S of the answers; by default the ``Predictive``'s.
        inputs: Picks the input from a call's arguments.
        report: Plain record of how the guide was made.

    Raises:
        ValueError: a site that one pass cannot give.
    """
    outcome = outcome_of(teacher)
    classes = {"num_classes": outcome.event_shape[0]} if outcome.event_shape else {}
    if num_samples is None:
        num_samples = teacher.max_draws or teacher.default_draws
    return STUDENTS[outcome.kind](
        guide.requires_grad_(False).eval(),
        x.shape[1:],
        sites=outcome.layouts(teacher, x, return_sites) if sites is None else sites,
        num_samples=num_samples,
        input_name=input_name(teacher),
        inputs=inputs,
        report=report,
        **classes,
    )


def input_name(teacher: JointDraws) -> str | None:
    """Name of the model's first parameter, so that the input may be passed by keyword too."""
    if not isinstance(teacher, ModelDraws):
        return None
    return next(iter(parameters_of(teacher.predictive.model)), None)
