"""Clocks of the benchmarks, and times scaled to all draws."""

from __future__ import annotations

import math
import time

import pytest
import torch

from benchmarks import paying, speed_ways, timing
from benchmarks.speed_models import ALIKE

CPU = torch.device("cpu")


class Clock:
    """Time that passes only when a call says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def taking(self, *seconds: float):
        """A call that takes these seconds, one after another, and then the last again."""
        left = list(seconds)

        def call() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class TestClocks:
    def test_median_and_quartiles(self, clock: Clock) -> None:
        """The first call is not measured; of 1, 2, 3, 4, 9 the quartiles are 2 and 4."""
        found = timing.spans({"a": clock.taking(50.0, 1.0, 4.0, 9.0, 2.0, 3.0)}, 18.5)["a"]
        assert found == timing.Timing(median=3.0, iqr=2.0, runs=5)
        assert found.times(10) == timing.Timing(30.0, 20.0, 5)

    def test_in_turn_and_at_least_three_rounds(self, clock: Clock) -> None:
        order: list[str] = []
        ways = {name: (lambda name=name: order.append(name)) for name in "ab"}
        timing.spans(ways, 0.0, lambda: order.append("|"))
        assert "".join(order) == "ab|" + 3 * "a|b|"
        order.clear()
        timing.spans(ways, 0.0, warm=True)
        assert "".join(order) == 3 * "ab"

    def test_medians_alone(self, clock: Clock) -> None:
        assert timing.timed({"a": clock.taking(2.0), "b": clock.taking(5.0)}, 0.0) == {
            "a": 2.0,
            "b": 5.0,
        }


class TestScaling:
    """A way that takes a second for every run of a model, and two runs beside its draws."""

    def way(self, clock: Clock, most: int = 10**6) -> speed_ways.ByDraws:
        return speed_ways.ByDraws(lambda n: clock.taking(n + 2.0), 500, most, fixed=2)

    @pytest.mark.parametrize(("bound", "timed"), [(1e4, 500), (0.1, 2), (60.0, 30)])
    def test_time_is_that_of_all_draws(self, clock: Clock, bound: float, timed: int) -> None:
        ways = {"slow": self.way(clock)}
        found = speed_ways.clocked({}, ways, (0.0, 0.0), bound, CPU)["slow"]
        assert (found.draws, found.timed) == (500, timed)
        assert found.time.median == pytest.approx(502.0, rel=1e-12)  # rounding of a product

    def test_memory_bounds_the_draws(self, clock: Clock) -> None:
        found = speed_ways.clocked({}, {"slow": self.way(clock, 20)}, (0.0, 0.0), 1e4, CPU)["slow"]
        assert found.timed == 20 and found.time.median == pytest.approx(502.0, rel=1e-12)

    def test_rows(self) -> None:
        one = speed_ways.Found(timing.Timing(0.002, 0.001, 7))
        slow = speed_ways.Found(timing.Timing(0.5, 0.1, 3), draws=500, timed=50)
        found = {"one pass": one, "one pass, teacher's widths": one, "slow": slow}
        names = {"": "default (9)", ALIKE: "teacher's widths (4)"}
        rows = speed_ways.rows_of(found, {"N": 4}, names)
        assert next(iter(rows[0])) == "student"
        assert [row["student"] for row in rows] == [*names.values(), ""]
        assert [row["way"] for row in rows] == ["one pass", "one pass", "slow"]
        assert rows[0] == {
            "student": "default (9)", "N": 4, "way": "one pass", "ms": 2.0, "IQR, ms": 1.0,
            "runs": 7, "times one pass": 1.0,
        }  # fmt: skip
        assert rows[2]["times one pass"] == 250.0
        assert (rows[2]["draws"], rows[2]["draws timed"]) == (500, 50)


class TestPaying:
    def test_break_even(self) -> None:
        """Ten seconds at a gain of a fifth of a second per call are fifty calls."""
        assert paying.break_even(10.0, 0.25, 0.05) == pytest.approx(50.0, rel=1e-12)
        assert paying.break_even(10.0, 0.05, 0.25) == math.inf

    def test_calls_are_those_of_one_pass(self) -> None:
        times = {"one pass": 0.001, "drop-in call": 0.002, "probabilities": 0.0005}
        row = paying.calls_that_pay(times | {"batched": 0.003, "Predictive": 0.101}, 4.0)
        assert row["calls that pay, batched"] == pytest.approx(2000)
        assert row["calls that pay, Predictive"] == pytest.approx(40)
        assert row["calls that pay, probabilities"] == math.inf
        assert row["drop-in call, ms"] == 2.0

    def test_bars_name_the_worst_of_a_group_at_all_test_rows(self) -> None:
        rows = [
            {"name": name, "N": count, "distill, s": seconds, "calls that pay, batched": calls}
            for name, seconds, calls in (("pima-nuts", 1, 30), ("pima-svgp", 6, 9000))
            for count in (1, 77)
        ]
        calls, seconds = paying.bars(rows)
        assert (calls["the worst"], calls["measured"], calls["met"]) == ("pima-nuts", 30, "yes")
        assert (seconds["the worst"], seconds["measured"], seconds["met"]) == ("pima-svgp", 6, "no")
