"""Class labels: a teacher's draws are class probabilities, a student's answer is on the simplex."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from pyro_opu.checks import positive_int
from pyro_opu.distributions import (
    Empirical,
    Implicit,
    PredictiveDirichlet,
    SimplexDistribution,
)
from pyro_opu.guides import GUIDES, ImplicitGuide, PredictiveGuide, guide_at
from pyro_opu.guides.base import family
from pyro_opu.guides.beginning import SCRATCH, NoBeginning, Start, check_digits, find_beginning
from pyro_opu.guides.plug_in import TemperedTrunk
from pyro_opu.inputs import PLAIN, Form, Inputs
from pyro_opu.judging import ClassJudge
from pyro_opu.judging.laws import (
    calibrating_shift,
    lack_of_fit,
    law_of_draws,
    log_concentration_of,
    nearer_law,
)
from pyro_opu.objectives import (
    CrossEntropy,
    EnergyDistance,
    MomentMatching,
    Objective,
    as_objective,
)
from pyro_opu.objectives.implicit import energy_of_draws, of_draws
from pyro_opu.objectives.likelihood import LikelihoodFirst
from pyro_opu.outcomes.base import NETWORK, Outcome
from pyro_opu.outcomes.sites import SiteLayout
from pyro_opu.programs.plug_in import PlugIn
from pyro_opu.programs.sites import class_log_probs, site_kind
from pyro_opu.programs.trace import is_deterministic
from pyro_opu.teachers.base import JointDraws

#: Beyond this lack of fit two moments per input are not enough. Logistic regressions and networks
#: are below 0.01; groups of hypotheses that contradict each other are at 0.04 to 0.1.
MOST_LACK_OF_FIT = 0.03
#: A mixture is too dear where it has more than so many weights and than so many times those of one
#: Dirichlet, as heads of many classes on few features have.
MANY_WEIGHTS, MOST_WEIGHTS = 2**16, 2.0


def _weights(guide: nn.Module) -> int:
    return sum(parameter.numel() for parameter in guide.parameters())


def _kind(node: Any, probs: Tensor) -> str | None:
    """Whether a site holds the class probabilities ``(2, C)``, or the second class's."""
    value = node["value"]
    if not is_deterministic(node) or not value.is_floating_point():
        return None
    if value.numel() == probs.numel() and _equal(value.reshape(probs.shape), probs):
        return "probs"
    if probs.shape[-1] == 2 and value.numel() == 2 and _equal(value.reshape(2), probs[:, 1]):
        return "prob1"
    return None


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.double(), b.double(), atol=1e-5)


def _warm_start(answer: Any) -> Objective:
    if isinstance(answer, Implicit):
        return energy_of_draws()
    if isinstance(answer, Empirical):
        return CrossEntropy()
    if isinstance(answer, PredictiveDirichlet):
        return MomentMatching()
    # The likelihood needs a density, which a family of the user's own may lack.
    dense = type(answer).log_prob is not SimplexDistribution.log_prob
    return LikelihoodFirst() if dense else EnergyDistance(likelihood=1.0)


