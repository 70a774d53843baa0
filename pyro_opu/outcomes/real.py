"""A real y: a teacher's draws are normals of y, a student's answer is a normal or several."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pyro_opu.distributions import PredictiveNormal, RealAnswer
from pyro_opu.guides.base import family
from pyro_opu.guides.beginning import SCRATCH, Start
from pyro_opu.guides.normal import REGRESSION_GUIDES
from pyro_opu.inputs import PLAIN, Form, Inputs
from pyro_opu.judging import RealJudge
from pyro_opu.metrics.normals import teacher_moments
from pyro_opu.objectives import Objective
from pyro_opu.objectives.normal import NormalCRPS, NormalMoments, as_regression_objective
from pyro_opu.outcomes.base import NETWORK, Outcome
from pyro_opu.outcomes.sites import SiteLayout
from pyro_opu.programs.trace import is_deterministic
from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.real import normal_parameters


def _holds(node: Any, mean: Tensor) -> bool:
    """Whether a deterministic site holds the mean of y at two inputs."""
    value = node["value"]
    if not is_deterministic(node) or not value.is_floating_point() or value.numel() != 2:
        return False
    return torch.allclose(value.reshape(2).double(), mean.double(), rtol=1e-5, atol=0)


@dataclass(frozen=True)
class Real(Outcome):
    """A real number at every input, normal under each draw."""

    kind: ClassVar[str] = "real"
    quantity: ClassVar[str] = "means and scales"
    answer_text: ClassVar[str] = "a PredictiveNormal"
    site_kinds: ClassVar[tuple[str, ...]] = ("value", "mean")
    learned: ClassVar[str] = "y"
    held: ClassVar[str] = "the mean of y"
    label: ClassVar[tuple[str, str]] = ("value", "")
    extra: ClassVar[str] = "mean"
    guides: ClassVar[dict[str, Any]] = REGRESSION_GUIDES

    num_classes = None

    def __str__(self) -> str:
        return "a real y"

    @classmethod
    def of(cls, teacher: JointDraws) -> Real:
        return cls()

    @property
    def event_shape(self) -> tuple[int, ...]:
        return ()

    def kinds(self, nodes: dict[str, Any], site: str) -> dict[str, str]:
        """The observed site, and those that hold the mean of y."""
        mean = normal_parameters(nodes[site]["fn"], 2, site)[:, 0]
        kinds = {name: "mean" for name, node in nodes.items() if _holds(node, mean)}
        return {**kinds, site: "value"}

    def sample(self, answer: Any, sites: Collection[SiteLayout], count: int) -> dict[str, Tensor]:
        """Draws of y (the kind "value") and of its mean f ("mean")."""
        y, f = answer.predict(count)
        return {site.name: site.fill(y if site.kind == "value" else f) for site in sites}

    def draws_of(self, answer: Any, count: int) -> Tensor:
        """Means, and the noise's log deviation of the component that each was drawn from."""
        f, _, log_aleatoric = answer.components().drawn(count)
        return torch.stack([f, log_aleatoric / 2], -1)

    def is_answer(self, value: Any) -> bool:
        return isinstance(value, RealAnswer)

    def guide(
        self,
        name: str | None,
        x: Tensor,
        held_out: RealJudge,
        found: dict[str, Any],
        start: Start = SCRATCH,
        form: Form = PLAIN,
    ) -> nn.Module:
        """By default one normal; its units are those of y drawn from the teacher."""
        f, log_scale = held_out.draws.unbind(-1)
        y = f + log_scale.exp() * torch.randn_like(f)
        given = Inputs(x, form)
        name = "gaussian" if name in (None, NETWORK) else name
        guide: nn.Module = family(name, REGRESSION_GUIDES, "PredictiveNormal").for_inputs(given, y)
        return guide

    def objectives(
        self, guide: nn.Module, x: Tensor, loss: str | Objective | None
    ) -> tuple[Objective, Objective]:
        """Moments of one normal, the ranked probability score of several."""
        one = isinstance(self.answer_of(guide, x), PredictiveNormal)
        objective = as_regression_objective(loss or ("moments" if one else "crps"))
        if isinstance(objective, NormalMoments) and not one:
            raise ValueError(
                '`loss` "moments" needs a guide that answers with one normal, since moments do not '
                'say how to place several; got a mixture. Use "crps".'
            )
        return (NormalMoments() if one else NormalCRPS()), objective

    def judge(self, x: Tensor, draws: Tensor, held: int | None) -> RealJudge:
        return RealJudge(x, draws, held=held)

    def chain(self, draws: Tensor) -> Tensor:
        """Means in deviations of y, and logarithms of scales."""
        units = torch.ones_like(draws)
        units[..., 0] = teacher_moments(draws).scale
        return draws / units
