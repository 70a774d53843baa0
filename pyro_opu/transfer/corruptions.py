"""Image corruptions: the table of kinds that ``ImageCorruption`` draws from.

Every kind is a function ``(images, lo, hi) -> images``. ``images`` is ``(n, channels, H, W)`` with
values in ``[lo, hi]`` (0-dimensional tensors), each of the n rows gets parameters of its own, and
the result has the same shape and dtype. Results may leave ``[lo, hi]``; the caller clamps.
Randomness comes from torch's default generator of the images' device.

A corruption need not keep the class of the image: the teacher labels whatever comes out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, max_pool2d

__all__ = [
    "IMAGE_KINDS",
    "Corruption",
    "affine",
    "blobs",
    "contrast",
    "dilate",
    "erode",
    "invert",
    "noise",
    "patch_shuffle",
    "threshold",
]

Corruption = Callable[[Tensor, Tensor, Tensor], Tensor]


def _uniform(images: Tensor, low: float, high: float) -> Tensor:
    """One uniform number per row, shaped ``(n, 1, 1, 1)``."""
    return images.new_empty(len(images), 1, 1, 1).uniform_(low, high)


def _log_uniform(images: Tensor, low: float, high: float) -> Tensor:
    """One log-uniform number per row, shaped ``(n, 1, 1, 1)``."""
    return _uniform(images, math.log(low), math.log(high)).exp()


def affine(images: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    r"""Rotate, scale, shear and shift each image, and extend its border outwards.

    Output coordinates :math:`u \in [-1, 1]^2` read the input at
    :math:`R(a) \begin{pmatrix} 1 & k \\ 0 & 1 \end{pmatrix} u / s + t`, with angle a in ±60
    degrees, scale s log-uniform in [0.6, 1.7], shear k in ±0.5 and shift t in ±0.3 of half the
    image. Coordinates are relative to the image's sides, so rotating an oblong image also
    stretches it.
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
    """Permute a ``cells x cells`` grid of patches, each row in its own order.

    Pixels beyond the largest multiple of ``cells`` stay where they are.
    """
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

    f is a standardised Gaussian random field (white noise blurred, with periodic borders, by a
    Gaussian of width log-uniform between half a pixel and a sixth of the shorter side), t a
    standard normal level, and the sharpness b is log-uniform in [1, 50]: from clouds to two-valued
    blobs.
    """
    height, width = images.shape[-2:]
    blur = _log_uniform(images, 0.5, max(1.0, min(height, width) / 6))
    fy = torch.fft.fftfreq(height, dtype=images.dtype, device=images.device)[:, None]
    fx = torch.fft.rfftfreq(width, dtype=images.dtype, device=images.device)
    kernel = torch.exp(-2 * (math.pi * blur) ** 2 * (fx**2 + fy**2))
    white = torch.randn_like(images)
    field = torch.fft.irfft2(torch.fft.rfft2(white) * kernel, s=(height, width))
    field = field - field.mean(dim=(2, 3), keepdim=True)
    spread = field.std(dim=(2, 3), keepdim=True, correction=0)
    field = field / spread.clamp_min(torch.finfo(images.dtype).tiny)
    level = torch.randn_like(blur)
    return lo + (hi - lo) * torch.sigmoid(_log_uniform(images, 1.0, 50.0) * (field - level))


IMAGE_KINDS: dict[str, Corruption] = {
    "affine": affine,
    "threshold": threshold,
    "dilate": dilate,
    "erode": erode,
    "patch_shuffle": patch_shuffle,
    "invert": invert,
    "blobs": blobs,
    "noise": noise,
    "contrast": contrast,
}
"""The kinds by name, in the order in which ``ImageCorruption`` uses them by default."""
