"""Several numbers of every row: labels, real numbers and counts, of one site or more."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from pyro_opu.distributions.implicit import ImplicitSeveral
from pyro_opu.distributions.several import Part, SeveralAnswer, by_part
from pyro_opu.guides.base import in_dtype_of
from pyro_opu.guides.beginning import SCRATCH, Start
from pyro_opu.guides.implicit import ImplicitSeveralGuide
from pyro_opu.guides.several import SeveralGuide
from pyro_opu.metrics.normals import teacher_moments
from pyro_opu.metrics.yardstick import as_draws
from pyro_opu.objectives import Objective
from pyro_opu.objectives.several import SeveralMoments
from pyro_opu.outcomes.base import NETWORK, Outcome, ValidationSet
from pyro_opu.outcomes.class_validation import ClassValidation
from pyro_opu.outcomes.joint_validation import energy_of_draws, joint_if_asked, of_draws
from pyro_opu.outcomes.real import RealValidation
from pyro_opu.outcomes.sites import SiteLayout
from pyro_opu.packing import Packing
from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.kinds import said_of
from pyro_opu.teachers.runs import is_deterministic
from pyro_opu.teachers.several import SeveralDraws
from pyro_opu.teachers.sites import site_kind

__all__ = ["PartOf", "Several", "SeveralValidation"]


class PartOf(nn.Module):
    """A guide of several sites as one of one of them, whose numbers are rows of their own."""

    def __init__(self, guide: nn.Module, number: int) -> None:
        super().__init__()
        self.guide, self.number = guide, number

    def forward(self, x: Tensor) -> Any:
        """The answer of the part, batch shape ``(N L,)``."""
        return self.guide(in_dtype_of(self.guide, x)).answers[self.number]


@dataclass(frozen=True)
class SeveralValidation:
    """Inputs with the teacher's draws there, to judge the student by.

    Attributes:
        x: ``(N, ...)``, on the student's device.
        draws: Teacher's draws ``(S, N, K)``.
        parts: The observed sites.
        held: Draws M that the posterior holds; ``None`` where every call draws afresh.
    """

    x: Tensor
    draws: Tensor
    parts: tuple[Part, ...]
    held: int | None = None

    @cached_property
    def each(self) -> list[ClassValidation | RealValidation]:
        """A validation set for every part."""
        return [
            ClassValidation(self.x, draws, self.held)
            if part.on_simplex
            else RealValidation(self.x, draws, by_moments=True, held=self.held)
            for part, draws in zip(self.parts, by_part(self.draws, self.parts), strict=True)
        ]

    def for_objective(self, objective: Objective) -> ValidationSet:
        """The set that judges by whole draws, where these are what is taught."""
        return joint_if_asked(self, objective)

    def sampling_distance(self) -> float:
        """Minus infinity: the warm start is all there is."""
        return -math.inf

    def judge(self, guide: nn.Module) -> dict[str, float]:
        """Held-out fidelity of a guide, summed over the sites, and the KL of each by its name."""
        found = [each.judge(PartOf(guide, n)) for n, each in enumerate(self.each)]
        kl = sum(
            each.attainable * row["kl_ratio"] for each, row in zip(self.each, found, strict=True)
        )
        ratio = kl / sum(each.attainable for each in self.each)
        return {
            "energy_distance": sum(row["energy_distance"] for row in found),
            "kl": sum(row["kl"] for row in found),
            "kl_ratio": ratio,
            "draws": as_draws(ratio, max(1, len(self.draws) // 2), self.held),
            **{f"draws of {p.site}": r["draws"] for p, r in zip(self.parts, found, strict=True)},
        }

    def beside(self, guide: nn.Module) -> dict[str, Any]:
        """As of one site, summed or averaged over all; and of each, by name, under "sites"."""
        found = [each.beside(PartOf(guide, n)) for n, each in enumerate(self.each)]
        sums = ("kl_attainable", "kl_trivial", "energy_to_posterior", "energy_of_draws")
        report: dict[str, Any] = {name: sum(row[name] for row in found) for name in sums}
        for name in ("epistemic_factor", "energy_share"):  # of the worst
            report[name] = max((r[name] for r in found if r[name] is not None), default=None)
        for name in ("mutual_information", "epistemic_share"):
            if all(name in row for row in found):
                for key in (name, f"{name}_teacher"):
                    report[key] = sum(row[key] for row in found) / len(found)
        return {
            "family": ", ".join(
                dict.fromkeys(row["family"].removeprefix("Predictive") for row in found)
            ),
            "num_judging": len(self.draws),
            "num_held_out": len(self.x),
            "held": self.held,
            **report,
            "sites": {part.site: row for part, row in zip(self.parts, found, strict=True)},
        }


@dataclass(frozen=True)
class Several(Outcome):
    """Several numbers of every row, each with an answer of its own.

    Attributes:
        parts: The observed sites.
    """

    kind: ClassVar[str] = "several"
    quantity: ClassVar[str] = "parameters of several sites"
    answer_text: ClassVar[str] = "a SeveralAnswer"
    site_kinds: ClassVar[tuple[str, ...]] = ("label", "onehot", "value", "probs", "prob1", "mean")
    learned: ClassVar[str] = "what is observed"
    held: ClassVar[str] = "the parameters of one"
    label: ClassVar[tuple[str, str]] = ("value", "")
    extra: ClassVar[str] = ""
    guides: ClassVar[dict[str, Any]] = {"several": SeveralGuide, "implicit": ImplicitSeveralGuide}

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, teacher: JointDraws) -> Several:
        assert isinstance(teacher, SeveralDraws)
        return cls(teacher.parts)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """How many numbers of a row there are, as a shape."""
        return (sum(part.columns for part in self.parts),)

    def kinds(self, nodes: dict[str, Any], site: str) -> dict[str, str]:
        """The observed sites, and those that hold the parameters of one."""
        kinds = {}
        for name, node in nodes.items():
            found = (_kind(node, part, nodes) for part in self.parts)
            kind = next((kind for kind in found if kind is not None), None)
            if kind is not None:
                kinds[name] = kind
        return kinds

    def layout_of_obs(self, dtype: str) -> SiteLayout:
        """Labels of a network."""
        (part,) = self.parts
        return SiteLayout(part.site, "label", dtype, (-1, *part.shape), part.site)

    def shown_by(self, nodes: dict[str, Any], name: str) -> str:
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

    def draws_of(self, answer: Any, count: int) -> Tensor:
        return (
            answer.said(count)
            if isinstance(answer, ImplicitSeveral)
            else super().draws_of(answer, count)
        )

    def is_answer(self, value: Any) -> bool:
        return isinstance(value, SeveralAnswer)

    def guide(
        self,
        name: str | None,
        x: Tensor,
        held_out: SeveralValidation,
        found: dict[str, Any],
        start: Start = SCRATCH,
        packing: Packing | None = None,
    ) -> nn.Module:
        """One network for all sites, which begins at the mean answer of all rows."""
        if name not in (None, NETWORK, *self.guides):
            raise ValueError(
                f"`guide` must be one of {[NETWORK, *self.guides]}, or left out, as the teacher "
                f"observes several numbers of every row; got {name!r}."
            )
        given = x if packing is None else packing.unpack(x)
        family = self.guides["several" if name in (None, NETWORK) else name]
        guide = family.for_inputs(given, self.parts)
        shaped = by_part(held_out.draws, self.parts)
        rows = len(held_out.x)
        return guide.start_at([draws.unflatten(1, (rows, -1)) for draws in shaped])

    def objectives(
        self, guide: nn.Module, x: Tensor, loss: str | Objective | None
    ) -> tuple[Objective, Objective]:
        """The closed-form losses, summed; of a guide from noise the energy of whole draws."""
        if isinstance(self.answer_of(guide, x), ImplicitSeveral):
            return energy_of_draws(), of_draws(loss, several=True)
        if loss not in (None, "moments") and not isinstance(loss, SeveralMoments):
            raise ValueError(
                '`loss` must be "moments", or left out, as the teacher observes several numbers of '
                f"every row; got {loss!r}. Distil one site with site=... for another."
            )
        return SeveralMoments(self.parts), SeveralMoments(self.parts)

    def validation(self, x: Tensor, draws: Tensor, held: int | None) -> SeveralValidation:
        return SeveralValidation(x, draws, self.parts, held)

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


def _kind(node: Any, part: Part, nodes: dict[str, Any]) -> str | None:
    """What a site shows of a part: its values, its parameters, or nothing."""
    observed = nodes[part.site]
    if node is observed:
        onehot = site_kind(node["fn"]) in ("onehot", "multinomial")
        return "onehot" if onehot else "label" if part.kind == "classes" else "value"
    value = node["value"]
    if not is_deterministic(node) or not value.is_floating_point():
        return None
    said = said_of(observed["fn"])
    if part.on_simplex:
        said = said.exp()
        shown = {"probs": said, **({"prob1": said[..., 1]} if part.width == 2 else {})}
    else:
        shown = {"mean": said[..., 0]}
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
