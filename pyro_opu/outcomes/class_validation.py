"""Held-out inputs with class probabilities: scores, lack of fit, calibration of a student."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.distributions import NormalSticks, SimplexDistribution
from pyro_opu.distributions.dirichlet import PredictiveDirichlet, moment_matched
from pyro_opu.guides.base import student_at
from pyro_opu.guides.networks import BLOCK
from pyro_opu.metrics.distances import kl_from_log, kl_of_rows, log_mean_of, split
from pyro_opu.metrics.marginals import Marginals, distance_from_dirichlet
from pyro_opu.metrics.ranks import spearman
from pyro_opu.metrics.uncertainty import epistemic_uncertainty, moment_concentration
from pyro_opu.metrics.yardstick import as_draws, or_none, quotient, single_factor
from pyro_opu.objectives import Objective
from pyro_opu.objectives.moments import gini_parts
from pyro_opu.outcomes.base import ValidationSet
from pyro_opu.outcomes.joint_validation import joint_if_asked
from pyro_opu.rng import seeded

#: Spread of draws that all agree, by float32 rounding.
NO_SPREAD = 1e-5
#: Draws below which groups cannot be told from chance.
FEWEST_DRAWS = 50
#: Precision of the part of the shift that is taken, and numbers in the draws that it is found by.
CALIBRATION_STEP, DISTANCE_NUMBERS = 1 / 32, 2**16
#: KL in nats that float32 answers resolve; no attainable one counts as less.
RESOLVED = 1e-7
#: Seed of the split into halves; by the numbers that made the draws it would be a split by size.
SPLIT_SEED = 190_612_751
#: Student's draws per input that the energy distance is judged by.
JUDGING_DRAWS = 256
#: Numbers in the draws, of a law without a closed form, that it is chosen by, once, and that the
#: shift is found by; the fewest and most draws per input.
CHOOSING_NUMBERS, CALIBRATING_NUMBERS, CALIBRATING_DRAWS = 2**22, 2**20, (64, 512)
#: Classes above which a stick for each would take longer than the pass of a last layer.
MOST_STICKS = 128
#: Share of the draws' spread that is level.
LEVEL = 0.002


@dataclass(frozen=True)
class ClassValidation:
    """Inputs with the teacher's answers there, to judge or to calibrate the student by.

    Attributes:
        x: ``(N, ...)``, on the student's device.
        draws: Teacher's draws ``(S, N, C)``.
        held: Draws M that the posterior holds, these among them, and that the student is taught
            by; ``None`` where every call draws afresh.
    """

    x: Tensor
    draws: Tensor
    held: int | None = None

    @cached_property
    def marginals(self) -> Marginals:
        """The draws in order."""
        return Marginals(self.draws)

    @cached_property
    def fewer(self) -> ClassValidation:
        """As many of the draws as a law is chosen and shifted by, at least two."""
        most = len(self.draws) // 2
        step = max(1, min(self.draws.numel() // DISTANCE_NUMBERS, most))
        return ClassValidation(self.x, self.draws[::step])

    def distances(self, answer: SimplexDistribution, numbers: int) -> Tensor:
        """Energy distance of an answer from the draws, ``(N,)``: exact of a Dirichlet.

        Of another law by draws of it, as many as make so many numbers.
        """
        if isinstance(answer, PredictiveDirichlet):
            distances = distance_from_dirichlet(answer.concentration, self.draws)
            return distances - self.marginals.spread.cpu()
        fewest, most = CALIBRATING_DRAWS
        count = min(most, max(fewest, numbers // self.draws[0].numel()))
        with seeded(0):  # two answers are compared on the same noise
            draws = answer.sample((count,))
        return self.marginals.energy_distance(draws).cpu()

    def for_objective(self, objective: Objective) -> ValidationSet:
        """The set that judges by whole draws, where these are what is taught."""
        return joint_if_asked(self, objective)

    def sampling_distance(self) -> float:
        r"""Energy distance, as :meth:`judge` measures it, of S draws from their own posterior.

        .. math:: \mathbb{E}_x\,\mathbb{E}\|\pi - \pi'\|_1 \,(1 / S - 2 / M), \qquad M = \infty
            \text{ where every call draws afresh}

        A student that is nearer to the posterior answers better than S of its draws would.

        Of M draws that a posterior holds, S at random have a distance of 1 / S - 1 / M times the
        spread from all of them. The draws that judge are then among those that teach, so that
        :meth:`judge`, which takes them for new ones, finds 1 / M times the spread too little.
        """
        share = 1 / len(self.draws) - (0 if self.held is None else 2 / self.held)
        return float(self.marginals.spread.mean()) * share

    @torch.no_grad()
    def judge(self, guide: nn.Module) -> dict[str, float]:
        """Held-out fidelity of a guide.

        Returns:
            "energy_distance" and "kl" (of the means); "kl_ratio", judged by halves of the draws, as
            a multiple of :attr:`attainable`, and what it is in "draws"; "log_concentration", the
            mean of g, and "concentration_rank", its rank correlation with the teacher's (0 where
            one of the two is constant), which show a collapse of g.
        """
        student = student_at(guide, self.x)
        rank = spearman(student.log_concentration, moment_concentration(self.draws))
        ratio = self.kl_by_halves(student.log_mean) / self.attainable
        return {
            "energy_distance": float(_energies(student, self).mean()),
            "kl": float(kl_of_rows(self.draws.mean(0), student.mean).mean()),
            "kl_ratio": ratio,
            "draws": as_draws(ratio, len(self.draws) // 2, self.held),
            "log_concentration": float(student.log_concentration.mean()),
            "concentration_rank": 0.0 if math.isnan(rank) else rank,
        }

    @cached_property
    def halves(self) -> list[Tensor]:
        """Log means of two halves of the draws, ``(N, C)``, judges as in ``fidelity``.

        All draws may be all that teach, and leave a perfect student no error to be compared with.
        """
        with seeded(SPLIT_SEED):
            parts = split(self.draws[: len(self.draws) // 2 * 2])
        return [log_mean_of(part) for part in parts]

    def kl_by_halves(self, log_mean: Tensor) -> float:
        """Mean KL from both halves, which judge in turn, to one answer or one per input."""
        answer = log_mean.double().log_softmax(-1)
        if bool(answer.isnan().any()):
            return math.nan
        return sum(float(kl_from_log(p, answer.expand_as(p)).mean()) for p in self.halves) / 2

    @cached_property
    def attainable(self) -> float:
        """The KL of a perfect student, judged by halves; see :func:`~pyro_opu.fidelity`."""
        left = 1 - len(self.draws) // 2 / (self.held or math.inf)
        found = 2 * left * self.kl_by_halves(torch.stack(self.halves).logsumexp(0))
        return max(found, RESOLVED)

    @torch.no_grad()
    def beside(self, guide: nn.Module) -> dict[str, Any]:
        """What a report of a finished student says beside its scores.

        Returns:
            The "family" of its answers; "kl_attainable", and "kl_trivial" of one answer for all
            inputs, both judged as "kl_ratio"; the energy distance from all of the posterior,
            "energy_to_posterior", as a share of the draws' spread "energy_share", and
            "energy_of_draws", that of "num_judging" of its draws; "mutual_information" and
            "mutual_information_teacher", means over inputs, nats, and "epistemic_factor", by which
            it is typically off at single inputs.
        """
        student = student_at(guide, self.x)
        spread, size = float(self.marginals.spread.mean()), self.held or math.inf
        count = len(self.draws)
        shared = self.draws.mean((0, 1), dtype=torch.float64)
        # Of S draws it is low by a share of 1 / S, to first order.
        theirs = epistemic_uncertainty(self.draws).double() * (1 + 1 / count - 1 / size)
        mine = epistemic_uncertainty(student).double()
        draws = self.draws.double()
        gaps = (torch.xlogy(draws, draws) - torch.xlogy(draws, draws.mean(0))).sum(-1)
        energy = float(_energies(student, self).mean()) + spread / size
        return {
            "family": type(student).__name__,
            "num_held_out": len(self.x),
            "held": self.held,
            "kl_attainable": self.attainable,
            "kl_trivial": self.kl_by_halves(shared.clamp_min(1e-300).log()),
            "energy_to_posterior": energy,
            "energy_share": or_none(quotient(energy, spread)),
            "energy_of_draws": spread / count,
            "num_judging": count,
            "mutual_information": float(mine.mean()),
            "mutual_information_teacher": float(theirs.mean()),
            "epistemic_factor": or_none(single_factor(mine, theirs, gaps, size)),
        }


def log_concentration_of(inputs: ClassValidation) -> float:
    """The one g that moments of all the teacher's draws together ask for, to begin with."""
    between, within = (part.double().sum() for part in gini_parts(inputs.draws))
    return float((within / between.clamp_min(1e-12)).clamp(1e-3, 1e6).log())


