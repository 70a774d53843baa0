"""The scoreboard's bands, its measure of nearness, its kept draws and what it writes."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks import board_posteriors, same, scoreboard
from benchmarks.board_posteriors import POSTERIORS, SHARED
from pyro_opu.judging.yardstick import MOST_DRAWS, as_draws

NEAR, WITHIN = "cancer: draws", "cancer: within 50"


def test_a_band_holds_its_seeds_and_tells_worse_from_better():
    bands = {NEAR: scoreboard.band(NEAR, [90.0, 100.0, 110.0, 95.0, 105.0])}
    low, high = scoreboard.ends(NEAR, bands[NEAR])
    assert 60 < low < 75 and 130 < high < 165
    for value, left, bad in ((100.0, [], None), (50.0, [NEAR], True), (300.0, [NEAR], False)):
        assert scoreboard.outside({NEAR: value}, bands) == left
        if left:
            assert scoreboard.worse(NEAR, value, bands[NEAR]) is bad


def test_five_equal_seeds_have_a_band_all_the_same():
    bands = {WITHIN: scoreboard.band(WITHIN, [0.45] * 5)}
    assert scoreboard.ends(WITHIN, bands[WITHIN]) == pytest.approx((0.434, 0.466))
    assert scoreboard.worse(WITHIN, 0.40, bands[WITHIN])
    assert not scoreboard.worse(WITHIN, 0.50, bands[WITHIN])  # nearer to one half


def test_many_numbers_that_are_a_little_worse_are_too_many():
    names = [f"{k}: draws" for k in range(10)]
    bands = {name: scoreboard.band(name, [80.0, 90.0, 100.0, 110.0, 120.0]) for name in names}
    for moved, many in ((3, False), (4, True)):
        numbers = {name: 65.0 if k < moved else 100.0 for k, name in enumerate(names)}
        assert not scoreboard.outside(numbers, bands)
        assert scoreboard.leaning(numbers, bands, 1 / 3) == (names[:moved], many)
    assert scoreboard.leaning({name: 160.0 for name in names}, bands, 0.0) == ([], False)


def test_a_number_that_is_no_number_left_its_band():
    bands = {NEAR: scoreboard.band(NEAR, [90.0, 110.0])}
    assert scoreboard.outside({NEAR: math.nan}, bands) == [NEAR]


@pytest.mark.parametrize("held", [None, 400])
def test_nearness_is_that_of_the_mean_of_as_many_draws(held):
    """A student with the mean of n fresh draws, judged as ``fidelity`` judges, is n draws near."""
    generator = torch.Generator().manual_seed(0)
    n, inputs, judges = 50, 4000, 200
    sample = lambda count: (  # noqa: E731
        torch.randn(count, inputs, 3, generator=generator, dtype=torch.float64).softmax(-1)
    )
    posterior = sample(held) if held else sample(20_000 // 50)
    truth = posterior.mean(0) if held else sample(3000).mean(0)
    judge = posterior[:judges].mean(0)
    # Of a held posterior draws are taken with replacement: independent ones.
    mine = posterior[torch.randint(held, (n,), generator=generator)] if held else sample(n)
    kl = lambda p, q: float((p * (p / q).log()).sum(-1).mean())  # noqa: E731
    ratio = kl(judge, mine.mean(0)) / kl(judge, truth)
    assert as_draws(ratio, judges, held) == pytest.approx(n, rel=0.15)


def test_perfect_students_are_as_near_as_is_said():
    assert as_draws(0.99, 500, None) == MOST_DRAWS
    assert scoreboard.shown(MOST_DRAWS) == "over 10,000"


@pytest.mark.parametrize("name", [name for name in POSTERIORS if name not in SHARED])
def test_kept_draws_are_what_they_were_made_as(name):
    assert all(value.isfinite().all() for value in board_posteriors.values_of(name).values())


def test_changed_draws_are_refused(tmp_path, monkeypatch):
    (path,) = board_posteriors.FOLDER.glob("counts-*")
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    (tmp_path / path.name).write_bytes(changed)
    monkeypatch.setattr(board_posteriors, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match="not what it was made as"):
        board_posteriors.values_of("counts")


def test_only_what_stands_between_the_marks_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n\n" + "\nold\n".join(scoreboard.MARK) + "\n\nafter\n")
    for _ in range(2):
        scoreboard.quote(page, ["new"])
    first, last = scoreboard.MARK
    assert page.read_text() == f"before\n\n{first}\n\nnew\n\n{last}\n\nafter\n"


def test_distance_between_two_commits_is_in_units_of_spread():
    rows = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)).double()
    moved = rows + 0.1 * rows.std(0)
    assert same.distance(rows, moved) == pytest.approx(0.1)
    assert same.distance(10 * rows, 10 * moved) == pytest.approx(0.1)
