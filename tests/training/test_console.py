"""Lines that a run shows: their width, and the time that is left."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import pyro_opu
from pyro_opu import distillation
from pyro_opu.training import console, fit


class Clock:
    """Time that passes only when it is told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tqdm.std.time", clock)
    return clock


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.replace("\r", "\n").split("\n") if line.strip()]


def test_a_line_fits_80_columns_and_leaves_some_to_the_bar(clock: Clock, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with console.line("1/2 warm start", 27_000) as bar:
        bar.fp = bar.sp = None
        bar.ncols, (clock.now) = 80, clock.now + 754.0
        bar.n = 13_500
        bar.set_postfix_str("mean as of 310 draws", refresh=False)
        shown = str(bar)
        bar.disable = True
    assert len(shown) == 80 and shown.startswith("1/2 warm start  50%|")
    assert shown.endswith("13500/27000 [12:34<12:34, mean as of 310 draws]")
    assert len(shown.split("|")[1]) >= 10


class Timed(fit.KeepLast):
    """Evaluations of two seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def update(self, step: int, parts: dict[str, float]) -> None: ...

    def evaluate(self, phase: str, step: int, parts: dict[str, float]) -> None:
        self.clock.now += 2.0


def phase_of(clock: Clock, name: str, steps: int, seconds: Iterator[float]) -> fit.Phase:
    class Paced(fit.Phase):
        def step(self, number: int) -> dict[str, float]:
            clock.now += next(seconds)
            return {}

    return Paced(name, steps, [])


def test_time_left_is_that_of_the_phase_with_its_evaluations(clock: Clock, monkeypatch) -> None:
    """0.2 s a step and 2 s every tenth step, the first phase with a first step of 60 s."""
    seen: list[tuple[str, int, float, float]] = []
    made = console.line

    def watched(phase: str, *args: Any, **kwargs: Any) -> Any:
        bar = made(phase, *args, **kwargs)
        bar.fp = io.StringIO()
        update = bar.update

        def updated(n: int = 1) -> None:
            update(n)
            rate = bar.format_dict["rate"] or bar.n / (clock.now - bar.start_t)
            seen.append((phase, bar.n, (bar.total - bar.n) / rate, clock.now))

        bar.update = updated
        return bar

    monkeypatch.setattr(fit, "line", watched)
    slow_first = itertools.chain([60.0], itertools.repeat(0.2))
    phases = [
        phase_of(clock, "one", 1000, slow_first),
        phase_of(clock, "two", 200, itertools.repeat(0.8)),
    ]
    fit.fit(phases, Timed(clock), evaluate_every=10, random=None)
    for name, steps, within in (("1/2 one", 1000, 0.15), ("2/2 two", 200, 0.1)):
        own = [each for each in seen if each[0] == name]
        assert len(own) == steps
        for share in (0.5, 0.9):
            _, _, left, now = own[int(share * steps) - 1]
            assert left == pytest.approx(own[-1][3] - now, rel=within)


def test_parts_of_a_phase_are_shown_only_where_it_takes_long(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    for seconds, count in ((0.01, 0), (1.0, 1)):
        for _ in console.tracked([(30, "a"), (30, "b"), (4, "c")], "labelling", 64, True):
            clock.now += seconds
        shown = lines(capsys.readouterr().err)
        assert bool(shown) == bool(count)
    assert shown[-1].startswith("labelling      100%|") and "64/64" in shown[-1]
    assert [*console.tracked([(1, "a"), (2, "b")], "labelling", 3, False)] == ["a", "b"]
    assert capsys.readouterr().err == ""


def test_what_is_foretold() -> None:
    assert console.foretold(20.0, 9.0, 8.0, False) is None
    assert console.foretold(25.0, 12.0, None, False) == (
        "about 37 seconds here, or less: labels 25, steps 12"
    )
    assert console.foretold(1500.0, 720.0, 540.0, True) == (
        "about 37 minutes here, or less: labels 25, steps 12; "
        'effort="quick" 9; effort=60 one minute in all; there is a GPU for device="cuda"'
    )


def test_a_long_run_says_so_before_its_first_step(capsys, monkeypatch) -> None:
    """The teacher takes a millisecond a row, so that 2^16 rows take a minute."""

    def teacher(x: Tensor, num_draws: int) -> Tensor:
        time.sleep(0.001 * len(x))
        return (x @ torch.randn(num_draws, 3, 3)).softmax(-1)

    monkeypatch.setattr(distillation, "train", lambda *_: 1 / 0)  # the first step
    for shown in (True, False):
        with pytest.raises(ZeroDivisionError):
            pyro_opu.distill(teacher, torch.randn(20, 3), seed=0, progress=shown)
        assert (" here, or less: labels" in capsys.readouterr().err) == shown
