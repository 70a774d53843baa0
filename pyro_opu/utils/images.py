"""Whether inputs are images: by their shape, and a matrix (H, W) or a row by its numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Least side of an image, and the rows that are looked at.
SIDE, ROWS = 8, 256
#: Mean square difference of neighbours, as a share of that of any two pixels, in a smooth image:
#: 0.61 in standardised digits of 8 x 8, 1 where neighbours are unrelated.
SMOOTH = 0.8
#: Least side of an image that a row of numbers is taken for; rows, and numbers in them, that are
#: looked at, at most. Students of digits of 8 x 8 are as near by the policy of tables.
FLAT_SIDE, FLAT_ROWS, FLAT_NUMBERS = 16, 2**12, 2**22


def are_images(x: Tensor) -> bool:
    """Whether inputs ``(N, H, W)`` or ``(N, channels, H, W)`` are images, both sides at least 8.

    Inputs ``(N, H, W)`` may be sequences of features. They are images if neighbours are alike along
    both axes, or if the entries range alike, as pixels do: none negative, and at least half of
    their maxima at least half of the largest.
    """
    if x.ndim not in (3, 4) or min(x.shape[-2:]) < SIDE:
        return False
    return x.ndim == 4 or look_exchangeable(x) or _are_smooth(x[:ROWS].double())


def look_exchangeable(x: Tensor) -> bool:
    """Whether entries look like pixels: 8 or more, none negative, half reach half the largest."""
    maxima = x.reshape(len(x), -1).amax(dim=0)
    alike = 2 * int((maxima >= maxima.max() / 2).sum()) >= len(maxima)
    return len(maxima) >= SIDE and bool(x.min() >= 0) and alike


def _are_smooth(x: Tensor) -> bool:
    unlike = 2 * x.var((1, 2), correction=0).mean()
    return all(bool(x.diff(dim=axis).square().mean() < SMOOTH * unlike) for axis in (1, 2))


def flattened_shape(x: Tensor) -> tuple[int, int, int] | None:
    """(channels, H, W) of square images in the rows of ``(N, D)``, of one channel or three.

    Neighbours of a column are the next one and that H places on. Columns are pixels if both are
    much more alike, where each column is standardised, than those half a side apart.

    Returns:
        ``None`` where rows are no such images.
    """
    if x.ndim != 2:
        return None
    for channels in (1, 3):
        side = math.isqrt(x.shape[1] // channels)
        if side >= FLAT_SIDE and channels * side**2 == x.shape[1]:
            shape = channels, side, side
            rows = min(FLAT_ROWS, FLAT_NUMBERS // x.shape[1])
            if _neighbours_are_alike(x[: max(2, rows)].unflatten(1, shape)):
                return shape
    return None


def _neighbours_are_alike(x: Tensor) -> bool:
    """Whether pixels of ``(N, channels, H, W)`` are like those beside and those below them."""
    x = x.double()
    deviation = x.std(0, correction=0)
    varies = deviation > 1e-6 * deviation.max()
    x = torch.where(varies, (x - x.mean(0)) / deviation, 0.0)

    def unlike(axis: int, apart: int) -> Tensor:
        """Mean square difference of columns so far apart that both vary."""
        size = x.shape[axis] - apart
        both = varies.narrow(axis - 1, 0, size) & varies.narrow(axis - 1, apart, size)
        difference = x.narrow(axis, 0, size) - x.narrow(axis, apart, size)
        return (difference.square().mean(0) * both).sum() / both.sum()

    half = x.shape[-1] // 2
    return all(bool(unlike(axis, 1) < 0.5 * unlike(3, half)) for axis in (2, 3))
