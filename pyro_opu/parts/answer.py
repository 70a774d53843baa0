"""What a student answers with where a model observes a table: the answers of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_opu.checks import ArgumentTypeError
from pyro_opu.distributions.base import Answer
from pyro_opu.distributions.implicit import FromNoise
from pyro_opu.distributions.measures import Measures
from pyro_opu.parts.base import Part, map_parts

__all__ = ["ImplicitTable", "JointDraws", "TableAnswer"]


class TableAnswer(Answer):
    """One answer for every observed number of N rows; by site ``answer["obs"]``.

    Between the numbers of a row, as between rows, it says nothing of their dependence.

    Args:
        parts: The observed sites.
        answers: The answer of each, batch shape ``(N L,)``: numbers are rows of their own.
        trials: How many, ``(N L,)``, of each part of that kind, ``None`` of the others.
    """

    def __init__(
        self, parts: Sequence[Part], answers: Sequence[Any], trials: Sequence[Tensor | None]
    ) -> None:
        self.parts, self.answers, self.trials = tuple(parts), tuple(answers), tuple(trials)
        rows = answers[0].batch_shape[0] // parts[0].columns
        self.batch_shape = torch.Size([rows])
        self.event_shape = torch.Size([sum(part.columns for part in parts)])

    def __getitem__(self, site: str) -> Any:
        """The answer of one site, batch shape ``(N, *shape)``."""
        for part, answer, trials in zip(self.parts, self.answers, self.trials, strict=True):
            if part.site == site:
                rows = (*self.batch_shape, *part.shape)
                found = answer.unflatten(rows)
                return part.whole(found, None if trials is None else trials.reshape(rows))
        names = ", ".join(part.site for part in self.parts)
        raise KeyError(f"`site` is none of the observed ones, {names}; got {site!r}")

    def by_site(self) -> dict[str, Any]:
        """The answers by the names of their sites."""
        return {part.site: self[part.site] for part in self.parts}

    @property
    def mean(self) -> Tensor:
        """All means side by side, ``(N, K)``."""
        return torch.cat([a.mean.reshape(*self.batch_shape, -1) for a in self.answers], 1)

    def measures(self) -> Measures:
        """The measures of every site; with several they are named "site.total"."""
        return TableMeasures({name: each.measures() for name, each in self.by_site().items()})

    def matched(self) -> TableAnswer:
        return self

    def draw(self, count: int, parameters: bool) -> list[tuple[Tensor, Any]]:
        """Draws ``(S, N L)`` of each part, and the parameters that each was drawn with, if asked.

        Draws are independent between the numbers of a row.
        """
        each = zip(self.parts, self.answers, self.trials, strict=True)
        return [part.whole(answer, n).predict(count, parameters) for part, answer, n in each]

    def said(self, count: int) -> Tensor:
        """Draws ``(S, N, K)`` of all parameters of a row together."""
        raise ArgumentTypeError(
            "draws of parameters of several sites are not kept apart from what is observed. Call "
            "fast(x)."
        )

    def as_tensors(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for number, (answer, trials) in enumerate(zip(self.answers, self.trials, strict=True)):
            tensors |= {f"{number}/{name}": part for name, part in answer.as_tensors().items()}
            if trials is not None:
                tensors[f"{number}/trials"] = trials
        return tensors

    def from_tensors(self, tensors: dict[str, Tensor]) -> TableAnswer:  # type: ignore[override]
        """Another answer of the same parts."""
        held: list[dict[str, Tensor]] = [{} for _ in self.parts]
        for name, value in tensors.items():
            number, _, rest = name.partition("/")
            held[int(number)][rest] = value
        trials = [each.pop("trials", None) for each in held]
        pairs = zip(self.parts, held, strict=True)
        return TableAnswer(
            self.parts, [part.family.from_tensors(each) for part, each in pairs], trials
        )

    def __repr__(self) -> str:
        return f"TableAnswer({', '.join(f'{k}: {v!r}' for k, v in self.by_site().items())})"


class ImplicitTable(TableAnswer):
    """Several numbers of every row that depend on one another, from one noise for all of a row.

    A draw is what a posterior draw says of the row: probabilities of labels, mean and log deviation
    of the others. ``answers`` are the marginals, by the fixed points of noise.

    Args:
        parts: The observed sites.
        source: What gives a list of draws ``(S, N L, width)``, one for each part; of labels in
            logarithms.
        scale: Units of the K numbers, ``(K,)``, in which draws are compared.
        trials: How many, ``(N L,)``, of each part of that kind, ``None`` of the others.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        source: FromNoise,
        scale: Tensor,
        trials: Sequence[Tensor | None],
    ) -> None:
        self.parts, self.trials = tuple(parts), tuple(trials)
        self.source, self.scale = source, scale
        self.batch_shape = torch.Size([source.rows])
        self.event_shape = torch.Size([sum(part.columns for part in parts)])

    @lazy_property
    def answers(self) -> tuple[Any, ...]:  # type: ignore[override]
        """Marginals of each part, batch shape ``(N L,)``."""
        pairs = enumerate(zip(self.parts, self.source.fixed(), strict=True))
        return tuple(part.marginal(draws, self._alone(number)) for number, (part, draws) in pairs)

    def _alone(self, number: int) -> FromNoise:
        """What gives the draws of one part."""
        source = self.source
        return FromNoise(lambda noise: source.make(noise)[number], source.points, source.rows)

    def said(self, count: int) -> Tensor:
        """See its base; labels are in logarithms, with pathwise gradients."""
        rows = self.source.rows
        return torch.cat([e.reshape(count, rows, -1) for e in self.source.fresh(count)], -1)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws ``(*sample_shape, N, K)`` in the units in which they are compared."""
        shape = torch.Size(sample_shape)
        said = self.said(shape.numel())
        plain = map_parts(lambda part, own: part.plain(own), said, self.parts)
        return self.comparable(plain).reshape(*shape, self.source.rows, -1)

    def comparable(self, draws: Tensor) -> Tensor:
        return draws / self.scale

    def matched(self) -> TableAnswer:
        """Families with the moments of every number, independent of one another."""
        return TableAnswer(self.parts, [each.matched() for each in self.answers], self.trials)

    def draw(self, count: int, parameters: bool) -> list[tuple[Tensor, Any]]:
        """See its base; one draw is all numbers of a row."""
        each = zip(self.parts, self.source.fresh(count), self.trials, strict=True)
        return [part.observed(draws, trials) for part, draws, trials in each]


class JointDraws:
    """Draws ``(S, N, width)`` that are functions of x, in whose order answers are drawn."""

    def __init__(self, part: Part, draws: Tensor) -> None:
        self.part, self.draws = part, draws

    def predict(self, count: int, parameters: bool = True) -> tuple[Tensor, Tensor]:
        """Draws ``(S, N)`` by the functions in order, then over again, and their parameters."""
        index = torch.arange(count, device=self.draws.device) % len(self.draws)
        return self.part.observed(self.draws[index], None)


class TableMeasures(Measures):
    """Measures of several sites; of one alone under their own names."""

    kind = "table"

    def __init__(self, each: dict[str, Measures]) -> None:
        self.each = each
        self.dtype = next(iter(each.values())).dtype
        alone = len(each) == 1
        self._of = {
            name if alone else f"{site}.{name}": (measures, name)
            for site, measures in each.items()
            for name in measures.units
        }
        self.usual = tuple(k for k, (of, own) in self._of.items() if own in of.usual)
        self.units = {  # type: ignore[misc]
            name: measures.units[own] for name, (measures, own) in self._of.items()
        }

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_") or name not in self._of:
            raise AttributeError(name)
        measures, own = self._of[name]
        value: Tensor = getattr(measures, own)
        return value
