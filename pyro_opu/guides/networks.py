"""Default networks of a guide, from an input to the features that its heads read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import check_inputs, sizes
from pyro_opu.inputs import inputs_of
from pyro_opu.utils.chunks import joined_in_place
from pyro_opu.utils.images import are_images

#: How many deviations from zero the location of a feature may lie, |location| scale, if its inputs
#: are not centred first. A product with a weight then rounds x, up to so many times as large as x
#: less its location, and the sum cancels: of the 24 bits of float32 at most four are lost. Means of
#: pixels lie within three deviations, those of time stamps at 1e8.
MOST_OFF = 16.0
#: A deviation is between 2^-60 and 2^60: weight times scale keeps clear of the ends of float32.
MOST_BITS = 60.0
#: Largest standardised number: the sum of the squares of many is finite in float32.
FARTHEST = 1e15
#: Rows by whose features a student is set up, at most, and how many of them at once.
SET_UP, BLOCK = 2048, 256


class Standardize(nn.Module):
    """Shift and scale each feature by the mean and deviation of the transfer inputs.

    A feature that hardly varies must not explode at an out-of-distribution value: a constant one is
    scaled by the median deviation of the others, and so is a faint one among features that share
    their units, such as pixels. In a table of mixed units every feature that varies has its own
    scale.

    Inputs in float64 are centred before they are rounded: a time stamp in milliseconds, 1.7e12 with
    a spread of 1e4, has no digits of its spread in float32. So the location is held in two parts,
    ``shift + shift_low``.
    """

    shift: Tensor
    shift_low: Tensor
    scale: Tensor
    #: Whether weights are known to be able to do it without a loss of digits, and how many of the
    #: last features they only scale, which are centred before.
    near: bool = False
    last: int = 0

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
        mean = mean.reshape(self.shift.shape)
        self.shift.copy_(mean)
        self.shift_low.copy_(mean - self.shift.to(mean.device))
        self.scale.copy_(std.reciprocal().reshape(self.scale.shape))
        self.near = self.is_near(self.last)

    def is_near(self, last: int = 0) -> bool:
        """Whether weights can standardise all but the last without a loss of digits."""
        scale = self.scale.double()
        off = (self.location() * scale).abs()[: len(scale) - last]
        return bool((off <= MOST_OFF).all() and (scale.log2().abs() <= MOST_BITS).all())

    def location(self) -> Tensor:
        """What is subtracted, in float64."""
        return self.shift.double() + self.shift_low

    def folded(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights ``(K, F)`` and biases that do to features what the given ones do after this.

        The third is what is subtracted from the last before.
        """
        weight, first = weight * self.scale, len(self.shift) - self.last
        shift, centre = self.shift.tensor_split([first])
        return weight, torch.addmv(bias, weight[:, :first], shift, alpha=-1.0), centre

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:  # noqa: ANN401
        super()._load_from_state_dict(*args, **kwargs)
        self.near = not self.shift.is_meta and self.is_near(self.last)

    def forward(self, x: Tensor) -> Tensor:
        """``(x - location) * scale``, in the dtype of the weights, at most :data:`FARTHEST`."""
        dtype = self.shift.dtype
        if torch.float64 in (x.dtype, dtype):
            z = (x - self.location()).to(dtype)
        else:
            z = x.to(dtype) - self.shift
        most = min(FARTHEST, torch.finfo(dtype).max)
        return z.mul_(self.scale).clamp(-most, most)

    def inverse(self, z: Tensor) -> Tensor:
        """Inputs ``z`` deviations from the location, in float64."""
        return self.location() + z / self.scale.double()


def _share_units(ranges: Tensor) -> bool:
    """Whether features look like pixels: 8 or more, half ranging half as far as the widest."""
    return ranges.numel() >= 8 and bool((2 * ranges >= ranges.max()).float().mean() >= 0.5)


#: Most numbers that stand for an index.
MOST_EMBEDDED = 32
#: Activations by name. A posterior's answer is an average over draws and so smooth in x: on
#: teachers of 500 draws SiLU leaves a quarter to a half of the KL that ReLU leaves.
_ACTIVATIONS: dict[str, type[nn.Module]] = {"silu": nn.SiLU, "relu": nn.ReLU}


