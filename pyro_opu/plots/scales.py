"""Axes of the measures of uncertainty: label, unit, linear or logarithmic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from pyro_opu.checks import check_inputs, one_of
from pyro_opu.reports.answers import is_student
from pyro_opu.reports.readings import Array, Reader, Reading

__all__ = ["FLOOR", "SCALES", "Scale", "finite", "read", "scale_of"]


@dataclass(frozen=True)
class Scale:
    """The label of a measure with its unit, and whether its axis is logarithmic."""

    label: str
    log: bool


#: Scales by the names of :data:`pyro_opu.reports.readings.MEASURES`.
SCALES = {
    "entropy": Scale("entropy of the mean (nats)", False),
    "max_probability": Scale("largest class probability", False),
    "mutual_information": Scale("mutual information (nats)", True),
    "variance": Scale("variance, summed over classes", True),
    "concentration": Scale(r"concentration $\alpha_0$", True),
    "expected_pairwise_kl": Scale("expected pairwise KL (nats)", True),
    "differential_entropy": Scale("differential entropy (nats)", False),
}
#: On logarithmic axes smaller values, mostly exact zeros, are drawn here.
FLOOR = 1e-6


def scale_of(measure: str) -> Scale:
    """The scale of a measure.

    Example:
        >>> scale_of("mutual_information").label
        'mutual information (nats)'
    """
    return SCALES[one_of("measure", measure, SCALES)]


def read(source: Any, x: Tensor, num_draws: int) -> Reading:
    """What a student or a teacher says at ``x``, the latter by one set of draws for all inputs."""
    check_inputs(x)
    return Reader(source, x, is_student(source, x), num_draws, None).together(x)


def finite(values: Array, measure: str) -> Array:
    """The values, if they are finite numbers; a reading holds the largest float for infinity."""
    bad = ~(np.abs(values) < 1e300)
    if bad.any():
        raise ValueError(
            f"`measure` must be finite at every input; {measure!r} is not at {int(bad.sum())} of "
            f"{len(values)}, where there is no spread at all. Choose another, such as 'entropy'."
        )
    return values
