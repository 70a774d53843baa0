"""Several numbers of every row: labels, real numbers and counts, of one site or more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import one_hot

from pyro_opu.checks import ArgumentError, rows_off_simplex, simplex_tolerance
from pyro_opu.distributions import Answer
from pyro_opu.distributions.implicit import ImplicitTable
from pyro_opu.distributions.table import Part, TableAnswer, by_part
from pyro_opu.metrics.normals import teacher_moments
from pyro_opu.parts.base import Outcome, SiteLayout
from pyro_opu.parts.kinds import said, said_of
from pyro_opu.programs.enumerated import (
    log_probs_apart,
    mixed_log_probs,
    mixed_normals,
    normals_apart,
)
from pyro_opu.programs.sites import site_kind, unwrap
from pyro_opu.programs.trace import is_deterministic
from pyro_opu.utils.laws import Node

__all__ = ["Table", "check_trials", "unlike_trials"]


@dataclass(frozen=True)
class Table(Outcome):
    """Several numbers of every row, each with an answer of its own.

    Attributes:
        parts: The observed sites.
    """

    kind: ClassVar[str] = "table"
    single: ClassVar[bool] = False
    quantity: ClassVar[str] = "parameters of several sites"
    answer_text: ClassVar[str] = "a TableAnswer"
    site_kinds: ClassVar[tuple[str, ...]] = ("label", "onehot", "value", "probs", "prob1", "mean")
    learned: ClassVar[str] = "what is observed"
    held: ClassVar[str] = "the parameters of one"
    label: ClassVar[tuple[str, str]] = ("value", "")
    extra: ClassVar[str] = ""

    num_classes = None
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ArgumentError("`parts` must hold at least one observed site; got none.")

    def __str__(self) -> str:
        return ", ".join(f"{part.site} ({part.described})" for part in self.parts)

    @classmethod
    def from_config(cls, **config: Any) -> Table:
        return cls(tuple(map(Part.from_config, config["parts"])))

    def is_sized_as(self, guide: dict[str, Any]) -> bool:
        return tuple(map(Part.from_config, guide["options"]["parts"])) == self.parts

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        return {part.site: (part.width, part.columns) for part in self.parts}

    def by_site(self, answer: Any) -> dict[str, Any]:
        found: dict[str, Any] = answer.by_site()
        return found

    def shown(self, by_site: Mapping[str, object]) -> Any:
        return by_site if len(self.parts) > 1 else super().shown(by_site)

    @property
    def num_outputs(self) -> int:
        return sum(part.columns * part.width for part in self.parts)

    def plain(self, said: Tensor) -> Tensor:
        found = [
            (values.exp() if part.on_simplex else values).reshape(*said.shape[:2], -1)
            for part, values in zip(self.parts, by_part(said, self.parts), strict=True)
        ]
        return torch.cat(found, -1)

    def checked(self, draws: Tensor, rows: int, sums: bool) -> Tensor:
        if draws.ndim != 3 or draws.shape[1] != rows or torch.isnan(draws.sum()):
            raise self._unfit("NaN" if draws.ndim == 3 else f"shape {tuple(draws.shape)}", rows)
        parts = []
        for part, values in zip(self.parts, by_part(draws, self.parts), strict=True):
            if not part.on_simplex and not torch.isfinite(values.sum()):
                raise self._unfit("infinity", rows)
            tolerance = simplex_tolerance(values.dtype)
            if part.on_simplex and rows_off_simplex(values[:4, :64].exp())[1] > tolerance:
                raise ArgumentError(
                    f"`source`'s site '{part.site}' must have probabilities that sum to 1. Does "
                    "the model pass numbers outside [0, 1] as probs? Pass logits, or a softmax."
                )
            if part.on_simplex:
                values = values.clamp_min(torch.finfo(values.dtype).min / 4)
            parts.append(values.reshape(*draws.shape[:2], -1))
        return torch.cat(parts, -1)

    def _unfit(self, found: str, rows: int) -> ValueError:
        return ArgumentError(
            f"`source`'s sites {[part.site for part in self.parts]} must have finite parameters at "
            f"each of {rows} inputs; got {found}. Check the posterior draws (torch.isfinite) and "
            "the model at these inputs."
        )

    def read(self, fns: Mapping[str, Distribution], rows: int, axes: Mapping[str, int]) -> Tensor:
        read = []
        for part in self.parts:
            values = said(part.kind, fns[part.site])
            check_trials(part, fns[part.site])
            axis = axes[part.site] - 1
            if -axis > values.ndim or values.shape[axis] not in (1, rows):
                raise ArgumentError(
                    f"`source`'s site '{part.site}' must hold values for every input; got shape "
                    f"{tuple(values.shape[:-1])} for {rows} inputs. Put it in "
                    "pyro.plate('data', len(x))."
                )
            first = values.movedim(axis, 0).flatten(1)
            read.append(first.expand(rows, first.shape[1]))
        return torch.cat(read, 1)

    def mixed(self, log_weights: Tensor, said: Tensor) -> Tensor:
        found = []
        for part, values in zip(self.parts, by_part(said, self.parts), strict=True):
            mixed = mixed_log_probs if part.on_simplex else mixed_normals
            of_numbers = mixed(log_weights.repeat_interleave(part.columns, 1), values)
            found.append(of_numbers.reshape(said.shape[1], -1))
        return torch.cat(found, 1)

    def apart(self, one: Tensor, two: Tensor) -> float:
        both = zip(by_part(one[None], self.parts), by_part(two[None], self.parts), strict=True)
        return max(
            (log_probs_apart if part.on_simplex else normals_apart)(*pair)
            for part, pair in zip(self.parts, both, strict=True)
        )

    @property
    def event_shape(self) -> tuple[int, ...]:
        """How many numbers of a row there are, as a shape."""
        return (sum(part.columns for part in self.parts),)

    def kinds(self, nodes: Mapping[str, Node], site: str) -> dict[str, str]:
        """The observed sites, and those that hold the parameters of one."""
        kinds = {}
        for name, node in nodes.items():
            found = (_kind(node, part, nodes) for part in self.parts)
            kind = next((kind for kind in found if kind is not None), None)
            if kind is not None:
                kinds[name] = kind
        return kinds

    def layouts_of_obs(self, dtype: str) -> list[SiteLayout]:
        return [
            SiteLayout(
                p.site, "label" if p.kind == "classes" else "value", dtype, (-1, *p.shape), p.site
            )
            for p in self.parts
        ]

    def shown_by(self, nodes: Mapping[str, Node], name: str) -> str:
        """The observed site whose values or parameters a site shows."""
        return next(p.site for p in self.parts if _kind(nodes[name], p, nodes) is not None)

    def sample(self, answer: Any, sites: Collection[SiteLayout], count: int) -> dict[str, Tensor]:
        """Draws of all sites; those of one part go together, with its parameters if they show."""
        rows = answer.batch_shape[0]
        pairs = answer.draw(count, any(site.shows_parameters for site in sites))
        drawn = {part.site: (part, pair) for part, pair in zip(self.parts, pairs, strict=True)}

        def values(site: SiteLayout) -> Tensor:
            part, (numbers, parameters) = drawn[site.of]
            return _values(part, numbers, parameters, site.kind).reshape(count, rows, -1)

        return {site.name: site.fill(values(site)) for site in sites}

    def draws_of(self, answer: Answer, count: int) -> Tensor:
        return (
            answer.said(count)
            if isinstance(answer, ImplicitTable)
            else super().draws_of(answer, count)
        )

    def is_answer(self, value: object) -> bool:
        return isinstance(value, TableAnswer)

    def chain(self, draws: Tensor) -> Tensor:
        """Probabilities; means in deviations of y, and logarithms of scales."""
        found = []
        for part, values in zip(self.parts, by_part(draws, self.parts), strict=True):
            if not part.on_simplex:
                units = torch.ones_like(values)
                units[..., 0] = teacher_moments(values).scale
                values = values / units
            found.append(values.reshape(*draws.shape[:2], -1))
        return torch.cat(found, -1)


def _kind(node: Node, part: Part, nodes: Mapping[str, Node]) -> str | None:
    """What a site shows of a part: its values, its parameters, or nothing."""
    observed = nodes[part.site]
    if node is observed:
        onehot = site_kind(node["fn"]) in ("onehot", "multinomial")
        return "onehot" if onehot else "label" if part.kind == "classes" else "value"
    value = node["value"]
    if not is_deterministic(node) or not value.is_floating_point():
        return None
    values = said_of(observed["fn"])
    if part.on_simplex:
        values = values.exp()
        shown = {"probs": values, **({"prob1": values[..., 1]} if part.width == 2 else {})}
    else:
        shown = {"mean": values[..., 0]}
    for kind, held in shown.items():
        if value.numel() == held.numel() and torch.allclose(
            value.reshape(held.shape).double(), held.double(), rtol=1e-5, atol=1e-5
        ):
            return kind
    return None


def _values(part: Part, drawn: Tensor, parameters: Any, kind: str) -> Tensor:
    """Draws ``(S, N L)``, or the parameters that they were drawn with."""
    if kind == "onehot":
        return one_hot(drawn, part.width)
    if kind in ("label", "value"):
        return drawn
    if part.kind == "trials" and kind == "probs":
        return torch.stack([1 - parameters, parameters], -1)
    return parameters[..., 1] if kind == "prob1" and part.kind == "classes" else parameters


def check_trials(part: Part, fn: Distribution) -> None:
    """Refuse numbers of trials that differ at rows that were not looked at before."""
    if part.trials_column is not None or site_kind(fn) != "binomial":
        return
    if bool((torch.as_tensor(unwrap(fn).total_count) != part.trials).any()):
        raise unlike_trials(part.site)


def unlike_trials(site: str) -> ValueError:
    return ArgumentError(
        f"`source`'s site '{site}' must have the same total_count in all rows, or one that is an "
        "input: a student answers without the model. Pass it as one of the inputs, "
        "x=(..., total_count), float."
    )
