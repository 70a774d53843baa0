"""Everything about a student on one page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from pyro_opu.plots.canvas import new_figure
from pyro_opu.plots.errors import reliability
from pyro_opu.plots.learning_curves import training_curves
from pyro_opu.plots.measures import concentration_histograms, fidelity_scatter
from pyro_opu.reports.fidelity import fidelity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Paragraphs of the first column: the report, the verdict, and the table over all inputs.
FIRST = 3


def report(
    student: Any,
    teacher: Any,
    x: Tensor,
    y: Tensor | None = None,
    *,
    num_draws: int = 500,
    seed: int | None = None,
) -> Figure:
    """Draw all that is known of a student of class labels on one page.

    What its distillation and :func:`~pyro_opu.fidelity` say, in words; the course of the
    distillation; mutual information and entropy against the teacher's; the concentration, and
    reliability where there are labels.

    Args:
        student: The result of :func:`~pyro_opu.distill`.
        teacher: The posterior that it was distilled from.
        x: Inputs ``(N, ...)`` that it was not taught at.
        y: Their labels ``(N,)``, where they are known.
        num_draws: Teacher's draws, at most.
        seed: Seed of these draws.

    Returns:
        A new pyplot figure, 12 by 13.5 inches; save it with ``figure.savefig("student.pdf")``.
    """
    found = fidelity(student, teacher, x, num_draws=num_draws, seed=seed)
    figure = new_figure((12, 13.5))
    parts: Any = figure.subfigures(2, height_ratios=(1, 2.2))
    words, charts = parts
    paragraphs = f"{student.report}\n\n{found}".split("\n\n")
    for left, column in ((0.02, paragraphs[:FIRST]), (0.51, paragraphs[FIRST:])):
        words.text(left, 0.97, "\n\n".join(column), family="monospace", fontsize=6.5, va="top")
    axes = charts.subplots(3, 2)
    drawn: dict[str, Any] = {"num_draws": num_draws, "seed": seed}
    training_curves(student, axes=axes[:2, 0])
    fidelity_scatter(student, teacher, x, ax=axes[0, 1], **drawn)
    fidelity_scatter(student, teacher, x, measure="entropy", ax=axes[1, 1], **drawn)
    answer = student.distribution(x)
    concentration_histograms({"student": answer}, ax=axes[2, 0])
    if y is None:
        axes[2, 1].set_axis_off()
    else:
        reliability({"student": answer.mean}, y, ax=axes[2, 1])
    return figure
