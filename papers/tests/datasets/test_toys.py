"""Made-up data sets are as stated."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from papers import datasets


def test_two_moons_is_that_of_scikit_learn():
    from sklearn.datasets import make_moons

    data = datasets.two_moons(61, noise=0.2, seed=4)
    x, y = make_moons(61, noise=0.2, random_state=4)
    np.testing.assert_array_equal(data.x.numpy(), x.astype(np.float32))
    assert data.y.tolist() == y.tolist() and data.y.bincount().tolist() == [30, 31]
    assert data.x.dtype == torch.float32 and data.y.dtype == torch.int64
    with pytest.raises(ValueError, match="`n` must be an integer of at least 2; got 1"):
        datasets.two_moons(1)


def test_toy_classification_is_as_stated():
    draws = [datasets.toy_classification(seed) for seed in range(400)]
    x = torch.stack([d.x for d in draws])
    assert x.shape == (400, 20, 2) and x.abs().max() < 10  # the domain; 5.3 sd to its edge
    for data in draws[:3]:
        assert data.y.tolist() == [0] * 10 + [1] * 10
    for part, centre in ((x[:, :10], [-2.0, 2.0]), (x[:, 10:], [2.0, -2.0])):
        flat = part.reshape(-1, 2)
        # 5 sigma of Monte Carlo with 4,000 points: mean 1.5 / sqrt(4000), covariance the like.
        assert (flat.mean(0) - torch.tensor(centre)).abs().max() < 5 * 1.5 / math.sqrt(4000)
        error = (flat.T.cov() - 2.25 * torch.eye(2)).abs().max()
        assert error < 5 * 2.25 * math.sqrt(2 / 4000)
    beyond = torch.cat([x[:, :10, 0] > x[:, :10, 1], x[:, 10:, 0] < x[:, 10:, 1]]).float().mean()
    # The 3 % of the docstring; 5 sigma with 8,000 points is 0.0095.
    assert abs(beyond - 0.0297) < 0.0095


def test_toy_regression_is_as_stated():
    data = datasets.toy_regression(20_000, seed=1)
    x, noise = data.x[:, 0].double(), data.y.double() - data.x[:, 0].double() ** 3
    assert data.x.shape == (20_000, 1) and data.y.dtype == torch.float32
    assert -4 <= x.min() < -3.99 and 3.99 < x.max() <= 4
    # 5 sigma of Monte Carlo with 20,000 points, of a mean and of a variance of 9.
    assert abs(noise.mean()) < 5 * 3 / math.sqrt(20_000)
    assert abs(noise.var() - 9) < 5 * 9 * math.sqrt(2 / 20_000)
    assert abs(x.mean()) < 5 * 8 / math.sqrt(12 * 20_000)
    assert len(datasets.toy_regression()) == 20 and datasets.toy_regression().class_names == ()
    with pytest.raises(ValueError, match="`n` must be a positive integer; got 0"):
        datasets.toy_regression(0)


@pytest.mark.parametrize(
    "make", [datasets.two_moons, datasets.toy_classification, datasets.toy_regression]
)
def test_toys_follow_their_seed_and_no_other(make):
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, again, other = make(seed=1), make(seed=1), make(seed=2)
    assert torch.equal(first.x, again.x) and torch.equal(first.y, again.y)
    assert not torch.equal(first.x, other.x)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)
