"""Inputs labelled once, the plateau that ends a warm start, its threads, and `effort`."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from flat import distill_flat
from quick_distill import C, inputs, quick, teacher, truth
from torch import Tensor, nn

import pyro_opu
from pyro_opu import EnergyDistance, MomentMatching, PredictiveGuide
from pyro_opu.objectives import CrossEntropy
from pyro_opu.objectives.moments import gini_parts
from pyro_opu.objectives.normal import NormalMoments
from pyro_opu.training import tuned
from pyro_opu.training.batches import (
    READ,
    Batches,
    Recipe,
    Remade,
    labelled,
    makes_again,
    read_once,
)
from pyro_opu.training.descent import Descent, settling
from pyro_opu.training.fit import KeepBest, Phase, fit
from pyro_opu.training.plan import Facts, Plan, trial
from pyro_opu.training.tuned import HELD_NUMBERS, POOL_NUMBERS
from pyro_opu.transfer import HeldOut, Jitter, TransferPolicy
from pyro_opu.transfer.stream import Stream

pytestmark = pytest.mark.usefixtures("brief")


def batches(held: Tensor, *labels: int, rows: int = 8) -> Batches:
    plan = Plan(10, 0, rows, 12, 12, 1e-3, 5, *labels)

    def ask(x: Tensor, count: int) -> Tensor:
        return held[:count].expand(-1, len(x), -1)

    return Batches(ask, HeldOut().fit(inputs()), plan, inputs().device)


def test_a_pool_holds_what_the_loss_reads_of_all_draws() -> None:
    draws = truth(inputs(1)).sample((50,))
    pool = labelled(batches(draws, 64, 50, 24), MomentMatching())
    between, within = gini_parts(draws)
    assert len(pool.x) == 64
    torch.testing.assert_close(pool.statistics["mean"], draws.mean(0).expand(64, -1))
    torch.testing.assert_close(pool.statistics["between"], between.expand(64))
    torch.testing.assert_close(pool.statistics["within"], within.expand(64))


def test_batches_go_through_all_inputs_in_another_order_each_time() -> None:
    draws = truth(inputs(1)).sample((5,))
    pool = labelled(batches(draws, 64, 5, 64), CrossEntropy())
    pool.x = torch.arange(64.0)[:, None]
    times = [torch.cat([pool.batch(8)[0] for _ in range(8)]).flatten() for _ in range(2)]
    assert all(torch.equal(each.sort().values, torch.arange(64.0)) for each in times)
    assert not torch.equal(*times)
    again = labelled(batches(draws, 64, 5, 64), CrossEntropy(), steps=9)
    again.x = torch.arange(64.0)[:, None]
    assert torch.equal(again.batch(8)[0].flatten(), times[1][8:16])


def answered(x: Tensor, count: int) -> Tensor:
    """The same draw again and again, another at every input."""
    return x[:, :2].softmax(-1).expand(count, -1, -1)


def wide(*labels: int, rows: int = 8) -> Batches:
    """Batches of inputs that none of x is."""
    plan = Plan(10, 0, rows, 12, 12, 1e-3, 5, *labels)
    return Batches(answered, Jitter().fit(torch.randn(50, 6)), plan, inputs().device)


@pytest.mark.parametrize("held", [1, 2, 10])
def test_inputs_that_are_made_again_are_those_that_were_labelled(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of 32, of which other ones come together in every turn."""
    monkeypatch.setattr(tuned, "HELD_NUMBERS", held * 64 * 6)
    pool = labelled(wide(320, 5, 24, True, rows=64), CrossEntropy())
    assert isinstance(pool, Remade) and pool.x.numel() == 0 and len(pool.statistics["mean"]) == 320
    turns, together = [], []
    for _ in range(3):
        batches = [pool.batch(64) for _ in range(5)]
        assert len(pool.x) <= held * 64
        for x, statistics in batches:
            torch.testing.assert_close(statistics["mean"], answered(x, 1)[0])
        turns.append(torch.cat([x for x, _ in batches]))
        together.append({frozenset(x[:, 0].tolist()) for x, _ in batches})
    assert all(torch.equal(each.sort(0).values, turns[0].sort(0).values) for each in turns)
    assert not torch.equal(turns[0], turns[1]) and len(turns[0].unique(dim=0)) == 320
    assert together[0] != together[1]
    again = labelled(wide(320, 5, 24, True, rows=64), CrossEntropy(), steps=9)
    assert again.taken == 9


