"""Students without a density: how they are taught, and judged by whole draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.distributions import as_answer
from pyro_opu.guides.base import student_at
from pyro_opu.objectives import EnergyDistance, Objective, WassersteinELBO, as_objective
from pyro_opu.objectives.energy import joint_energy_distance
from pyro_opu.outcomes.base import ValidationSet
from pyro_opu.rng import seeded
from pyro_opu.utils.chunks import chunks

__all__ = ["JointValidation", "energy_of_draws", "joint_if_asked", "of_draws"]

#: Draws of a student per input in a step, and of student and teacher at most that judge it.
NUM_SAMPLES, JUDGING_DRAWS = 16, 128


def energy_of_draws() -> EnergyDistance:
    """The loss of a student without a density."""
    return EnergyDistance(NUM_SAMPLES, ground="l2")


def of_draws(loss: str | Objective | None, several: bool = False) -> Objective:
    """The objective of a student without a density, by name or as it is.

    Raises:
        ValueError: one that reads a density, or moments alone; a critic of ``several`` numbers of a
            row, which are no point of a simplex.
    """
    if loss in (None, "energy"):
        return energy_of_draws()
    objective = as_objective(loss)
    if several and isinstance(objective, WassersteinELBO):
        raise ValueError(
            '`loss` must be "energy" for a guide from noise where the teacher observes several '
            f"numbers of every row, as witnesses are of points of one simplex; got {loss!r}."
        )
    own = type(objective).__module__.startswith("pyro_opu.")
    if own and not isinstance(objective, (EnergyDistance, WassersteinELBO)):
        raise ValueError(
            '`loss` must be "energy", "wasserstein" or an Objective of draws for a guide from '
            f"noise, which has no density; got {loss!r}. For another loss distil "
            'guide="mixture".'
        )
    return objective


def joint_if_asked(of: ValidationSet, objective: Objective) -> ValidationSet:
    """The set that judges by whole draws, where the objective compares these; else itself."""
    joint = isinstance(objective, EnergyDistance) and objective.ground == "l2"
    return JointValidation(of) if joint else of


@dataclass(frozen=True)
class JointValidation:
    """A validation set whose energy distance is that of whole draws, by which weights are kept.

    Attributes:
        of: The set of the outcome.
    """

    of: ValidationSet

    @property
    def x(self) -> Tensor:
        """Inputs ``(N, ...)``."""
        return self.of.x

    @property
    def draws(self) -> Tensor:
        """The teacher's draws there, ``(S, N, K)``."""
        return self.of.draws

    def for_objective(self, objective: Objective) -> JointValidation:
        """Itself."""
        return self

    def sampling_distance(self) -> float:
        """That of the outcome's set."""
        return self.of.sampling_distance()

    @torch.no_grad()
    def judge(self, guide: nn.Module) -> dict[str, float]:
        """Scores of the outcome's set, and the joint "energy_distance"."""
        return {**self.of.judge(guide), "energy_distance": self._distance(guide)}

    def beside(self, guide: nn.Module) -> dict[str, Any]:
        """What the outcome's set says."""
        return self.of.beside(guide)

    def _distance(self, guide: nn.Module) -> float:
        step = -(-len(self.draws) // JUDGING_DRAWS)
        draws, total = self.draws[::step], 0.0
        with seeded(0):  # two students are compared on the same noise
            for some in chunks(len(self.x), JUDGING_DRAWS, JUDGING_DRAWS):
                answer = as_answer(student_at(guide, self.x[some]))
                mine = answer.rsample((JUDGING_DRAWS,))
                theirs = answer.comparable(draws[:, some])
                total += float(joint_energy_distance(mine, theirs).sum())
        return total / len(self.x)
