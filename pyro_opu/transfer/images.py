"""The policy that distorts images; the distortions themselves are in ``corruptions``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_opu.checks import positive_int, sizes
from pyro_opu.transfer.corruptions import IMAGE_KINDS
from pyro_opu.transfer.policy import TransferPolicy, in_random_order, split_count

__all__ = ["ImageCorruption"]


@dataclass(frozen=True)
class ImageCorruption(TransferPolicy):
    """Rows of x as images, each distorted in one or several ways, within the value range of x.

    Every row passes through 1 to ``depth`` kinds (each number equally likely), each kind drawn
    from ``kinds`` with its own random parameters; see
    :data:`pyro_opu.transfer.corruptions.IMAGE_KINDS`. The result is clamped to the smallest and
    largest value of x.

    Args:
        kinds: Names out of ``IMAGE_KINDS``; all of them by default.
        depth: Largest number of kinds applied to one row.
        image_shape: ``(H, W)`` or ``(channels, H, W)`` where x holds flattened images (N, D). Not
            needed for x of shape (N, H, W) or (N, channels, H, W).

    Raises:
        TypeError: ``kinds`` is one string.
        ValueError: no kind or an unknown one; ``depth`` below 1.

    Example:
        >>> import torch
        >>> from pyro_opu.transfer import ImageCorruption
        >>> digits = torch.rand(20, 64)
        >>> policy = ImageCorruption(("affine", "dilate"), image_shape=(8, 8)).fit(digits)
        >>> policy.sample(5).shape
        torch.Size([5, 64])
    """

    kinds: tuple[str, ...] = tuple(IMAGE_KINDS)
    depth: int = 2
    image_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.kinds, str) or not isinstance(self.kinds, Sequence):
            raise TypeError(
                f"`kinds` must be a tuple of names; got {self.kinds!r}. Write ({self.kinds!r},)."
            )
        object.__setattr__(self, "kinds", tuple(self.kinds))
        unknown = [kind for kind in self.kinds if kind not in IMAGE_KINDS]
        if unknown or not self.kinds:
            raise ValueError(
                f"`kinds` must be one or more of {', '.join(IMAGE_KINDS)}; got "
                f"{', '.join(map(repr, unknown)) or 'none'}."
            )
        positive_int("depth", self.depth)
        if self.image_shape is not None:
            object.__setattr__(self, "image_shape", sizes("image_shape", self.image_shape))

    def _channels_first(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """The (channels, H, W) in which inputs of this shape are read."""
        image = self.image_shape or shape
        if len(image) not in (2, 3) or math.prod(image) != math.prod(shape):
            raise ValueError(
                f"`x` must hold images, (N, H, W) or (N, channels, H, W), or flattened ones with "
                f"a matching `image_shape`; got inputs of shape {shape} and image_shape="
                f"{self.image_shape}. For tabular inputs use Jitter, Mixup, Box or Shuffle."
            )
        if min(image[-2:]) < 4:
            raise ValueError(f"`x` must hold images of at least 4 x 4 pixels; got shape {image}.")
        channels = image[0] if len(image) == 3 else 1
        return channels, image[-2], image[-1]

    def _statistics(self, x: Tensor) -> dict[str, Tensor]:
        self._channels_first(tuple(x.shape[1:]))  # raises here rather than at the first draw
        return {"x": x, "low": x.min(), "high": x.max()}

    def _draw(self, n: int) -> Tensor:
        rows = self._rows(n)
        dtype = torch.promote_types(rows.dtype, torch.float32)  # FFT and grids know no half
        low, high = self.buffers["low"].to(dtype), self.buffers["high"].to(dtype)
        images = rows.reshape(n, *self._channels_first(tuple(rows.shape[1:]))).to(dtype)
        for level in range(self.depth):
            again, _ = split_count(n, (self.depth - level, level))  # rows distorted once more
            distorted = self._distort(images[:again], low, high)
            images = in_random_order(torch.cat([distorted, images[again:]]))
        return images.to(rows.dtype).view(rows.shape)

    def _distort(self, images: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Split the rows evenly among the kinds and apply each kind to its part."""
        counts = split_count(len(images), [1.0] * len(self.kinds))
        parts = zip(self.kinds, images.split(counts), strict=True)
        done = [IMAGE_KINDS[kind](part, low, high) for kind, part in parts if len(part)]
        return torch.cat(done).clamp(low, high) if done else images
