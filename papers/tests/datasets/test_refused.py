"""A bad call of a data set names its argument in backticks."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from papers import datasets

X, Y = torch.zeros(8, 3), torch.zeros(8, dtype=torch.long)
BROKEN = torch.full((8, 3), math.nan)
TOY = datasets.toy_classification()
REFUSED = [
    *(partial(datasets.split, TOY, test=test) for test in ("0.1", None, True)),
    *(partial(datasets.split, TOY, seed=seed) for seed in (1.5, "0")),
    *(partial(datasets.split, dataset) for dataset in (X, None)),
    *(partial(datasets.two_moons, n) for n in (1, 2.5, "200")),
    *(partial(datasets.two_moons, noise=noise) for noise in (-0.1, math.nan, "0.1")),
    *(partial(datasets.two_moons, seed=seed) for seed in (1.5, "0", -1)),
    *(partial(datasets.toy_regression, n) for n in (0, 2.5, "20")),
    *(partial(make, seed="0") for make in (datasets.toy_regression, datasets.toy_classification)),
    *(partial(datasets.semeion, **size) for size in ({"size": 0}, {"size": 2.5}, {"pad": -1})),
    *(partial(datasets.mnist, **given) for given in ({"root": 3}, {"train": "test"})),
    *(
        partial(scale, *rows)
        for scale in (datasets.standardize, datasets.l2_columns)
        for rows in ((X.tolist(),), (X[:0],), (Y,), (X[0],), (X, X[:, :2]), (BROKEN,))
    ),
    partial(datasets.Dataset, X, Y[:7], "mine"),
    partial(datasets.Dataset, X.tolist(), Y, "mine"),
    partial(datasets.Dataset, X, Y, "mine", ("a",)),
    partial(TOY.take, torch.tensor([99])),
]


@pytest.mark.parametrize("call", REFUSED)
def test_bad_calls_name_their_argument(call: partial) -> None:
    with pytest.raises((ValueError, TypeError), match=r"`[\w\[\]]+` must"):
        call()
