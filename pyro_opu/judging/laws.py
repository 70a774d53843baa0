"""Which distribution the draws at held-out inputs are nearest to, and with which concentration."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.distributions import NormalSticks, SimplexDistribution
from pyro_opu.distributions.dirichlet import PredictiveDirichlet, moment_matched
from pyro_opu.guides.base import student_at
from pyro_opu.guides.dirichlet import Law
from pyro_opu.guides.networks import BLOCK
from pyro_opu.judging.classes import ClassJudge
from pyro_opu.metrics.marginals import Marginals, distance_from_dirichlet
from pyro_opu.metrics.uncertainty import epistemic_uncertainty, moment_concentration
from pyro_opu.objectives.moments import gini_parts
from pyro_opu.rng import seeded

#: Spread of draws that all agree, by float32 rounding.
NO_SPREAD = 1e-5
#: Draws below which groups cannot be told from chance.
FEWEST_DRAWS = 50
#: Precision of the part of the shift that is taken, and numbers in the draws that it is found by.
CALIBRATION_STEP, DISTANCE_NUMBERS = 1 / 32, 2**16
#: Numbers in the draws, of a law without a closed form, that it is chosen by, once, and that the
#: shift is found by; the fewest and most draws per input.
CHOOSING_NUMBERS, CALIBRATING_NUMBERS, CALIBRATING_DRAWS = 2**22, 2**20, (64, 512)
#: Classes above which a stick for each would take longer than the pass of a last layer.
MOST_STICKS = 128
#: Share of the draws' spread that is level.
LEVEL = 0.002


def log_concentration_of(inputs: ClassJudge) -> float:
    """The one g that moments of all the teacher's draws together ask for, to begin with."""
    between, within = (part.double().sum() for part in gini_parts(inputs.draws))
    return float((within / between.clamp_min(1e-12)).clamp(1e-3, 1e6).log())


@torch.no_grad()
def lack_of_fit(held_out: ClassJudge) -> float:
    r"""What the best distribution by two moments leaves of an input, as a share of the spread.

    .. math::
        \min_q \sum_x D\big(p(\pi|x),\, q(\pi \mid h^*(x), \alpha_0^*(x))\big) \Big/
        \sum_x \mathbb{E}\|\pi - \pi'\|_1

    with the energy distance D, q the Dirichlet or :class:`.NormalSticks`, and its moments fitted on
    half of the draws and judged by the other half. No student that answers with either does better.

    Returns:
        The share, near 0 where draws are like one of them; 0 if there are fewer than 50 draws, or
        no spread, or if it is within four standard errors (over inputs) of 0.
    """
    if len(held_out.draws) < FEWEST_DRAWS:
        return 0.0
    left, spread = min(_left_by_laws(held_out), key=torch.mean), _spread(held_out)
    error = left.std() / math.sqrt(len(left))
    if spread < NO_SPREAD or not left.mean() > 4 * error:
        return 0.0
    return float(left.mean() / spread)


def _left_by_laws(held_out: ClassJudge) -> list[Tensor]:
    """What each distribution leaves of every input ``(N,)``, fitted on half of the draws."""
    fit, judge = held_out.draws[::2], held_out.draws[1::2]
    judges, best = Marginals(judge), moment_matched(fit.mean(0), moment_concentration(fit))
    with seeded(0):
        laws = [answer.sample((len(judge),)) for answer in both_laws(best)]
    return [judges.energy_distance(samples) for samples in laws]


def _spread(held_out: ClassJudge) -> float:
    return float(Marginals(held_out.draws[1::2]).spread.mean())


@torch.no_grad()
def law_of_draws(held_out: ClassJudge) -> Law:
    """The distribution that is nearer to the draws by their own moments, as :func:`nearer_law`."""
    if len(held_out.draws) < FEWEST_DRAWS:
        return "dirichlet"
    exact, *other = _left_by_laws(held_out)
    for left in other:
        if _clear(exact - left, LEVEL * _spread(held_out)):
            return "sticks"
    return "dirichlet"


def _clear(gain: Tensor, level: float) -> bool:
    """Whether a gain ``(N,)`` is above a level, and above chance."""
    return bool(gain.mean() > max(3 * float(gain.std()) / math.sqrt(len(gain)), level))


def both_laws(dirichlet: PredictiveDirichlet) -> list[SimplexDistribution]:
    """A Dirichlet, and sticks with its moments where classes are not too many for them."""
    if dirichlet.event_shape[0] > MOST_STICKS:
        return [dirichlet]
    return [dirichlet, NormalSticks(dirichlet.log_mean, dirichlet.log_concentration)]


