"""Three classes as a triangle: a teacher's draws and a student's density on the simplex."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_opu.checks import check_probs
from pyro_opu.distributions import PredictiveDirichlet, SimplexDistribution
from pyro_opu.distributions.dirichlet import known_form
from pyro_opu.plots.canvas import axes_for
from pyro_opu.plots.colours import BLACK, GREY, STUDENT, TEACHER
from pyro_opu.rng import seeded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SHARES", "simplex", "three_classes"]

#: Where the classes 0, 1 and 2 are: left, right, top; sides of length 1.
CORNERS = ((0.0, 0.0), (1.0, 0.0), (0.5, math.sqrt(3) / 2))
#: Shares of the student's probability that the regions hold, from the outer to the inner.
SHARES = (0.95, 0.75, 0.5, 0.25)
_STRENGTHS = (0.15, 0.35, 0.6, 0.9)  # of the colour, region by region
_OWN_DRAWS = 4000
#: Steps of the grid along a side. One step, a few pixels, is the finest detail: the density is not
#: looked at where a probability is below it.
_GRID = 100
#: Beside the top of the triangle there is room on both sides.
_LEGEND: dict[str, Any] = {
    "frameon": False,
    "fontsize": 7.5,
    "labelspacing": 0.35,
    "handlelength": 1.2,
    "handletextpad": 0.5,
    "borderpad": 0.0,
    "markerscale": 0.8,
}


def simplex(
    distribution: Any = None,
    draws: Tensor | None = None,
    *,
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw one student's density, one teacher's draws, or both, on the simplex of three classes.

    A point of the triangle is :math:`\sum_k \pi_k v_k` with the corners :math:`v_k`. The density is
    shown as its regions of highest density, which hold 95, 75, 50 and 25 % of the probability:

    .. math:: R_p = \{\pi : \log q(\pi) \ge t_p\}, \qquad q(R_p) = p

    The thresholds :math:`t_p` are estimated from 4,000 draws of the student, with a seed of their
    own; torch's generator is left as it was. Densities that are infinite at an edge are evaluated
    a hundredth away from it, so that a region there, or in a corner, can be seen.

    Args:
        distribution: What a student answers at one input, ``fast.distribution(x[n : n + 1])``: a
            Dirichlet or another distribution on the simplex that has a density, batch shape
            ``()`` or ``(1,)``, event shape ``(3,)``.
        draws: A teacher's draws at one input, ``(S, 3)`` or ``(S, 1, 3)``.
        labels: Names of the three classes; by default 0, 1, 2.
        ax: Where to draw; by default a new figure.

    Example:
        >>> import torch
        >>> from matplotlib.figure import Figure
        >>> from pyro_opu import PredictiveDirichlet
        >>> student = PredictiveDirichlet.from_alpha(torch.tensor([4.0, 2.0, 1.0]))
        >>> ax = simplex(student, student.sample((50,)), ax=Figure().subplots())
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ["student's mean", "teacher's draws", "teacher's mean"]

    References:
        Cui et al. (2019), Fig. 1 and Fig. 3. Hyndman (1996), Computing and graphing highest density
        regions.
    """
    answer = None if distribution is None else _checked_answer(distribution)
    points = None if draws is None else _checked_draws(draws)
    if answer is None and points is None:
        raise ValueError("`distribution` or `draws` must be given; got neither.")
    given = range(3) if labels is None else labels
    if not isinstance(given, Sequence) or len(given) != 3:
        raise ValueError(f"`labels` must name the 3 classes; got {labels!r}. Pass three strings.")
    names = [str(label) for label in given]
    ax = axes_for(ax)
    _frame(ax, names)
    if answer is not None:
        regions = _regions(ax, answer)
        ax.add_artist(ax.legend(handles=regions, loc="upper left", **_LEGEND))
        _mean(ax, answer.mean.reshape(1, 3), "student's mean", marker="x", c=BLACK, s=25)
    if points is not None:
        across, up = _places(points).T.numpy()
        look: dict[str, Any] = {"s": 7, "color": TEACHER, "alpha": 0.45, "linewidths": 0}
        ax.scatter(across, up, label="teacher's draws", zorder=3, **look)
        ring = {"marker": "o", "facecolors": "none", "edgecolors": TEACHER, "s": 60}
        _mean(ax, points.mean(0, keepdim=True), "teacher's mean", **ring)
    ax.legend(loc="upper right", **_LEGEND)
    return ax


