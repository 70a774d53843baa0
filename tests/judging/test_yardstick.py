"""How near a student is: the numbers against known answers, and what they are told from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from pyro_opu.judging.advice import Known, graded, next_step
from pyro_opu.judging.yardstick import (
    FAITHFUL,
    GRADES,
    MOST_DRAWS,
    all_of,
    as_draws,
    grade_of,
    of_mean,
    of_shape,
    of_single_inputs,
    told,
    typical_factor,
)

N = 400  # inputs


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def constant(value: float, count: int = N) -> NDArray[np.float64]:
    return np.full(count, value)


@pytest.mark.parametrize("num_draws", [50, 200, 500, 2000])
@pytest.mark.parametrize("held", [None, 4000])
def test_draws_do_not_depend_on_how_many_judge(num_draws: int, held: int | None) -> None:
    """The KL of the mean of S draws of M is V (1 - S / M) / 2 S, that of a student V / 2 n more."""
    attainable = (1 - num_draws / (held or math.inf)) / (2 * num_draws)
    ratio = (attainable + 1 / (2 * 310)) / attainable
    assert as_draws(ratio, num_draws, held) == pytest.approx(310)


def test_draws_at_the_ends() -> None:
    assert as_draws(1.0, 500) == as_draws(0.3, 500) == as_draws(1.001, 500) == MOST_DRAWS
    assert math.isnan(as_draws(math.nan, 500))
    assert as_draws(2.0, 500) == 500 and as_draws(2.0, 500, 1000) == 1000


def test_the_interval_of_draws_holds_the_truth(random: np.random.Generator) -> None:
    """Errors of three classes' means: chi squares of two degrees of freedom, over 2 S."""
    inside = 0
    for _ in range(200):
        attainable = random.chisquare(2, N) / 1000
        own = random.chisquare(2, N) / (2 * 300)
        found = of_mean(attainable + own, attainable, 500, math.inf)
        inside += found.low <= 300 <= found.high
    # 95 % are promised; fewer than 88 % come once in 10,000.
    assert inside > 176


def test_the_factor_at_single_inputs_is_freed_of_the_noise(random: np.random.Generator) -> None:
    theirs = constant(0.1, 20_000)
    for noise in (0.0, 0.1, 0.2):
        for off in (0.0, 0.3, 0.6):
            signs = random.choice([-1.0, 1.0], len(theirs))
            own = signs * off * np.abs(random.standard_normal(len(theirs))) / 0.67449
            judged = theirs * np.exp(noise * random.standard_normal(len(theirs)))
            found = of_single_inputs(theirs * np.exp(own), judged, constant(noise, 20_000), 0.0)
            # Normal on both sides: the medians add up in squares. 20,000 inputs: 2 %; of squares of
            # .13 of which all but chance is taken off, .03.
            assert math.log(found.found.value) == pytest.approx(off, abs=0.035)
            assert found.by_chance == pytest.approx(math.exp(0.67449 * noise), rel=0.01)


def test_single_inputs_are_told_or_not(random: np.random.Generator) -> None:
    theirs, noise = constant(0.1), constant(0.05)
    half = np.where(np.arange(N) % 2, 1.5, 1 / 1.5)
    judged = theirs * np.exp(0.05 * random.standard_normal(N))

    def within(mine: NDArray[np.float64], count: int = N, **options: float) -> bool | None:
        parts = (mine[:count], judged[:count], noise[:count])
        return of_single_inputs(*parts, options.get("common", 0.0)).found.within

    assert within(theirs) is True and within(theirs * half) is False
    assert within(theirs, 8) is None and within(theirs * half, 8) is None
    assert within(theirs, common=0.2) is None  # joint draws: all inputs may be off together
    assert within(0 * theirs) is False  # no epistemic part at all
    # Too small to matter; not known; and nothing to be known.
    small = of_single_inputs(1e-7 * half, constant(1e-7), noise, 0.0).found
    assert small.within is True and math.isnan(small.value)
    assert of_single_inputs(theirs, theirs, constant(3.0), 0.0).found.within is None
    assert of_single_inputs(theirs, 0 * theirs, noise, 0.0).found.within is None
    # The student's own draws say that so few cannot tell.
    redrawn = theirs * np.exp(random.standard_normal(N))
    assert of_single_inputs(theirs, judged, noise, 0.0, redrawn).found.within is None


