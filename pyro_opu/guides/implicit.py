r"""A guide from noise: :math:`x, \epsilon \mapsto \pi`, for posteriors of no family."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import positive_int
from pyro_opu.distributions.implicit import FromNoise, Implicit
from pyro_opu.guides.base import HeadGuide, TrunkGuide
from pyro_opu.guides.generator import HIDDEN, NOISE, Generator
from pyro_opu.guides.networks import default_trunk_config
from pyro_opu.guides.table import TableGuide
from pyro_opu.inputs import Inputs, inputs_of
from pyro_opu.parts import ImplicitTable, Part

if TYPE_CHECKING:
    from typing import Self

__all__ = ["ImplicitGuide", "ImplicitTableGuide"]


class NarrowTrunk(HeadGuide):
    """By default two layers of half the usual width, as draws cost a layer of their own."""

    @classmethod
    def _sized(
        cls, x: Tensor | Inputs, hidden: tuple[int, ...] | None, config: Mapping[str, object]
    ) -> Self:
        usual = default_trunk_config(x := inputs_of(x), hidden)
        if hidden is None and usual["kind"] != "convolutions":
            hidden = (usual["hidden"][0] // 2,) * 2
        return super()._sized(x, hidden, config)


class ImplicitGuide(NarrowTrunk, TrunkGuide):
    r"""Draws of class probabilities from noise, for posteriors of no family.

    .. math:: \pi = \mathrm{softmax}\, G(x, \epsilon), \qquad \epsilon \sim N(0, I_D)

    Its answers are :class:`~pyro_opu.distributions.Implicit`: draws, and moments by fixed noise,
    which is saved with the weights. There is no density. ``units`` and ``noise`` are those of
    :class:`Generator`; other arguments as of :class:`TrunkGuide`.

    References:
        Bouchacourt, Mudigonda and Nowozin (2016), DISCO nets: dissimilarity coefficients networks,
        which are networks from noise that an energy score teaches.
    """

    kind = "implicit"
    form = "draws of class probabilities from {0.noise} numbers of noise, {0.units} units"
    options = ("units", "noise")

    def __init__(
        self,
        trunk: nn.Module,
        num_features: int,
        num_classes: int,
        units: int = HIDDEN,
        noise: int = NOISE,
    ) -> None:
        self.units = positive_int("units", units)
        self.noise = positive_int("noise", noise)
        super().__init__(trunk, num_features, num_classes)
        self.generator = Generator(num_classes, units, noise)
        self.generator.begin(self.head.bias)

    def num_outputs(self, num_classes: int) -> int:
        return num_classes + 2 * self.units

    def answer(self, outputs: Tensor) -> Implicit:
        values = self.generator.at(outputs)

        def log_probs(noise: Tensor) -> Tensor:
            made = values(noise).permute(1, 2, 0)  # as it lies in memory
            return made.log_softmax(1).permute(2, 0, 1)

        source = FromNoise(log_probs, self.generator.points, len(outputs))
        return Implicit(source, len(outputs), self.num_classes)

    def start_at(self, log_concentration: float) -> None:
        """Let the logits' deviation begin near that of a Dirichlet, rather than near one."""
        deviation = math.sqrt(self.num_classes * math.exp(-log_concentration))
        self.generator.begin(self.head.bias, deviation)


class ImplicitTableGuide(NarrowTrunk, TableGuide):
    """Draws of all that is observed of a row from one noise, so that they depend on one another.

    Its answers are :class:`~pyro_opu.parts.ImplicitTable`. Arguments as of
    ``TableGuide`` and :class:`ImplicitGuide`.
    """

    kind = "implicit"
    form = "draws of {0.sites} from {0.noise} numbers of noise, {0.units} units"

    def __init__(
        self,
        trunk: nn.Module,
        num_features: int,
        parts: Sequence[Part | dict[str, Any]],
        units: int = HIDDEN,
        noise: int = NOISE,
    ) -> None:
        super().__init__(trunk, num_features, parts)
        self.units, self.noise = positive_int("units", units), positive_int("noise", noise)
        self.widths = [part.columns * part.width for part in self.parts]
        self.generator = Generator(sum(self.widths), units, noise)
        self.head = nn.Linear(num_features, self.generator.num_inputs)
        self.generator.begin(self.head.bias)

    def answer(self, outputs: Tensor, x: Tensor) -> ImplicitTable:
        made_of = self.generator.at(outputs)

        def values(noise: Tensor) -> list[Tensor]:
            pairs = zip(self.parts, made_of(noise).split(self.widths, -1), strict=True)
            return [
                part.made(made.reshape(len(made), -1, part.width), *self.units_of(number, len(x)))
                for number, (part, made) in enumerate(pairs)
            ]

        source = FromNoise(values, self.generator.points, len(outputs))
        return ImplicitTable(self.parts, source, self._scale(), self.trials_at(x))

    def _scale(self) -> Tensor:
        """Units of the numbers of all parts, ``(K,)``: deviations of means, 1 of all else."""
        found = []
        for number, part in enumerate(self.parts):
            first: Tensor = getattr(self, f"scale_{number}")
            rest = [torch.ones_like(first)] * (part.width - 1)
            found.append(torch.stack([first, *rest], -1).flatten())
        return torch.cat(found)

    def _begin(self, number: int, outputs: Tensor) -> None:
        outputs = outputs[:, : self.parts[number].width]
        self.head.bias.split([*self.widths, 2 * self.units])[number].copy_(outputs.flatten())