def three_classes(
    source: torch.distributions.Dirichlet | Tensor, classes: Sequence[int]
) -> PredictiveDirichlet | Tensor:
    r"""Three of many classes, as probabilities given that the class is one of the three.

    Of a Dirichlet this is exact: the sub-composition is again Dirichlet, with the same
    :math:`\alpha_k`,

    .. math:: \pi \sim \mathrm{Dir}(\alpha) \;\Rightarrow\;
              \frac{(\pi_a, \pi_b, \pi_c)}{\pi_a + \pi_b + \pi_c}
              \sim \mathrm{Dir}(\alpha_a, \alpha_b, \alpha_c)

    Draws are renormalised. What falls on the other classes is lost: say how much it was.

    Args:
        source: A Dirichlet, batch shape ``(*B)``, or points of the simplex ``(..., C)``.
        classes: Three different classes; their order is that of the corners.

    Example:
        >>> import torch
        >>> student = torch.distributions.Dirichlet(torch.tensor([5.0, 1.0, 3.0, 2.0]))
        >>> three_classes(student, [0, 2, 3]).concentration
        tensor([5., 3., 2.])
        >>> three_classes(torch.tensor([[0.4, 0.5, 0.1, 0.0]]), [0, 2, 3])
        tensor([[0.8000, 0.2000, 0.0000]])

    References:
        Aitchison (1986), The statistical analysis of compositional data, chapter 3.
    """
    whole = known_form(source)
    if isinstance(whole, PredictiveDirichlet):
        chosen = _checked_classes(classes, whole.event_shape[0])
        log_mean = whole.log_mean[..., chosen]
        log_share = log_mean.logsumexp(-1)
        return PredictiveDirichlet(
            log_mean - log_share[..., None], whole.log_concentration + log_share
        )
    if not isinstance(source, Tensor):
        raise TypeError(
            "`source` must be a Dirichlet or a tensor of draws (..., C); got "
            f"{type(source).__name__}. Of another distribution pass draws, .sample((500,))."
        )
    check_probs("source", source)
    some = source[..., _checked_classes(classes, source.shape[-1])]
    share = some.sum(-1, keepdim=True)
    if not (share > 0).all():
        raise ValueError(
            "`classes` must have some probability at every point; these have none at "
            f"{int((share <= 0).sum())} of {share.numel()}. Choose the likeliest three."
        )
    return some / share


def _checked_classes(classes: Sequence[int], num_classes: int) -> list[int]:
    chosen = set(classes) if isinstance(classes, Sequence) else set()
    if len(chosen) != 3 or len(classes) != 3 or not chosen <= set(range(num_classes)):
        raise ValueError(
            f"`classes` must be 3 different classes from 0 to {num_classes - 1}; got {classes!r}. "
            "Pass their numbers."
        )
    return [int(k) for k in classes]


def _checked_answer(distribution: Any) -> SimplexDistribution:
    answer = known_form(distribution)
    if not isinstance(answer, SimplexDistribution):
        raise TypeError(
            "`distribution` must be a Dirichlet or another distribution on the simplex; got "
            f"{type(distribution).__name__}. Pass fast.distribution(x[n : n + 1])."
        )
    if answer.event_shape != (3,):
        raise ValueError(
            f"`distribution` must have 3 classes; got {answer.event_shape[0]}. Pick three of them "
            "with plots.three_classes."
        )
    if answer.batch_shape not in ((), (1,)):
        raise ValueError(
            "`distribution` must be of one input, batch shape () or (1,); got "
            f"{tuple(answer.batch_shape)}. Pass fast.distribution(x[n : n + 1])."
        )
    _log_density(answer, torch.full((1, 3), 1 / 3, dtype=torch.float64))
    return answer


def _checked_draws(draws: Tensor) -> Tensor:
    """As ``(S, 3)``, float64."""
    if not isinstance(draws, Tensor):
        raise TypeError(f"`draws` must be a tensor (S, 3); got {type(draws).__name__}.")
    if draws.ndim == 3 and draws.shape[1] == 1:
        draws = draws[:, 0]
    if draws.ndim != 2 or draws.shape[-1] != 3 or not len(draws):
        raise ValueError(
            f"`draws` must have shape (S, 3), of one input and 3 classes; got {tuple(draws.shape)}."
            " Take one input, draws[:, n], and three classes, with plots.three_classes."
        )
    points = draws.detach().double().cpu()
    # 1e-3: half-precision draws.
    if not ((points >= 0).all() and ((points.sum(-1) - 1).abs() < 1e-3).all()):
        raise ValueError(
            "`draws` must be probabilities whose rows sum to 1; some do not. Apply softmax to "
            "logits, and plots.three_classes to three of many classes."
        )
    return points


