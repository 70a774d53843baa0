"""One measure of uncertainty: histograms by set of inputs, and student against teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pyro_opu.checks import ArgumentError, instance_of, positive_int
from pyro_opu.distributions import SimplexDistribution
from pyro_opu.distributions.dirichlet import known_form
from pyro_opu.inputs import InputLike
from pyro_opu.metrics.ranks import spearman
from pyro_opu.metrics.uncertainty import Uncertainty, uncertainty
from pyro_opu.plots.canvas import (
    FLOOR,
    axes_for,
    check_names,
    finite,
    legend,
    look_of,
    read,
    read_by_halves,
    scale_of,
)
from pyro_opu.plots.colours import BLACK, GREY, SERIES, STUDENT
from pyro_opu.reports.answers import Student, at_border
from pyro_opu.reports.readings import Array, Measure, check_same_classes
from pyro_opu.rng import seeded
from pyro_opu.teachers import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_KINDS = (Uncertainty, Tensor, SimplexDistribution)


def concentration_histograms(
    answers: Mapping[str, object],
    *,
    measure: Measure = "concentration",
    bins: int = 40,
    ax: Axes | None = None,
) -> Axes:
    """Draw histograms of the concentration, one outline per set of inputs.

    Each outline sums to 1, and all have the same bins. The concentration, the mutual information,
    the variance and the pairwise KL are binned by their logarithm to base 10, clipped at 1e-6.

    Args:
        answers: Answers by the name of the set of inputs: ``fast.distribution(x)`` or
            ``fast.uncertainty(x)`` of a student, draws ``(S, N, C)`` of a teacher. Put the
            in-distribution inputs first.
        measure: A name of :data:`pyro_opu.reports.readings.MEASURES`.
    """
    scale = scale_of(measure)
    bins = positive_int("bins", bins)
    named = check_names(answers, "answers")
    values = {name: _values(name, answer, measure) for name, answer in named.items()}
    if scale.log:
        values = {name: np.log10(each.clip(FLOOR)) for name, each in values.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(values.values())), bins)
    ax = axes_for(ax, (5.6, 3.8))
    for index, (name, each) in enumerate(values.items()):
        share = np.full(len(each), 1 / len(each))
        binned: dict[str, Any] = {"bins": edges, "weights": share}
        ax.hist(each, histtype="stepfilled", alpha=0.18, color=SERIES[index], **binned)
        label = f"{name} (N = {len(each)})"
        ax.hist(each, histtype="step", linewidth=1.5, label=label, **look_of(index), **binned)
    label = rf"$\log_{{10}}$ {scale.label}" if scale.log else scale.label
    ax.set(xlabel=label, ylabel="share of inputs per bin")
    legend(ax)
    return ax


def _values(name: str, answer: Any, measure: Measure) -> Array:
    """The measure at every input, float64, ``(N,)``."""
    expected = "a distribution on the simplex, an Uncertainty, or draws (S, N, C)"
    answer = known_form(answer)
    instance_of(f"answers[{name!r}]", answer, _KINDS, expected, "Pass fast.distribution(x).")
    found = answer if isinstance(answer, Uncertainty) else uncertainty(answer)
    return finite(found[measure].detach().double().reshape(-1).cpu().numpy(), measure)


def fidelity_scatter(
    student: Student,
    teacher: Source,
    x: InputLike,
    *,
    measure: Measure = "mutual_information",
    num_draws: int = 500,
    seed: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a measure at every input, student against teacher, and the diagonal.

    The title shows Spearman's rank correlation over the inputs. The teacher's values are estimates
    from its draws, so that even a perfect student scatters around the diagonal: as much as the grey
    points behind, the teacher by one half of its draws against the other. The measures that
    :func:`concentration_histograms` shows by their logarithm have logarithmic axes where their
    values, clipped at 1e-6, span a power of ten.

    Args:
        student: A student or another source, as in :func:`pyro_opu.detection`.
        teacher: A source as of :func:`~pyro_opu.as_teacher`.
        x: Inputs ``(N, ...)``, N >= 2.
        measure: A name of :data:`pyro_opu.reports.readings.MEASURES`.
        num_draws: Teacher draws; all that a posterior holds, if these are fewer.
        seed: Seed of the teacher's draws; torch's generators are restored.
    """
    scale = scale_of(measure)
    _, x, student, teacher = at_border(x, student, teacher)
    if len(x) < 2:
        raise ArgumentError(f"`x` must hold at least 2 inputs, to be ranked; got {len(x)}.")
    with seeded(seed):
        whole, *halves = read_by_halves(teacher, x, num_draws)
        readings = [whole, read(student, x, num_draws), *halves]
    check_same_classes(readings[1], whole)
    theirs, mine, *own = (finite(each.measures[measure], measure) for each in readings)
    rank = spearman(theirs, mine)
    if scale.log:
        theirs, mine, *own = (each.clip(FLOOR) for each in (theirs, mine, *own))
    ax = axes_for(ax, (4.4, 4.4))
    if own:
        ax.scatter(
            own[0], own[1], s=12, color=GREY, alpha=0.5, linewidths=0, label="teacher, by halves"
        )
    ax.scatter(theirs, mine, s=12, color=STUDENT, alpha=0.6, linewidths=0, label="student")
    both = (*theirs, *mine)
    if scale.log and max(both) > 10 * min(both):
        ax.set(xscale="log", yscale="log")
    ends = [*ax.get_xlim(), *ax.get_ylim()]
    limits = (min(ends), max(ends))
    ax.plot(limits, limits, color=BLACK, linewidth=0.8, linestyle="--")
    ax.set(xlim=limits, ylim=limits, box_aspect=1)
    ax.set(xlabel=f"teacher: {scale.label}", ylabel=f"student: {scale.label}")
    ax.set_title(f"rank correlation {rank:.3f} (N = {len(x)})", fontsize=10)
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    return ax
