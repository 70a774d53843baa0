"""A guide that answers several numbers of every row: one trunk, one head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pyro_opu.guides.base import HeadGuide
from pyro_opu.inputs import Inputs
from pyro_opu.parts import Part, TableAnswer, part_from

if TYPE_CHECKING:
    from typing import Self

__all__ = ["TableGuide"]

#: Names of the buffers that hold the units of a part.
UNITS = ("shift", "scale")


class TableGuide(HeadGuide):
    """A trunk and a linear head whose outputs stand for every observed number of a row.

    ``trunk`` is any module ``x (N, ...) -> features (N, F)``, ``num_features`` is F. What outputs
    mean, each part says: see ``Part.answer``.
    """

    kind = "table"
    form = "one answer for each number of {0.sites}"

    def __init__(
        self, trunk: nn.Module, num_features: int, parts: Sequence[Part | dict[str, Any]]
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.parts = tuple(each if isinstance(each, Part) else part_from(each) for each in parts)
        self.widths = [part.columns * part.num_outputs for part in self.parts]
        self.head = nn.Linear(num_features, sum(self.widths))
        for number, part in enumerate(self.parts):  # units of real y
            self.register_buffer(f"shift_{number}", torch.zeros(part.columns))
            self.register_buffer(f"scale_{number}", torch.ones(part.columns))

    @property
    def sites(self) -> str:
        """Names of the sites, in words."""
        return ", ".join(part.site for part in self.parts)

    def forward(self, x: Tensor) -> TableAnswer:
        """The answers at ``x``, batch shape ``(N,)``."""
        return self.answer(self.head(self.trunk(x)), x)

    def answer(self, outputs: Tensor, x: Tensor) -> TableAnswer:
        """The answers that the head's outputs ``(N, ...)`` at ``x`` stand for."""
        pairs = zip(self.parts, outputs.split(self.widths, -1), strict=True)
        answers = [
            part.answer(values.reshape(len(x) * part.columns, -1), *self.units_of(number, len(x)))
            for number, (part, values) in enumerate(pairs)
        ]
        return TableAnswer(self.parts, answers, self.trials_at(x))

    def trials_at(self, x: Tensor) -> list[Tensor | None]:
        """Numbers of trials ``(N L,)`` of each part of that kind, ``None`` of the others."""
        return [part.trials_at(x) for part in self.parts]

    def units_of(self, number: int, rows: int) -> list[Tensor]:
        """Shift and scale ``(N L,)`` of a part that has units of its own."""
        names = UNITS if self.parts[number].has_units else ()
        return [getattr(self, f"{name}_{number}").repeat(rows) for name in names]

    @torch.no_grad()
    def start_at(self, draws: Sequence[Tensor]) -> Self:
        """Begin at the mean answer of all rows, from a teacher's draws ``(S, N, L, width)``."""
        for number, (part, values) in enumerate(zip(self.parts, draws, strict=True)):
            units = part.units(values.double())
            for name, value in zip(UNITS, units, strict=True):
                getattr(self, f"{name}_{number}").copy_(value)
            self._begin(number, part.start(values.double(), units))
        return self

    def _begin(self, number: int, outputs: Tensor) -> None:
        """Let the head begin at these outputs ``(L, num_outputs)`` of a part."""
        self.head.bias.split(self.widths)[number].copy_(outputs.flatten())

    @classmethod
    def for_inputs(
        cls, x: Tensor | Inputs, parts: Sequence[Part], *, hidden: tuple[int, ...] | None = None
    ) -> Self:
        """Build a guide sized to the inputs, as ``TrunkGuide.for_inputs`` does."""
        described = [part.config for part in parts]
        return cls._sized(x, hidden, {"options": {"parts": described}})

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        guide = super().from_config(config)
        guide.config = {**config, "kind": cls.kind}
        return guide