def test_the_typical_factor() -> None:
    ones = constant(1.0, 5)
    assert typical_factor(ones * [0.5, 2, 2, 4, 1], ones) == pytest.approx(2)
    assert typical_factor(ones, 0 * ones) != typical_factor(ones, 0 * ones)  # NaN
    assert typical_factor(0 * ones, ones) > 1e20


def test_the_shape_is_told_or_not(random: np.random.Generator) -> None:
    spread = constant(0.3)
    good = {0.5: constant(0.5), 0.9: constant(0.9)}

    def within(share: float, covered: dict[float, NDArray[np.float64]]) -> list[bool | None]:
        distance = share * spread + 1e-3 * random.standard_normal(N)
        found, intervals = of_shape(distance, spread, covered, 1000, math.inf)
        assert found.value == pytest.approx(share, abs=2e-3)
        return [found.within, *(each.within for each in intervals.values())]

    assert within(0.0, good) == [True] * 3
    assert within(0.1, good) == [False, True, True]
    assert within(0.0, {0.5: constant(0.7), 0.9: constant(0.96)}) == [True, False, True]
    assert within(FAITHFUL.share, good)[0] is None
    # Ten joint draws of all inputs say nothing of a coverage; all draws of a posterior say all.
    for held, expected in ((math.inf, None), (10.0, True)):
        _, intervals = of_shape(0 * spread, spread, good, 10, held)
        assert intervals[0.5].within is expected


def test_answers_together() -> None:
    assert told(-3.0, 1.0) is True and told(4.0, 1.0) is False
    assert told(-1.0, 1.0) is None and told(2.0, 1.0) is None and told(-1.0, math.inf) is None
    assert all_of([True, True]) is True and all_of([True, None]) is None
    assert all_of([None, False]) is False


def test_every_number_alone_lowers_the_grade() -> None:
    best = {"draws": 1e4, "factor": 1.0, "share": 0.0, "off": 0.0}
    assert grade_of(**best) == "excellent"
    for name, limits in GRADES.items():
        for number, limit in limits._asdict().items():
            beyond = limit * (0.99 if number == "draws" else 1.01)
            assert grade_of(**{**best, number: limit}) in ("excellent", name)
            names = [*GRADES, "poor"]
            assert grade_of(**{**best, number: beyond}) == names[names.index(name) + 1]
    assert grade_of(math.nan, math.nan, math.nan) == "excellent"  # nothing is known against it
    assert grade_of(45, 1.0, 0.0, held=40) == "excellent"
    assert grade_of(**best, faithful=False) == "fair"


ADVICE = {
    "nothing": (Known(faithful=True), "nothing"),
    "few rows": (Known(num_inputs=8), "at more inputs: 8 are too few"),
    "far inputs": (Known(faithful=False, beyond={"mean"}, far=0.3), "teach it there: 30 %"),
    "wrong family": (Known(faithful=False, beyond={"shape"}, family=0.2), 'guide="mixture"'),
    "few draws": (Known(faithful=False, beyond={"mean"}, held=20), "the posterior holds 20"),
    "lost start": (
        Known(report={"start": "scratch", "start_reason": "its operation relu_ is not known"}),
        "from scratch, since its operation relu_",
    ),
    "still learning": (
        Known(report={"kl_ratio": 3.0, "history": [{"kl_ratio": r} for r in (9.0, 6.0, 3.0)]}),
        "more steps: the last quarter took 50 %",
    ),
    "cannot be told": (Known(num_inputs=40), "or by more draws"),
    "all else": (Known(faithful=False, beyond={"epistemic"}), "more inputs in the `x` of distill"),
}


@pytest.mark.parametrize("case", ADVICE)
def test_one_next_step_by_its_cause(case: str) -> None:
    known, text = ADVICE[case]
    assert text in next_step(known)


def test_a_mixture_that_misses_the_shape_is_not_told_to_be_one() -> None:
    known = Known(
        faithful=False, beyond={"shape"}, family=0.2, report={"family": "DirichletMixture"}
    )
    assert "mixture" not in next_step(known)


def test_a_distillation_is_graded_by_the_same_limits() -> None:
    report = {"draws": 340.0, "epistemic_factor": 1.05, "energy_share": 0.004, "num_held_out": 90}
    assert graded(report) == ("good", "nothing; it can be used for its posterior.")
    assert graded({**report, "draws": 60.0})[0] == "fair"
    assert graded({**report, "num_held_out": 5})[0] == "not graded"
    assert graded({**report, "epistemic_factor": None})[0] == "good"  # nothing to be told
    assert "guide=" in graded({**report, "energy_share": 0.2, "misfit": 0.19})[1]
