"""Scaling of columns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from datasets.dataset_files import numbered
from papers import datasets


def loop_standardize(train: np.ndarray, x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    for d in range(x.shape[1]):
        mean = sum(train[:, d]) / len(train)
        sd = math.sqrt(sum((v - mean) ** 2 for v in train[:, d]) / len(train))
        out[:, d] = (x[:, d] - mean) / sd
    return out


def test_standardize_against_a_loop():
    train = torch.randn(30, 4, dtype=torch.float64) * 7 + 100
    other = torch.randn(9, 4, dtype=torch.float64) * 7 + 100
    got_train, got_other = datasets.standardize(train, other)
    for got, x in ((got_train, train), (got_other, other)):
        np.testing.assert_allclose(got, loop_standardize(train.numpy(), x.numpy()), rtol=1e-10)
    # 1e-12: rounding of a mean of 30 numbers of size 1.
    torch.testing.assert_close(got_train.mean(0), torch.zeros(4).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(got_train.std(0, correction=0), torch.ones(4).double())
    assert (got_other.mean(0).abs() > 1e-3).all()  # the others' own mean is not taken


def test_l2_columns_against_a_loop():
    train, other = torch.randn(30, 4, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
    got_train, got_other = datasets.l2_columns(train, other)
    for d in range(4):
        norm = math.sqrt(sum(float(v) ** 2 for v in train[:, d]))
        torch.testing.assert_close(got_train[:, d], train[:, d] / norm)
        torch.testing.assert_close(got_other[:, d], other[:, d] / norm)
    torch.testing.assert_close(got_train.norm(dim=0), torch.ones(4).double())
    assert ((got_other.norm(dim=0) - 1).abs() > 1e-3).all()


@pytest.mark.parametrize("scale", [datasets.standardize, datasets.l2_columns])
def test_a_row_looks_the_same_in_every_part(scale):
    train, other = torch.randn(20, 3), torch.randn(6, 3)
    other[2] = train[7]
    got_train, got_other, got_third = scale(train, other, train[7:8])
    assert torch.equal(got_other[2], got_train[7]) and torch.equal(got_third[0], got_train[7])


@pytest.mark.parametrize("scale", [datasets.standardize, datasets.l2_columns])
def test_scaling_gives_back_what_it_was_given(scale):
    data = numbered()
    before = data.x.clone()
    scaled, raw = scale(data, torch.ones(3, 2))
    assert isinstance(scaled, datasets.Dataset) and isinstance(raw, torch.Tensor)
    assert scaled.y is data.y and scaled.feature_names == data.feature_names
    assert scaled.x.dtype == raw.dtype == torch.float32
    assert torch.equal(data.x, before)
    (pictures,) = scale(torch.rand(5, 4, 4))
    assert pictures.shape == (5, 4, 4)
    assert len(scale(data)) == 1


@pytest.mark.parametrize("value", [0.0, 0.1, -3e7])
def test_constant_columns_are_safe(value):
    train = torch.stack([torch.full((7,), value), torch.arange(7.0)], 1)
    other = torch.tensor([[value, 1.0], [value + 8.0, 2.0]])
    got, got_other = datasets.standardize(train, other)
    assert torch.equal(got[:, 0], torch.zeros(7))  # 0.1 has no exact mean, and no sd of exactly 0
    assert got_other[:, 0].tolist() == [0.0, (other[1, 0] - other[0, 0]).item()]
    got, got_other = datasets.l2_columns(train, other)
    assert got.isfinite().all() and got_other.isfinite().all()
    if value == 0.0:
        assert torch.equal(got[:, 0], torch.zeros(7)) and got_other[1, 0] == 8.0
    (single,) = datasets.standardize(torch.tensor([[4.0, 5.0]]))
    assert torch.equal(single, torch.zeros(1, 2))


def test_scaling_keeps_digits_of_large_offsets():
    train = 1e6 + torch.arange(8.0)[:, None]  # float32 sums of squares would lose all digits
    (got,) = datasets.standardize(train)
    expected = (torch.arange(8.0) - 3.5) / math.sqrt(63 / 12)
    torch.testing.assert_close(got[:, 0], expected)


@pytest.mark.parametrize("scale", [datasets.standardize, datasets.l2_columns])
def test_scaling_failures(scale):
    holed = numbered()
    holed.x[3, 1] = math.nan
    with pytest.raises(ValueError, match=r"`train` must not hold missing.*NaN in b\. Impute"):
        scale(holed)
    with pytest.raises(ValueError, match=r"`others\[1\]` must not hold.*NaN in 1 columns"):
        scale(numbered(), numbered(), holed.x)
    with pytest.raises(ValueError, match=r"`train` must be finite; got NaN or infinity in 1 of 2"):
        scale(torch.tensor([[1.0], [math.inf]]))
    with pytest.raises(ValueError, match=r"`others\[0\]` must have shape \(N, 2\); got \(4, 3\)"):
        scale(numbered(), torch.zeros(4, 3))
    with pytest.raises(ValueError, match="`train` must hold at least one input"):
        scale(torch.zeros(0, 3))
    with pytest.raises(TypeError, match="`train` must have a floating dtype"):
        scale(torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"`others\[0\]` must be a torch\.Tensor.*got ndarray"):
        scale(numbered(), np.zeros((3, 2)))
