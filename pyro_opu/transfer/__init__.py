"""Transfer policies: where the student is taught.

The teacher labels any input, so the inputs a student learns from need no labels and need not be
real: besides held-out rows they may be jittered, mixed, drawn from a box, or corrupted images. A
student taught on data alone copies its teacher there and misses it elsewhere; where the transfer
inputs lie decides what it knows. No real out-of-domain data is involved.

A policy is a small frozen record of settings. ``policy.fit(x)`` returns a copy that also holds what
it needs of the transfer inputs, and ``fitted.sample(n)`` draws from it:

    >>> import torch
    >>> from pyro_opu.transfer import HeldOut, Jitter, Mixture
    >>> _ = torch.manual_seed(0)
    >>> policy = Mixture([(0.7, HeldOut()), (0.3, Jitter(scale=0.5))]).fit(torch.randn(100, 4))
    >>> policy.sample(32).shape
    torch.Size([32, 4])

Draws use torch's default generators only (the CPU's, and that of x's device), so their state fixes
every later sample. All policies read an input as a vector of numbers: a column of codes or counts
stays on its values under ``HeldOut`` and ``Shuffle``, and leaves them under ``Jitter``, ``Mixup``,
``Stretch``, ``Box`` and ``Gaussian``; the teacher is then asked about values in between. Where a
model uses a column as an index, take the former two, or one-hot columns.
"""

from __future__ import annotations

from pyro_opu.transfer.default import default_transfer
from pyro_opu.transfer.features import (
    Box,
    Gaussian,
    HeldOut,
    Jitter,
    Mixup,
    Permute,
    Shuffle,
    Stretch,
)
from pyro_opu.transfer.images import ImageCorruption
from pyro_opu.transfer.mixture import Mixture
from pyro_opu.transfer.policy import TransferPolicy

__all__ = [
    "Box",
    "Gaussian",
    "HeldOut",
    "ImageCorruption",
    "Jitter",
    "Mixture",
    "Mixup",
    "Permute",
    "Shuffle",
    "Stretch",
    "TransferPolicy",
    "default_transfer",
]
