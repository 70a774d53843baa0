"""What the rivals share: how a source is called, and the student that comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pyro_opu.predictive import OnePassPredictive
from pyro_opu.predictive.drop_in import drop_in
from pyro_opu.teachers import BaseTeacher, Source, as_teacher
from pyro_opu.teachers.real import RealTeacher
from pyro_opu.teachers.real_sources import as_regression_teacher

__all__ = ["Call"]


@dataclass(frozen=True)
class Call:
    """How a model is called and what comes back, as :func:`~pyro_opu.distill` has it.

    Attributes:
        site: The observed site, when the model has several.
        inputs: Picks the input from a call's arguments.
        return_sites: Sites that come back; by default those of the ``Predictive``.
        num_samples: S of the answers; by default the ``Predictive``'s.
    """

    site: str | None = None
    inputs: Callable[..., Tensor] | None = None
    return_sites: Sequence[str] | None = None
    num_samples: int | None = None

    def teacher(self, source: Source) -> BaseTeacher:
        """The teacher of class probabilities."""
        return as_teacher(source, self.site, inputs=self.inputs)

    def real_teacher(self, source: Source) -> RealTeacher:
        """The teacher of a real y."""
        return as_regression_teacher(source, self.site, inputs=self.inputs)

    def student(
        self, guide: nn.Module, teacher: Any, x: Tensor, report: dict[str, Any]
    ) -> OnePassPredictive:
        """The drop-in for the teacher's source."""
        return drop_in(
            guide,
            teacher,
            x,
            return_sites=self.return_sites,
            num_samples=self.num_samples,
            inputs=self.inputs,
            report=report,
        )
