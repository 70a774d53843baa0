"""Learning curves of a distillation: held-out fidelity and training losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyro_opu.checks import ArgumentError, instance_of
from pyro_opu.plots.canvas import axes_for, new_axes
from pyro_opu.plots.colours import BLACK, GREY, SERIES, STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_JUDGED = {"energy_distance": "energy distance", "kl": "KL of the means (nats)"}


def training_curves(report: Any, *, axes: Sequence[Axes] | None = None) -> tuple[Axes, Axes]:
    """Draw the held-out fidelity and, below, the training losses of a distillation by step.

    Steps count through warm start and refinement, which is shaded. The star marks the iterate kept,
    by its energy distance on held-out transfer inputs. Recalibration, which comes after, is
    not shown. Each loss is that of one batch, and may be negative.

    Args:
        report: The result of :func:`~pyro_opu.distill`, or its ``.report``.
        axes: Two axes to draw on, which are returned; by default those of a new figure.
    """
    found = getattr(report, "report", report)
    instance_of("report", found, Mapping, "the result of distill, or its .report")
    history = found.get("history")
    if not history or not isinstance(history, Sequence) or not all(map(_is_record, history)):
        raise ArgumentError(
            "`report` must have a 'history' of evaluations; got none. Pass the result of distill."
        )
    above, below = _pair(axes)
    steps = _running_steps(history)
    phases = [record["phase"] for record in history]
    for ax in (above, below):
        if "objective" in phases:
            begin = steps[phases.index("objective") - 1]
            ax.axvspan(begin, steps[-1], color=GREY, alpha=0.2, linewidth=0, label="refinement")
    _fidelity(above, steps, history)
    _losses(below, steps, history)
    above.set_title(str(found.get("kept", "")).replace(": ", "\n", 1), fontsize=9)
    return above, below


def _is_record(record: object) -> bool:
    return isinstance(record, Mapping) and {"phase", "step", *_JUDGED} <= set(record)


def _pair(axes: Sequence[Axes] | None) -> tuple[Axes, Axes]:
    given = new_axes((6.0, 5.0), rows=2) if axes is None else axes
    count = len(given) if hasattr(given, "__len__") else given
    if count != 2:
        raise ArgumentError(
            f"`axes` must be two axes, for fidelity and losses; got {count!r}. Make them with "
            "plt.subplots(2)."
        )
    return axes_for(given[0]), axes_for(given[1])


def _running_steps(history: Sequence[Mapping[str, Any]]) -> list[int]:
    """Steps since the beginning; a record counts from the start of its phase."""
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
    kept = energies.index(min(energies))  # records of an earlier version do not say
    for index, record in enumerate(history):
        kept = index if record.get("kept") else kept
    ax.plot(steps[kept], energies[kept], "*", color=BLACK, markersize=11, label="kept")
    if min(record[name] for record in history for name in _JUDGED) > 0:
        ax.set_yscale("log")
    else:  # the energy distance is unbiased, and may fall below zero
        ax.set_yscale("symlog", linthresh=1e-4)
    ax.set_ylabel("mean over held-out inputs")
    ax.legend(frameon=False, fontsize=8)


def _losses(ax: Axes, steps: list[int], history: Sequence[Mapping[str, object]]) -> None:
    """Parts of the loss: entries that the first record, made before any step, lacks."""
    parts = dict.fromkeys(name for record in history[1:] for name in record)
    names = [name for name in parts if name not in history[0]]
    for index, name in enumerate(names):
        known = [(step, r[name]) for step, r in zip(steps, history, strict=True) if name in r]
        style, colour = STYLES[index // len(SERIES) % len(STYLES)], SERIES[index % len(SERIES)]
        look: dict[str, Any] = {"color": colour, "linewidth": 1.1, "marker": ".", "markersize": 4}
        ax.plot(*zip(*known, strict=True), style, label=name.replace("_", " "), **look)
    ax.set(xlabel="step", ylabel="parts of the loss")
    if names:
        ax.legend(frameon=False, fontsize=8, ncols=2)