def _places(points: Tensor) -> Tensor:
    """Where in the plane the points ``(M, 3)`` of the simplex are, ``(M, 2)``."""
    return points.detach().double().cpu() @ torch.tensor(CORNERS, dtype=torch.float64)


def _frame(ax: Axes, names: Sequence[str]) -> None:
    ax.fill(*zip(*CORNERS, strict=True), facecolor="none", edgecolor=GREY, linewidth=0.8, zorder=1)
    offsets = ((-4, -4, "right", "top"), (4, -4, "left", "top"), (0, 4, "center", "bottom"))
    for name, corner, (right, up, horizontal, vertical) in zip(
        names, CORNERS, offsets, strict=True
    ):
        ax.annotate(
            name, corner, (right, up), textcoords="offset points", ha=horizontal, va=vertical
        )
    ax.set(xlim=(-0.12, 1.12), ylim=(-0.1, 0.98), aspect="equal")
    ax.set_axis_off()


def _mean(ax: Axes, mean: Tensor, label: str, **look: Any) -> None:
    across, up = _places(mean).T.numpy()
    ax.scatter(across, up, linewidths=1.5, zorder=4, label=label, clip_on=False, **look)


def _regions(ax: Axes, answer: SimplexDistribution) -> list[Any]:
    """Regions of highest density, interpolated between a grid and the student's own draws."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch
    from matplotlib.tri import Triangulation

    with torch.no_grad(), seeded(0):
        own = answer.sample((_OWN_DRAWS,)).reshape(-1, 3).double().cpu()
    points = torch.cat([own, _grid()])
    height = _log_density(answer, points)
    levels = _thresholds(height[:_OWN_DRAWS])
    colours = [to_rgba(STUDENT, strength) for strength in _STRENGTHS]
    # Regions that are one and the same, as of a uniform density, hold the largest of the shares.
    kept = [k for k in range(len(levels)) if k == 0 or levels[k] > levels[k - 1]]
    bounds = [levels[k] for k in kept]
    mesh = Triangulation(*_places(points).T.numpy())
    ax.tricontourf(
        mesh, height, [*bounds, float(height.max()) + 1.0], colors=[colours[k] for k in kept]
    )
    ax.tricontour(mesh, height, bounds, colors=[STUDENT], linewidths=0.9, linestyles="-")
    return [
        Patch(facecolor=colour, edgecolor=STUDENT, label=f"student's {100 * share:.0f} %")
        for share, colour in zip(SHARES, colours, strict=True)
    ]


def _thresholds(height: Tensor) -> list[float]:
    """Log densities that a draw reaches with the probabilities :data:`SHARES`, from its draws."""
    low = 1 - torch.tensor(SHARES, dtype=torch.float64)
    # A little below, so that points exactly on a threshold, as on a plateau, are inside.
    return (height.quantile(low) - 1e-6).tolist()


def _grid() -> Tensor:
    """Points of the simplex on a regular grid, corners and edges among them."""
    rows = [(a, b, _GRID - a - b) for a in range(_GRID + 1) for b in range(_GRID + 1 - a)]
    return torch.tensor(rows, dtype=torch.float64) / _GRID


@torch.no_grad()
def _log_density(answer: SimplexDistribution, points: Tensor) -> Tensor:
    """At points ``(M, 3)``, moved away from the edges by the finest detail; float64, ``(M,)``."""
    inside = points.clamp_min(1 / _GRID)
    # The largest class pays: all points of a corner, or across an edge, have the same height.
    excess = inside.sum(-1, keepdim=True) - 1
    inside = inside.scatter_add(-1, inside.argmax(-1, keepdim=True), -excess)
    inside = inside.reshape(-1, *answer.batch_shape, 3)
    try:
        density = answer.log_prob(inside.to(answer.log_mean.device))
    except NotImplementedError:
        raise ValueError(
            f"`distribution` must have a density; {type(answer).__name__} has none. Pass draws of "
            "it, draws=distribution.sample((500,))."
        ) from None
    return density.reshape(-1).double().cpu()
