"""Several numbers of every row: labels, real numbers and counts, of one site or more."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from pyro_opu.distributions.implicit import ImplicitSeveral
from pyro_opu.distributions.several import Part, SeveralAnswer, by_part
from pyro_opu.guides.beginning import SCRATCH, Start
from pyro_opu.guides.implicit import ImplicitSeveralGuide
from pyro_opu.guides.several import SeveralGuide
from pyro_opu.inputs import PLAIN, Form, Inputs
from pyro_opu.judging import TableJudge
from pyro_opu.metrics.normals import teacher_moments
from pyro_opu.objectives import Objective
from pyro_opu.objectives.implicit import energy_of_draws, of_draws
from pyro_opu.objectives.several import SeveralMoments
from pyro_opu.outcomes.base import NETWORK, Outcome
from pyro_opu.outcomes.sites import SiteLayout
from pyro_opu.programs.sites import site_kind
from pyro_opu.programs.trace import is_deterministic
from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.kinds import said_of
from pyro_opu.teachers.several import SeveralDraws

__all__ = ["Several"]


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

    num_classes = None
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("`parts` must hold at least one observed site; got none.")

    def __str__(self) -> str:
        return ", ".join(f"{part.site} {part.kind} {part.shape or ''}" for part in self.parts)

    @classmethod
    def from_config(cls, **config: Any) -> Several:
        return cls(tuple(map(Part.from_config, config["parts"])))

    def is_sized_as(self, guide: dict[str, Any]) -> bool:
        return tuple(map(Part.from_config, guide["options"]["parts"])) == self.parts

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        return {part.site: (part.width, part.columns) for part in self.parts}

    def by_site(self, answer: Any) -> dict[str, Any]:
        found: dict[str, Any] = answer.by_site()
        return found

    def shown(self, by_site: dict[str, Any]) -> Any:
        return by_site if len(self.parts) > 1 else super().shown(by_site)

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

    def layouts_of_obs(self, dtype: str) -> list[SiteLayout]:
        return [
            SiteLayout(
                p.site, "label" if p.kind == "classes" else "value", dtype, (-1, *p.shape), p.site
            )
            for p in self.parts
        ]

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
        held_out: TableJudge,
        found: dict[str, Any],
        start: Start = SCRATCH,
        form: Form = PLAIN,
    ) -> nn.Module:
        """One network for all sites, which begins at the mean answer of all rows."""
        if name not in (None, NETWORK, *self.guides):
            raise ValueError(
                f"`guide` must be one of {[NETWORK, *self.guides]}, or left out, as the teacher "
                f"observes several numbers of every row; got {name!r}."
            )
        given = Inputs(x, form)
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
                f"every row; got {loss!r}. For another distil one site: "
                "as_teacher(source, site=...)."
            )
        return SeveralMoments(self.parts), SeveralMoments(self.parts)

    def judge(self, x: Tensor, draws: Tensor, held: int | None) -> TableJudge:
        return TableJudge(x, draws, held, parts=self.parts)

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