def test_a_plan_holds_inputs_unless_they_are_wide_and_many() -> None:
    few = HELD_NUMBERS // 10_000
    facts = Facts(4, 10_000, 3, remakes=True)
    assert not facts.is_remade(few) and facts.is_remade(few + 1)
    assert not replace(facts, remakes=False).is_remade(2**20)
    assert facts.labels(MomentMatching(), 2**16, 32, False)[0] == 2**16
    held = replace(facts, remakes=False).labels(MomentMatching(), 2**16, 32, False)[0]
    assert held * 10_000 <= POOL_NUMBERS


def test_what_is_not_the_same_twice_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Counts(TransferPolicy):
        times: list[int] = field(default_factory=list)

        def _draw(self, n: int) -> Tensor:
            self.times.append(n)
            return self._rows(n) + len(self.times)

    monkeypatch.setattr(tuned, "WIDE", 5)
    x, cpu = torch.randn(9, 6), torch.device("cpu")
    assert makes_again(HeldOut().fit(x), x, cpu) and not makes_again(Counts().fit(x), x, cpu)
    assert not makes_again(HeldOut().fit(x), x, torch.device("cuda"))
    assert not makes_again(HeldOut().fit(x), x[:, :5], cpu)
    assert not makes_again(Stream([x], 0), x, cpu)


