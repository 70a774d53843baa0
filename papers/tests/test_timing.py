"""Clocks of the benchmarks."""

from __future__ import annotations

import time

import pytest
import torch

from papers import timing

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
