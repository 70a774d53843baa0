"""Default networks of the student: what stands between an input and the heads of the guide."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import check_inputs, sizes


class Standardize(nn.Module):
    """Shift and scale each feature by what the transfer inputs had.

    A feature that hardly varies must not explode when an input from elsewhere has a value there:
    a constant one is scaled by the typical (median) deviation of the others, and so is a faint one
    among features that share their units, such as pixels. In a table of mixed units every feature
    that varies has its own scale, however small.

    Inputs in float64 are centred in float64 and rounded after that: a time stamp in milliseconds,
    1.7e12 with a spread of 1e4, has no digits of its spread in float32. The location is therefore
    held in two parts of the weights' dtype, ``shift + shift_low``, which move with the weights to
    any device and dtype; inputs in float32 need the first alone.

    Args:
        shape: Shape of one input, or of what is to be standardised (one value per channel).
    """

    shift: Tensor
    shift_low: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("shift_low", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    def fit(self, x: Tensor, axes: tuple[int, ...]) -> None:
        """Take mean and standard deviation of ``x`` over ``axes``."""
        check_inputs(x, features=False, dtype=self.shift.dtype)
        x = x.detach() if x.dtype == torch.float64 else x.detach().float()
        std, mean = torch.std_mean(x, dim=axes, keepdim=True, correction=0)
        low, high = x.amin(axes, keepdim=True), x.amax(axes, keepdim=True)
        # Rounding of the mean gives a constant feature a deviation of about 1e-7 of its value, in
        # float64 1e-16.
        rounding = 1e-6 if x.dtype == torch.float32 else 1e-14
        varies = std > rounding * torch.maximum(low.abs(), high.abs())
        typical = std[varies].median() if bool(varies.any()) else std.new_ones(())
        if _share_units(high - low):
            varies &= std > 0.05 * typical
        std = torch.where(varies, std, typical)
        self.shift.copy_(mean.reshape(self.shift.shape))
        self.shift_low.copy_(mean.reshape(self.shift.shape) - self.shift)
        self.scale.copy_(std.reciprocal().reshape(self.scale.shape))

    def forward(self, x: Tensor) -> Tensor:
        """``(x - location) * scale``, in the dtype of the weights."""
        dtype = self.shift.dtype
        if torch.float64 in (x.dtype, dtype):
            location = self.shift.double() + self.shift_low
            return (x - location).to(dtype).mul_(self.scale)
        return (x.to(dtype) - self.shift).mul_(self.scale)  # no second large tensor

    def inverse(self, z: Tensor) -> Tensor:
        """Inputs that stand ``z`` deviations from the location, in float64."""
        return self.shift.double() + self.shift_low + z / self.scale.double()


def _share_units(ranges: Tensor) -> bool:
    """Whether features look like pixels: 8 or more, half ranging half as far as the widest."""
    return ranges.numel() >= 8 and bool((2 * ranges >= ranges.max()).float().mean() >= 0.5)


#: What stands between layers. What a posterior says is smooth in x, an average over draws: on
#: teachers of 500 draws SiLU leaves a quarter to a half of the KL that ReLU leaves.
_ACTIVATIONS: dict[str, type[nn.Module]] = {"silu": nn.SiLU, "relu": nn.ReLU}


class Perceptron(nn.Module):
    """Flatten, standardise, then nonlinear layers: ``(N, *shape) -> (N, hidden[-1])``.

    Args:
        input_shape: Shape of one input.
        hidden: Widths of the hidden layers; with none the features are the standardised input.
        activation: "silu" or "relu".
    """

    def __init__(
        self, input_shape: tuple[int, ...], hidden: tuple[int, ...], activation: str = "silu"
    ) -> None:
        super().__init__()
        size = math.prod(input_shape)
        self.input_shape = tuple(input_shape)
        self.standardize = Standardize((size,))
        layers: list[nn.Module] = []
        for before, after in pairwise((size, *hidden)):
            layers += [nn.Linear(before, after), _ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*layers)

    def fit_scale(self, x: Tensor) -> None:
        """Standardise by these inputs from now on."""
        self.standardize.fit(x.flatten(1), (0,))

    def forward(self, x: Tensor) -> Tensor:
        """Features ``(N, F)``."""
        return self.layers(self.standardize(x.flatten(1)))


class Convolutions(nn.Module):
    """Two strided convolutions and a linear layer: images ``(N, [ch,] H, W) -> (N, hidden[-1])``.

    Args:
        input_shape: ``(ch, H, W)`` or ``(H, W)``.
        hidden: Channels of the two convolutions and the width of the linear layer.
        activation: "silu" or "relu".
    """

    def __init__(
        self, input_shape: tuple[int, ...], hidden: tuple[int, ...], activation: str = "silu"
    ) -> None:
        super().__init__()
        channels, height, width = (1, *input_shape)[-3:]
        first, second, features = hidden
        bend = _ACTIVATIONS[activation]
        self.image_shape = (channels, height, width)
        self.standardize = Standardize((channels, 1, 1))
        self.layers = nn.Sequential(
            nn.Conv2d(channels, first, 3, stride=2, padding=1),
            bend(),
            nn.Conv2d(first, second, 3, stride=2, padding=1),
            bend(),
            nn.Flatten(),
            nn.Linear(second * math.ceil(height / 4) * math.ceil(width / 4), features),
            bend(),
        )

    def fit_scale(self, x: Tensor) -> None:
        """Standardise each channel by these inputs from now on."""
        self.standardize.fit(x.reshape(-1, *self.image_shape), (0, 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Features ``(N, F)``."""
        return self.layers(self.standardize(x.reshape(-1, *self.image_shape)))


