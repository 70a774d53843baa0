"""The record of a data set, and its split."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from datasets.dataset_files import numbered
from papers import datasets


def test_record_is_frozen_short_and_checked():
    data = numbered()
    assert len(data) == 40
    assert repr(data) == "Dataset('numbered': 40 x 2, 2 classes)"
    assert repr(datasets.toy_regression()) == "Dataset('toy_regression': 20 x 1)"
    with pytest.raises(FrozenInstanceError):
        data.x = data.x + 1
    few = data.take(torch.tensor([3, 1]))
    assert few.y.tolist() == [3, 1] and few.x[:, 1].tolist() == [30.0, 10.0]
    assert few.feature_names == ("a", "b") and few.name == "numbered"
    with pytest.raises(
        ValueError, match=r"`y` must have shape \(N,\).*got y \(39,\) and x \(40, 2\)"
    ):
        replace(data, y=data.y[1:])
    with pytest.raises(ValueError, match=r"`y` must have shape \(N,\).*got y \(40, 1\)"):
        replace(data, y=data.y[:, None])


@pytest.mark.parametrize(("test", "rows"), [(0.1, 4), (0.49, 20), (7, 7), (1, 1), (39, 39)])
def test_split_parts_are_disjoint_whole_and_keep_rows_together(test, rows):
    train, held = datasets.split(numbered(), test=test, seed=3)
    assert (len(train), len(held)) == (40 - rows, rows)
    assert sorted([*train.y.tolist(), *held.y.tolist()]) == list(range(40))
    for part in (train, held):
        assert torch.equal(part.x[:, 0], part.y.float())


def test_split_follows_the_stated_generator_and_no_other():
    before = torch.get_rng_state()
    train, held = datasets.split(numbered(), test=0.25, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(5))
    assert torch.equal(held.y, order[:10]) and torch.equal(train.y, order[10:])
    again = datasets.split(numbered(), test=0.25, seed=5)[1]
    assert torch.equal(again.y, held.y)
    assert not torch.equal(datasets.split(numbered(), test=0.25, seed=6)[1].y, held.y)
    smaller = datasets.split(numbered(), test=0.1, seed=5)[1]
    assert set(smaller.y.tolist()) < set(held.y.tolist())


@pytest.mark.parametrize("test", [0.0, 1.0, 1.5, -0.1, math.nan, True])
def test_split_refuses_no_part(test):
    with pytest.raises(ValueError, match=r"`test` must be a fraction of the rows, in \(0, 1\), or"):
        datasets.split(numbered(), test=test)


@pytest.mark.parametrize("test", [0, 40, -1, 0.001, 0.999])
def test_split_refuses_an_empty_part(test):
    with pytest.raises(ValueError, match=r"`test` must leave at least one row on either side"):
        datasets.split(numbered(), test=test)
