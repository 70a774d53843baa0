"""What the commands of the OPU paper's tables share: scores, times, rows, and the run.

A *cell* is one data set, protocol and seed: all methods are made and judged on it. Measures are
fixed in advance: entropy for errors; for what lies outside the teacher's mutual information, and
the student's concentration, the paper's CM. "Best" columns print, as the paper does, the measure
that did best on the test rows (by its mean over seeds), here of all seven: they flatter. The
paper's figures belong to its own splits and to settings it does not tell; they stand beside ours.
"Trivial" asks no classifier: the majority class, and norm or mean of the input in the better
direction, for errors the first teacher's.

The time is that of the whole test set, a median of repeats in turn; for a student of one
``dirichlet(x)``, for a posterior of ``Predictive`` with 500 draws, and "batched" of ``as_teacher``.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from pyro.infer import Predictive
from torch import Tensor

import pyro_opu
from papers import datasets
from papers.results import Tables, finish, keep, kept, parser, say
from papers.summaries import ERRORS, TRIVIAL, Key, Paper, key_of, summary
from papers.timing import timed
from pyro_opu.metrics.ranks import spearman
from pyro_opu.metrics.scores import calibration
from pyro_opu.reports.answers import is_student
from pyro_opu.reports.detection import score
from pyro_opu.reports.detection_report import Score
from pyro_opu.reports.readings import Reader, Reading
from pyro_opu.rng import seeded

#: Seconds of repeats, at least three, for students and for posteriors.
BUDGETS = (2.0, 6.0)


class Split(NamedTuple):
    """Rows as the methods take them, and outside inputs by name."""

    train: datasets.Dataset
    test: datasets.Dataset
    outside: dict[str, Tensor]


class Method(NamedTuple):
    """What answers, the calls that are timed, and the processor seconds that making it took.

    A teacher has a "batched" call too. ``share`` is the part of its draws that the calls ask for;
    a student's ``teacher`` is the name of its teacher, ``student`` says which settings it has.
    """

    source: Any
    answer: Callable[[Tensor], object]
    seconds: float
    batched: Callable[[Tensor], object] | None = None
    share: float = 1.0
    teacher: str = ""
    student: str = ""


class Table(NamedTuple):
    """One table of the paper: what it is made on, and its figures by data set and method."""

    #: ``__file__`` of its command.
    file: str
    data: tuple[str, ...]
    protocols: tuple[str, ...]
    #: Data, protocol, seed, quick -> rows; None where the data have no such protocol.
    prepare: Callable[[str, str, int, bool], Split | None]
    #: Split, data, seed, quick -> methods by name, every teacher before its students.
    methods: Callable[[Split, str, int, bool], dict[str, Method]]
    paper: dict[str, dict[str, Paper]]
    settings: dict[str, Any]
    #: Answers, scores, the paper's figures -> tables by title.
    summary: Callable[..., Tables] = summary


def options(description: str, table: Table) -> argparse.ArgumentParser:
    """What all these commands take."""
    found = parser(description, seeds=5)
    found.add_argument("--data", nargs="+", choices=table.data, default=list(table.data))
    found.add_argument(
        "--protocols", nargs="+", choices=table.protocols, default=list(table.protocols)
    )
    return found


def posterior(predictive: Predictive, seconds: float, held: Predictive | None = None) -> Method:
    """A teacher; ``held`` is what is timed, where that must have another number of draws."""
    called = held or predictive
    teacher = pyro_opu.as_teacher(called)
    return Method(predictive, called, seconds, teacher.probs)


def student(fast: Any, seconds: float, teacher: str, settings: str) -> Method:
    """A student; ``settings`` are its widths and whether it is the default one."""

    def one_pass(x: Tensor) -> Tensor:
        return fast.dirichlet(x).concentration

    return Method(fast, one_pass, seconds, teacher=teacher, student=settings)


def default_student(source: Any, x: Tensor, seed: int, teacher: str, steps: int | None) -> Method:
    """What ``distill`` makes with default settings; ``steps`` None are those too."""
    torch.manual_seed(seed)
    begun = time.process_time()
    fewer = {} if steps is None else {"num_steps": steps, "effort": "quick"}
    fast = pyro_opu.distill(source, x, seed=seed, progress=False, **fewer)
    seconds = time.process_time() - begun
    return student(fast, seconds, teacher, student_name("", fast.guide))


def run(table: Table, args) -> None:
    """All cells asked for that are not there yet; the table is written at the end."""
    torch.set_num_threads(1)
    if args.quick:
        args.data, args.seeds = [table.data[0]], 1
    resume = args.resume and not args.quick
    answers, scores = (kept(table.file) or ([], [])) if resume else ([], [])
    for seed, data, protocol in product(range(args.seeds), args.data, args.protocols):
        if (data, protocol, seed) in map(key_of, answers):
            continue
        more = cell(table, (data, protocol, seed), args.quick)
        answers, scores = answers + more[0], scores + more[1]
        say({f"{data} {protocol} {seed}": more[0]})
        if not args.quick:
            keep(table.file, (answers, scores))
    finish(table.file, args, table.summary(answers, scores, table.paper), **table.settings)


def cell(table: Table, key: Key, quick: bool) -> tuple[list[dict], list[dict]]:
    """All methods on one split: a row of answers for each, and one of scores for each task."""
    data, protocol, seed = key
    split = table.prepare(data, protocol, seed, quick)
    if split is None:
        return [], []
    made = table.methods(split, data, seed, quick)
    same = {"data": data, "protocol": protocol, "seed": seed}
    times = clock(made, split.test.x, (0.0, 0.0) if quick else BUDGETS)
    answers, scores, errors, teachers = [], [], [], {}
    for name, method in made.items():
        read = readings(method.source, split, seed)
        teachers |= {name: read} if method.batched else {}
        near = nearness(read, teachers[method.teacher]) if method.teacher in teachers else {}
        head = {**same, "student": method.student, "method": name, "teacher": method.teacher}
        answers.append({**head, **right(read[ERRORS].log_mean, split.test.y), **times[name]})
        answers[-1]["making it, CPU s"] = method.seconds
        errors.append(read[ERRORS].log_mean.argmax(-1) != split.test.y)
        for task, found in judged(read, errors[-1]).items():
            scores.append({**head, "task": task, **found, **near.get(task, {})})
    head = {**same, "student": "", "method": TRIVIAL, "teacher": ""}
    shares = split.train.y.bincount().double() / len(split.train)
    answers.append({**head, **right(shares.log().expand(len(split.test), -1), split.test.y)})
    for task, found in trivial(errors[0], split).items():
        scores.append({**head, "task": task, **found})
    return answers, scores


@torch.no_grad()
def readings(source: Any, split: Split, seed: int) -> dict[str, Reading]:
    """What a source says of the test rows, under the name of errors, and of each outside set."""
    x = split.test.x
    with seeded(seed):
        reader = Reader(source, x, is_student(source, x), 500)
        return {ERRORS: reader(x), **{name: reader(y) for name, y in split.outside.items()}}


def right(log_mean: Tensor, y: Tensor) -> dict[str, float]:
    found = calibration(log_mean, y)
    return {"accuracy, %": 100 * found.accuracy, "NLL, nats": found.nll}


def judged(read: dict[str, Reading], wrong: Tensor) -> dict[str, dict[str, float]]:
    """Task -> AUROC and AUPR in percent, by every measure."""
    found = {}
    inside = read[ERRORS].detectors
    for task, reading in read.items():
        values, positive = inside, wrong.numpy()
        if task != ERRORS:
            values = {m: np.concatenate([inside[m], v]) for m, v in reading.detectors.items()}
            positive = np.arange(len(values["entropy"])) >= len(wrong)
        found[task] = percent({m: score(v, positive) for m, v in values.items()})
    return found


def nearness(read: dict[str, Reading], teacher: dict[str, Reading]) -> dict[str, dict[str, float]]:
    """Task -> how near a student is to its teacher at these inputs: KL, mutual information."""
    found = {}
    for task, mine in read.items():
        theirs = teacher[task]
        log_p, log_q = theirs.log_mean.double(), mine.log_mean.double()
        # A class that the teacher rules out adds nothing.
        terms = (log_p.exp() * (log_p - log_q)).nan_to_num(0.0, posinf=math.inf)
        both = [each.measures["mutual_information"] for each in (mine, theirs)]
        found[task] = {
            "KL of the mean": float(terms.sum(-1).mean()),
            "mutual information / teacher's": float(both[0].mean() / both[1].mean()),
            "its rank correlation": spearman(*both),
        }
    return found


def percent(scores: dict[str, Score]) -> dict[str, float]:
    return {
        f"{kind}, {measure}": 100 * value
        for measure, score in scores.items()
        for kind, value in zip(("AUROC", "AUPR"), score, strict=True)
    }


def trivial(wrong: Tensor, split: Split) -> dict[str, dict[str, float]]:
    """What norm and mean of the input say of errors, and of what is outside."""
    tasks = {ERRORS: (split.test.x, wrong)}
    for name, other in split.outside.items():
        labels = torch.arange(len(split.test.x) + len(other)) >= len(split.test.x)
        tasks[name] = torch.cat([split.test.x, other]), labels
    found = {}
    for task, (x, positive) in tasks.items():
        # Sorted, so that rows of the same numbers in another order have the same norm to the bit.
        rows = x.double().sort(-1).values
        both = {"input_norm": rows.norm(dim=-1), "input_mean": rows.mean(-1)}
        found[task] = percent({name: either(values, positive) for name, values in both.items()})
    return found


def either(values: Tensor, positive: Tensor) -> Score:
    """AUROC and AUPR in the direction with the larger AUROC."""
    return max(score(way, positive.numpy()) for way in (values.numpy(), -values.numpy()))


def clock(made: dict[str, Method], x: Tensor, budgets: tuple[float, float]) -> dict[str, dict]:
    """Milliseconds of every answer, and the speed-up over the teacher's two ways."""
    slow = {name: method for name, method in made.items() if method.batched}
    calls = {name: lambda m=m: m.answer(x) for name, m in made.items() if name not in slow}
    long = {name: lambda m=m: m.answer(x) for name, m in slow.items()}
    long |= {f"{name}, batched": lambda m=m: m.batched(x) for name, m in slow.items()}
    with torch.no_grad():
        seconds = {**timed(calls, budgets[0]), **timed(long, budgets[1])}
    for name, method in slow.items():
        seconds[name] /= method.share
        seconds[f"{name}, batched"] /= method.share
    found = {}
    for name, method in made.items():
        found[name] = {"answer, ms": 1e3 * seconds[name]}
        teacher = method.teacher or next(iter(made))
        if name in slow:
            found[name]["batched, ms"] = 1e3 * seconds[f"{name}, batched"]
        found[name]["speed-up"] = seconds[teacher] / seconds[name]
        batched = seconds[f"{teacher}, batched"]
        found[name]["speed-up over batched"] = batched / seconds[name]
    return found


def student_name(end: str, guide: Any) -> str:
    """ "default (the posterior's network, 32-32 on it)" or "teacher's widths (400-400)"."""
    trunk = guide.config["trunk"]
    widths = "-".join(map(str, trunk["hidden"]))
    moments = trunk["kind"] in ("moments", "process")
    if moments or trunk["kind"] in ("network", "tempered"):  # a small network beside it
        own = f"moments of logits, {widths} on them"
        widths = own if moments else f"the posterior's network, {widths} on it"
    return f"{end.removeprefix(', ') or 'default'} ({widths})"