@torch.no_grad()
def lack_of_fit(held_out: ClassValidation) -> float:
    r"""What the best law by two moments leaves of every input, as a share of the draws' spread.

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


def _left_by_laws(held_out: ClassValidation) -> list[Tensor]:
    """What each law leaves of every input ``(N,)``, fitted on half of the draws."""
    fit, judge = held_out.draws[::2], held_out.draws[1::2]
    judges, best = Marginals(judge), moment_matched(fit.mean(0), moment_concentration(fit))
    with seeded(0):
        laws = [answer.sample((len(judge),)) for answer in both_laws(best)]
    return [judges.energy_distance(samples) for samples in laws]


def _spread(held_out: ClassValidation) -> float:
    return float(Marginals(held_out.draws[1::2]).spread.mean())


@torch.no_grad()
def law_of_draws(held_out: ClassValidation) -> str:
    """The law that the draws are nearer to with their own moments, as in :func:`nearer_law`."""
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
def nearer_law(guide: nn.Module, inputs: ClassValidation) -> dict[str, Any]:
    """:func:`calibrating_shift` of the law that is nearest with the guide's moments as they are.

    Sticks must be nearer than the Dirichlet by more than three standard errors (over inputs), and
    than a share `LEVEL` of the draws' spread: where it is level the Dirichlet has closed forms.

    Returns:
        As :func:`calibrating_shift`, and "law", a key of :data:`~pyro_opu.guides.dirichlet.LAWS`.
    """
    dirichlet, *other = both_laws(_answer_at(guide, inputs.x).matched())
    some = inputs.fewer
    exact = some.distances(dirichlet, 0)
    for sticks in other:
        gain = exact - some.distances(sticks, CHOOSING_NUMBERS)
        if _clear(gain, LEVEL * float(some.marginals.spread.mean())):
            return {**_calibrated(sticks, inputs), "law": "sticks"}
    return {**_calibrated(dirichlet, inputs, exact), "law": "dirichlet"}


@torch.no_grad()
def calibrating_shift(guide: nn.Module, inputs: ClassValidation) -> dict[str, Any]:
    r"""What to add to g: towards the teacher's mean mutual information, as far as it brings near.

    A law with the teacher's second moments can have more mutual information than the teacher. Its
    mean over inputs falls with the shift, so bisection finds the one to ask for. With all of it the
    second moments may be as wrong as mutual information was without: the part is taken that leaves
    the least mean energy distance to the teacher's draws, none if none is nearer. That of a
    Dirichlet is exact (:func:`.distance_from_dirichlet`): noise of samples is more than the
    differences. Other laws are compared on the same noise.

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
    student: Any, inputs: ClassValidation, before: Tensor | None = None
) -> dict[str, Any]:
    """:func:`calibrating_shift` of an answer; ``before`` is its distances, where they are known."""
    from scipy.optimize import minimize_scalar  # takes most of a second

    teacher = float(epistemic_uncertainty(inputs.draws).mean())
    low, high = -2.0, 2.0
    for _ in range(20):
        middle = (low + high) / 2
        mine = epistemic_uncertainty(_shifted(student, middle)).mean()
        low, high = (middle, high) if mine > teacher else (low, middle)
    asked = (low + high) / 2

    def energy(part: float) -> float:
        shifted = _shifted(student, part * asked)
        return float(inputs.fewer.distances(shifted, CALIBRATING_NUMBERS).mean())

    tried = {0.0: energy(0.0) if before is None else float(before.mean()), 1.0: energy(1.0)}
    settings = {"method": "bounded", "options": {"xatol": CALIBRATION_STEP}}
    between = minimize_scalar(energy, bounds=(0.0, 1.0), **settings)
    tried[float(between.x)] = float(between.fun)
    part = min(tried, key=tried.__getitem__)
    found = {"shift": part * asked, "asked": asked, "part": part}
    return {**found, "before": tried[0.0], "after": tried[part]}


def _shifted(student: Any, shift: float) -> SimplexDistribution:
    """The same law with another concentration."""
    tensors = student.as_tensors()
    answer: SimplexDistribution = student.from_tensors(
        {**tensors, "log_concentration": tensors["log_concentration"] + shift}
    )
    return answer


def _energies(student: SimplexDistribution, inputs: ClassValidation) -> Tensor:
    """Energy distance to the teacher's draws, per input ``(N,)``."""
    with seeded(0):  # two students are compared on the same noise
        draws = student.sample((JUDGING_DRAWS,))
    return inputs.marginals.energy_distance(draws)
