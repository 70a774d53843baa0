"""``fast.watch``: students of every kind, shifted rows, restarts, files, errors."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kept_rows import WEIGHTS, quick, rows, teacher
from scipy.stats import binomtest
from torch import Tensor
from widest import Widest

from pyro_opu import OnePassPredictive
from pyro_opu.checks.errors import ArgumentError
from pyro_opu.judging.drift import INPUTS, Watch, counted
from pyro_opu.predictive import with_novelty
from pyro_opu.training.certify import FEW

pytestmark = pytest.mark.usefixtures("brief")


@pytest.fixture(scope="module")
def fast() -> OnePassPredictive:
    return quick(teacher, rows(600))


def test_shifted_rows_raise_it_and_others_do_not(fast: OnePassPredictive) -> None:
    inside = fast.watch(rows(2000, seed=1), restart=True)
    assert not inside.alarm and inside.since is None and (inside.batches, inside.rows) == (1, 2000)
    found = fast.watch(3 + rows(50, seed=2))
    assert found.alarm and (found.since, found.of) == (2, "inputs") and found.row < 2025
    assert fast.watch(rows(5, seed=3)).since == 2  # it stays
    assert not fast.watch(rows(5, seed=3), restart=True).alarm


def test_rows_are_scored_a_block_at_a_time(fast: OnePassPredictive, monkeypatch: Any) -> None:
    x = rows(500, seed=9)
    whole = fast._scores(x)
    with Widest() as widest:
        fast._scores(x)
    monkeypatch.setattr(with_novelty, "rows_at_once", lambda x, outputs: 50)
    with Widest() as narrower:
        blocks = fast._scores(x)
    for name, value in whole.items():
        np.testing.assert_allclose(blocks[name], value, rtol=1e-4, atol=1e-5)
    assert narrower.bytes <= widest.bytes / 5


def test_fewer_classes_raise_it_by_the_answers(fast: OnePassPredictive) -> None:
    x = rows(3000, seed=4)
    found = fast.watch(x[fast.distribution(x).mean.argmax(-1) == 1], restart=True)
    assert found.of == "answers" and found.row < 60


def test_false_alarms_over_splits_of_kept_and_new_rows(fast: OnePassPredictive) -> None:
    """The whole of it but the student is made anew 200 times, at one in five."""
    pool = {name: value[:8000] for name, value in fast._scores(rows(8000, seed=5)).items()}
    edges = {name: each["edges"] for name, each in fast.report["watch"].items()}
    g, alarms, trials = np.random.default_rng(0), 0, 200
    for _ in range(trials):
        order = g.permutation(8000)[:360]
        kept, new = ({k: v[some] for k, v in pool.items()} for some in (order[:60], order[60:]))
        watch = Watch({name: counted(kept[name], edges[name]) for name in pool}, 0.2)
        watch.add(new)
        alarms += watch.alarm
    assert binomtest(alarms, trials, 0.2, "greater").pvalue > 1e-5


def test_batches_single_rows_and_none(fast: OnePassPredictive) -> None:
    x = torch.cat([rows(40, seed=6), 2 * rows(80, seed=7)])
    whole = copy.deepcopy(fast.watch(x, restart=True))
    for k in range(len(x)):
        found = fast.watch(x[k : k + 1], restart=k == 0)
    assert found.row == whole.row == found.since and whole.alarm
    for name, each in found.evidence.items():
        assert each.log == pytest.approx(whole.evidence[name].log)
    before = found.row, found.rows
    with pytest.raises(ArgumentError, match="must hold at least one input"):
        fast.watch(x[:0])
    assert (found.row, found.rows) == before and found.batches == 120


def test_a_loaded_student_and_a_copy_begin_anew_or_go_on(
    fast: OnePassPredictive, tmp_path: Path
) -> None:
    fast.watch(3 + rows(50), restart=True)
    fast.save(tmp_path / "fast.safetensors")
    again = OnePassPredictive.load(tmp_path / "fast.safetensors")
    assert not again.watch(rows(1, seed=8)).alarm and again.watched.rows == 1
    assert fast.fuse().watch(rows(1, seed=8)).alarm


def test_kept_rows_are_those_of_the_bound(fast: OnePassPredictive) -> None:
    found = fast.report["watch"]
    assert list(found) == [INPUTS, "class", "certainty"]
    assert all(sum(each["counts"]) == 60 for each in found.values())


def test_several_sites_are_watched_by_their_names() -> None:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Predictive

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("ill", dist.Bernoulli(logits=x @ w))
            pyro.sample("dose", dist.Normal(x @ w, 1.0))

    found = quick(Predictive(model, {"w": WEIGHTS[..., 0]}), rows(200))
    names = [INPUTS, "ill class", "ill certainty", "dose mean", "dose variance"]
    assert list(found.report["watch"]) == names
    assert found.watch(9 * rows(60)).alarm


def test_without_kept_rows_it_names_the_cure(fast: OnePassPredictive) -> None:
    few = quick(teacher, rows(60))
    with pytest.raises(ArgumentError, match=rf"{FEW}\. Distil it again, at 190 inputs or more"):
        few.watch(rows(3))
    fast.watch(rows(3), restart=True)
    with pytest.raises(ArgumentError, match="began with, 0.001; got 0.01. Pass restart=True"):
        fast.watch(rows(3), false_alarms=0.01)
    assert fast.watch(rows(3), false_alarms=0.01, restart=True).false_alarms == 0.01
    with pytest.raises(ArgumentError, match="`false_alarms` must be a number in"):
        fast.watch(rows(3), false_alarms=1)