@pytest.mark.parametrize("guide", [None, "network"])
def test_a_student_of_inputs_that_are_made_again(
    guide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds few of them, and learns as well; one that reads moments needs them but once."""
    torch.manual_seed(0)
    x, weight = torch.randn(300, 6), torch.randn(40, 6, 3)

    def probs(x: Tensor) -> Tensor:
        return (x @ weight).softmax(-1)

    made: list[int] = []
    make = Recipe._one
    monkeypatch.setattr(Recipe, "_one", lambda self, n: made.append(int(n)) or make(self, n))

    def taught() -> pyro_opu.OnePassPredictive:
        made.clear()
        return pyro_opu.distill(probs, x, guide=guide, num_steps=60, seed=0, progress=False)

    held = taught()
    assert not made
    for name in ("WIDE", "HELD_NUMBERS"):
        monkeypatch.setattr(tuned, name, 4)
    fast = taught()
    assert max(made) == 8 * 60 - 1 and len(made) // (8 * 60) == 2  # at labels, and steps or moments
    again = taught()
    assert torch.equal(fast.dirichlet(x).mean, again.dirichlet(x).mean)
    assert fast.report["kl"] < 2 * held.report["kl"]  # seeds differ by a quarter


@pytest.mark.parametrize(("hidden", "held"), [(5, True), (60, False)])
def test_features_are_kept_where_they_are_narrower_than_wide_inputs(
    hidden: int, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows there are: a trunk that stays then never runs in a step."""
    torch.manual_seed(0)
    layers = nn.Linear(40, hidden), nn.ReLU(), nn.Dropout(), nn.Linear(hidden, 3)
    x = torch.randn(100, 40)
    fast = pyro_opu.distill(nn.Sequential(*layers), x, num_steps=1, seed=0, progress=False)
    plan = Plan(10, 0, 8, 12, 12, 1e-3, 5, 320, 5, 24, True)
    asked = Batches(answered, Jitter().fit(x), plan, inputs().device)
    monkeypatch.setattr(tuned, "HELD_NUMBERS", 100)
    pool = labelled(asked, CrossEntropy())
    guide, kept = read_once(fast.guide, pool)
    assert (READ in kept.statistics) == (guide is not fast.guide) == held


def test_draws_of_a_batch_are_asked_block_by_block() -> None:
    asked: list[int] = []

    def ask(x: Tensor, count: int) -> Tensor:
        asked.append(len(x))
        return answered(x, count)

    plan = replace(wide().plan, step_block=3)
    batches = replace(wide(), ask=ask, plan=plan, max_draws=5)
    x, statistics = batches.labels(5, CrossEntropy())
    assert asked == [3, 3, 2]
    torch.testing.assert_close(statistics["mean"], answered(x, 1)[0])
    asked.clear()
    assert batches.labels(5, EnergyDistance())[1]["draws"].shape[:2] == (8, 5)
    assert asked == [8]  # it compares all pairs


@pytest.mark.parametrize(("columns", "outputs", "most"), [(3 * 224**2, 2, 111), (9, 10_000, 419)])
def test_batches_of_wide_inputs_and_of_many_classes_are_smaller(
    columns: int, outputs: int, most: int
) -> None:
    assert Facts(4, columns, outputs).largest_batch == most
    assert Facts(4, 3072, 100).largest_batch > 1024 and Facts(4, 10**9, 3).largest_batch == 32


@pytest.mark.parametrize("objective", [MomentMatching(), CrossEntropy()])
def test_parts_of_the_statistics_are_parts_of_the_draws(objective) -> None:
    x = inputs(20)
    student = PredictiveGuide.for_inputs(x, C)(x)
    draws = truth(x).sample((30,))
    by_draws = objective.parts(student, draws, x)
    by_statistics = objective.parts_at(student, objective.statistics(draws), x)
    for name, value in by_draws.items():
        torch.testing.assert_close(by_statistics[name], value)


@pytest.mark.parametrize("count", [1, 2, 40])
def test_moments_of_a_normal_by_the_slow_sum(count: int) -> None:
    torch.manual_seed(0)
    draws = torch.randn(count, 7, 2, dtype=torch.float64)

    class Student:
        mean = torch.randn(7, dtype=torch.float64)
        log_variance = log_aleatoric = log_epistemic = torch.zeros(7, dtype=torch.float64)

    parts = NormalMoments().parts(Student(), draws, torch.zeros(7, 1))
    squares = (draws[..., 0] - Student.mean).square()
    torch.testing.assert_close(parts["mean"], squares.mean() / 2)
    spread = draws[..., 0].var(0) if count > 1 else squares[0]
    torch.testing.assert_close(parts["epistemic"], spread.mean() / 2)


def test_an_objective_that_redefines_its_parts_reads_the_draws() -> None:
    class Own(MomentMatching):
        def parts(self, student: Any, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
            return {"own": student.log_concentration.sum() * 0 + draws.sum()}

    draws = truth(inputs(4)).sample((6,))
    own = Own()
    assert not own.sufficient
    student = PredictiveGuide.for_inputs(inputs(4), C)(inputs(4))
    parts = own.parts_at(student, own.statistics(draws), inputs(4))
    torch.testing.assert_close(parts["own"], draws.sum())


#: A score at every second step; how near it is, in draws; the step after which the rate falls, and
#: the last one.
FALLS = {
    "at the latest": ([0.9**k for k in range(40)], 5e3, 32, 40),
    "three evaluations without an improvement": ([1.0], 3e2, 6, 14),
    "one, where it is near, for as long as before": ([1.0, 0.8, 0.6], 5e3, 6, 12),
    "of eight at most": ([0.9**k for k in range(5)], 5e3, 10, 18),
}


@pytest.mark.parametrize(("scores", "draws", "begin", "last"), FALLS.values(), ids=FALLS)
def test_a_plateau_begins_the_fall_of_the_rate(
    scores: list[float], draws: float, begin: int, last: int
) -> None:
    guide, rates = nn.Linear(1, 1), []
    left = list(scores)

    def judge(_: nn.Module) -> dict[str, float]:
        score = left.pop(0) if len(left) > 1 else left[0]
        return {"energy_distance": score, "kl": 0.0, "draws": draws}

    selection = KeepBest(guide, judge)
    selection.evaluate("start", 0, {})
    optimizer = torch.optim.SGD(guide.parameters(), 1.0)
    schedule = settling(1.0, 40, 8, lambda: selection.settling)

    def losses() -> tuple[dict[str, Tensor], None]:
        rates.append(optimizer.param_groups[0]["lr"])
        return {"loss": guide.weight.square().sum()}, None

    descent = Descent(losses, optimizer, schedule)
    phase = Phase("warm", 40, descent, patience=3, near=2e3, settle=8)
    fit([phase], selection, evaluate_every=2, progress=False)
    assert len(rates) == last
    falling = rates[begin:]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] == 1.0 and falling[-1] < 0.5 + 0.01
    assert rates[4:begin] == [1.0] * (begin - 4)
    assert len(set(falling)) == len(falling)


@pytest.mark.parametrize(
    ("width", "threads"), [(8, 1), pytest.param(1024, 2, marks=pytest.mark.slow)]
)
def test_small_steps_are_taken_by_one_thread(width: int, threads: int, monkeypatch) -> None:
    seen, step = set(), Phase.step
    before = torch.get_num_threads()

    def watched(phase: Phase, number: int) -> dict[str, float]:
        seen.add(torch.get_num_threads())
        return step(phase, number)

    monkeypatch.setattr(Phase, "step", watched)
    guide = PredictiveGuide.for_inputs(inputs(), C, hidden=(width, width))
    torch.set_num_threads(2)
    try:
        quick(guide=guide, num_steps=2, batch_size=128, loss="moments", recalibrate=False)
        assert torch.get_num_threads() == 2
        assert seen == {threads}
    finally:
        torch.set_num_threads(before)


def test_a_trial_tells_the_pace_and_leaves_no_trace() -> None:
    """The teacher sleeps for a hundredth of a second at every row."""
    guide, loss = PredictiveGuide.for_inputs(inputs(), C), MomentMatching()
    before = copy.deepcopy(guide.state_dict())
    asked = []

    def ask(x: Tensor, draws: int) -> Tensor:
        asked.append((len(x), draws))
        time.sleep(0.01 * len(x))
        return teacher()(x, draws)

    state = torch.get_rng_state()
    label, step = trial(guide, loss, ask, inputs(50), 4)
    assert torch.equal(torch.get_rng_state(), state)
    assert label == pytest.approx(0.01, rel=0.3) and 0 < step < 0.01
    assert asked == [(1, 4), (16, 4), (16, 4)]  # which have taken long enough to tell
    for name, value in guide.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in guide.parameters())


