"""Whether inputs are images: by their shape, and a matrix (H, W) by its numbers."""

from __future__ import annotations

from torch import Tensor

#: Least side of an image, and the rows that are looked at.
SIDE, ROWS = 8, 256
#: Mean square difference of neighbours, as a share of that of any two pixels, in a smooth image:
#: 0.61 in standardised digits of 8 x 8, 1 where neighbours are unrelated.
SMOOTH = 0.8


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
