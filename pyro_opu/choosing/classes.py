"""What suits a student of class labels, whose answer is on the simplex."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pyro_opu.choosing.base import NETWORK, Choice, GuideName, LossName
from pyro_opu.distributions import (
    Empirical,
    Implicit,
    PredictiveDirichlet,
    SimplexDistribution,
)
from pyro_opu.guides import GUIDES, ImplicitGuide, PredictiveGuide, guide_at
from pyro_opu.guides.base import family
from pyro_opu.guides.beginning import SCRATCH, NoBeginning, Start, check_digits, find_beginning
from pyro_opu.guides.moments import TemperedTrunk
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
from pyro_opu.programs.plug_in import PlugIn

#: Beyond this lack of fit two moments per input are not enough. Logistic regressions and networks
#: are below 0.01; groups of hypotheses that contradict each other are at 0.04 to 0.1.
MOST_LACK_OF_FIT = 0.03
#: A mixture costs too much where it has more than so many weights and than so many times those of
#: one Dirichlet, as heads of many classes on few features have.
MANY_WEIGHTS, MOST_WEIGHTS = 2**16, 2.0


def _weights(guide: nn.Module) -> int:
    return sum(parameter.numel() for parameter in guide.parameters())


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


class ChoiceOfClasses(Choice):
    """What suits a student of class labels."""

    guides: ClassVar[Mapping[Any, Any]] = GUIDES
    begins_at_networks: ClassVar[bool] = True

    def describe(self, held_out: ClassJudge) -> dict[str, Any]:
        """``{"misfit"}``, what the best distribution by two moments leaves."""
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
        name: GuideName | None,
        x: Tensor,
        held_out: ClassJudge,
        found: dict[str, Any],
        start: Start = SCRATCH,
        form: Form = PLAIN,
    ) -> nn.Module:
        """By default two moments, or a mixture where none fits; on the teacher's network."""
        log_concentration = log_concentration_of(held_out)
        given = Inputs(x, form)

        def build(name: GuideName) -> nn.Module:
            kind = family(name, GUIDES, "Dirichlet")
            if start.beginning is not None:
                return guide_at(kind, start.beginning, x, log_concentration)
            guide = kind.for_inputs(given, self.outcome.num_classes)
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
        self, guide: nn.Module, x: Tensor, loss: LossName | Objective | None
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

    def recalibrates(self, guide: nn.Module) -> bool:
        return isinstance(guide, PredictiveGuide)

    def calibration(
        self, guide: nn.Module, inputs: ClassJudge, law_is_open: bool
    ) -> dict[str, Any]:
        return (nearer_law if law_is_open else calibrating_shift)(guide, inputs)

    def recalibrate(self, guide: Any, found: Mapping[str, object]) -> None:
        guide.recalibrate(found["shift"])
        guide.read_as(found.get("law", guide.law))
