"""A real y: a teacher's draws are normals of y, a student's answer is a normal or several."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pyro_opu.distributions import PredictiveNormal, RealAnswer
from pyro_opu.guides.base import student_at
from pyro_opu.guides.beginning import SCRATCH, Start
from pyro_opu.guides.normal import REGRESSION_GUIDES, named_regression_guide
from pyro_opu.metrics.distances import split
from pyro_opu.metrics.normals import energies, energies_of_moments, kl_of_normals, teacher_moments
from pyro_opu.metrics.yardstick import as_draws, or_none, quotient, single_factor
from pyro_opu.objectives import Objective
from pyro_opu.objectives.normal import NormalCRPS, NormalMoments, as_regression_objective
from pyro_opu.outcomes.base import NETWORK, Outcome
from pyro_opu.outcomes.class_validation import RESOLVED, SPLIT_SEED
from pyro_opu.outcomes.sites import SiteLayout
from pyro_opu.packing import Packing
from pyro_opu.rng import seeded
from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.real import normal_parameters
from pyro_opu.teachers.runs import is_deterministic


def _holds(node: Any, mean: Tensor) -> bool:
    """Whether a deterministic site holds the mean of y at two inputs."""
    value = node["value"]
    if not is_deterministic(node) or not value.is_floating_point() or value.numel() != 2:
        return False
    return torch.allclose(value.reshape(2).double(), mean.double(), rtol=1e-5, atol=0)


@dataclass(frozen=True)
class RealValidation:
    """Inputs with the teacher's draws there, to judge the student by.

    Attributes:
        x: ``(N, ...)``, on the student's device.
        draws: Teacher's draws ``(S, N, 2)``.
        by_moments: Judge a student that is taught by moments by the teacher's moments, not its
            draws: wrong moments may happen to be nearer to draws that no normal can follow.
        held: Draws M that the posterior holds; ``None`` where every call draws afresh.
    """

    x: Tensor
    draws: Tensor
    by_moments: bool = False
    held: int | None = None

    def for_objective(self, objective: Objective) -> RealValidation:
        """The set that judges by what the objective teaches."""
        return replace(self, by_moments=isinstance(objective, NormalMoments))

    def sampling_distance(self) -> float:
        """Minus infinity: every student may be refined."""
        return -math.inf

    @torch.no_grad()
    def judge(self, guide: nn.Module) -> dict[str, float]:
        """Held-out fidelity of a guide.

        Returns:
            "energy_distance", that of y plus that of its mean f, since y alone does not say which
            part of its variance is epistemic; "kl" of the normals with the same moments;
            "kl_ratio", judged by halves of the draws, as a multiple of :attr:`attainable`, and what
            it is in "draws";
            "mean_error", root mean square, in the teacher's deviations of y.
        """
        student: Any = student_at(guide, self.x)
        teacher, normal = teacher_moments(self.draws), student.normal()
        judge = energies_of_moments if self.by_moments else energies
        of_y, of_mean = judge(student, self.draws)
        error = (normal.mean - teacher.mean) / teacher.scale
        ratio = self.kl_by_halves(normal) / self.attainable
        return {
            "energy_distance": float((of_y + of_mean).mean()),
            "kl": float(kl_of_normals(teacher, normal).mean()),
            "kl_ratio": ratio,
            "draws": as_draws(ratio, max(1, len(self.draws) // 2), self.held),
            "mean_error": float(error.square().mean().sqrt()),
        }

    @cached_property
    def halves(self) -> list[PredictiveNormal]:
        """Moments of two halves of the draws; of all where there are fewer than four."""
        if len(self.draws) < 4:
            return [teacher_moments(self.draws)]
        with seeded(SPLIT_SEED):
            parts = split(self.draws[: len(self.draws) // 2 * 2])
        return [teacher_moments(part) for part in parts]

    def kl_by_halves(self, answer: PredictiveNormal) -> float:
        """Mean KL from the halves, which judge in turn, to one answer or one per input."""
        each = [float(kl_of_normals(half, answer).mean()) for half in self.halves]
        return sum(each) / len(each)

    @cached_property
    def attainable(self) -> float:
        """The KL of a perfect student, judged by halves; see ``regression_fidelity``."""
        left = 1 - len(self.draws) // 2 / (self.held or math.inf)
        return max(2 * left * self.kl_by_halves(teacher_moments(self.draws)), RESOLVED)

    @torch.no_grad()
    def beside(self, guide: nn.Module) -> dict[str, Any]:
        """As of classes, with "epistemic_share" of the variance of y for the mutual information."""
        student: Any = student_at(guide, self.x)
        count, size = len(self.draws), self.held or math.inf
        teacher = teacher_moments(self.draws)
        trivial = teacher_moments(self.draws.reshape(-1, 1, 2))
        mine, theirs = self._energies(student, size)
        f = self.draws[..., 0]
        shares = [each.epistemic / teacher.variance for each in (student.normal(), teacher)]
        factor = single_factor(shares[0], shares[1], (f - f.mean(0)).square(), size)
        return {
            "family": type(student).__name__,
            "num_held_out": len(self.x),
            "held": self.held,
            "kl_attainable": self.attainable,
            "kl_trivial": self.kl_by_halves(trivial),
            "energy_to_posterior": mine,
            "energy_share": or_none(quotient(mine, theirs * count)),
            "energy_of_draws": theirs,
            "num_judging": count,
            "epistemic_share": float(shares[0].mean()),
            "epistemic_share_teacher": float(shares[1].mean()),
            "epistemic_factor": or_none(factor),
        }

    def _energies(self, student: RealAnswer, size: float) -> tuple[float, float]:
        """Energy distances from the posterior of the student and of S draws, as it is taught."""
        if self.by_moments:  # half of S draws are as far from all S as these are from a posterior
            parts = [energies_of_moments(each, self.draws) for each in (student, *self.halves)]
            mine, *halves = (float((y + f).mean()) for y, f in parts)
            return mine, sum(halves) / len(halves)
        found = [energies(student, self.draws, m) for m in (math.inf, size, len(self.draws))]
        fresh, mine, counted = (float((y + f).mean()) for y, f in found)
        return mine, counted - fresh


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
        held_out: RealValidation,
        found: dict[str, Any],
        start: Start = SCRATCH,
        packing: Packing | None = None,
    ) -> nn.Module:
        """By default one normal; its units are those of y drawn from the teacher."""
        f, log_scale = held_out.draws.unbind(-1)
        y = f + log_scale.exp() * torch.randn_like(f)
        given = x if packing is None else packing.unpack(x)
        return named_regression_guide("gaussian" if name in (None, NETWORK) else name, given, y)

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

    def validation(self, x: Tensor, draws: Tensor, held: int | None) -> RealValidation:
        return RealValidation(x, draws, held=held)

    def chain(self, draws: Tensor) -> Tensor:
        """Means in deviations of y, and logarithms of scales."""
        units = torch.ones_like(draws)
        units[..., 0] = teacher_moments(draws).scale
        return draws / units
