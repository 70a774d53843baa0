"""Scatter plot of a measure of uncertainty, student against teacher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from pyro_opu.metrics.ranks import spearman
from pyro_opu.plots.canvas import axes_for
from pyro_opu.plots.colours import BLACK, STUDENT
from pyro_opu.plots.scales import FLOOR, finite, read, scale_of
from pyro_opu.reports.readings import check_same_classes
from pyro_opu.rng import seeded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["fidelity_scatter"]


def fidelity_scatter(
    student: Any,
    teacher: Any,
    x: Tensor,
    *,
    measure: str = "mutual_information",
    num_draws: int = 500,
    seed: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a measure at every input, student against teacher, and the diagonal.

    The title shows Spearman's rank correlation over the inputs. The teacher's values are estimates
    from its draws, so that even a perfect student scatters around the diagonal, as much as
    ``fidelity_scatter(teacher, teacher, x)`` does. The axes of the concentration, the mutual
    information, the variance and the pairwise KL are logarithmic where their values, clipped at
    1e-6, span a power of ten.

    Args:
        student: The result of :func:`~pyro_opu.distill`, or any source that
            :func:`pyro_opu.detection` takes.
        teacher: A source as of :func:`~pyro_opu.as_teacher`.
        x: Inputs ``(N, ...)``, N >= 2.
        measure: A name of :data:`pyro_opu.reports.readings.MEASURES`.
        num_draws: Teacher draws; all that a posterior holds, if these are fewer.
        seed: Seed of the teacher's draws; torch's generators are restored.
        ax: Where to draw; by default a new figure.

    Example:
        >>> import torch
        >>> from matplotlib.figure import Figure
        >>> student = lambda x: torch.distributions.Dirichlet(1 + x.abs())
        >>> teacher = lambda x, num_draws: student(x).sample((num_draws,))
        >>> x = torch.tensor([[9.0, 0.0], [0.0, 4.0], [2.0, 1.0], [0.0, 0.0]])
        >>> ax = fidelity_scatter(student, teacher, x, seed=0, ax=Figure().subplots())
        >>> ax.get_title()
        'rank correlation 1.000 (N = 4)'
    """
    scale = scale_of(measure)
    if isinstance(x, Tensor) and len(x) < 2:
        raise ValueError(f"`x` must hold at least 2 inputs, to be ranked; got {len(x)}.")
    with seeded(seed):
        readings = [read(who, x, num_draws) for who in (teacher, student)]
    check_same_classes(readings[1], readings[0])
    theirs, mine = (finite(reading.measures[measure], measure) for reading in readings)
    rank = spearman(theirs, mine)
    if scale.log:
        theirs, mine = theirs.clip(FLOOR), mine.clip(FLOOR)
    ax = axes_for(ax, (4.4, 4.4))
    ax.scatter(theirs, mine, s=12, color=STUDENT, alpha=0.6, linewidths=0)
    both = (*theirs, *mine)
    if scale.log and max(both) > 10 * min(both):
        ax.set(xscale="log", yscale="log")
    ends = [*ax.get_xlim(), *ax.get_ylim()]
    limits = (min(ends), max(ends))
    ax.plot(limits, limits, color=BLACK, linewidth=0.8, linestyle="--")
    ax.set(xlim=limits, ylim=limits, box_aspect=1)
    ax.set(xlabel=f"teacher: {scale.label}", ylabel=f"student: {scale.label}")
    ax.set_title(f"rank correlation {rank:.3f} (N = {len(x)})", fontsize=10)
    return ax
