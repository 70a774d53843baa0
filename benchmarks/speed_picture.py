"""Time against inputs, draws or classes: a panel for every model, a curve for every way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.speed_bars import is_default
from benchmarks.speed_sweeps import CENTRE, series_name, whole
from pyro_opu.plots.colours import BLACK, SERIES

#: The ways that are drawn, those of the default student; the place of their colour, their marker.
CURVES = {
    "Predictive": (3, "s"),
    "NumPyro": (4, "D"),
    "batched teacher": (1, "^"),
    "compact subset of 50, batched": (5, "v"),
    "drop-in call": (2, "P"),
    "one pass": (0, "o"),
}
LABELS = {"N": "inputs N", "S": "draws S", "C": "classes C"}


def draw(path: Path, axis: str, rows: list[dict[str, Any]]) -> None:
    """One picture; hollow where a part of the draws was timed and scaled. None without rows."""
    if not rows:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(series_name(row) for row in rows))
    figure = Figure(figsize=(4.3 * len(models), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for panel, model in zip(panels, models, strict=True):
        one_panel(panel, axis, [row for row in rows if series_name(row) == model])
        panel.set_title(model, fontsize=10)
    panels[0].set_ylabel("milliseconds")
    lines, names = panels[0].get_legend_handles_labels()
    figure.legend(
        lines,
        names,
        loc="outside lower center",
        ncols=7 if len(models) > 2 else 2,
        frameon=False,
        fontsize=9,
    )
    fixed = ", ".join(
        f"{name} = {value}" for name, value in CENTRE._asdict().items() if name != axis
    )
    figure.suptitle(f"{fixed}; hollow: part of the draws timed, scaled to all", fontsize=9)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=100)


def one_panel(panel: Any, axis: str, rows: list[dict[str, Any]]) -> None:
    for way, (place, marker) in CURVES.items():
        curve(panel, axis, rows, way, SERIES[place], marker, "-")
    curve(panel, axis, rows, "plug-in", BLACK, ".", ":")
    panel.set(xscale="log", yscale="log", xlabel=LABELS[axis])
    panel.grid(alpha=0.2)


def curve(
    panel: Any,
    axis: str,
    rows: list[dict[str, Any]],
    way: str,
    colour: str,
    marker: str,
    style: str,
) -> None:
    """A line through all points, and their marks."""
    drawn = [row for row in rows if row["way"] == way and is_default(row)]
    mine = sorted((row[axis], row["ms"], whole(row)) for row in drawn)
    if not mine:
        return
    x, y, _ = zip(*mine, strict=True)
    panel.plot(x, y, style, color=colour, marker=marker, markersize=5, label=way, mfc="white")
    full = [(a, b) for a, b, all_timed in mine if all_timed]
    panel.plot([a for a, _ in full], [b for _, b in full], marker, color=colour, markersize=5)
