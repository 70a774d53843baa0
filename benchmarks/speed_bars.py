"""What the project demands of its speed, beside what the tables say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.results import kept

Row = dict[str, Any]
Tables = dict[str, list[Row]]
MLP, DIGITS = "MLP 784-400-400-10", "MLP 64-128-128-10"
NETWORKS = ("MLP", "two convolutions")


def bars(tables: Tables, device: str) -> list[Row]:
    """Name, bar, measured, and whether it is met; "not run" where no part has measured it."""
    rows = []
    for name, bar, measure in CUDA if device != "cpu" else CPU:
        try:
            value = measure(tables)
        except (LookupError, ValueError):
            value = None
        sign, limit = bar
        met = value is not None and (value <= limit if sign == "<=" else value >= limit)
        row = {"bar": name, "demanded": f"{sign} {limit:g}"}
        row["measured"] = "not run" if value is None else value
        rows.append({**row, "met": "" if value is None else "yes" if met else "no"})
    return rows


def one(rows: list[Row], column: str, **wanted: Any) -> float:
    """The number in the one row that has all these values."""
    (row,) = (r for r in rows if all(r.get(key) == value for key, value in wanted.items()))
    return float(row[column])


def is_default(row: Row) -> bool:
    """Whether a row is of no student or of the default one."""
    return not row.get("student", "").startswith("teacher's widths")


def ratio(model: str, rows: int, column: str, *, default: bool = True) -> Callable[[Tables], float]:
    """Of the default student, or of the one that is as wide as the plug-in network."""

    def measure(tables: Tables) -> float:
        mine = [row for row in tables["Time"] if is_default(row) == default]
        return one(mine, column, model=model, N=rows)

    return measure


def times_one_pass(model: str, way: str, rows: int) -> Callable[[Tables], float]:
    return lambda tables: one(tables["All ways"], "times one pass", model=model, way=way, N=rows)


def numpyro_at_best(tables: Tables) -> float:
    """The quicker of NumPyro's two orders."""
    ways = ("NumPyro", "NumPyro, parallel")
    return min(times_one_pass(MLP, way, 1000)(tables) for way in ways)


def batched_of_networks(tables: Tables) -> float:
    """The smallest ratio of ``Predictive`` to the batched teacher at any point of any network."""
    took: dict[tuple, dict[str, float]] = {}
    for title in ("All ways", "Sweep over N", "Sweep over S", "Sweep over C"):
        for row in tables[title]:
            if str(row["model"]).startswith(NETWORKS):
                point = title, row["model"], row["N"], row["S"]
                took.setdefault(point, {})[row["way"]] = row["ms"]
    return min(
        ways["Predictive"] / ways["batched teacher"]
        for ways in took.values()
        if "Predictive" in ways
    )


def flatness(tables: Tables) -> float:
    """The largest size of the exponents of one pass in S."""
    rows = [r for r in tables["Exponents"] if (r["way"], r["axis"]) == ("one pass", "S")]
    return max(abs(row["exponent"]) for row in rows)


def exported(column: str) -> Callable[[Tables], float]:
    """The worst of what ``benchmarks.export_check`` has written."""
    return lambda tables: max(row[column] for row in kept("export_check")["ONNX Runtime"])


def replay(way: str, rows: int) -> Callable[[Tables], float]:
    way = f"{way}, graph replay"
    return lambda tables: one(tables["CUDA"], "times the plug-in", way=way, N=rows)


REGRESSION = "logistic regression, 57 features"
#: Name, (sign, limit), measure of the tables.
CPU: list[tuple[str, tuple[str, float], Callable[[Tables], float]]] = [
    ("one pass / plug-in, N = 1000", ("<=", 1.10), ratio(MLP, 1000, "one pass / plug-in")),
    ("one pass / plug-in, N = 1", ("<=", 3.0), ratio(MLP, 1, "one pass / plug-in")),
    (
        "one pass / plug-in, N = 1000, teacher's widths",
        ("<=", 1.10),
        ratio(MLP, 1000, "one pass / plug-in", default=False),
    ),
    (
        "one pass / plug-in, N = 1, teacher's widths",
        ("<=", 3.0),
        ratio(MLP, 1, "one pass / plug-in", default=False),
    ),
    ("Predictive / one pass, N = 1000", (">=", 550.0), ratio(MLP, 1000, "Predictive / one pass")),
    (
        "laplace-torch probit / one pass, digits",
        (">=", 100.0),
        times_one_pass(DIGITS, "laplace-torch, probit", 500),
    ),
    (
        "laplace-torch bridge / one pass, digits",
        (">=", 100.0),
        times_one_pass(DIGITS, "laplace-torch, bridge", 500),
    ),
    ("NumPyro jitted / one pass, N = 1000, the quicker order", (">=", 250.0), numpyro_at_best),
    (
        "Predictive / batched teacher, logistic regression",
        (">=", 10.0),
        ratio(REGRESSION, 1000, "Predictive / batched teacher"),
    ),
    ("Predictive / batched teacher, networks, the least", (">=", 1.0), batched_of_networks),
    ("exponent of one pass in S", ("<=", 0.1), flatness),
    ("ONNX Runtime - eager, mean", ("<=", 1e-5), exported("mean, largest difference")),
    (
        "ONNX Runtime / eager - 1, concentration",
        ("<=", 1e-4),
        exported("concentration, largest relative difference"),
    ),
]
CUDA: list[tuple[str, tuple[str, float], Callable[[Tables], float]]] = [
    ("graph replay / plug-in's graph, N = 1", ("<=", 1.5), replay("one pass", 1)),
    *(
        (
            f"graph replay / plug-in's graph, N = {rows}, teacher's widths",
            ("<=", 1.10),
            replay("one pass, teacher's widths", rows),
        )
        for rows in (1, 1000, 100_000)
    ),
    (
        "throughput / plug-in's, N = 100,000",
        (">=", 0.9),
        lambda tables: one(tables["CUDA"], "share of the plug-in's rows per s", way="one pass"),
    ),
]
