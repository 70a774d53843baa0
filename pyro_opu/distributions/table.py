"""What a student answers with where a model observes several numbers of every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from pyro_opu.distributions.base import Answer
from pyro_opu.distributions.counts import PredictiveCount, PredictiveTrials
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.distributions.measures import Measures
from pyro_opu.distributions.normal import PredictiveNormal

__all__ = ["KINDS", "Kind", "Part", "TableAnswer", "by_part"]

Kind = Literal["classes", "trials", "real", "counts"]
#: What answers each kind of part, with one answer for each of its numbers.
KINDS: dict[str, type[Any]] = {
    "classes": PredictiveDirichlet,
    "trials": PredictiveDirichlet,
    "real": PredictiveNormal,
    "counts": PredictiveCount,
}


@dataclass(frozen=True)
class Part:
    """One observed site: one number, or several alike, of every row.

    Attributes:
        site: Its name.
        kind: "classes", of one label or several; "trials", successes of so many trials; "real" or
            "counts".
        shape: The shape of what it observes of one row; ``()`` of one number.
        width: Numbers that a draw says of each: C class probabilities, or mean and log deviation.
        trials: How many trials, where the kind is "trials".
        trials_column: The column of the inputs ``(N, D)`` that says how many, instead.
    """

    site: str
    kind: Kind
    shape: tuple[int, ...]
    width: int
    trials: int = 1
    trials_column: int | None = None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Part:
        """The part that ``dataclasses.asdict`` gave, checked."""
        part = cls(**{**config, "shape": tuple(config["shape"])})
        numbers = (*part.shape, part.width, part.trials, part.trials_column or 0)
        if (
            type(part.site) is not str
            or part.kind not in KINDS
            or not all(type(each) is int and 0 <= each < 2**40 for each in numbers)
            or min((part.width - 1, part.trials, *part.shape)) < 1
        ):
            raise ValueError(f"a part is {config!r:.80}")
        return part

    @property
    def described(self) -> str:
        """Its kind and shape, in words."""
        return f"{self.kind} {self.shape}" if self.shape else self.kind

    @property
    def columns(self) -> int:
        """Numbers L that it observes of one row."""
        return prod(self.shape)

    @property
    def on_simplex(self) -> bool:
        """Whether a draw says probabilities."""
        return self.kind in ("classes", "trials")


def by_part(values: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """Draws ``(S, N, K)`` as ``(S, N L, width)`` of each part, whose numbers become rows."""
    split = values.split([part.columns * part.width for part in parts], -1)
    pairs = zip(split, parts, strict=True)
    return [each.reshape(len(values), -1, part.width) for each, part in pairs]


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
                if trials is None:
                    return found
                return PredictiveTrials(found.matched(), trials.reshape(rows))
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
        found = []
        for answer, trials in zip(self.answers, self.trials, strict=True):
            drawn = answer if trials is None else PredictiveTrials(answer, trials)
            found.append(drawn.predict(count, parameters))
        return found

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
        kinds = [KINDS[part.kind] for part in self.parts]
        answers = [kind.from_tensors(each) for kind, each in zip(kinds, held, strict=True)]
        return TableAnswer(self.parts, answers, trials)

    def __repr__(self) -> str:
        return f"TableAnswer({', '.join(f'{k}: {v!r}' for k, v in self.by_site().items())})"


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
        self.units = {  # type: ignore[misc]
            name: measures.units[own] for name, (measures, own) in self._of.items()
        }

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_") or name not in self._of:
            raise AttributeError(name)
        measures, own = self._of[name]
        value: Tensor = getattr(measures, own)
        return value
