r"""What a user gets by default: some seventy numbers, each with the band it has kept within.

    python -m benchmarks.scoreboard             # measures, compares, writes (about 10 minutes)
    python -m benchmarks.scoreboard --quick     # a part, in 2 minutes; writes nothing
    python -m benchmarks.scoreboard --record    # five seeds: the bands anew

A number that leaves its band for the worse is named and the exit status is 1. A default that is
a little worse moves many numbers by less than that: the status is also 1 where more than a third of
the numbers that say how near students are lie more than two spreads on the worse side. None of the
five seeds has one of them there; with half of the steps nine of twenty are.

The short form has fewer numbers and runs on any machine, where last bits differ as seeds do: its
status is 1 where more than half of them lie there, or one that no seed moves left its band.

Bands are recorded when a number is *meant* to change. Written are ``scoreboard.md`` and
``scoreboard.json`` beside this file, and the blocks between the marks ``scoreboard`` of the README
and of docs/measured.md.

Each posterior (:mod:`benchmarks.board_posteriors`) is judged at inputs that taught nothing:

- *as near as draws*: the mean of so many independent posterior draws errs as much as the student's
  mean, by KL: :math:`S / ((r - 1)(1 - S / M))` with r the KL over the attainable of ``fidelity``;
- *single inputs*: the typical factor by which the epistemic part (mutual information; of a real y
  and of counts the variance of the mean) is off at one input, exp of the median \|log ratio\|;
- *50 %, 90 %*: shares of the teacher's draws in the student's central intervals;
- *make, s*: seconds of ``distill``, on as many threads as torch takes;
- *pays after*: calls after which ``distill`` has paid, opposite ``batched`` at all test rows.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from statistics import fmean, stdev
from textwrap import wrap
from typing import Any, NamedTuple

import pyro
import torch

import pyro_opu
from benchmarks import board_measures as measures
from benchmarks.board_posteriors import POSTERIORS
from papers.results import processor
from pyro_opu.judging.yardstick import MOST_DRAWS
from pyro_opu.utils import files

HERE = Path(__file__).parent
STORE, PAGE = HERE / "scoreboard.json", HERE / "scoreboard.md"
QUOTED = {"README.md": "front", "docs/measured.md": "six"}
MARK = "<!-- scoreboard -->", "<!-- /scoreboard -->"
SEEDS = 5
#: Posteriors of the short form, and of the table in the docs.
QUICK = ("cancer", "digits", "normal", "counts")
SHOWN = ("cancer", "digits", "dropout", "ensemble", "spambase", "process")


class Kind(NamedTuple):
    """Numbers of one kind.

    Attributes:
        title: What the table says.
        better: 1 where more is better, -1 where less is, 0 where the target is.
        least: Smallest spread that a band is made of, since five seeds can agree by luck.
        log: Whether spreads are of logarithms: shares of the number.
        target: What is aimed at, where ``better`` is 0.
    """

    title: str
    better: int
    least: float
    log: bool = True
    target: float = 0.0


KINDS: dict[str, Kind] = {
    "draws": Kind("as near as draws", 1, 0.08),
    "single": Kind("single inputs, factor", -1, 0.008),
    "within 50": Kind("50 %", 0, 0.004, log=False, target=0.5),
    "within 90": Kind("90 %", 0, 0.004, log=False, target=0.9),
    "make": Kind("make, s", -1, 0.15),
    "pays": Kind("pays after, calls", -1, 0.2),
    "total": Kind("spread of a total over the teacher's", 0, 0.01, log=False, target=1.0),
    "ratio": Kind("times as long", -1, 0.1),
    "gain": Kind("times as fast", 1, 0.15),
    "ms": Kind("milliseconds", -1, 0.2),
    "auroc": Kind("AUROC, %", 1, 0.3, log=False),
    "tail": Kind("share of known inputs, %", 0, 0.5, log=False, target=5.0),
    "programs": Kind("number", 1, 0.5, log=False),
    "failures": Kind("number", -1, 0.1, log=False),
    "other": Kind("number", 0, 0.1, log=False),
    "error": Kind("largest difference", -1, 0.7),
    "memory": Kind("peak, MB", -1, 0.05),
}
#: Spreads between a band's middle and its ends, and those by which a number of nearness leans.
WIDTH, LEAN, NEAR = 4.0, 2.0, ("draws", "single")
#: Kinds of numbers that neither seeds nor machines move.
FIXED = ("failures", "error")

Numbers = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a part; nothing is written")
    parser.add_argument("--record", action="store_true", help=f"bands anew, by {SEEDS} seeds")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--steps", type=float, default=1.0, help="share of the default's steps")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begun, busy = time.perf_counter(), load()
    measures.warm_up()
    seeds = range(SEEDS) if args.record else [args.seed]
    runs = [measured(args, seed, first=seed == seeds[0]) for seed in seeds]
    took = time.perf_counter() - begun
    store = json.loads(STORE.read_text()) if STORE.exists() else {"bands": {}}
    bands = store["bands"]
    if args.record:
        bands = bands | {name: band(name, [run[name] for run in runs if name in run])
                         for name in runs[0]}  # fmt: skip
    left = outside(runs[0], bands)
    leans, many = leaning(runs[0], bands, 1 / 2 if args.quick else 1 / 3)
    if not (args.quick or args.steps != 1.0):
        made = machine() | {"minutes": round(took / 60, 1), "load before": busy}
        numbers, sections = runs[0], ", ".join(args.only)
        if args.only != list(SECTIONS):  # the others stay what they were
            made = store.get("made", {}) | {sections: f"at {made['commit']}, {made['date']}"}
            numbers = store.get("numbers", {}) | numbers
        notes = store.get("notes", {}) | measures.NOTES
        write({"made": made, "numbers": numbers, "bands": bands, "notes": notes})
    report(runs[0], bands, left, took)
    print(f"more than two spreads worse: {len(leans)} numbers of nearness", *leans, sep="\n  ")
    known = [name for name in left if worse(name, runs[0][name], bands[name])]
    counts = [n for n in known if not args.quick or n.rsplit(": ", 1)[1] in FIXED]
    return int(many or bool(counts))


# Measuring ---------------------------------------------------------------------------------------


def measured(args: argparse.Namespace, seed: int, *, first: bool) -> Numbers:
    """All numbers of a seed; what does not depend on it is measured at the first."""
    found: Numbers = {}
    for section in args.only:
        once, measure = SECTIONS[section]
        if first or not once:
            start = time.perf_counter()
            found |= measure(seed, args)
            print(f"-- {section}: {time.perf_counter() - start:.0f} s", flush=True)
    return found


def students(seed: int, args: argparse.Namespace) -> Numbers:
    found: Numbers = {}
    for name in QUICK if args.quick else POSTERIORS:
        each = measures.student(name, seed, args.steps)
        found |= {f"{name}: {kind}": value for kind, value in each.items()}
        print(f"{name:12} " + "  ".join(f"{k} {v:.4g}" for k, v in each.items()), flush=True)
    return found


#: Section -> whether once is enough, and its measurement.
SECTIONS: dict[str, tuple[bool, Any]] = {
    "students": (False, students),
    "flagship": (False, lambda seed, args: {} if args.quick else measures.known(seed)),
    "novelty": (False, lambda seed, args: measures.novelty(seed)),
    "speed": (False, lambda seed, args: measures.speed(seed)),
    "files": (False, lambda seed, args: measures.exported(seed)),
    "calls": (True, lambda seed, args: measures.bad_calls()),
    "programs": (True, lambda seed, args: {} if args.quick else measures.programs(seed)),
    "memory": (True, lambda seed, args: {} if args.quick else measures.memory()),
}


# Bands -------------------------------------------------------------------------------------------


def kind_of(name: str) -> Kind:
    """The kind of a number, which its name ends in."""
    return KINDS[name.rsplit(": ", 1)[1]]


def band(name: str, values: list[float]) -> dict[str, float]:
    """Mean and spread of a number over seeds; of logarithms where its kind says so."""
    kind = kind_of(name)
    if kind.log:
        values = [math.log(max(value, 1e-12)) for value in values]
    spread = stdev(values) if len(values) > 1 else 0.0
    return {"mean": fmean(values), "spread": max(spread, kind.least), "seeds": len(values)}


def ends(name: str, found: dict[str, float]) -> tuple[float, float]:
    """Lower and upper end of a band."""
    half = WIDTH * found["spread"]
    low, high = found["mean"] - half, found["mean"] + half
    return (math.exp(low), math.exp(high)) if kind_of(name).log else (low, high)


def outside(numbers: Numbers, bands: dict[str, dict[str, float]]) -> list[str]:
    """Names of the numbers that left their band."""
    known = {name: ends(name, bands[name]) for name in numbers if name in bands}
    return [name for name, (low, high) in known.items() if not low <= numbers[name] <= high]


def leaning(
    numbers: Numbers, bands: dict[str, dict[str, float]], share: float
) -> tuple[list[str], bool]:
    """Numbers of nearness more than two spreads worse, and whether they are more than a share."""
    near = [n for n in numbers if n in bands and n.rsplit(": ", 1)[1] in NEAR]
    off = {n: (math.log(numbers[n]) - bands[n]["mean"]) / bands[n]["spread"] for n in near}
    found = [name for name in near if -kind_of(name).better * off[name] > LEAN]
    return found, len(found) > share * len(near)


def worse(name: str, value: float, found: dict[str, float]) -> bool:
    """Whether a number outside its band is on the wrong side."""
    kind, (low, high) = kind_of(name), ends(name, found)
    if kind.better:
        return value < low if kind.better > 0 else value > high
    middle = (low + high) / 2
    return not abs(value - kind.target) < abs(middle - kind.target)


# Writing -----------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Commit, versions and processor."""
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--exclude", "*"]
    said = subprocess.run(git, capture_output=True, text=True)
    return {
        "commit": said.stdout.strip() or "unknown",
        "date": date.today().isoformat(),
        "pyro_opu": pyro_opu.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pyro": pyro.__version__,
        "processor": processor(),
        "threads": torch.get_num_threads(),
    }


