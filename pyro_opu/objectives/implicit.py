"""Objectives of students without a density, which are taught by whole draws."""

from __future__ import annotations

from pyro_opu.checks import ArgumentError
from pyro_opu.objectives import EnergyDistance, Objective, WassersteinELBO, as_objective

#: Draws of a student per input in a step, and of student and teacher at most that judge it.
NUM_SAMPLES, JUDGING_DRAWS = 16, 128


def energy_of_draws() -> EnergyDistance:
    """The loss of a student without a density."""
    return EnergyDistance(NUM_SAMPLES, ground="l2")


def of_draws(loss: str | Objective | None, table: bool = False) -> Objective:
    """The objective of a student without a density, by name or as it is.

    Raises:
        ValueError: one that reads a density, or moments alone; a critic of a ``table``, whose
            rows are no points of a simplex.
    """
    if loss in (None, "energy"):
        return energy_of_draws()
    objective = as_objective(loss)
    if table and isinstance(objective, WassersteinELBO):
        raise ArgumentError(
            '`loss` must be "energy" for a guide from noise where the teacher observes several '
            f"numbers of every row, as witnesses are of points of one simplex; got {loss!r}."
        )
    own = type(objective).__module__.startswith("pyro_opu.")
    if own and not isinstance(objective, (EnergyDistance, WassersteinELBO)):
        raise ArgumentError(
            '`loss` must be "energy", "wasserstein" or an Objective of draws for a guide from '
            f"noise, which has no density; got {loss!r}. For another loss distil "
            'guide="mixture".'
        )
    return objective
