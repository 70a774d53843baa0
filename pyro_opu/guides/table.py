"""A guide that answers several numbers of every row: one trunk, one head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pyro_opu.distributions.counts import PredictiveCount
from pyro_opu.distributions.dirichlet import LOG_CONCENTRATION_RANGE, PredictiveDirichlet
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.distributions.table import Part, TableAnswer
from pyro_opu.guides.base import HeadGuide
from pyro_opu.guides.dirichlet import soft_clamp
from pyro_opu.guides.normal import LOG_VARIANCES
from pyro_opu.inputs import Inputs

if TYPE_CHECKING:
    from typing import Self

__all__ = ["TableGuide"]

#: Names of the buffers that hold the units of a part.
UNITS = ("shift", "scale")
#: Range of the logarithm of a count's mean.
LOG_MEANS = (-20.0, 20.0)


class TableGuide(HeadGuide):
    """A trunk and a linear head whose outputs stand for every observed number of a row.

    ``trunk`` is any module ``x (N, ...) -> features (N, F)``, ``num_features`` is F. Labels have
    logits and a log concentration; a real y its mean and the logarithms of its two variances, in
    units of its own; a count the logarithms of its mean, of its aleatoric variance over that mean,
    and of its epistemic variance over the mean squared.
    """

    kind = "table"
    form = "one answer for each number of {0.sites}"

    def __init__(
        self, trunk: nn.Module, num_features: int, parts: Sequence[Part | dict[str, Any]]
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.parts = tuple(
            each if isinstance(each, Part) else Part.from_config(each) for each in parts
        )
        self.widths = [part.columns * self.numbers_of(part) for part in self.parts]
        self.head = nn.Linear(num_features, sum(self.widths))
        for number, part in enumerate(self.parts):  # units of real y
            self.register_buffer(f"shift_{number}", torch.zeros(part.columns))
            self.register_buffer(f"scale_{number}", torch.ones(part.columns))

    @staticmethod
    def numbers_of(part: Part) -> int:
        """Outputs for each number of a part."""
        return part.width + 1 if part.on_simplex else 3

    @property
    def sites(self) -> str:
        """Names of the sites, in words."""
        return ", ".join(part.site for part in self.parts)

    def forward(self, x: Tensor) -> TableAnswer:
        """The answers at ``x``, batch shape ``(N,)``."""
        return self.answer(self.head(self.trunk(x)), x)

    def answer(self, outputs: Tensor, x: Tensor) -> TableAnswer:
        """The answers that the head's outputs ``(N, ...)`` at ``x`` stand for."""
        answers = [
            self._of_part(number, values.reshape(len(x) * part.columns, -1))
            for number, (part, values) in enumerate(
                zip(self.parts, outputs.split(self.widths, -1), strict=True)
            )
        ]
        return TableAnswer(self.parts, answers, self.trials_at(x))

    def trials_at(self, x: Tensor) -> list[Tensor | None]:
        """Numbers of trials ``(N L,)`` of each part of that kind, ``None`` of the others."""
        return [_trials(part, x) if part.kind == "trials" else None for part in self.parts]

    def _of_part(self, number: int, outputs: Tensor) -> Any:
        """The answer of a part to outputs ``(N L, ...)``."""
        part = self.parts[number]
        if part.on_simplex:
            log_concentration = soft_clamp(outputs[:, -1], *LOG_CONCENTRATION_RANGE)
            log_mean = outputs[:, :-1].log_softmax(-1)
            return PredictiveDirichlet(log_mean, log_concentration, validate_args=False)
        mean, aleatoric, epistemic = outputs.unbind(-1)
        aleatoric, epistemic = (soft_clamp(each, *LOG_VARIANCES) for each in (aleatoric, epistemic))
        if part.kind == "counts":
            log_mean = soft_clamp(mean, *LOG_MEANS)
            return PredictiveCount(log_mean, log_mean + aleatoric, 2 * log_mean + epistemic)
        times = len(outputs) // part.columns
        shift, scale = (getattr(self, f"{name}_{number}").repeat(times) for name in UNITS)
        units = 2 * scale.log()
        mean = shift + scale * mean
        return PredictiveNormal(mean, units + aleatoric, units + epistemic, validate_args=False)

    @torch.no_grad()
    def start_at(self, draws: Sequence[Tensor]) -> Self:
        """Begin at the mean answer of all rows, from a teacher's draws ``(S, N, L, width)``."""
        for part, bias, values, number in zip(
            self.parts, self.head.bias.split(self.widths), draws, range(len(draws)), strict=True
        ):
            mean = values.double().mean((0, 1))  # (L, width)
            start = mean.new_zeros(part.columns, len(bias) // part.columns)
            if part.on_simplex:
                within = (values.double() * (1 - values.double())).sum(-1).mean((0, 1))
                between = values.double().var(0).sum(-1).mean(0)
                start[:, :-1] = mean.clamp_min(1e-6).log()
                start[:, -1] = (within / between.clamp_min(1e-12)).clamp(1e-3, 1e6).log()
            elif part.kind == "counts":
                f, noise = values.double()[..., 0], (2 * values.double()[..., 1]).exp()
                means = f.mean(0).clamp_min(1e-8)
                start[:, 0] = means.mean(0).log()
                start[:, 1] = (noise.mean(0) / means).log().mean(0)
                start[:, 2] = (f.var(0) / means.square()).clamp_min(1e-8).log().mean(0)
            else:
                f, noise = values.double()[..., 0], (2 * values.double()[..., 1]).exp()
                scale = (f.var((0, 1)) + noise.mean((0, 1))).sqrt()
                getattr(self, f"shift_{number}").copy_(f.mean((0, 1)))
                getattr(self, f"scale_{number}").copy_(scale)
                start[:, 1] = (noise.mean((0, 1)) / scale.square()).log()
                start[:, 2] = (f.var(0).mean(0) / scale.square()).clamp_min(1e-8).log()
            bias.copy_(start.flatten())
        return self

    @classmethod
    def for_inputs(
        cls, x: Tensor | Inputs, parts: Sequence[Part], *, hidden: tuple[int, ...] | None = None
    ) -> Self:
        """Build a guide sized to the inputs, as ``TrunkGuide.for_inputs`` does."""
        described = [asdict(part) for part in parts]
        return cls._sized(x, hidden, {"options": {"parts": described}})

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        guide = super().from_config(config)
        guide.config = {**config, "kind": cls.kind}
        return guide


def _trials(part: Part, x: Tensor) -> Tensor:
    """Number of trials of every row, ``(N L,)``."""
    if part.trials_column is None:
        return x.new_full((len(x) * part.columns,), part.trials)
    return x[:, part.trials_column].repeat_interleave(part.columns)
