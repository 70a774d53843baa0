"""What suits a student of a real y, whose answer is a normal or several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError
from pyro_opu.choosing.base import NETWORK, Choice, GuideName, LossName
from pyro_opu.distributions import PredictiveNormal
from pyro_opu.guides import real_at
from pyro_opu.guides.base import family
from pyro_opu.guides.beginning import SCRATCH, Start
from pyro_opu.guides.normal import REGRESSION_GUIDES
from pyro_opu.inputs import PLAIN, Form, Inputs
from pyro_opu.judging import RealJudge
from pyro_opu.objectives import Objective
from pyro_opu.objectives.normal import NormalCRPS, NormalMoments, as_regression_objective


class ChoiceOfReal(Choice):
    """What suits a student of a real y."""

    guides: ClassVar[Mapping[Any, Any]] = REGRESSION_GUIDES

    def guide(
        self,
        name: GuideName | None,
        x: Tensor,
        held_out: RealJudge,
        found: Mapping[str, object],
        start: Start = SCRATCH,
        form: Form = PLAIN,
    ) -> nn.Module:
        """By default one normal; its units are those of y drawn from the teacher."""
        f, log_scale = held_out.draws.unbind(-1)
        y = f + log_scale.exp() * torch.randn_like(f)
        if start.beginning is not None and name is None:
            return real_at(start.beginning, x, y)
        given = Inputs(x, form)
        name = "gaussian" if name in (None, NETWORK) else name
        guide: nn.Module = family(name, REGRESSION_GUIDES, "PredictiveNormal").for_inputs(given, y)
        return guide

    def objectives(
        self, guide: nn.Module, x: Tensor, loss: LossName | Objective | None
    ) -> tuple[Objective, Objective]:
        """Moments of one normal, the ranked probability score of several."""
        one = isinstance(self.answer_of(guide, x), PredictiveNormal)
        objective = as_regression_objective(loss or ("moments" if one else "crps"))
        if isinstance(objective, NormalMoments) and not one:
            raise ArgumentError(
                '`loss` "moments" needs a guide that answers with one normal, since moments do not '
                'say how to place several; got a mixture. Use "crps".'
            )
        return (NormalMoments() if one else NormalCRPS()), objective
