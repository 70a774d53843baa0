"""One Dirichlet or several: the family of guides that a teacher's draws ask for."""

from __future__ import annotations

import math

import torch

from pyro_opu.metrics.marginals import Marginals
from pyro_opu.metrics.uncertainty import moment_concentration
from pyro_opu.reports.judging import moment_matched
from pyro_opu.rng import seeded
from pyro_opu.training.validation import Labelled

#: Beyond this misfit one Dirichlet per input is not enough. Logistic regressions are below 0.01
#: with two classes and at 0.03 with ten, networks between 0.01 and 0.03; groups of hypotheses that
#: contradict each other are at 0.05 (three) to 0.1 (four).
MOST_MISFIT = 0.04
#: A spread that is float32 rounding of draws that all agree.
NO_SPREAD = 1e-5
#: Draws below which groups cannot be told from chance.
FEWEST_DRAWS = 50


@torch.no_grad()
def misfit(held_out: Labelled) -> float:
    r"""What the best Dirichlet of every single input leaves, as a share of the draws' spread.

    .. math::
        \sum_x D\big(p(\pi|x),\, \mathrm{Dir}(\alpha^*(x))\big) \Big/
        \sum_x \mathbb{E}\|\pi - \pi'\|_1

    with the energy distance D and :math:`\alpha^*` by moments, fitted on half of the draws and
    judged by the other half. No student that answers with one Dirichlet does better.

    Args:
        held_out: Inputs with the teacher's draws.

    Returns:
        The share, near 0 where draws are like a Dirichlet; 0 where there are fewer draws than 50
        or no spread, or where it is within four standard errors (over inputs) of nothing.
    """
    if len(held_out.draws) < FEWEST_DRAWS:
        return 0.0
    fit, judge = held_out.draws[::2], held_out.draws[1::2]
    with seeded(0):
        samples = moment_matched(fit.mean(0), moment_concentration(fit)).sample((len(judge),))
    judges = Marginals(judge)
    left = judges.energy_distance(Marginals(samples))
    error = left.std() / math.sqrt(len(left))
    spread = float(judges.spread.mean())
    if spread < NO_SPREAD or not left.mean() > 4 * error:
        return 0.0
    return float(left.mean() / spread)


def family_of(share: float) -> str:
    """Name of the guide for a teacher with this :func:`misfit`."""
    return "mixture" if share > MOST_MISFIT else "dirichlet"
