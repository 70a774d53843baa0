"""Transfer policies: the inputs at which the student is taught.

The teacher labels any input, so transfer inputs need no labels and need not be real: besides
held-out rows they may be jittered, mixed, drawn from a box, or corrupted images. A student taught
on data alone copies its teacher there and misses it out of distribution.

A policy is a frozen record of settings; ``policy.fit(x)`` returns a copy that can sample:

    >>> import torch
    >>> from pyro_opu.transfer import HeldOut, Jitter, Mixture
    >>> policy = Mixture([(0.7, HeldOut()), (0.3, Jitter(scale=0.5))]).fit(torch.randn(100, 4))
    >>> policy.sample(32).shape
    torch.Size([32, 4])

A column of codes or counts keeps to its values under ``HeldOut`` and ``Shuffle`` only. Where a
model uses a column as an index, take those two, or one-hot columns.
"""

from __future__ import annotations

from pyro_opu.transfer.corruptions import ImageCorruption
from pyro_opu.transfer.default import default_transfer, transfer_for
from pyro_opu.transfer.features import (
    Box,
    Differences,
    Gaussian,
    HeldOut,
    Jitter,
    Mixup,
    Permute,
    Recombine,
    Seen,
    Shuffle,
    Stretch,
)
from pyro_opu.transfer.policy import Mixture, TransferPolicy

__all__ = [
    "Box",
    "Gaussian",
    "HeldOut",
    "Jitter",
    "Mixture",
    "Permute",
    "TransferPolicy",
    "default_transfer",
]


def __dir__() -> list[str]:
    return sorted(__all__)
