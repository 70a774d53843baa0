"""What a model observes of a row: a table of parts, of which there may be one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_opu.checks import ArgumentError, ArgumentTypeError
from pyro_opu.parts.answer import TableAnswer
from pyro_opu.parts.base import Part, Words, by_part, map_parts
from pyro_opu.parts.classes import ClassPart, TrialsPart
from pyro_opu.parts.layout import SiteLayout
from pyro_opu.parts.real import CountPart, RealPart
from pyro_opu.programs.sites import one_per_row
from pyro_opu.programs.trace import is_deterministic

__all__ = ["KINDS", "Outcome", "outcome_from", "part_from"]

#: Kinds of parts by the name that a file has for them.
KINDS: dict[str, type[Part]] = {
    part.kind: part for part in (ClassPart, TrialsPart, RealPart, CountPart)
}
_WORDS = Words(
    "parameters of several sites", "a TableAnswer", "what is observed", "the parameters of one"
)


@dataclass(frozen=True)
class Outcome:
    """What a model observes of a row, and what its numbers mean: a table of parts.

    A teacher's draws ``(S, N, K)`` are read by it, a student's answers are drawn from by it, and
    sites of a ``Predictive`` are laid out by it. One class label, or one real y, is a table of one
    part without a name, whose answer stands by itself.

    Attributes:
        parts: The observed sites.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ArgumentError("`parts` must hold at least one observed site; got none.")

    @classmethod
    def of_classes(cls, num_classes: int) -> Outcome:
        """One label of so many classes."""
        return cls((ClassPart(num_classes=num_classes),))

    @classmethod
    def of_teacher(cls, num_classes: int) -> Outcome:
        """One label of so many classes, which a teacher has."""
        if num_classes < 2:
            raise ArgumentError(
                f"`source` gives {num_classes} class; expected at least two (for two classes "
                "[1 - p, p])."
            )
        return cls.of_classes(num_classes)

    @classmethod
    def of_real(cls) -> Outcome:
        """One real number, normal under each draw."""
        return cls((RealPart(),))

    def __str__(self) -> str:
        if self.single:
            return str(self.one)
        return ", ".join(f"{part.site} ({part.described})" for part in self.parts)

    @cached_property
    def one(self) -> Part:
        """The first part, which is the only one of one label or one real y."""
        return self.parts[0]

    @cached_property
    def single(self) -> bool:
        """Whether it is one label or one real y of every row."""
        return not self.one.site

    @property
    def kind(self) -> str:
        """ "classes" or "real", where it is one number of a row; "table"."""
        return self.one.kind if self.single else "table"

    @property
    def config(self) -> dict[str, Any]:
        """Plain values for a file; ``outcome_from`` is the inverse."""
        return {"parts": [part.config for part in self.parts]}

    @property
    def words(self) -> Words:
        """What it is called."""
        return self.one.words if self.single else _WORDS

    @property
    def answers(self) -> type[Any]:
        """What a guide must answer with."""
        return self.one.answers if self.single else TableAnswer

    @property
    def site_kinds(self) -> tuple[str, ...]:
        """Kinds of the sites that a student gives back."""
        return tuple(dict.fromkeys(kind for part in self.parts for kind in part.site_kinds))

    @property
    def num_classes(self) -> int | None:
        """C of one class label; ``None`` of anything else."""
        return self.one.width if self.single and self.one.on_simplex else None

    @property
    def num_outputs(self) -> int:
        """Numbers K that a draw says of a row."""
        return sum(part.columns * part.width for part in self.parts)

    @cached_property
    def event_shape(self) -> tuple[int, ...]:
        """Event shape of a student's answer, ``(C,)``, ``()`` of a real y, numbers of a table."""
        return self.one.event_shape if self.single else (sum(p.columns for p in self.parts),)

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Width of each observed site, and its numbers per row; "" is the only one."""
        return {part.site: (part.width, part.columns) for part in self.parts}

    def is_sized_as(self, guide: dict[str, Any]) -> bool:
        """Whether a guide that a file describes so answers this outcome."""
        if self.single:
            return guide.get("num_classes") == self.num_classes
        return tuple(map(part_from, guide["options"]["parts"])) == self.parts

    def check_single(self) -> None:
        """Refuse several numbers of every row."""
        if not self.single:
            raise ArgumentTypeError(
                "`source` must be a posterior of one label or one real y per row; got one of "
                f"several numbers, {self}. Name one with as_teacher(source, site=...)."
            )

    def check_classes(self, source: str) -> None:
        """Refuse to give class probabilities where there is no single label."""
        if self.num_classes is None:
            one = "" if self.single else ", or name one site, as_teacher(source, site=...)"
            raise ArgumentTypeError(
                f"`probs` needs {source} of class labels, one per row; this one's outcome is "
                f"{self}. Call .draws(x){one}."
            )

    # Answers

    def by_site(self, answer: Any) -> dict[str, Any]:
        """A student's answer by the observed sites."""
        found: dict[str, Any] = {"": answer} if self.single else answer.by_site()
        return found

    def each(self, answer: Any) -> tuple[Any, ...]:
        """The answers of the parts, batch shape ``(N L,)``."""
        found: tuple[Any, ...] = (answer,) if self.single else answer.answers
        return found

    def shown(self, by_site: Mapping[str, object]) -> Any:
        """What was found for each site, or for the only one."""
        return by_site if len(self.parts) > 1 else next(iter(by_site.values()))

    def sample(self, answer: Any, sites: Collection[SiteLayout], count: int) -> dict[str, Tensor]:
        """``count`` draws of the sites from a student's answer, laid out.

        Numbers of one part go together, with the parameters they were drawn with if these show.
        """
        parameters = any(site.shows_parameters for site in sites)
        draw = answer.predict if self.single else answer.draw
        found = draw(count, parameters)
        pairs = [found] if self.single else found
        drawn = {part.site: (part, pair) for part, pair in zip(self.parts, pairs, strict=True)}

        def values(site: SiteLayout) -> Tensor:
            part, (numbers, around) = drawn[site.of]
            shown = part.values(site.kind, numbers, around)
            return shown.reshape(count, numbers.shape[1] // part.columns, -1)

        return {site.name: site.fill(values(site)) for site in sites}

    def draws_of(self, answer: Any, count: int) -> Tensor:
        """Draws ``(S, N, K)`` of a student's answer, as a teacher's ``stream`` gives them."""
        found: Tensor
        found = self.one.draws_of(answer, count) if self.single else answer.said(count)
        return found

    # Draws

    def plain(self, draws: Tensor) -> Tensor:
        """Draws as a teacher's ``draws`` gives them, from those of its ``stream``."""
        return map_parts(lambda part, own: part.plain(own), draws, self.parts)

    def checked(self, draws: Tensor, rows: int, sums: bool) -> Tensor:
        """Refuse what cannot be draws ``(S, rows, K)``; ``sums`` adds some probabilities up."""
        if draws.ndim != 3 or draws.shape[1] != rows:
            width = "C" if self.num_classes else self.num_outputs
            raise ArgumentError(
                f"`source` must give {self.words.quantity} of every input, shape (S, {rows}, "
                f"{width}) for {rows} inputs; got {tuple(draws.shape)}. Let the model "
                "keep the inputs on axis 0 and return one row of numbers for each."
            )
        if draws.shape[-1] != self.num_outputs:
            what = "numbers" if self.num_classes is None else "classes"
            raise ArgumentError(
                f"`source` must give as many {what} at any number of inputs, and at every call; "
                f"got {self.num_outputs} before and {draws.shape[-1]} now. Is an axis of its model "
                f"that of the inputs where the {what} belong?"
            )
        return map_parts(lambda part, own: part.checked(own, sums), draws, self.parts)

    def mixed(self, log_weights: Tensor, draws: Tensor) -> Tensor:
        """What a mixture says ``(N, K)``, of V in it ``(V, N, K)`` with weights ``(V, N)``."""
        pairs = zip(self.parts, by_part(draws, self.parts), strict=True)
        found = [
            part.mixed(log_weights.repeat_interleave(part.columns, 1), own) for part, own in pairs
        ]
        return _beside([each.reshape(draws.shape[1], -1) for each in found])

    def apart(self, one: Tensor, two: Tensor) -> float:
        """The largest difference of what two mixtures say ``(N, K)``."""
        both = zip(by_part(one[None], self.parts), by_part(two[None], self.parts), strict=True)
        return max(part.apart(*pair) for part, pair in zip(self.parts, both, strict=True))

    def chain(self, draws: Tensor) -> Tensor:
        """Draws ``(S, N, K)`` in units in which a movement of 1e-6 is none, for R-hat."""
        return map_parts(lambda part, own: part.chain(own), draws, self.parts)

    def means(self, draws: Tensor) -> Tensor:
        """What of the draws, of one number, a posterior's epistemic part is the spread of."""
        return self.one.means(draws)

    # Sites of a model

    def read(self, fns: Mapping[str, Distribution], rows: int, axes: Mapping[str, int]) -> Tensor:
        """What the distributions of the observed sites say of each row, ``(rows, K)``.

        Args:
            fns: Distributions by site.
            rows: Inputs N.
            axes: By observed site, in the order of the parts, the axis of its numbers that holds
                the rows, from the end.
        """
        pairs = zip(self.parts, axes.items(), strict=True)
        read = [_rows(part, part.read(fns[site]), rows, site, axis) for part, (site, axis) in pairs]
        return _beside(read)

    def kinds(self, nodes: dict[str, Any], observed: Collection[str]) -> dict[str, tuple[str, str]]:
        """Kinds of the sites that one pass can give, and the part ``of`` each.

        Args:
            nodes: Sites of a run at two inputs.
            observed: Names of the observed sites, in the order of the parts.
        """
        kinds = {}
        for part, site in zip(self.parts, observed, strict=True):
            shown = part.shown(part.read(nodes[site]["fn"]))
            for name, node in nodes.items():
                if name == site:
                    kinds[name] = part.kind_at(node["fn"]), part.site
                elif name not in kinds and (kind := _held(node, shown, part)):
                    kinds[name] = kind, part.site
        return kinds

    def layouts_of_obs(self, dtype: str) -> list[SiteLayout]:
        """The observed sites of a teacher that is not a Pyro model, at inputs of this dtype."""
        return [
            SiteLayout(
                part.site or "obs",
                part.site_kinds[0],
                (self.single and part.dtype) or dtype,
                (-1, *part.shape),
                part.site,
            )
            for part in self.parts
        ]

    def extra(self, dtype: str) -> SiteLayout:
        """A site of what is held, for models without one; of a table it has no name."""
        name = self.one.extra if self.single else ""
        return SiteLayout(name, name, dtype, (-1, *self.event_shape))


def _beside(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.cat(values, 1)


def _rows(part: Part, values: Tensor, rows: int, site: str, axis: int) -> Tensor:
    """What a site says of its numbers, ``(*shape, width)``, row by row, ``(rows, L width)``."""
    if part.columns == 1:
        advice = "A model with several per input needs a plate for them."
        return one_per_row(values, rows, f"'{site}' must hold one {part.noun}", advice)
    axis -= 1
    if -axis > values.ndim or values.shape[axis] not in (1, rows):
        raise ArgumentError(
            f"`source`'s site '{site}' must hold values for every input; got shape "
            f"{tuple(values.shape[:-1])} for {rows} inputs. Put it in "
            "pyro.plate('data', len(x))."
        )
    first = values.movedim(axis, 0).flatten(1)
    return first.expand(rows, first.shape[1])


def _held(node: Any, shown: dict[str, Tensor], part: Part) -> str | None:
    """Which of these parameters a deterministic site holds."""
    value = node["value"]
    if not is_deterministic(node) or not value.is_floating_point():
        return None
    for kind, held in shown.items():
        if value.numel() == held.numel() and torch.allclose(
            value.reshape(held.shape).double(), held.double(), rtol=1e-5, atol=part.held_within
        ):
            return kind
    return None


def part_from(config: dict[str, Any]) -> Part:
    """The part of :attr:`.Part.config`, checked."""
    own = {**config, "shape": tuple(config["shape"])}
    part = KINDS[own.pop("kind")](**own)
    numbers = [value for name, value in own.items() if name not in ("site", "shape")]
    sizes = [*part.shape, *(each for each in numbers if each is not None)]
    if (
        type(part.site) is not str
        or not all(type(each) is int and 0 <= each < 2**40 for each in sizes)
        or min(part.shape, default=1) < 1
    ):
        raise ValueError(f"a part is {config!r:.80}")
    return part


def outcome_from(config: dict[str, Any]) -> Outcome:
    """The outcome that a file describes, :attr:`.Outcome.config`."""
    return Outcome(tuple(map(part_from, config["parts"])))
