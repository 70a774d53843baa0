"""The plan of a run: numbers from numbers, without a step."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from taught import X, teacher
from torch import nn

from pyro_opu import MomentMatching, PredictiveGuide, WassersteinELBO, distill
from pyro_opu.objectives import EnergyDistance, Objective, as_objective
from pyro_opu.training import train
from pyro_opu.training.options import Request, Training
from pyro_opu.training.plan import Affordable, Facts, Pace, Plan, affordable
from pyro_opu.training.tuned import FEWEST, POOL_NUMBERS

#: A small student and a large one, of dropout networks with two classes and three columns, which
#: begin far from where they end.
SMALL = Facts(51, 3, 2, draw_cost=2**14, weights=2**13, width=64, pass_cost=2**14)
LARGE = replace(SMALL, weights=2**20, width=700, draw_cost=2**21, pass_cost=2**21)
MOMENTS = MomentMatching()
PAPER = {"likelihood": 0.0, "residual": False, "two_sided": True}


def plan(facts: Facts = SMALL, loss: Objective = MOMENTS, **given: Any) -> Plan:
    """The plan of a default student, with these words of ``Request`` and ``Training``."""
    asked = {name: given.pop(name) for name in ("effort", "guide", "start") if name in given}
    return Plan.of(Request(training=Training(**given), **asked), facts, MOMENTS, loss)


# Steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "given", "steps"),
    [
        ({}, {}, 3000),
        ({}, {"effort": "quick"}, 1000),
        ({}, {"effort": "thorough"}, 12_000),
        ({}, {"num_steps": 7}, 7),
        ({"begins_near": 1000.0}, {}, 1000),
        ({"one_logit": True}, {}, 1000),
        ({"one_logit": True}, {"effort": "thorough"}, 12_000),
        ({"begins_near": 1000.0, "one_logit": True}, {"guide": nn.Linear(1, 1)}, 3000),
        ({}, {"start": SimpleNamespace()}, 300),
        ({"one_logit": True}, {"start": SimpleNamespace()}, 300),
    ],
)
def test_steps_by_effort_and_by_where_it_begins(
    changes: dict[str, Any], given: dict[str, Any], steps: int
) -> None:
    found = plan(replace(SMALL, **changes), **given)
    assert (found.warm_steps, found.refine_steps) == (steps, 0)
    few = (10 if "start" in given else 1) * (4 if changes.get("one_logit") and not given else 1)
    if "guide" not in given and given.get("effort") is None:
        assert found.calibration == 2**23 // few


def test_another_objective_takes_a_tenth_of_the_steps() -> None:
    found = plan(loss=EnergyDistance(), num_steps=100)
    assert (found.warm_steps, found.refine_steps) == (90, 10)
    assert (plan(loss=EnergyDistance(), num_steps=1).warm_steps) == 1


def test_seconds_are_spent_by_a_trial() -> None:
    asked = []

    def trial(*numbers: int) -> tuple[Affordable, float]:
        asked.append(numbers)
        return Affordable(128, 600, 15, 5000), 2.5

    request = Request(effort=10.0)
    found = Plan.of(request, SMALL, MOMENTS, MOMENTS, ranks=2, trial=trial)
    assert asked == [(256, 32, 10 * 2**18)]  # a batch, draws at each, and numbers that calibrate
    assert (found.warm_steps, found.labelled, found.label_draws) == (600, 5000, 32)
    assert (found.batch_size, found.evaluate_every, found.after) == (128, 15, 2.5)


def test_what_is_affordable() -> None:
    """A hundredth of a second for a label, a thousandth for an input of a step."""
    pace = Pace(0.01, 0.001, 0.5)
    found = affordable(pace, 100.0, 256)
    assert found.batch_size == 128 and found.steps == int(70 / 0.128)
    assert found.inputs == 3000 and found.evaluate_every == found.steps // 21
    assert affordable(pace, 100.0, 32) == (32, int(70 / 0.032), 104, 3000)
    assert affordable(pace, -1.0, 256) == (32, 50, 1, 32)


def test_a_quick_run_asks_for_a_quarter_of_the_labels() -> None:
    for facts in (SMALL, LARGE, replace(SMALL, max_draws=1000), replace(LARGE, max_draws=100)):
        whole, quick = plan(facts), plan(facts, effort="quick")
        labels = [each.labelled * each.label_draws for each in (whole, quick)]
        assert 0 < 4 * labels[1] <= labels[0]


def test_ranks_share_the_labels() -> None:
    whole = plan()
    for ranks in (2, 3):
        shared = Plan.of(Request(), SMALL, MOMENTS, MOMENTS, ranks=ranks)
        assert shared == replace(whole, labelled=-(-whole.labelled // ranks))


@pytest.mark.parametrize(
    ("loss", "given", "steps", "batch", "rate"),
    [
        (EnergyDistance(), {}, 3000, 256, 4e-3),
        (MOMENTS, {}, 3000, 256, 4e-3),
        (WassersteinELBO(), {}, 2000, 128, 4e-3),
        (WassersteinELBO(), {"learning_rate": 1e-3}, 2000, 128, 1e-3),
        # Without a direction that is known the critic learns twice as fast as the student.
        (WassersteinELBO(**PAPER), {}, 3000, 128, 2e-3),
    ],
)
def test_from_scratch_steps_are_those_of_a_warm_start(
    loss: Objective, given: dict[str, Any], steps: int, batch: int, rate: float
) -> None:
    found = plan(loss=loss, warm_start=False, **given)
    assert (found.warm_steps, found.refine_steps) == (0, steps)
    assert (found.batch_size, found.learning_rate) == (batch, rate)
    assert bool(found.labelled) == (not isinstance(loss, EnergyDistance))
    if isinstance(loss, WassersteinELBO):
        assert found.label_draws == 32


# A step --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("facts", "batch"), [(SMALL, 256), (LARGE, 1024)])
def test_a_large_default_student_gets_larger_batches(facts: Facts, batch: int) -> None:
    found = plan(facts, num_steps=400)
    assert found.batch_size == batch
    # In all steps together 400 batches, and by default no more than 2^16 inputs for 256 each.
    assert found.labelled == min(400 * batch, 2**16 * batch // 256)
    assert plan(facts, num_steps=400, guide=nn.Linear(1, 1)).batch_size == 256
    assert plan(facts, num_steps=400, batch_size=33).batch_size == 33


@pytest.mark.parametrize(
    ("guide", "rate"),
    [
        (PredictiveGuide.for_inputs(torch.randn(4, 3), 2), 4e-3),  # three layers of 128
        (PredictiveGuide.for_inputs(torch.randn(4, 57), 2), 4e-3),  # of 256
        (PredictiveGuide.for_inputs(torch.randn(4, 784), 10), 2e-3),  # of 512
        (PredictiveGuide.for_inputs(torch.randn(4, 5), 1000, hidden=(64,)), 4e-3),  # many classes
        (PredictiveGuide.for_inputs(torch.rand(4, 28, 28), 10), 4e-3),  # convolutions
        (nn.Sequential(nn.Linear(2000, 1024), nn.Linear(1024, 2)), 1e-3),
        (nn.BatchNorm1d(3), 4e-3),  # no matrix
    ],
)
def test_the_rate_falls_as_one_over_the_width(guide: nn.Module, rate: float) -> None:
    source: Any = SimpleNamespace(num_outputs=2, max_draws=None, operations=lambda x: None)
    facts = Facts.of(Request(guide=guide), guide, source, torch.zeros(4, 3), held_out=source)
    assert facts.rate == rate
    assert facts.weights == sum(p.numel() for p in guide.parameters())


DISTILLERS = {
    "classifier": teacher,
    "regressor": lambda x: (torch.randn(9, 1) * x[:, 0], torch.ones(9, 1)),
}


@pytest.mark.parametrize("kind", DISTILLERS)
def test_the_planned_rate_is_taken(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def watched(*args: Any, rate: float, steps: int, **options: Any) -> Any:
        seen.extend([rate] * bool(steps))
        return own(*args, rate=rate, steps=steps, **options)

    own = train.distillation_phase
    monkeypatch.setattr(train, "distillation_phase", watched)
    monkeypatch.setattr("pyro_opu.training.tuned.RATE", 1e-5)
    distill(DISTILLERS[kind], X[:12], loss="moments", num_steps=6, seed=0, progress=False)
    assert seen == [1e-5]


# Labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "draws", "steps", "labelled"),
    [
        (LARGE, 4, 400, 0),  # each step draws anew
        (LARGE, 4, 40, 40 * 256),  # no input comes twice
        (LARGE, 32, 400, 2**16),
        (SMALL, 4, 400, 2**16),  # too small to learn them by heart
    ],
)
def test_a_large_student_does_not_meet_few_draws_again(
    facts: Facts, draws: int, steps: int, labelled: int
) -> None:
    found = plan(facts, num_draws=draws, num_steps=steps, batch_size=256)
    assert found.labelled == labelled and found.warm_draws == draws


def test_one_draw_at_a_time_is_two_queries_of_half_as_many_inputs() -> None:
    found = plan(LARGE, num_draws=1)
    assert (found.batch_size, found.warm_draws, found.num_draws) == (512, 2, 2)
    assert (found.labelled, found.label_draws, found.label_block) == (2**17, 2, 32)


def test_a_student_that_begins_at_another_takes_a_fifth_of_the_labels() -> None:
    whole, fewer = plan(), plan(start=SimpleNamespace())
    assert fewer.labelled == whole.labelled // 5 and fewer.follows and not whole.follows


def test_sizes_by_memory_and_by_what_the_loss_reads() -> None:
    facts = Facts(200, 2, 3)

    def size(facts: Facts, objective: Any, wanted: int) -> tuple[int, int, int]:
        return facts.labels(objective, wanted, 32, fixed=False)

    assert size(facts, MomentMatching(), 500)[0] == 500
    assert size(facts, MomentMatching(), 0) == (0, 0, 0)
    assert size(facts, EnergyDistance(), 500) == (0, 0, 0)  # it would learn their luck
    inputs, draws, _ = size(facts, WassersteinELBO(), 10**9)  # which keeps the draws
    assert draws == 32 and inputs == POOL_NUMBERS // (2 + 32 * 3)
    wide = Facts(4, POOL_NUMBERS // FEWEST, 3)
    assert size(wide, MomentMatching(), 100_000) == (0, 0, 0)  # too few to be held
    assert size(wide, MomentMatching(), 500)[0] == 500


@pytest.mark.parametrize(
    ("held", "cost", "draws"),
    [
        (None, 1, 500),  # no more of a posterior that draws afresh
        (1000, 1, 1000),  # all, without luck
        (1000, 2**17, 512),  # all would cost too much
        (1000, 2**19, 128),  # fewer are affordable
        (None, 2**30, 32),
    ],
)
def test_draws_by_cost_and_by_luck(held: int | None, cost: int, draws: int) -> None:
    """At 2^14 inputs, in 32 blocks."""
    facts = Facts(200, 2, 2, held, cost)
    assert facts.labels(as_objective("moments"), 2**14, 32, fixed=False)[1] == draws


@pytest.mark.parametrize(
    ("steps", "draws"),
    [
        (0, 32),
        (2**42, 160),  # two and a half times as many operations in labels as in steps
        (2**52, 409),  # as many numbers as are held at once
    ],
)
def test_draws_by_the_operations_of_the_steps(steps: int, draws: int) -> None:
    """Labels of a posterior that costs much, at 2^16 inputs of 10 classes."""
    facts = Facts(200, 2, 10, draw_cost=2**20)
    assert facts.labels(MOMENTS, 2**16, 32, fixed=False, steps=steps)[1] == draws


def test_draws_are_shared_by_at_most_so_many_blocks() -> None:
    facts = Facts(200, 2, 2, draw_cost=1)
    wanted = (2**14, 2**17, 2**18)
    assert [facts.labels(MOMENTS, n, 32, False)[2] for n in wanted] == [2**9, 2**9, 2**10]