@dataclass(frozen=True)
class Classes(Outcome):
    """One of C classes at every input.

    Attributes:
        num_classes: C.
    """

    kind: ClassVar[str] = "classes"
    quantity: ClassVar[str] = "class probabilities"
    answer_text: ClassVar[str] = "a Dirichlet"
    site_kinds: ClassVar[tuple[str, ...]] = ("label", "onehot", "probs", "prob1")
    learned: ClassVar[str] = "class probabilities"
    held: ClassVar[str] = "the class probabilities"
    label: ClassVar[tuple[str, str]] = ("label", "int64")
    extra: ClassVar[str] = "probs"
    guides: ClassVar[dict[str, Any]] = GUIDES

    task: ClassVar[str] = "classification"

    num_classes: int

    def __post_init__(self) -> None:
        positive_int("num_classes", self.num_classes, 2)

    def __str__(self) -> str:
        return f"{self.num_classes} classes"

    @classmethod
    def from_config(cls, **config: Any) -> Classes:
        if config["num_classes"] >= 2**40:
            raise ValueError(f"{config['num_classes']!r:.50} is no size")
        return cls(**config)

    def plain(self, said: Tensor) -> Tensor:
        return said.exp()

    def check_classes(self, source: str) -> None:
        """Do nothing."""

    @classmethod
    def of(cls, teacher: JointDraws) -> Classes:
        return cls(teacher.num_outputs)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self.num_classes,)

    def kinds(self, nodes: dict[str, Any], site: str) -> dict[str, str]:
        """The observed site, and those that hold the class probabilities."""
        probs = class_log_probs(nodes[site]["fn"], 2, site).exp()
        kinds = {name: _kind(node, probs) for name, node in nodes.items()}
        onehot = site_kind(nodes[site]["fn"]) in ("onehot", "multinomial")
        kinds[site] = "onehot" if onehot else "label"
        return {name: kind for name, kind in kinds.items() if kind is not None}

    def sample(self, answer: Any, sites: Collection[SiteLayout], count: int) -> dict[str, Tensor]:
        """Labels from the draws of class probabilities where those come back too, or their mean."""
        parameters = any(site.shows_parameters for site in sites)
        labels, probs = answer.predict(count, parameters)
        return {site.name: site.fill(self._values(site.kind, labels, probs)) for site in sites}

    def draws_of(self, answer: Any, count: int) -> Tensor:
        log_probs: Tensor = answer.log_rsample((count,))
        return log_probs

    def _values(self, kind: str, labels: Tensor, probs: Any) -> Tensor:
        if kind == "label":
            return labels
        if kind == "onehot":
            return one_hot(labels, self.num_classes)
        return probs if kind == "probs" else probs[..., 1]

    def is_answer(self, value: Any) -> bool:
        return isinstance(value, SimplexDistribution)

    def describe(self, held_out: ClassJudge) -> dict[str, Any]:
        """``{"misfit"}``, what the best law by two moments leaves."""
        return {"misfit": lack_of_fit(held_out)}

    def beginning(
        self,
        x: Tensor,
        held_out: ClassJudge,
        plug_ins: list[PlugIn],
        form: Form = PLAIN,
    ) -> Start:
        """The nearest of the teacher's networks, where it can be read."""
        try:
            found = find_beginning(plug_ins, held_out.x, held_out.draws, x)
            if x.dtype == torch.float64 and found.rounds:
                check_digits(x, form.index_columns)
        except NoBeginning as error:
            return Start(None, str(error))
        return Start(found)

    def guide(
        self,
        name: str | None,
        x: Tensor,
        held_out: ClassJudge,
        found: dict[str, Any],
        start: Start = SCRATCH,
        form: Form = PLAIN,
    ) -> nn.Module:
        """By default two moments, or a mixture where no law fits; on the teacher's network."""
        log_concentration = log_concentration_of(held_out)
        given = Inputs(x, form)

        def build(name: str) -> nn.Module:
            if start.beginning is not None:
                return guide_at(name, start.beginning, x, log_concentration)
            guide = family(name, GUIDES, "Dirichlet").for_inputs(given, self.num_classes)
            if isinstance(guide, (PredictiveGuide, ImplicitGuide)):
                guide.start_at(log_concentration)
            return guide

        if name not in (None, NETWORK):
            return build(name)
        if found["misfit"] <= MOST_LACK_OF_FIT:
            return build("dirichlet")
        mixture = build("mixture")
        if _weights(mixture) <= MANY_WEIGHTS:
            return mixture
        single = build("dirichlet")
        if _weights(mixture) <= MOST_WEIGHTS * _weights(single):
            return mixture
        if isinstance(single, PredictiveGuide) and isinstance(single.trunk, TemperedTrunk):
            # Moments, which the likeliest classes decide, ask for a g that suits no other class.
            single.concentration_head.requires_grad_(False)
        return single

    def objectives(
        self, guide: nn.Module, x: Tensor, loss: str | Objective | None
    ) -> tuple[Objective, Objective]:
        """Moments of a Dirichlet, cross-entropy of points, likelihood and energy of all else."""
        answer = self.answer_of(guide, x)
        warm_start = _warm_start(answer)
        if isinstance(answer, Implicit):
            return warm_start, of_draws(loss)
        return warm_start, warm_start if loss is None else as_objective(loss)

    def teach_as(self, guide: nn.Module, held_out: ClassJudge) -> None:
        if isinstance(guide, PredictiveGuide):
            guide.read_as(law_of_draws(held_out))

    def judge(self, x: Tensor, draws: Tensor, held: int | None) -> ClassJudge:
        return ClassJudge(x, draws, held)

    def chain(self, draws: Tensor) -> Tensor:
        return draws

    def recalibrates(self, guide: nn.Module) -> bool:
        return isinstance(guide, PredictiveGuide)

    def calibration(
        self, guide: nn.Module, inputs: ClassJudge, law_is_open: bool
    ) -> dict[str, Any]:
        return (nearer_law if law_is_open else calibrating_shift)(guide, inputs)

    def recalibrate(self, guide: Any, found: dict[str, Any]) -> None:
        guide.recalibrate(1.0, found["shift"])
        guide.read_as(found.get("law", guide.law))
