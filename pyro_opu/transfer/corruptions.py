"""Image corruptions: the kinds, and the policy that draws from them.

A kind is a function ``(images, lo, hi) -> images``: ``images`` is ``(n, channels, H, W)`` with
values in ``[lo, hi]`` (0-dimensional tensors), and each row gets random parameters of its own. The
result keeps shape and dtype; the policy clamps it. It need not keep the class of the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, max_pool2d, pad

from pyro_opu.checks import ArgumentError, instance_of, one_of, positive_int, sizes
from pyro_opu.transfer.policy import TransferPolicy, in_random_order, split_count

__all__ = ["GREY", "IMAGE_KINDS", "Corruption", "ImageCorruption"]

Corruption = Callable[[Tensor, Tensor, Tensor], Tensor]


def _uniform(images: Tensor, low: float, high: float) -> Tensor:
    """One uniform number per row, shaped ``(n, 1, 1, 1)``."""
    return images.new_empty(len(images), 1, 1, 1).uniform_(low, high)


def _log_uniform(images: Tensor, low: float, high: float) -> Tensor:
    """One log-uniform number per row, shaped ``(n, 1, 1, 1)``."""
    return _uniform(images, math.log(low), math.log(high)).exp()


def affine(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    r"""Rotate, scale, shear and shift each image, and extend its border outwards.

    Output coordinates :math:`u \in [-1, 1]^2`, relative to the image's sides, read the input at
    :math:`R(a) \begin{pmatrix} 1 & k \\ 0 & 1 \end{pmatrix} u / s + t`, with angle a in ±60
    degrees, scale s in [0.6, 1.7], shear k in ±0.5 and shift t in ±0.3 of half the image.
    """
    angle, shear = _uniform(images, -math.pi / 3, math.pi / 3), _uniform(images, -0.5, 0.5)
    zoom = _log_uniform(images, 0.6, 1.7)
    cos, sin = angle.cos() / zoom, angle.sin() / zoom
    shift_x, shift_y = _uniform(images, -0.3, 0.3), _uniform(images, -0.3, 0.3)
    entries = (cos, shear * cos - sin, shift_x, sin, shear * sin + cos, shift_y)
    theta = torch.cat(entries, dim=1).view(-1, 2, 3)
    grid = affine_grid(theta, list(images.shape), align_corners=False)
    return grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def threshold(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Make each image two-valued, cut at a level uniform in the middle 80 % of ``[lo, hi]``."""
    level = lo + (hi - lo) * _uniform(images, 0.1, 0.9)
    return torch.where(images > level, hi, lo)


