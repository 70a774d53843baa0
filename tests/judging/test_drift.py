"""Evidence that a stream has changed: uniform ranks, false alarms, delays, batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest, kstest

from pyro_opu.judging.drift import FIXED, INPUTS, LEVELS, Evidence, Watch, bets, counted, edges_of

RARE = 1e-5  # of a test that can fail by chance


def of_kept(kept: np.ndarray) -> dict:
    """Kept scores of inputs and of two answers, one of them with ties."""
    return {
        INPUTS: counted(kept[:, 0]),
        "class": counted(np.floor(3 * kept[:, 1]), edges_of(np.arange(3.0))),
        "certainty": counted(kept[:, 2], edges_of(np.linspace(0, 1, 50))),
    }


def scores(rows: np.ndarray) -> dict[str, np.ndarray]:
    return {INPUTS: rows[:, 0], "class": np.floor(3 * rows[:, 1]), "certainty": rows[:, 2]}


def slow_ranks(evidence: Evidence, values: np.ndarray, u: np.ndarray) -> list[float]:
    edges = list(evidence.edges)
    rows = [k for k, count in enumerate(evidence.kept) for _ in range(count)]
    found = []
    for value, chance in zip(values, u, strict=True):
        rows.append(sum(value > edge for edge in edges))
        above = sum(each > rows[-1] for each in rows)
        alike = sum(each == rows[-1] for each in rows)
        found.append((above + chance * alike) / len(rows))
    return found


def slow_evidence(ranks: list[float], kept: int) -> list[float]:
    active, found = [0.0] * 48, []
    for t, p in enumerate(ranks, 1):
        asleep, before = 1 / (1 + math.log(1 + t)), 1 / (1 + math.log(t))
        ends = [*FIXED.T, (0.0, t / (t + kept)), (kept / (t + kept), 1.0)]
        gamblers = [(*each, stake) for stake in (0.5, 0.1) for each in ends]
        for k, (low, high, stake) in enumerate(gamblers):
            inside = low < p <= high
            active[k] = (active[k] + before - asleep) * (1 + stake * (inside / (high - low) - 1))
        found.append(sum(active) / len(active) + asleep)
    return found


def test_ranks_and_evidence_are_those_of_loops() -> None:
    g = np.random.default_rng(0)
    kept, rows, u = g.random(30), np.r_[g.random(40), 0.9 + 0.1 * g.random(30)], g.random(70)
    one, two = (Evidence(counted(kept)) for _ in range(2))
    ranks = slow_ranks(one, rows, u)
    assert two.ranks(rows, u) == pytest.approx(ranks)
    assert np.exp(one.add(rows, u)) == pytest.approx(slow_evidence(ranks, 30))


def test_every_bet_is_fair() -> None:
    """Its mean over a uniform rank is 1, and none can lose all."""
    low, high, stake = bets(np.array([1, 7, 448]), 64)
    p = (np.arange(2**16) + 0.5) / 2**16
    for lower, upper in zip(low, high, strict=True):
        inside = (lower < p[:, None]) & (p[:, None] <= upper)
        factors = 1 + stake * (inside / (upper - lower) - 1)
        assert factors.mean(0) == pytest.approx(np.ones(len(stake)), rel=1e-3)
        assert factors.min() > 0


def test_ranks_are_uniform_however_few_rows_were_kept() -> None:
    """Over kept rows too: 3 of them know little of the share above .99, and the ranks say so."""
    g, found = np.random.default_rng(1), []
    for _ in range(400):
        values = np.round(g.random(43), 1)
        evidence = Evidence(counted(values[:3]))
        found.append(evidence.ranks(values[3:], g.random(40)))
    ranks = np.array(found)
    assert kstest(ranks.ravel(), "uniform").pvalue > RARE
    assert abs(np.corrcoef(ranks[:, :-1].ravel(), ranks[:, 1:].ravel())[0, 1]) < 5 / 400**0.5 / 6


@pytest.mark.parametrize("kept", [19, 300])
def test_false_alarms_are_no_more_than_promised(kept: int) -> None:
    """300 streams of 300 rows, looked at after each row, at one in ten."""
    g, alarms, trials = np.random.default_rng(2), 0, 300
    for _ in range(trials):
        rows = g.random((kept + 300, 3))
        watch = Watch(of_kept(rows[:kept]), 0.1)
        watch.add(scores(rows[kept:]))
        alarms += watch.alarm
    assert binomtest(alarms, trials, 0.1, "greater").pvalue > RARE


def test_single_rows_and_batches_say_the_same() -> None:
    g = np.random.default_rng(3)
    kept, rows = g.random((50, 3)), np.vstack([g.random((300, 3)), 0.5 + g.random((900, 3)) / 2])
    found = []
    for size in (1, 7, 600, 1200):
        watch = Watch(of_kept(kept), 0.01)
        for start in range(0, len(rows), size):
            watch.add(scores(rows[start : start + size]))
            watch.add(scores(rows[:0]))
        assert watch.since == 2 * ((watch.row - 1) // size) + 1 and watch.rows == 1200
        found.append([watch.row, watch.of, *(each.log for each in watch.evidence.values())])
    for other in found[1:]:
        assert other[:2] == found[0][:2] and other[2:] == pytest.approx(found[0][2:])


@pytest.mark.parametrize("before", [0, 100, 20_000])
@pytest.mark.parametrize("kept", [19, 100, 500])
def test_a_shift_is_found_in_some_rows(kept: int, before: int) -> None:
    """All rows novel: in 25 rows of teaching; later, too, though it may come at any time."""
    g = np.random.default_rng(4)
    watch = Watch(of_kept(g.random((kept, 3))), 0.001)
    watch.add(scores(g.random((before, 3))))
    assert not watch.alarm
    shifted = g.random((100, 3))
    shifted[:, 0] = 0.999 + shifted[:, 0] / 1000
    watch.add(scores(shifted))
    assert watch.of == "inputs" and watch.since == 2 and watch.row - before <= 25


def test_answers_raise_it_where_inputs_do_not() -> None:
    g = np.random.default_rng(5)
    kept = g.random((300, 3))
    for column in (1, 2):
        watch, rows = Watch(of_kept(kept), 0.001), g.random((300, 3))
        rows[:, column] = rows[:, column] ** 4
        watch.add(scores(rows))
        assert watch.of == "answers" and watch.row < 150
        assert f"alarm in batch 1, row {watch.row}, by the answers; 300 rows" in str(watch)


def test_inputs_that_hardly_vary_are_found_too() -> None:
    """A sensor that stands still has the same novelty, in the middle of those taught at."""
    g = np.random.default_rng(6)
    watch, rows = Watch(of_kept(g.random((300, 3))), 0.001), g.random((400, 3))
    rows[:, 0] = 0.4
    watch.add(scores(rows))
    assert watch.of == "inputs" and watch.row < 100


def test_it_says_what_is_novel() -> None:
    kept = np.array([[0.5, 0.5, 0.5]] * 98 + [[0.995, 0.5, 0.5]] * 2)
    watch = Watch(of_kept(kept), 0.001)
    assert "no alarm; 0 rows in 0 batches, 100 kept; false in at most 0.1 % of streams" in str(
        watch
    )
    watch.add(scores(np.array([[0.99, 0.5, 0.5]] * 3 + [[0.9901, 0.5, 0.5]])))
    assert "above 0.99 25 % of rows, 2 % of kept ones" in str(watch)
    assert 0.99 in LEVELS
