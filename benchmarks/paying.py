"""From how many calls on a student has paid: default students of all posteriors of ``teachers``.

    python -m benchmarks.paying

A student costs what ``distill`` takes, once. Opposite it stand ``Predictive``, and two that need
nothing but the draws: ``batched(predictive)``, and the class probabilities alone, by
``as_teacher(predictive).probs``. S is 500, at one row and at all test rows. A student has paid
after

    seconds of distill / (seconds of the other's call - seconds of the student's)

calls, never where its call takes longer. "one pass" gives class probabilities and how sure the
posterior is (``fast.dirichlet``); "drop-in call" gives S labels of every row, as the first two do.
The quick ways of a row are timed in turn, then ``Predictive``, which would empty the caches before
every other call; in one process, with as many threads as torch takes. The first ``distill`` of a
process loads what torch loads late; it stands apart, among the settings.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from pyro.infer import Predictive

import pyro_opu
from benchmarks.posteriors import POSTERIORS, Posterior, make
from benchmarks.results import kept, parser, say, write
from benchmarks.timing import spans

COMMAND = "python -m benchmarks.paying"
S, SECONDS = 500, 4.0
REGRESSIONS = tuple(name for name in POSTERIORS if name.startswith(("pima-", "spambase-")))
PROCESSES = ("pima-sgpmc", "pima-svgp")
#: What is asked, of which posteriors, of which column, and the most that it may be.
BARS = (
    (
        "logistic regressions of the tables, calls that pay opposite batched, all test rows",
        tuple(name for name in REGRESSIONS if name not in PROCESSES),
        "calls that pay, batched",
        2000.0,
    ),
    (
        "logistic regressions and Gaussian processes of the tables, distill, s",
        REGRESSIONS,
        "distill, s",
        5.0,
    ),
    ("digits with MC dropout, distill, s", ("digits-dropout",), "distill, s", 20.0),
)
Row = dict[str, Any]


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", choices=POSTERIORS, default=list(POSTERIORS))
    args = options.parse_args()
    draws, seconds = (10, 0.01) if args.quick else (S, SECONDS)
    names = ["pima-laplace"] if args.quick else args.only
    old = {} if args.quick else kept("paying")
    rows = [row for row in old.get("Calls", []) if row["name"] not in names]
    settings = {"draws": draws, "seconds of a row": seconds, "threads": torch.get_num_threads()}
    settings["first distill of a process, s"] = first_distill()
    for name in names:
        found = rows_of(name, draws, seconds, {"num_steps": 20} if args.quick else {})
        say({"": found})
        rows = sorted([*rows, *found], key=lambda row: list(POSTERIORS).index(row["name"]))
        tables = {"Calls": rows, "Bars": bars(rows)}
        if not args.quick:
            write("paying", COMMAND, settings, tables)
    say({"Bars": bars(rows)})


def first_distill() -> float:
    """Seconds of a student of one step."""
    start = time.perf_counter()
    weights = torch.randn(20, 3, 2)
    options: dict[str, Any] = {"num_steps": 1, "progress": False}
    pyro_opu.distill(lambda x: (x @ weights).softmax(-1), torch.randn(50, 3), **options)
    return time.perf_counter() - start


def rows_of(name: str, draws: int, seconds: float, fewer: dict[str, Any]) -> list[Row]:
    """Distil once, and time the calls at one row and at all test rows."""
    teacher, data, _ = POSTERIORS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracing compiler's, about shapes that do not change
        posterior = make(name, 0)
    start, begun = time.perf_counter(), time.process_time()
    fast = pyro_opu.distill(
        posterior.source, posterior.data.transfer, seed=0, progress=False, **fewer
    )
    spent = {"distill, s": time.perf_counter() - start}
    spent["distill, CPU s"] = time.process_time() - begun
    same = {"name": name, "teacher": teacher, "data": data, **spent}
    loops, rows = of_draws(posterior, draws), []
    for x in (posterior.data.test[:1], posterior.data.test):
        times = times_of(fast, loops, x, seconds)
        rows.append({**same, "N": len(x), **calls_that_pay(times, spent["distill, s"])})
    return rows


def of_draws(posterior: Posterior, draws: int) -> list[Predictive]:
    """So many draws of the labels by Pyro, of each posterior of a mixture its share."""
    found, share = [], draws // len(posterior.predictives)
    for each in posterior.predictives:
        if each.guide is None:
            samples = {name: value[:share] for name, value in each.posterior_samples.items()}
            found.append(Predictive(each.model, samples))
        else:
            found.append(Predictive(each.model, guide=each.guide, num_samples=share))
    return found


def times_of(
    fast: pyro_opu.OnePassPredictive, loops: list[Predictive], x: torch.Tensor, seconds: float
) -> dict[str, float]:
    """Median seconds of a call of each way."""
    together = [pyro_opu.batched(loop) for loop in loops]
    teacher = pyro_opu.as_teacher(loops if len(loops) > 1 else loops[0])
    quick: dict[str, Callable[[], object]] = {
        "one pass": lambda: fast.dirichlet(x),
        "drop-in call": lambda: fast(x),
        "probabilities": lambda: teacher.probs(x),
        "batched": lambda: [each(x) for each in together],
    }
    slow = {"Predictive": lambda: [each(x) for each in loops]}
    with torch.no_grad():
        found = spans(quick, seconds) | spans(slow, seconds)
    return {name: each.median for name, each in found.items()}


def calls_that_pay(times: dict[str, float], cost: float) -> Row:
    """The times in milliseconds, and the calls after which one pass has made up for its cost."""
    row: Row = {f"{way}, ms": 1e3 * each for way, each in times.items()}
    for other in ("Predictive", "batched", "probabilities"):
        row[f"calls that pay, {other}"] = break_even(cost, times[other], times["one pass"])
    return row


def break_even(cost: float, slow: float, quick: float) -> float:
    """Calls of ``slow`` that take as long as ``cost`` and as many of ``quick``; seconds."""
    return cost / (slow - quick) if slow > quick else float("inf")


def bars(rows: list[Row]) -> list[Row]:
    """The largest value of each group at all test rows, beside the most that was asked."""
    found = []
    for bar, names, column, most in BARS:
        whole = [row for row in rows if row["name"] in names and row["N"] > 1]
        worst = max(whole, key=lambda row: row[column], default=None)
        if worst is not None:
            met = "yes" if worst[column] <= most else "no"
            row = {"bar": bar, "demanded": f"<= {most:g}", "the worst": worst["name"]}
            found.append({**row, "measured": worst[column], "met": met})
    return found


if __name__ == "__main__":
    main()