def dilate(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Replace each pixel by the largest of the square around it, of radius 1 or 2 (per row)."""
    once = max_pool2d(images, kernel_size=3, stride=1, padding=1)
    twice = max_pool2d(once, kernel_size=3, stride=1, padding=1)
    return torch.where(_uniform(images, 0, 1) < 0.5, once, twice)


def erode(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Replace each pixel by the smallest of the square around it, of radius 1 or 2 (per row)."""
    return -dilate(-images, -hi, -lo)


def invert(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Swap dark and bright: ``lo + hi - image``."""
    return lo + hi - images


def contrast(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Stretch each image about its own mean, by a factor log-uniform in [0.2, 5]."""
    middle = images.mean(dim=(1, 2, 3), keepdim=True)
    return middle + _log_uniform(images, 0.2, 5.0) * (images - middle)


def noise(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Add white Gaussian noise, with standard deviation log-uniform in 2 to 60 % of ``hi - lo``."""
    scale = (hi - lo) * _log_uniform(images, 0.02, 0.6)
    return images + scale * torch.randn_like(images)


def _shuffle_grid(images: Tensor, cells: int) -> Tensor:
    """Permute a grid of patches; pixels beyond the largest multiple of ``cells`` stay."""
    n, channels, height, width = images.shape
    h, w = height // cells, width // cells
    inner = images[:, :, : h * cells, : w * cells].reshape(n, channels, cells, h, cells, w)
    patches = inner.permute(0, 2, 4, 1, 3, 5).reshape(n, cells * cells, channels, h, w)
    order = torch.rand(n, cells * cells, device=images.device).argsort(dim=1)
    patches = patches[torch.arange(n, device=images.device)[:, None], order]
    inner = patches.view(n, cells, cells, channels, h, w).permute(0, 3, 1, 4, 2, 5)
    shuffled = images.clone()
    shuffled[:, :, : h * cells, : w * cells] = inner.reshape(n, channels, h * cells, w * cells)
    return shuffled


def patch_shuffle(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Cut each image into 2 x 2 or 4 x 4 patches (per row) and permute them."""
    coarse = _uniform(images, 0, 1) < 0.5
    return torch.where(coarse, _shuffle_grid(images, 2), _shuffle_grid(images, 4))


def blobs(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    r"""Replace each image by a smooth random field; only its shape and range are used.

    .. math:: lo + (hi - lo)\,\sigma(b\,(f - t))

    f is white noise, blurred by a Gaussian of width from half a pixel to a sixth of the shorter
    side and standardised; t is a standard normal level, b a sharpness from 1 to 50.
    """
    blur = _log_uniform(images, 0.5, max(1.0, min(images.shape[-2:]) / 6))
    field = _blurred(torch.randn_like(images), blur)
    field = field - field.mean(dim=(2, 3), keepdim=True)
    spread = field.std(dim=(2, 3), keepdim=True, correction=0)
    field = field / spread.clamp_min(torch.finfo(images.dtype).tiny)
    level = torch.randn_like(blur)
    return lo + (hi - lo) * torch.sigmoid(_log_uniform(images, 1.0, 50.0) * (field - level))


def flip(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Mirror each image: three in four left to right, half of these and the rest top to bottom."""
    across = _uniform(images, 0, 1) < 0.75
    down = ~across | (_uniform(images, 0, 1) < 0.5)
    images = torch.where(across, images.flip(3), images)
    return torch.where(down, images.flip(2), images)


def crop(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Enlarge a window of each image, of 40 to 100 % of its width and of its height."""
    width, height = _uniform(images, 0.4, 1), _uniform(images, 0.4, 1)
    x, y = _uniform(images, -1, 1) * (1 - width), _uniform(images, -1, 1) * (1 - height)
    zero = torch.zeros_like(x)
    theta = torch.cat([width, zero, x, zero, height, y], 1).view(-1, 2, 3)
    grid = affine_grid(theta, list(images.shape), align_corners=False)
    return grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def colour(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    r"""Mix the channels of each image, then stretch and shift each of them.

    A channel becomes an average of all, with weights softmax(3 z), z standard normal; it is
    stretched about its mean by a factor log-uniform in [0.5, 2] and moved by up to a quarter of
    ``hi - lo``.
    """
    n, channels = images.shape[:2]
    normal = torch.randn(n, channels, channels, dtype=images.dtype, device=images.device)
    mixed = torch.einsum("nij,njhw->nihw", torch.softmax(3 * normal, -1), images)
    size = images.new_empty(n, channels, 1, 1)
    gain = size.uniform_(-math.log(2), math.log(2)).exp()
    shift = (hi - lo) * torch.empty_like(size).uniform_(-0.25, 0.25)
    middle = mixed.mean(dim=(2, 3), keepdim=True)
    return middle + shift + gain * (mixed - middle)


def blur(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Blur each image by a Gaussian of width from half a pixel to an eighth of the shorter side."""
    side = min(images.shape[-2:])
    reach = max(2, side // 4)
    wide = pad(images, (reach, reach, reach, reach), mode="replicate")
    width = _log_uniform(images, 0.5, max(1.0, side / 8))
    return _blurred(wide, width)[:, :, reach:-reach, reach:-reach]


def occlude(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Cover a window of each image, of 15 to 70 % of its width and of its height, by one colour."""
    cover = lo + (hi - lo) * torch.rand_like(images[:, :, :1, :1])
    return torch.where(_window(images), cover, images)


def paste(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Cover a window of each image by the same window of the image before it."""
    return torch.where(_window(images), images.roll(1, 0), images)


def _window(images: Tensor) -> Tensor:
    """One rectangle inside each image, ``(n, 1, H, W)``."""
    found = torch.ones_like(images[:, :1], dtype=torch.bool)
    for axis in (2, 3):
        size, places = _uniform(images, 0.15, 0.7), images.shape[axis]
        shape = [places if each == axis else 1 for each in range(4)]
        place = (torch.arange(places, device=images.device) + 0.5).view(shape) / places
        start = _uniform(images, 0, 1) * (1 - size)
        found = found & (place >= start) & (place < start + size)
    return found


def _blurred(images: Tensor, width: Tensor) -> Tensor:
    """Each image under a Gaussian of this width in pixels, ``(n, 1, 1, 1)``, as on a torus."""
    size = images.shape[-2:]
    fy = torch.fft.fftfreq(size[0], dtype=images.dtype, device=images.device)[:, None]
    fx = torch.fft.rfftfreq(size[1], dtype=images.dtype, device=images.device)
    kernel = torch.exp(-2 * (math.pi * width) ** 2 * (fx**2 + fy**2))
    return torch.fft.irfft2(torch.fft.rfft2(images) * kernel, s=size)


ImageKind = Literal[
    "affine",
    "threshold",
    "dilate",
    "erode",
    "patch_shuffle",
    "invert",
    "blobs",
    "noise",
    "contrast",
    "flip",
    "crop",
    "colour",
    "blur",
    "occlude",
    "paste",
]
#: The kinds by name, in the order in which ``ImageCorruption`` uses them by default.
IMAGE_KINDS: dict[ImageKind, Corruption] = dict(
    zip(
        get_args(ImageKind),
        (
            *(affine, threshold, dilate, erode, patch_shuffle, invert, blobs, noise, contrast),
            *(flip, crop, colour, blur, occlude, paste),
        ),
        strict=True,
    )
)
#: Those of the default policy for images of one channel.
GREY = tuple(IMAGE_KINDS)[:9]


@dataclass(frozen=True)
class ImageCorruption(TransferPolicy):
    """Rows of x as images, each distorted in one or several ways, within the value range of x.

    Every row passes through 1 to ``depth`` kinds (each number equally likely), drawn from
    ``kinds``.

    Args:
        kinds: Names out of :data:`pyro_opu.transfer.corruptions.IMAGE_KINDS`; by default all.
        depth: Largest number of kinds applied to one row.
        image_shape: ``(H, W)`` or ``(channels, H, W)`` where x holds flattened images (N, D).
    """

    kinds: tuple[ImageKind, ...] = tuple(IMAGE_KINDS)
    depth: int = 2
    image_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        advice = 'Write for example ("affine", "noise").'
        instance_of("kinds", self.kinds, (tuple, list), "a tuple of names", advice)
        object.__setattr__(self, "kinds", tuple(self.kinds))
        if not self.kinds:
            raise ArgumentError(
                "`kinds` must hold at least one name; got none. Leave it out for all."
            )
        for kind in self.kinds:
            one_of("kinds", kind, IMAGE_KINDS)
        positive_int("depth", self.depth)
        if self.image_shape is not None:
            object.__setattr__(self, "image_shape", sizes("image_shape", self.image_shape))

    @property
    def made(self) -> str:
        first, more = self.kinds[-1:-4:-1], len(self.kinds) - 3
        return f"images moved by {', '.join(first)}" + (f" and {more} more" if more > 0 else "")

    def _channels_first(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """The (channels, H, W) in which inputs of this shape are read."""
        image = self.image_shape or shape
        if len(image) not in (2, 3) or math.prod(image) != math.prod(shape):
            raise ArgumentError(
                "`x` must hold images, (N, H, W) or (N, channels, H, W), or flattened ones with a "
                f"matching `image_shape`; got inputs of shape {shape} and image_shape="
                f"{self.image_shape}. For tabular inputs use Jitter, Mixup, Box or Shuffle."
            )
        if min(image[-2:]) < 4:
            raise ArgumentError(
                f"`x` must hold images of at least 4 x 4 pixels; got shape {image}."
            )
        return image[0] if len(image) == 3 else 1, image[-2], image[-1]

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
