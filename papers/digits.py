"""Splits of scikit-learn's digits, and inputs that are no digits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor


class Split(NamedTuple):
    """Inputs ``(N, 64)`` in [0, 1] and labels ``(N,)``."""

    x: Tensor
    y: Tensor


class Digits(NamedTuple):
    """700 rows to train the teacher, 600 transfer inputs, the other 497 to test on."""

    train: Split
    transfer: Split
    test: Split


def digits(seed: int) -> Digits:
    """A random split of the 1,797 digits."""
    bundle = load_digits()
    x, y = torch.tensor(bundle.data / 16, dtype=torch.float32), torch.tensor(bundle.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    parts = (order[:700], order[700:1300], order[1300:])
    return Digits(*(Split(x[rows], y[rows]) for rows in parts))


def no_digits(x: Tensor, seed: int) -> dict[str, Tensor]:
    """As many inputs as ``x`` that are no digits.

    Gaussian noise has the mean and standard deviation of all pixels of ``x``; uniform noise fills
    [0, 1]; permuted digits have their pixels in one fixed random order.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    return {
        "Gaussian noise": x.mean() + x.std() * torch.randn(x.shape, generator=generator),
        "uniform noise": torch.rand(x.shape, generator=generator),
        "permuted digits": x[:, torch.randperm(x.shape[1], generator=generator)],
    }