@torch.no_grad()
def nearer_law(guide: nn.Module, inputs: ClassJudge) -> dict[str, Any]:
    """:func:`calibrating_shift` of the distribution that is nearest with the guide's moments.

    Sticks must be nearer than the Dirichlet by more than three standard errors (over inputs), and
    than a share `LEVEL` of the draws' spread: where it is level the Dirichlet has closed forms.

    Returns:
        As :func:`calibrating_shift`, and "law", a key of :data:`~pyro_opu.guides.dirichlet.LAWS`.
    """
    dirichlet, *other = both_laws(_answer_at(guide, inputs.x).matched())
    some = _fewer(inputs)
    exact = distances(some, dirichlet, 0)
    for sticks in other:
        gain = exact - distances(some, sticks, CHOOSING_NUMBERS)
        if _clear(gain, LEVEL * float(some.marginals.spread.mean())):
            return {**_calibrated(sticks, inputs), "law": "sticks"}
    return {**_calibrated(dirichlet, inputs, exact), "law": "dirichlet"}


@torch.no_grad()
def calibrating_shift(guide: nn.Module, inputs: ClassJudge) -> dict[str, Any]:
    r"""What to add to g: towards the teacher's mean mutual information, as far as it brings near.

    With the teacher's second moments, mutual information can be more than the teacher's. Its
    mean over inputs falls with the shift, so bisection finds the one to ask for. With all of it the
    second moments may be as wrong as mutual information was without: the part is taken that leaves
    the least mean energy distance to the teacher's draws, none if none is nearer. The distance of a
    Dirichlet is exact (:func:`.distance_from_dirichlet`): noise of samples is more than the
    differences. Other distributions are compared on the same noise.

    Args:
        guide: The student.
        inputs: All transfer inputs, with as many draws as there are: the few that are held out
            cannot tell a rise by a half from chance.

    Returns:
        "shift", what to add; "asked", what mutual information alone asks for; "part", the one over
        the other; the energy distance "before" and "after".
    """
    return _calibrated(_answer_at(guide, inputs.x), inputs)


def _answer_at(guide: nn.Module, x: Tensor) -> Any:
    """What a guide that answers with a Dirichlet says at many rows, in bounded memory."""
    parts = [student_at(guide, rows) for rows in x.split(BLOCK)]
    tensors = [part.as_tensors() for part in parts]
    return parts[0].from_tensors({k: torch.cat([each[k] for each in tensors]) for k in tensors[0]})


def _calibrated(
    student: object, inputs: ClassJudge, before: Tensor | None = None
) -> dict[str, Any]:
    """:func:`calibrating_shift` of an answer; ``before`` is its distances, where they are known."""
    from scipy.optimize import minimize_scalar  # takes most of a second

    teacher = float(epistemic_uncertainty(inputs.draws).mean())
    low, high = -2.0, 2.0
    for _ in range(20):
        middle = (low + high) / 2
        mine = epistemic_uncertainty(_shifted(student, middle)).mean()
        low, high = (middle, high) if mine > teacher else (low, middle)
    asked, some = (low + high) / 2, _fewer(inputs)

    def energy(part: float) -> float:
        shifted = _shifted(student, part * asked)
        return float(distances(some, shifted, CALIBRATING_NUMBERS).mean())

    tried = {0.0: energy(0.0) if before is None else float(before.mean()), 1.0: energy(1.0)}
    settings = {"method": "bounded", "options": {"xatol": CALIBRATION_STEP}}
    between = minimize_scalar(energy, bounds=(0.0, 1.0), **settings)
    tried[float(between.x)] = float(between.fun)
    part = min(tried, key=tried.__getitem__)
    found = {"shift": part * asked, "asked": asked, "part": part}
    return {**found, "before": tried[0.0], "after": tried[part]}


def _shifted(student: Any, shift: float) -> SimplexDistribution:
    """The same distribution with another concentration."""
    tensors = student.as_tensors()
    answer: SimplexDistribution = student.from_tensors(
        {**tensors, "log_concentration": tensors["log_concentration"] + shift}
    )
    return answer


def _fewer(inputs: ClassJudge) -> ClassJudge:
    """As many of the draws as a distribution is chosen and shifted by, at least two."""
    step = max(1, min(inputs.draws.numel() // DISTANCE_NUMBERS, len(inputs.draws) // 2))
    return ClassJudge(inputs.x, inputs.draws[::step])


def distances(inputs: ClassJudge, answer: SimplexDistribution, numbers: int) -> Tensor:
    """Energy distance of an answer from the draws, ``(N,)``: exact of a Dirichlet.

    The distance of another distribution is taken from draws of it, as many as make so many numbers.
    """
    if isinstance(answer, PredictiveDirichlet):
        exact = distance_from_dirichlet(answer.concentration, inputs.draws)
        return exact - inputs.marginals.spread.cpu()
    fewest, most = CALIBRATING_DRAWS
    count = min(most, max(fewest, numbers // inputs.draws[0].numel()))
    with seeded(0):  # two answers are compared on the same noise
        draws = answer.sample((count,))
    return inputs.marginals.energy_distance(draws).cpu()