def load() -> float:
    """Processes that wanted a core in the last minute; above .5 the machine was not ours alone."""
    return round(os.getloadavg()[0], 2)


def write(store: dict[str, Any]) -> None:
    """The two files, and the blocks that quote them."""
    files.put(STORE, (json.dumps(store, indent=1) + "\n").encode())
    made, numbers, bands = store["made"], store["numbers"], store["bands"]
    said = ", ".join(f"{key} {value}" for key, value in made.items())
    lines = [
        "# Scoreboard",
        "",
        "What a user gets by default. Made by `python -m benchmarks.scoreboard`, whose first page "
        "says what each number is; a band is the mean over five seeds and four spreads to either "
        "side.",
        "",
        f"{said}.",
        "",
        *grid(list(POSTERIORS), store),
        "",
        "| number | value | band |",
        "| --- | --: | --: |",
    ]
    for name, value in numbers.items():
        low, high = ends(name, bands[name]) if name in bands else (math.nan, math.nan)
        subject, kind = name.rsplit(": ", 1)
        title = f"{subject}: {KINDS[kind].title}"
        lines.append(f"| {title} | {shown(value)} | {shown(low)} to {shown(high)} |")
    files.put(PAGE, ("\n".join(lines) + "\n").encode())
    blocks = {"front": front(numbers), "six": grid(list(SHOWN), store)}
    later = "".join(f"; {name} {made[name]}" for name in SECTIONS if name in made)
    when = f"Commit {made['commit']}, {made['date']}, {made['threads']} threads of "
    for place, block in QUOTED.items():
        quote(HERE.parent / place, [*blocks[block], "", f"{when}{made['processor']}{later}."])