class DefaultTrunk(nn.Module):
    """Reshape, standardise, then layers: ``(N, *input_shape) -> (N, F)``."""

    #: Whether inputs are centred before anything else is done with them.
    centres: bool = True
    #: Whether float64 stays until inputs are centred.
    keeps_digits: bool = True
    #: Axes over which inputs are standardised.
    axes: tuple[int, ...] = (0,)
    standardize: Standardize
    layers: nn.Sequential

    def shaped(self, x: Tensor) -> Tensor:
        """The inputs as the layers read them; by default ``(N, D)``."""
        return x.flatten(1)

    def fit_scale(self, x: Tensor) -> None:
        """Standardise by these inputs from now on."""
        self.standardize.fit(self.shaped(x), self.axes)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``(N, F)``."""
        return self.layers(self.standardize(self.shaped(x)))


class Perceptron(DefaultTrunk):
    """Fully connected layers of widths ``hidden``; with none the standardised input itself."""

    def __init__(
        self, input_shape: tuple[int, ...], hidden: tuple[int, ...], activation: str = "silu"
    ) -> None:
        super().__init__()
        size = math.prod(input_shape)
        self.standardize = Standardize((size,))
        layers: list[nn.Module] = []
        for before, after in pairwise((size, *hidden)):
            layers += [nn.Linear(before, after), _ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*layers)


class Indexed(DefaultTrunk):
    """Embeddings of index columns beside the others, and fully connected layers on both.

    Args:
        input_shape: ``(D,)``.
        hidden: Widths of the layers.
        activation: Its name.
        indices: Pairs of a column and the values that it may have. One that it may not have is
            taken for another; :class:`~pyro_opu.inputs.Form` refuses it before.
    """

    columns: Tensor

    def __init__(
        self,
        input_shape: tuple[int, ...],
        hidden: tuple[int, ...],
        activation: str = "silu",
        indices: Sequence[tuple[int, Sequence[int]]] = (),
    ) -> None:
        super().__init__()
        self.indexed = [int(column) for column, _ in indices]
        others = [column for column in range(*input_shape) if column not in self.indexed]
        self.register_buffer("columns", torch.tensor(others, dtype=torch.long))
        tables, embedded, self.embeddings = [], 0, nn.ModuleList()
        for _, values in indices:
            table = torch.zeros(max(values) + 1, dtype=torch.long)
            table[list(values)] = torch.arange(len(values))
            tables.append(table)
            width = min(MOST_EMBEDDED, max(2, math.isqrt(len(values))))
            embedded += width
            self.embeddings.append(nn.Embedding(len(values), width))
        for number, table in enumerate(tables):
            self.register_buffer(f"place_{number}", table)
        network = Perceptron((len(others) + embedded,), hidden, activation)
        self.standardize, self.layers = Standardize((len(others),)), network.layers

    def shaped(self, x: Tensor) -> Tensor:
        """Columns that hold no index."""
        return x[:, self.columns]

    def fit_scale(self, x: Tensor) -> None:
        if len(self.columns):
            super().fit_scale(x)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.standardize(self.shaped(x))]
        for number, embedding in enumerate(self.embeddings):
            table: Tensor = getattr(self, f"place_{number}")
            index = x[:, self.indexed[number]].long().clamp(0, len(table) - 1)
            parts.append(embedding(table[index]))
        return self.layers(torch.cat(parts, 1))


class Convolutions(DefaultTrunk):
    """Two strided convolutions and a linear layer, for images ``(ch, H, W)`` or ``(H, W)``.

    ``hidden`` holds the channels of the convolutions and the width of the linear layer.
    """

    axes = (0, 2, 3)

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

    def shaped(self, x: Tensor) -> Tensor:
        """Images ``(N, ch, H, W)``."""
        return x.reshape(-1, *self.image_shape)


def in_blocks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What a function says of every row, of so many rows at a time as memory allows."""
    return joined_in_place(map(function, x.split(BLOCK)), len(x))


def fit_scales(guide: nn.Module, x: Tensor) -> None:
    """Standardise by these inputs in every default network of the guide."""
    for module in guide.modules():
        if isinstance(module, DefaultTrunk):
            module.fit_scale(x)


def centres(guide: nn.Module) -> bool:
    """Whether :class:`Standardize` is the first layer of every network of the guide."""
    return _all_say(guide, "centres")


def keeps_digits(guide: nn.Module) -> bool:
    """Whether every network of the guide centres its inputs before it rounds them."""
    return _all_say(guide, "keeps_digits")


def _all_say(guide: nn.Module, what: str) -> bool:
    parts = (getattr(guide, name, None) for name in ("trunk", "concentration_trunk"))
    trunks = [part for part in parts if part is not None]
    return bool(trunks) and all(getattr(each, what, False) for each in trunks)


def default_trunk_config(x: Any, hidden: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Describe a trunk for inputs ``x`` ``(N, *input_shape)`` as plain values.

    Images (:func:`~pyro_opu.utils.images.are_images`) get convolutions, all else a perceptron
    with three layers whose width grows with the input's size from 128 to 512.
    """
    inputs = inputs_of(x)
    x, indices = inputs.tensor, inputs.form.indices
    shape = tuple(x.shape[1:])
    if hidden is not None and hidden != ():  # () is the input itself
        hidden = sizes("hidden", hidden)
    image = are_images(x)
    if hidden is None:
        size = math.prod(shape)
        width = 128 if size <= 16 else 256 if size <= 256 else 512
        hidden = (32, 64, 128) if image else (width, width, width)
    kind = "convolutions" if image and len(hidden) == 3 else "perceptron"
    sized: dict[str, Any] = {"input_shape": list(shape), "hidden": list(hidden)}
    if indices:
        sized["indices"] = [[column, list(values)] for column, values in indices]
        kind = "indexed"
    return {"kind": kind, **sized, "activation": "silu"}
