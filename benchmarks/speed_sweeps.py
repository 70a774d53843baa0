"""How time grows with the inputs N, the draws S and the classes C, one at a time."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.speed_models import Kit, Subject
from benchmarks.speed_ways import Found, Row, clocked, numpyro_ways, quick_ways, rows_of, slow_ways

#: Along S up to the centre the bound is looser, so that there are slopes of times not scaled.
LOOSER = 8.0
#: Points that a slope needs.
FEWEST = 3


class Point(NamedTuple):
    """Inputs, draws, classes."""

    N: int
    S: int
    C: int


CENTRE = Point(1000, 500, 10)
VALUES = {
    "N": (1, 10, 100, 1000, 10_000),
    "S": (10, 50, 200, 500, 2000, 5000),
    "C": (2, 10, 30, 100, 300, 1000),
}
QUICK_CENTRE = Point(20, 10, 3)
QUICK_VALUES = {"N": (1, 20, 60), "S": (5, 10, 20), "C": (3, 6)}


def sweeps(subject: Subject, device: torch.device, budget: float, bound: float, quick: bool) -> Any:
    """Rows of every way at every point; what is at two sweeps' crossing is timed once."""
    centre, values = (QUICK_CENTRE, QUICK_VALUES) if quick else (CENTRE, VALUES)
    known: dict[Point, dict[str, Found]] = {}
    rows: dict[str, list[Row]] = {}
    kit: Kit | None = None
    for axis in ("S", "N", "C"):
        rows[f"Sweep over {axis}"] = []
        for value in values[axis]:
            most = LOOSER * bound if axis == "S" and value <= centre.S else bound
            point = centre._replace(**{axis: value})
            if kit is None or kit.classes != point.C:
                kit = Kit(subject, point.C, max(values["S"]), device)
            if point not in known:
                compiled = point.C == centre.C and not quick
                known[point] = at(kit, point, (budget, most), captured=compiled, numpyro=not quick)
            same = {"model": subject.name.format(point.C), **point._asdict()}
            rows[f"Sweep over {axis}"] += rows_of(known[point], same, kit.names)
    return rows


def at(
    kit: Kit, point: Point, seconds: tuple[float, float], *, captured: bool, numpyro: bool
) -> dict[str, Found]:
    """All ways at one point; ``seconds`` are those of the quick ways, and the bound of a slow."""
    x = kit.inputs(point.N)
    kit.answer_with(point.S)
    slow = slow_ways(kit, x, point.S)
    if numpyro:
        slow |= numpyro_ways(kit, x, point.S, both=False)
    quick = quick_ways(kit, x, captured=captured, probabilities=False)
    budget, bound = seconds
    return clocked(quick, slow, (budget, 0.0), bound, kit.device)


def exponents(axis: str, rows: list[Row]) -> list[Row]:
    """For every model, student and way the slope of log time in the upper half of the axis.

    Along S only points whose draws were all timed count: what is scaled to S is linear in it.
    """
    found = []
    for student, model, way in dict.fromkeys(map(curve_of, rows)):
        mine = [row for row in rows if curve_of(row) == (student, model, way)]
        if axis == "S":
            mine = [row for row in mine if whole(row)]
        points = upper_half([(row[axis], row["ms"]) for row in mine])
        if points:
            line = {"student": student, "model": model, "way": way, "axis": axis}
            line |= {"exponent": slope(points), "from": points[0][0], "to": points[-1][0]}
            found.append(line)
    return found


def curve_of(row: Row) -> tuple[str, str, str]:
    """Student, model and way, by which a curve is known."""
    return row.get("student", ""), series_name(row), row["way"]


def whole(row: Row) -> bool:
    """Whether all draws were timed, of a way that takes any."""
    return row.get("draws timed") == row.get("draws")


def series_name(row: Row) -> str:
    """The model without its number of classes."""
    return str(row["model"]).removesuffix(f"-{row['C']}")


def upper_half(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The larger half of the points in order, at least three; none if there are fewer."""
    count = max(FEWEST, math.ceil(len(points) / 2))
    return sorted(points)[-count:] if len(points) >= FEWEST else []


def slope(points: list[tuple[float, float]]) -> float:
    """Least squares in log-log."""
    x, y = np.log(np.array(points, dtype=float)).T
    return float(np.polyfit(x, y, 1)[0])