@pytest.mark.slow
def test_seconds_are_kept() -> None:
    """`python -m benchmarks.efforts` has those of others, alone on a machine."""
    distill = partial(pyro_opu.distill, teacher(), inputs(), progress=False, seed=0)
    distill(num_steps=2)  # loads what is loaded but once
    begun = time.perf_counter()
    fast = distill(effort=6.0)
    assert time.perf_counter() - begun == pytest.approx(6.0, rel=0.2)
    assert len(fast.report["history"]) > 3


def test_effort_may_be_seconds() -> None:
    distill = partial(pyro_opu.distill, teacher(), inputs(), progress=False, seed=0)
    with pytest.warns(UserWarning, match="`effort` leaves no time to teach: of 0.1 seconds"):
        distill(effort=0.1)
    for effort, got in ((0, "0"), (-1.0, "-1.0"), (float("nan"), "nan"), (True, "True")):
        with pytest.raises((TypeError, ValueError), match=f"`effort` must be .*got .*{got}"):
            pyro_opu.distill(teacher(), inputs(), effort=effort, progress=False)


def test_effort_is_a_number_of_steps() -> None:
    settings = {"batch_size": 8, "num_draws": 4, "progress": False, "seed": 0}
    fast = distill_flat(teacher(), inputs(), effort="quick", evaluate_every=500, **settings)
    assert fast.report["history"][-1]["step"] == 1000
    with pytest.raises(ValueError, match="`effort` must be one of .*'quick'.*; got 'much'"):
        distill_flat(teacher(), inputs(), effort="much", **settings)
