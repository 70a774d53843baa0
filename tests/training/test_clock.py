"""A run keeps to its seconds, by a clock that the tests set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_opu.inputs import inputs_of
from pyro_opu.rng import RandomStream
from pyro_opu.training import clock, tuned
from pyro_opu.training.clock import Clock, Countdown, pace
from pyro_opu.training.fit import KeepLast, Phase, fit
from pyro_opu.training.run import Run

CPU = torch.device("cpu")


class Now:
    """The time, which goes on as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        told = SimpleNamespace(perf_counter=lambda: self.seconds)
        monkeypatch.setattr(clock, "time", told)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    return Now(monkeypatch)


def test_the_pace_is_taken_where_a_call_takes_long_enough(now: Now) -> None:
    asked: list[int] = []

    def call(rows: int) -> None:
        now.seconds += 0.001 * rows + (0.5 if not asked else 0.0)  # the first call is slow
        asked.append(rows)

    def slow(rows: int) -> None:
        now.seconds += 2.0 * rows

    assert pace(slow, 100, CPU) == pytest.approx(2.0)
    assert pace(call, 1000, CPU) == pytest.approx(0.001, rel=1e-6)
    assert asked == [16, 16, 64, 64] and pace(call, 3, CPU) == pytest.approx(0.001, rel=1e-6)


@pytest.mark.parametrize("once", [0.01, 0.04, 0.08])
def test_what_a_call_costs_whatever_its_rows_is_not_a_row_s(now: Now, once: float) -> None:
    """Draws of a guide are made once for all rows; a row itself takes a tenth of a millisecond."""

    def call(rows: int) -> None:
        now.seconds += once + 1e-4 * rows

    assert pace(call, 256, CPU) <= 1e-4 + 1.01 * once / 256


def test_as_many_rows_as_a_share_of_the_seconds(now: Now) -> None:
    x = torch.arange(1000.0)[:, None]

    def call(rows: Tensor) -> None:
        now.seconds += 0.1 * len(rows)

    run = Run(inputs_of(x, None), x[:0], None, RandomStream(0, CPU), CPU, clock=Clock(100.0, 0.0))
    found = run.some(x, call, 0.05, 2)
    assert len(found) == 50 and float(found[0]) == 0 and float(found[-1]) == 999
    assert len(run.some(x, call, 0.05, 300)) == 300
    assert (
        Run(inputs_of(x, None), x[:0], None, RandomStream(0, CPU), CPU).some(x, call, 0.05, 2) is x
    )


class Watched(KeepLast):
    """Notes when it was asked to judge, which takes as long as ten steps."""

    def __init__(self, now: Now) -> None:
        super().__init__()
        self.now, self.seen = now, []  # type: ignore[var-annotated]

    def evaluate(self, phase: str, step: int, parts: dict[str, float]) -> None:
        self.now.seconds += 1.0
        self.seen.append((step, self.settling))


@pytest.mark.parametrize("per_step", [0.1, 0.4])
def test_steps_end_with_the_countdown_and_settle_in_their_last_half(
    now: Now, per_step: float
) -> None:
    """1,000 steps were planned; there is time for some hundred."""

    class Steps:
        optimizer: Any = None

        def step(self, number: int) -> dict[str, float]:
            now.seconds += per_step
            return {"loss": 1.0}

    watched = Watched(now)
    phase = Phase("warm start", 1000, Steps(), patience=6, settle=500)
    countdown = Countdown(Clock(105.0, 0.0), after=5.0)
    fit([phase], watched, evaluate_every=10, progress=False, countdown=countdown)
    assert now.seconds == pytest.approx(100.0, abs=1.0 + 10 * per_step)
    last = watched.seen[-1][0]
    assert last == pytest.approx(100 / (per_step + 0.1), rel=0.05)
    begun, _ = watched.seen[-1][1]
    assert begun == pytest.approx(last / 2, abs=11)


def test_without_seconds_there_is_no_end(now: Now) -> None:
    countdown = Countdown()
    countdown.begin(1.0)
    now.seconds = 1e9
    assert countdown.more(1) == float("inf") and not countdown.over
    assert tuned.FEWEST_STEPS > 0


def test_an_overrun_is_said(now: Now) -> None:
    own = Clock(10.0, 0.0)
    now.seconds = 11.9
    own.check()
    now.seconds = 13.0
    with pytest.warns(UserWarning, match="`effort` was 10 seconds, and the call took 13"):
        own.check()
