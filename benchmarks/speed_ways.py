"""All ways to an answer at one point, timed in turn, and what each row of the tables says.

What costs many runs of a model is first tried with a few draws, and with more while it is quick. If
all S of them would take longer than a bound, a part is timed and scaled to S, and the row says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import pyro_opu
from benchmarks.speed_models import ALIKE, ONE_PASS, Kit
from benchmarks.speed_peers import JittedPredictive, absent, laplace_ways
from benchmarks.timing import Timing, spans

Call = Callable[[], object]
Row = dict[str, Any]
#: Draws of the trial, those of a compact subset, and numbers that all draws may hold at once.
TRIAL, COMPACT, ANSWER_NUMBERS = 2, 50, 2**28
#: Numbers in the Jacobians that laplace-torch holds, of all inputs at once.
JACOBIAN_NUMBERS = 2**26
#: Runs of the model beside those of the draws, by which ``Predictive`` learns the sites' shapes.
PREDICTIVE_RUNS = 2


class ByDraws(NamedTuple):
    """A way whose cost is that of its draws.

    Attributes:
        make: Number of draws -> the call.
        draws: S, all of them.
        most: Draws that the memory has room for at once.
        fixed: Runs of the model that a call takes beside those of its draws.
    """

    make: Callable[[int], Call]
    draws: int
    most: int
    fixed: int = 0


class Found(NamedTuple):
    """What a way took; of one that takes draws how many it has, and how many were timed."""

    time: Timing
    draws: int | None = None
    timed: int | None = None


def quick_ways(
    kit: Kit, x: Tensor, *, captured: bool, probabilities: bool = True
) -> dict[str, Call]:
    """The quick ones: the plug-in network, and the passes and drop-in calls of every student."""
    plug_in = kit.plug_in
    ways: dict[str, Call] = {"plug-in": lambda: plug_in(x).softmax(-1)}
    for end, fast in kit.students.items():
        ways[f"one pass{end}"] = lambda fast=fast: fast.dirichlet(x).concentration
        ways[f"drop-in call{end}"] = lambda fast=fast: fast(x)
        if probabilities:
            ways[f"drop-in call, probabilities{end}"] = lambda teller=kit.tellers[end]: teller(x)
    if captured:
        quicker = kit.captured(x)
        ways["one pass, captured"] = lambda: quicker(x).concentration
    return ways


def slow_ways(kit: Kit, x: Tensor, draws: int) -> dict[str, ByDraws]:
    """Those whose time is that of the draws."""
    room = with_room(kit, len(x) * kit.classes)

    def predictive(count: int) -> Call:
        source = kit.predictive(count)
        return lambda: source(x)

    def parallel(count: int) -> Call:
        source = kit.parallel(count)
        return lambda: source(x)

    def probabilities(count: int) -> Call:
        source = kit.parallel(count, probs=True)
        return lambda: source(x)

    def batched(count: int) -> Call:
        teacher = pyro_opu.as_teacher(kit.predictive(count))
        return lambda: teacher.probs(x)

    ways = {"Predictive": ByDraws(predictive, draws, kit.held, PREDICTIVE_RUNS)}
    if kit.subject.parallel:
        at_once = with_room(kit, len(x) * max(kit.classes, kit.subject.widest))
        for way, make in (("", parallel), (", probabilities", probabilities)):
            ways[f"Predictive, parallel{way}"] = ByDraws(make, draws, at_once, PREDICTIVE_RUNS)
    ways["batched teacher"] = ByDraws(batched, draws, room)
    if draws > COMPACT:
        ways[f"compact subset of {COMPACT}, batched"] = ByDraws(batched, COMPACT, room)
    return ways


def with_room(kit: Kit, numbers: int) -> int:
    """How many of the held draws there is memory for, at so many numbers for each."""
    return min(kit.held, max(1, ANSWER_NUMBERS // numbers))


def numpyro_ways(kit: Kit, x: Tensor, draws: int, *, both: bool) -> dict[str, ByDraws]:
    """NumPyro's, one draw after another as by default, or also all together; none without it."""
    if absent("numpyro") or x.is_cuda:
        return {}
    jitted = JittedPredictive(kit)
    ways = {"NumPyro": ByDraws(lambda n: jitted.call(x, n, parallel=False), draws, kit.held)}
    if both:
        at_once = with_room(kit, len(x) * max(kit.classes, kit.subject.widest))
        every = ByDraws(lambda n: jitted.call(x, n, parallel=True), draws, at_once)
        ways["NumPyro, parallel"] = every
    return ways


