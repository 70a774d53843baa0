"""Advice: what each way to answer costs here, and which one to take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_opu.choosing import choice_of
from pyro_opu.guides.base import student_at
from pyro_opu.inputs import InputLike
from pyro_opu.judging import Judge
from pyro_opu.ladder.exact import exact
from pyro_opu.objectives import Objective
from pyro_opu.reports.base import Report
from pyro_opu.teachers import Source
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.teachers.finished import finished_teacher
from pyro_opu.teachers.numpyro import NumpyroTeacher
from pyro_opu.teachers.pyro_model import PredictiveTeacher
from pyro_opu.training import tuned
from pyro_opu.training.choose import at_rest, choose_guide
from pyro_opu.training.held_out import hold_out, label_rows
from pyro_opu.training.options import Request
from pyro_opu.training.plan import Pace, plan_of, trial
from pyro_opu.training.run import run_of
from pyro_opu.utils.chunks import some_rows
from pyro_opu.utils.tables import table

__all__ = ["Advice", "advise"]

#: Rows that are timed at most, from which more take as much longer; draws of the loop; seconds in
#: which a way is timed again and again, twice at least; and those from which no call is repeated.
TIMED, LOOPED, REPEATED, LONG = 2000, 10, 0.3, 5.0
#: A student is worth it if it is so many times as fast, and pays within so many calls.
FASTER, MOST_CALLS = 2.0, 10_000
#: Milliseconds of an exact call above which its time is overhead, if all draws of a row take no
#: more operations than these.
OVERHEAD, FEW_OPERATIONS = 1.0, 10_000_000
LOOP, EXACT, CLOSED, STUDENT = "Predictive's loop", "exact", "closed form", "student's pass"


@dataclass(frozen=True)
class Advice(Report):
    """What :func:`advise` has measured; ``print`` it, or read the numbers by name.

    Attributes:
        advice: One sentence.
        notes: What else is worth knowing.
        take: "exact" or "distill".
        num_inputs: N.
        num_draws: S.
        milliseconds: A call takes so long by each way, at one row and at N, by the wall clock: the
            least of several calls, so that what else runs here hardly counts; ``None`` where it
            could not be made.
        distilling: Seconds that a student takes to make, at most. What comes before its steps is
            timed once, so that a busy machine makes it longer.
        calls: After how many calls of one row, and of N, it pays; ``None`` where it never does.
        exact_bytes: What a file of the exact program holds, ``None`` where it can be none.
    """

    advice: str
    notes: tuple[str, ...]
    take: str
    num_inputs: int
    num_draws: int
    milliseconds: dict[str, tuple[float | None, float | None]]
    distilling: float
    calls: tuple[int | None, int | None]
    exact_bytes: int | None

    def __str__(self) -> str:
        return "\n".join([self.advice, *self.notes, "", *self._numbers()])

    def _numbers(self) -> list[str]:
        """The table, and what distilling costs."""
        rows = [[name, *map(_shown, pair)] for name, pair in self.milliseconds.items()]
        times = table(
            [f"milliseconds, {self.num_draws:,} draws", "1 row", _rows(self.num_inputs)], rows
        )
        sizes = ("1 row", _rows(self.num_inputs))
        each = zip(self.calls, sizes, strict=True)
        pays = ", ".join(f"{_calls(n)} of {size}" if n else f"never at {size}" for n, size in each)
        lines = [times, f"distilling takes about {self.distilling:.2g} s, and pays after: {pays}"]
        if self.exact_bytes is not None:
            lines.append(
                f"the exact program as a file: {self.exact_bytes / 1e6:.3g} MB of draws and weights"
            )
        return lines


def advise(source: Source, x: InputLike) -> Advice:
    """Time every way to answer at inputs like these, and say which one to take.

    One run of some seconds: the loop of ``Predictive`` (under ten draws), the exact program, and
    the student that ``distill(source, x)`` would teach, as it begins. A trial of a step and of its
    labels says what distilling costs.

    Args:
        source: What :func:`~pyro_opu.as_teacher` takes.
        x: At least four rows like those that will be asked about.

    Returns:
        An :class:`~pyro_opu.Advice`, which prints.

    Raises:
        TypeError, ValueError: as of :func:`~pyro_opu.distill`.

    Example:
        >>> import torch, pyro_opu
        >>> weights = torch.randn(300, 2, 3)
        >>> found = pyro_opu.advise(lambda x: torch.softmax(x @ weights, -1), torch.randn(100, 2))
        >>> found.take in ("exact", "distill") and found.num_draws
        300
    """
    request = Request()
    with run_of(source, x, 0) as run, run.random.borrowed():
        x, form = run.inputs.tensor, run.inputs.form
        teacher = finished_teacher(source, x, form=form)
        draws = teacher.max_draws or teacher.default_draws
        choice = choice_of(teacher.outcome)
        some, rest = hold_out(x)
        numbers = tuned.VALIDATION_NUMBERS
        judge = label_rows(teacher, some, numbers, "held out", device=run.device)
        chosen = choose_guide(request, teacher, choice, judge, run)
        rests, near = at_rest(chosen, judge, law_is_open=True)
        distilling = time.perf_counter() - request.begun
        if not rests:
            guide = chosen.guide.requires_grad_(True).train()
            losses = choice.objectives(guide, x[:2], None)
            distilling += _teaching(request, guide, losses, teacher, rest, judge, near)
        guide = chosen.guide.requires_grad_(False).eval()
        every = exact(teacher)
        ways = _exact_ways(every, teacher, draws)
        ways[CLOSED if rests else STUDENT] = lambda rows: student_at(guide, rows).mean
        x = torch.cat([x, run.kept])
        found = {name: _milliseconds(way, x) for name, way in ways.items()}
        if LOOP in found:
            one, whole = (
                None if v is None else v * draws / min(draws, LOOPED) for v in found[LOOP]
            )
            found[LOOP] = one, whole
        return _advised(found, distilling, teacher, x, draws, every.file_size(form.unpack(x)))


def _teaching(
    request: Request,
    guide: nn.Module,
    losses: tuple[Objective, Objective],
    teacher: BaseTeacher,
    x: Tensor,
    judge: Judge,
    near: float | None,
) -> float:
    """Seconds that labels and steps of a default distillation take, at most."""
    plan = plan_of(request, guide, *losses, teacher, x, judge, begins_near=near)
    some, draws = some_rows(x, plan.batch_size), plan.draws_of_label
    pace = Pace(*trial(guide, losses[0], teacher.draws, some, draws))
    return sum(plan.seconds(pace, len(x), teacher.num_outputs))


def _exact_ways(every: Any, teacher: BaseTeacher, draws: int) -> dict[str, Callable[[Tensor], Any]]:
    """Calls that answer with all draws, by name."""
    if not isinstance(teacher, PredictiveTeacher):
        return {EXACT: lambda x: every.draws(teacher.form.unpack(x))}
    source = teacher.predictive
    few = Predictive(
        source.model,
        {name: value[:LOOPED] for name, value in source.posterior_samples.items()},
        source.guide,
        min(draws, LOOPED),
        source.return_sites,
    )

    def called(function: Predictive) -> Callable[[Tensor], Any]:
        def call(x: Tensor) -> Any:
            args, kwargs = teacher.call(x)
            return function(*args, **kwargs)

        return call

    return {LOOP: called(few), EXACT: called(every)}


@torch.no_grad()
def _milliseconds(way: Callable[[Tensor], object], x: Tensor) -> tuple[float | None, float | None]:
    """A call at one row and at all takes so long; ``None`` where it cannot be made."""
    pair: list[float | None] = []
    for rows in (x[:1], x[:TIMED]):
        try:
            pair.append(_best(way, rows))
        except Exception:  # noqa: BLE001 - a model may refuse one row, or the loop all
            pair.append(None)
    whole = None if pair[1] is None else pair[1] * max(1.0, len(x) / TIMED)
    return pair[0], whole


def _best(way: Callable[[Tensor], object], x: Tensor) -> float:
    """Milliseconds of the quickest of several calls, the first of which may record a program."""
    found, begun = math.inf, time.perf_counter()
    for number in range(100):
        start = time.perf_counter()
        way(x)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        end = time.perf_counter()
        if number or end - begun > LONG:
            found = min(found, end - start)
        if end - begun > (REPEATED if number > 1 else LONG):
            break
    return 1000 * found


def _advised(
    found: dict[str, tuple[float | None, float | None]],
    distilling: float,
    teacher: BaseTeacher,
    x: Tensor,
    draws: int,
    size: int | None = None,
) -> Advice:
    """What to do about these times."""
    student = found[CLOSED if CLOSED in found else STUDENT]
    exact = tuple(
        min((time for time in times if time is not None), default=math.inf)
        for times in zip(*(found[name] for name in (LOOP, EXACT) if name in found), strict=True)
    )
    calls: list[int | None] = []
    for slow, quick in zip(exact, student, strict=True):
        saved = slow - (math.inf if quick is None else quick)
        worth = quick is not None and slow > FASTER * quick
        calls.append(math.ceil(1000 * distilling / saved) if worth else None)
    sizes, cheap = ("1 row", _rows(len(x))), [n is not None and n <= MOST_CALLS for n in calls]
    if any(cheap):
        where = 1 if cheap[1] else 0
        how = "takes no step" if CLOSED in found else f"takes about {distilling:.2g} s"
        advice = (
            f"Distil: it {how}, and pays after {_calls(calls[where])} of {sizes[where]}, "
            f"{_shown(student[where])} ms each where exact ones take {_shown(exact[where])}."
        )
        if not cheap[0]:
            advice += f" For one row at a time stay exact, {_shown(exact[0])} ms."
    else:
        pays = [f"{_calls(n)} of {size}" for n, size in zip(calls, sizes, strict=True) if n]
        later = f"pays only after {' or '.join(pays)}" if pays else "is hardly quicker"
        advice = (
            f"Stay exact: all {draws:,} draws take {_shown(exact[0])} ms at 1 row and "
            f"{_shown(exact[1])} at {sizes[1]}; a student {later}."
        )
    return Advice(
        advice,
        tuple(_notes(exact, teacher, x, draws)),
        "distill" if any(cheap) else "exact",
        len(x),
        draws,
        found,
        distilling,
        (calls[0], calls[1]),
        size,
    )


def _notes(exact: tuple[float, ...], teacher: BaseTeacher, x: Tensor, draws: int) -> list[str]:
    """Where a program of NumPyro would be quicker."""
    if isinstance(teacher, NumpyroTeacher):
        return ["In a process of JAX, jax.jit of the NumPyro Predictive is the quickest exact way."]
    operations = teacher.operations(x[:1])
    small = operations is not None and operations * draws < FEW_OPERATIONS
    if not isinstance(teacher, PredictiveTeacher) or max(exact) < OVERHEAD:
        return []
    if small and exact[0] > OVERHEAD:
        return [
            "Most of an exact call of one row is overhead here: the same model in NumPyro, under "
            "jax.jit, would take far less, if the service can run JAX."
        ]
    return [
        "If the service can run JAX: the same model in NumPyro, under jax.jit, took a half to a "
        "quarter of exact's time at 1,000 rows of three models, with the same draws."
    ]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def _calls(count: int | None) -> str:
    return f"{count:,} call{'' if count == 1 else 's'}"


def _rows(count: int) -> str:
    return f"{count:,} rows"