def centres(guide: nn.Module) -> bool:
    """Whether all that the guide does with its input begins with :class:`Standardize`."""
    parts = (getattr(guide, name, None) for name in ("trunk", "concentration_trunk"))
    trunks = [part for part in parts if part is not None]
    return bool(trunks) and all(isinstance(each, (Perceptron, Convolutions)) for each in trunks)


_TRUNKS: dict[str, type[Perceptron] | type[Convolutions]] = {
    "perceptron": Perceptron,
    "convolutions": Convolutions,
}


def default_trunk_config(x: Tensor, hidden: tuple[int, ...] | None = None) -> dict[str, Any]:
    """The plain description of a trunk for inputs like ``x`` ``(N, *input_shape)``.

    Images (three or four axes, the last two at least 8) get convolutions, all else a perceptron
    with three layers whose width grows with the input's size from 128 to 512.

    Raises:
        TypeError: ``x`` is not a floating tensor, or ``hidden`` not a tuple.
        ValueError: bad ``x``; widths that are not positive integers.
    """
    shape = tuple(check_inputs(x).shape[1:])
    if hidden is not None and hidden != ():  # () is the input itself
        hidden = sizes("hidden", hidden)
    image = len(shape) in (2, 3) and min(shape[-2:]) >= 8
    if hidden is None:
        size = math.prod(shape)
        width = 128 if size <= 16 else 256 if size <= 256 else 512
        hidden = (32, 64, 128) if image else (width, width, width)
    kind = "convolutions" if image and len(hidden) == 3 else "perceptron"
    return {
        "kind": kind,
        "input_shape": list(shape),
        "hidden": list(hidden),
        "activation": "silu",
    }


def build_trunk(config: dict[str, Any]) -> tuple[nn.Module, int]:
    """The trunk a plain description stands for, and the width of its features."""
    shape, hidden = tuple(config["input_shape"]), tuple(config["hidden"])
    activation = config.get("activation", "relu")  # the only one, before it was written down
    return _TRUNKS[config["kind"]](shape, hidden, activation), (math.prod(shape), *hidden)[-1]