def laplace_of(kit: Kit, x: Tensor, draws: int) -> dict[str, Call]:
    """laplace-torch's, around the plug-in network; none without it, or without room for it."""
    last = [layer for layer in kit.plug_in.modules() if isinstance(layer, nn.Linear)][-1]
    jacobians = len(x) * kit.classes * sum(weight.numel() for weight in last.parameters())
    if absent("laplace") or jacobians > JACOBIAN_NUMBERS:
        return {}
    train = kit.inputs(512), torch.arange(512, device=kit.device) % kit.classes
    # The library wants more than one layer.
    network = nn.Sequential(nn.Identity(), kit.subject.plug_in(kit.classes)).to(kit.device)
    return laplace_ways(network, train, x, draws)


def within(way: ByDraws, bound: float, wait: Call) -> tuple[Call, int]:
    """The call with as many draws as take about ``bound`` seconds, found from a few on."""
    most = min(way.draws, way.most)
    count = min(TRIAL, most)
    while True:
        call = way.make(count)
        call()
        wait()
        start = time.perf_counter()
        call()
        wait()
        taken = time.perf_counter() - start
        if count == most or taken > bound / 2:
            return call, count
        count = min(most, int(count * max(2.0, bound / taken)))


def clocked(
    quick: dict[str, Call],
    slow: dict[str, ByDraws],
    budgets: tuple[float, float],
    bound: float,
    device: torch.device,
) -> dict[str, Found]:
    """Passes in turn, then drop-in calls, then the slow ways; times are those of all draws.

    In turn with calls a hundred times as long, which empty the caches, a pass takes twice its time.
    """
    wait: Call = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    with torch.no_grad():
        calls = {name: way for name, way in quick.items() if name.startswith("drop-in call")}
        passes = {name: way for name, way in quick.items() if name not in calls}
        found = {
            name: Found(took)
            for ways in (passes, calls)
            if ways
            for name, took in spans(ways, budgets[0], wait).items()
        }
        trials = {name: within(way, bound, wait) for name, way in slow.items()}
        ready = {name: call for name, (call, _) in trials.items()}
        taken = spans(ready, budgets[1], wait, warm=True)
    for name, took in taken.items():
        way, count = slow[name], trials[name][1]
        scaled = took.times((way.draws + way.fixed) / (count + way.fixed))
        found[name] = Found(scaled, way.draws, count)
    return found


def rows_of(found: dict[str, Found], same: Row, names: dict[str, str]) -> list[Row]:
    """A row for every way: milliseconds, and how many times the default student's pass it is.

    ``names`` are the students' by what the names of their ways end in; they stand first.
    """
    one = found["one pass"].time.median
    rows = []
    for name, (took, draws, timed) in found.items():
        row = {"student": student_of(name, names), **same, "way": name.removesuffix(ALIKE)}
        row |= {"ms": 1e3 * took.median, "IQR, ms": 1e3 * took.iqr}
        row |= {"runs": took.runs, "times one pass": took.median / one}
        rows.append({**row, "draws": draws, "draws timed": timed} if draws else row)
    return rows


def student_of(way: str, names: dict[str, str]) -> str:
    """The name of the student that a way asks; none where it asks none."""
    return names[ALIKE if way.endswith(ALIKE) else ""] if way.startswith(ONE_PASS) else ""