COLUMNS = ("draws", "single", "within 50", "within 90", "make", "pays")


def grid(names: list[str], store: dict[str, Any]) -> list[str]:
    """A table of posteriors, and where each student fails most."""
    heads = [KINDS[kind].title for kind in COLUMNS]
    lines = [f"| posterior | {' | '.join(heads)} | farthest off |"]
    lines += ["| --- |" + " --: |" * len(heads) + " --- |"]
    for name in names:
        found = [store["numbers"].get(f"{name}: {kind}") for kind in COLUMNS]
        cells = " | ".join("" if value is None else shown(value) for value in found)
        lines.append(f"| {POSTERIORS[name].what} | {cells} | {store['notes'].get(name, '')} |")
    return lines


#: When to take a way, by what the scoreboard calls it.
RUNGS = {
    "Predictive": ("`Predictive`", "calls are rare"),
    "batched": ("`exact`", "it is fast enough: most models of few operations"),
    "one pass": ("student", "a network, many draws or rows, and many calls"),
}


def front(numbers: Numbers) -> list[str]:
    """What the README says: the time of every way, and how near the student is."""

    def time(name: str, where: str) -> str:
        value = numbers.get(f"digits, one pass at {where}: ms", math.nan)
        return shown(value * numbers.get(f"digits, {name} at {where}: gain", 1.0))

    lines = ["| way | take it when | 1 row, ms | 1,000 rows, ms |", "| --- | --- | --: | --: |"]
    for name, (way, when) in RUNGS.items():
        lines.append(f"| {way} | {when} | {time(name, '1 row')} | {time(name, '1,000 rows')} |")
    say = {name: shown(value) for name, value in numbers.items()}
    told = (
        "A ten-class logistic regression on digits, 500 draws of NUTS. The student took "
        f"{say['digits: make']} s to make. Its class probabilities are as near to the posterior's "
        f"as those of {say['digits: draws']} draws, and its epistemic uncertainty is typically off "
        f"by a factor of {say['digits: single']} at a single input."
    )
    return [*lines, "", *wrap(told, 140)]


def quote(path: Path, lines: list[str]) -> None:
    """Replace the block between the marks of a page."""
    text = path.read_text()
    before, rest = text.split(MARK[0], 1)
    after = rest.split(MARK[1], 1)[1]
    whole = "\n".join([before + MARK[0], "", *lines, "", MARK[1] + after])
    files.put(path, whole.encode())


def shown(value: float) -> str:
    """Three digits, without an exponent where people write none."""
    if not math.isfinite(value):
        return "never" if value > 0 else ""
    if value >= MOST_DRAWS:
        return f"over {MOST_DRAWS:,.0f}"
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def report(numbers: Numbers, bands: dict[str, Any], left: list[str], took: float) -> None:
    print(f"\n{len(numbers)} numbers in {took / 60:.1f} minutes; load before {load()}")
    for name in left:
        low, high = ends(name, bands[name])
        side = "worse" if worse(name, numbers[name], bands[name]) else "better"
        print(f"left its band ({side}): {name} {numbers[name]:.4g}; {low:.4g} to {high:.4g}")
    if not left:
        print("no number left its band")


if __name__ == "__main__":
    sys.exit(main())
