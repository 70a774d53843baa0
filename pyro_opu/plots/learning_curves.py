"""A distillation step by step: held-out fidelity, and the parts of the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyro_opu.plots.canvas import axes_for, new_axes
from pyro_opu.plots.colours import BLACK, GREY, SERIES, STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["training_curves"]

_JUDGED = {"energy_distance": "energy distance", "kl": "KL of the means (nats)"}


def training_curves(report: Any, *, axes: Sequence[Axes] | None = None) -> tuple[Axes, Axes]:
    """Draw what a distillation recorded: above the held-out fidelity, below the training losses.

    Both are drawn against the step, which goes on counting from the warm start into the refinement;
    the second is shaded. The star is the iterate that was kept, the one with the least energy
    distance on held-out transfer inputs; the title says what that meant. What was recalibrated
    afterwards is not in the curves. Losses are those of one batch each, and may be negative.

    Args:
        report: What :func:`~pyro_opu.distill` returns, or its ``.report``.
        axes: Two axes to draw on; by default those of a new figure.

    Example:
        >>> import torch, pyro_opu
        >>> from matplotlib.figure import Figure
        >>> teacher = lambda x: torch.softmax(x @ torch.ones(2, 3) * torch.randn(20, 1, 1), -1)
        >>> fast = pyro_opu.distill(
        ...     teacher, torch.randn(50, 2), num_steps=20, evaluate_every=5, seed=0, progress=False)
        >>> above, below = training_curves(fast, axes=Figure().subplots(2))
        >>> [line.get_label() for line in above.lines]
        ['energy distance', 'KL of the means (nats)', 'kept']
    """
    found = getattr(report, "report", report)
    if not isinstance(found, Mapping):
        raise TypeError(
            f"`report` must be what distill returns, or its .report; got {type(report).__name__}."
        )
    history = found.get("history") or []
    records = isinstance(history, Sequence) and all(isinstance(r, Mapping) for r in history)
    if (
        not history
        or not records
        or not all({"phase", "step", *_JUDGED} <= set(r) for r in history)
    ):
        raise ValueError(
            "`report` must have a 'history' of evaluations; there is none. It is that of `distill`."
        )
    above, below = _pair(axes)
    steps = _running_steps(history)
    for ax in (above, below):
        _shade_refinement(ax, steps, history)
    _fidelity(above, steps, history)
    _losses(below, steps, history)
    above.set_title(str(found.get("kept", "")).replace(": ", "\n", 1), fontsize=9)
    return above, below


def _pair(axes: Sequence[Axes] | None) -> tuple[Axes, Axes]:
    given = new_axes((6.0, 5.0), rows=2) if axes is None else axes
    if not hasattr(given, "__len__") or len(given) != 2:
        raise ValueError(
            "`axes` must be two axes, for fidelity and losses; got "
            f"{len(given) if hasattr(given, '__len__') else given!r}. Make them with "
            "plt.subplots(2)."
        )
    return axes_for(given[0]), axes_for(given[1])


def _running_steps(history: Sequence[Mapping[str, Any]]) -> list[int]:
    """Steps since the beginning; a record counts them from the start of its phase."""
    steps: list[int] = []
    before = 0
    for index, record in enumerate(history):
        if index and record["phase"] != history[index - 1]["phase"]:
            before = steps[-1]
        steps.append(before + record["step"])
    return steps


def _fidelity(ax: Axes, steps: list[int], history: Sequence[Mapping[str, Any]]) -> None:
    for index, (name, label) in enumerate(_JUDGED.items()):
        values = [record[name] for record in history]
        ax.plot(steps, values, ".-", color=SERIES[index], linewidth=1.3, markersize=4, label=label)
    energies = [record["energy_distance"] for record in history]
    best = energies.index(min(energies))
    ax.plot(steps[best], energies[best], "*", color=BLACK, markersize=11, label="kept")
    if min(record[name] for record in history for name in _JUDGED) > 0:
        ax.set_yscale("log")
    else:  # the energy distance is unbiased, and may fall below zero
        ax.set_yscale("symlog", linthresh=1e-4)
    ax.set_ylabel("mean over held-out inputs")
    ax.legend(frameon=False, fontsize=8)


def _losses(ax: Axes, steps: list[int], history: Sequence[Mapping[str, Any]]) -> None:
    """The parts are what a record has beyond the first one, which was made before any step."""
    parts = dict.fromkeys(name for record in history[1:] for name in record)
    names = [name for name in parts if name not in history[0]]
    for index, name in enumerate(names):
        known = [(step, r[name]) for step, r in zip(steps, history, strict=True) if name in r]
        ax.plot(
            *zip(*known, strict=True), STYLES[index // len(SERIES) % len(STYLES)], marker=".",
            color=SERIES[index % len(SERIES)], linewidth=1.1, markersize=4,
            label=name.replace("_", " "),
        )  # fmt: skip
    ax.set(xlabel="step", ylabel="parts of the loss")
    if names:
        ax.legend(frameon=False, fontsize=8, ncols=2)


def _shade_refinement(ax: Axes, steps: list[int], history: Sequence[Mapping[str, Any]]) -> None:
    phases = [record["phase"] for record in history]
    if "objective" in phases:
        begin = steps[phases.index("objective") - 1]
        ax.axvspan(begin, steps[-1], color=GREY, alpha=0.2, linewidth=0, label="refinement")
