"""What the rivals share: how a source is called, and the student that comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pyro_opu.predictive import OnePassPredictive, student_of
from pyro_opu.teachers import Source, as_teacher

__all__ = ["Call"]


@dataclass(frozen=True)
class Call:
    """How a model is called and what comes back: arguments of :func:`~pyro_opu.distill`."""

    site: str | None = None
    inputs: Callable[..., Tensor] | None = None
    return_sites: Sequence[str] | None = None
    num_samples: int | None = None

    def teacher(self, source: Source) -> Any:
        """The teacher of a source."""
        return as_teacher(source, self.site, inputs=self.inputs)

    def student(
        self, guide: nn.Module, teacher: Any, x: Tensor, report: dict[str, Any]
    ) -> OnePassPredictive:
        """The drop-in for the teacher's source."""
        asked = {k: getattr(self, k) for k in ("return_sites", "num_samples", "inputs")}
        return student_of(guide, teacher, x, **asked, form=teacher.form, report=report)
