"""Judging answers that are class probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pyro_opu.distributions import SimplexDistribution
from pyro_opu.distributions.dirichlet import PredictiveDirichlet, moment_matched
from pyro_opu.judging.base import LEVELS, Judged, PartJudge
from pyro_opu.judging.yardstick import FAITHFUL, NOTHING, WITHIN, relative_noise
from pyro_opu.metrics.coverage import central_coverage, central_coverage_of_draws
from pyro_opu.metrics.distances import kl_from_log, log_mean_of, wasserstein1
from pyro_opu.metrics.marginals import Marginals
from pyro_opu.metrics.uncertainty import epistemic_uncertainty, moment_concentration, variance
from pyro_opu.objectives.moments import gini_index, gini_parts
from pyro_opu.rng import seeded
from pyro_opu.utils.chunks import NUMBERS, joined_in_place

__all__ = ["CERTAINTY", "ClassJudge", "Measured", "class_of", "decisive"]

#: Student's draws per input that the energy distance is judged by, at most and at least, about so
#: many numbers in all; and those of a report, at least, that say where central intervals end.
JUDGING_DRAWS, LEAST_DRAWS, JUDGING_NUMBERS, FEWEST_DRAWS = 256, 16, 2**23, 200
#: Inputs of a class of certainty below which a student that rests is not judged there.
FEW_INPUTS = 4
#: Draws that the 1-Wasserstein distance between more than two classes is taken by, at most.
COSTLY_DRAWS = 200
#: Upper ends of the classes of certainty: the largest mean probability of the teacher.
ENDS = (0.7, 0.9, 0.99, 0.999)
CERTAINTY = ("below .7", ".7-.9", ".9-.99", ".99-.999", "above .999")
_HALVES = ("first half", "second half")


def class_of(mean: Tensor) -> Tensor:
    """Number of the class of certainty of mean probabilities ``(N, C)``, ``(N,)``."""
    ends = torch.tensor(ENDS, dtype=torch.float64, device=mean.device)
    return torch.bucketize(mean.double().amax(-1), ends, right=True)


def decisive(mean: Tensor, label: Tensor) -> Tensor:
    """What a class is decided by, from mean probabilities ``(N, C)``, ``(N,)``.

    The second of two classes' probability; of more by how much the ``label`` ``(N,)`` leads.
    """
    if mean.shape[-1] == 2:
        return mean[:, 1]
    chosen = one_hot(label, mean.shape[-1]).bool()
    return mean[chosen] - mean.masked_fill(chosen, -math.inf).amax(-1)


@dataclass(frozen=True)
class Measured:
    """What draws or a student's answer say at every input.

    Attributes:
        draws: ``(S, N, C)``.
        log_mean: ``(N, C)``.
        mutual_information: ``(N,)``, as :attr:`variance`.
        answer: A student's.
    """

    draws: Tensor
    log_mean: Tensor
    mutual_information: Tensor
    variance: Tensor
    answer: SimplexDistribution | None = None

    @classmethod
    def of_draws(cls, draws: Tensor, size: float = math.inf) -> Measured:
        """From a teacher's draws of the ``size`` that its posterior holds."""
        mean, spread = draws.mean(0), draws.var(0)
        # The entropy of a mean of S draws is low by sum_k Var(pi_k) / (2 S m_k), to first order.
        bias = (spread / mean.clamp_min(torch.finfo(mean.dtype).tiny)).sum(-1) / 2
        information = epistemic_uncertainty(draws) + bias * (1 / len(draws) - 1 / size)
        variance = spread.sum(-1) * (1 - 1 / size)
        return cls(draws, log_mean_of(draws), information, variance)

    @classmethod
    def of_answer(cls, answer: SimplexDistribution, num_draws: int) -> Measured:
        """From a student's own measures, and draws to compare draws with."""
        log_mean, draws = answer.log_mean.double().log_softmax(-1), answer.sample((num_draws,))
        return cls(draws, log_mean, epistemic_uncertainty(answer), variance(answer), answer)

    @cached_property
    def marginals(self) -> Marginals:
        """The draws in order."""
        return Marginals(self.draws)

    @cached_property
    def gaps(self) -> Tensor:
        """KL of every draw from the mean, ``(S, N)``."""

        def apart(draws: Tensor) -> Tensor:
            draws = draws.double()
            return torch.xlogy(draws, draws).sum(-1) - (draws * self.log_mean).sum(-1)

        blocks = self.draws.split(max(1, NUMBERS // self.draws[0].numel()))
        return joined_in_place(map(apart, blocks), len(self.draws))

    def covers(self, draws: Tensor, weights: Tensor) -> Judged:
        """Shares of draws in the central intervals, classes weighted; none without an answer."""
        levels = list(LEVELS.values())
        if isinstance(self.answer, PredictiveDirichlet):
            found = central_coverage(self.answer, draws, weights, levels)
        elif self.answer is not None:
            found = central_coverage_of_draws(self.draws, draws, weights, levels)
        else:
            return {}
        return {("", name): part for name, part in zip(LEVELS, found, strict=True)}


class Best(NamedTuple):
    """The Dirichlet with the posterior's moments."""

    answer: Measured
    distance: Tensor  #: Its energy distance to the posterior, ``(N,)``.


class ClassJudge(PartJudge[SimplexDistribution, Tensor]):
    """Judges answers by draws of class probabilities ``(S, N, C)``."""

    epistemic = "mutual_information"
    unit_of_gaps = "total variation"

    @cached_property
    def marginals(self) -> Marginals:
        """The draws in order."""
        return Marginals(self.draws)

    def mean_of(self, answer: SimplexDistribution) -> Tensor:
        return answer.log_mean.double().log_softmax(-1)

    def mean_of_draws(self, draws: Tensor) -> Tensor:
        return log_mean_of(draws)

    def gaps(self, answer: SimplexDistribution) -> Tensor:
        mine, theirs = self.mean_of(answer).exp(), self.mean_of_draws(self.draws).exp()
        return (mine - theirs).abs().sum(-1) / 2

    def decisions(self, answer: SimplexDistribution) -> Tensor:
        """The second of two classes' probability; of more the lead of the answer's likeliest."""
        mine, theirs = self.mean_of(answer).exp(), self.mean_of_draws(self.draws).exp()
        label = mine.argmax(-1)
        return torch.stack([decisive(mine, label), decisive(theirs, label)], -1)

    def kl(self, mean: Tensor, other: Tensor) -> Tensor:
        """Entropy of log means ``(N, C)``; NaN of answers that hold it."""
        if bool(other.isnan().any()):
            return torch.full(mean.shape[:1], math.nan)
        return kl_from_log(mean, other.expand_as(mean))

    def energy(self, answer: SimplexDistribution) -> Tensor:
        with seeded(0):  # two students are compared on the same noise
            numbers = answer.mean.numel()
            most = max(LEAST_DRAWS, JUDGING_NUMBERS // numbers)
            draws = answer.sample((min(JUDGING_DRAWS, most),))
        return self.marginals.energy_distance(draws)

    def energies(self, answer: SimplexDistribution) -> tuple[float, float]:
        spread = float(self.marginals.spread.mean())
        to_all = float(self.energy(answer).mean()) + spread / self.size
        return to_all, spread / len(self.draws)

    def sampling_distance(self) -> float:
        r"""Energy distance, as :meth:`scores` has it, of S draws from their own posterior.

        .. math:: \mathbb{E}_x\,\mathbb{E}\|\pi - \pi'\|_1 \,(1 / S - 2 / M), \qquad M = \infty
            \text{ where every call draws afresh}

        A student that is nearer to the posterior answers better than S of its draws would.

        Among the M draws of a posterior, S at random have a distance of 1 / S - 1 / M times the
        spread from all of them. The draws that judge are then among those that teach, so that
        :meth:`scores`, which takes them for new ones, finds 1 / M times the spread too little.
        """
        return float(self.marginals.spread.mean()) * (1 / len(self.draws) - 2 / self.size)

    def epistemic_parts(self, answer: SimplexDistribution) -> tuple[Tensor, Tensor, Tensor]:
        teacher = Measured.of_draws(self.draws, self.size)
        mine = epistemic_uncertainty(answer).double()
        return mine, teacher.mutual_information.double(), teacher.gaps

    def fits_by_certainty(self, answer: SimplexDistribution) -> bool:
        """Whether its mutual information is, within the limit, that of every class of certainty.

        Classes of few inputs are left out, and the noise of these draws is allowed for. Skewed
        logits pass for normal ones where the posterior is unsure, not where it is sure.
        """
        mine, theirs, gaps = self.epistemic_parts(answer)
        members = one_hot(class_of(self.draws.mean(0)), len(CERTAINTY)).double()
        noise = (gaps @ members).std(0) * math.sqrt(max(0.0, 1 / len(gaps) - 1 / self.size))
        own, least = mine @ members, theirs @ members
        allowed = WITHIN * noise + NOTHING * members.sum(0)
        apart = torch.maximum(own - FAITHFUL.factor * least, least - FAITHFUL.factor * own)
        return not bool(((apart > allowed) & (members.sum(0) >= FEW_INPUTS)).any())

    @cached_property
    def sides(self) -> list[Measured]:
        """What each half of the draws says."""
        return [Measured.of_draws(half, self.size) for half in self.halves]

    @cached_property
    def whole(self) -> Measured:
        """What both say together."""
        return Measured.of_draws(torch.cat(self.halves), self.size)

    @cached_property
    def best(self) -> Best:
        """The Dirichlet with their moments."""
        best, distance = _best(self.whole)
        left = self.size - len(self.whole.draws)
        parts = self.sides if left else [self.whole]
        halves = [_best(part)[1] if left else distance for part in parts]
        return Best(best, self.extrapolated(distance, halves))

    def of_all(self, answer: SimplexDistribution) -> Judged:
        """Mutual information and variance of joint halves, another split for all inputs alike."""
        out: Judged = {}
        for name, half in zip(_HALVES, self.draws.chunk(2), strict=True):
            found = Measured.of_draws(half)
            out[name, "mutual_information"] = found.mutual_information
            out[name, "variance"] = found.variance
        return out

    def turn(
        self,
        answer: SimplexDistribution,
        trivial: SimplexDistribution,
        one: int,
        other: int,
        costly: Tensor,
    ) -> Judged:
        target, floor, attainable = self.sides[one], self.sides[other], self.attainables[one]
        count = len(target.draws)
        student = Measured.of_answer(answer, max(count, FEWEST_DRAWS))
        answers = {
            "student": student,
            "floor": floor,
            "trivial": Measured.of_answer(trivial, count),
            "best": self.best.answer,
        }
        # A boundary between classes is crossed in proportion to the error, not to its square.
        missed = self.whole.log_mean.argmax(-1) != target.log_mean.argmax(-1)
        out: Judged = {
            ("teacher", "mutual_information"): target.mutual_information,
            ("teacher", "variance"): target.variance,
            ("teacher", "spread"): target.marginals.spread,
            ("attainable", "kl"): attainable,
            ("attainable", "agreement"): 1 - missed * math.sqrt(2 * self.left),
        }
        weights = floor.log_mean.exp()
        draws = target.draws[: None if target.draws.shape[-1] == 2 else min(COSTLY_DRAWS, count)]
        for column, each in answers.items():
            if column == "best":  # any mean can be that of a Dirichlet
                kl, distance = attainable, self.best.distance
            else:
                kl = kl_from_log(target.log_mean, each.log_mean)
                distance = target.marginals.energy_distance(each.draws)
            if column in ("student", "trivial"):  # to all M draws, not to what they sample
                distance = distance + target.marginals.spread / self.size
            out |= {
                (column, "kl"): kl,
                (column, "energy_distance"): distance,
                (column, "mutual_information"): each.mutual_information,
                (column, "variance"): each.variance,
                (column, "agreement"): each.log_mean.argmax(-1) == target.log_mean.argmax(-1),
            }
            if costly.any():
                here = costly.to(draws.device)
                pair = draws[:, here], each.draws[: len(draws), here]
                out[column, "wasserstein"] = wasserstein1(*pair)
            covered = each.covers(target.draws, weights)
            out |= {(column, name): part for (_, name), part in covered.items()}
        return out | self._verdict(student, one, other)

    def _verdict(self, student: Measured, one: int, other: int) -> Judged:
        r"""What verdict and table by certainty need, input by input.

        Where both halves are all that the posterior holds, they say how certain it is. Otherwise
        one does, and the other judges: by its own draws an input without one of the rare draws that
        carry the mutual information of a sure input would count as surer than it is.

        The mutual information is the mean of :math:`\mathrm{KL}(\pi_s\,\|\,m)` over draws, and its
        gradient in m vanishes, so its sampling error is that of a mean: of the sum over a class,
        or over all inputs, since these share their draws. Every input bears an equal share.
        """
        target, floor, whole = self.sides[one], self.sides[other], self.whole
        all_held = self.size - len(whole.draws) < 2  # but for one of an odd number
        judges, seen = (whole, whole) if all_held else (target, floor)
        classes = class_of(seen.log_mean.exp())
        members = one_hot(classes, len(CERTAINTY)).double()
        left = max(0.0, 1 / len(judges.draws) - 1 / self.size)
        shares = (whole.gaps @ members).var(0) * left / members.sum(0).clamp_min(1)
        between_teacher, within_teacher = gini_parts(judges.draws.double())
        between = student.variance.double()
        as_many = student.draws[: len(target.draws)]
        # By its own halves: the other, which says where the input belongs, must not say this too.
        halves = [kl_from_log(log_mean_of(h), target.log_mean) for h in target.draws.chunk(2)]
        own = student.gaps
        few = own.mean(0) * (1 + 1 / len(own))  # what as many of the student's draws say of it
        information = student.mutual_information.double()
        by_chance = math.sqrt(max(0.0, 1 - len(whole.draws) / self.size)) / 2
        of_all, count = self.attainables[one], len(classes)
        values = {
            "class": classes,
            "other": (student.log_mean.argmax(-1) != whole.log_mean.argmax(-1)).double(),
            # A boundary between classes is crossed in proportion to the error.
            "other_by_chance": (target.log_mean.argmax(-1) != floor.log_mean.argmax(-1))
            * by_chance,
            "gap": _largest(student.log_mean, whole.log_mean),
            "gap_by_chance": _largest(target.log_mean, floor.log_mean) * by_chance,
            "noise_single": relative_noise(judges.gaps, self.size),
            "uncertainty_redrawn": information + (few - information) * math.sqrt(left * len(own)),
            "kl_attainable": of_all if all_held else (halves[0] + halves[1]) / 2 * self.left,
            "kl_attainable_of_all": of_all,
            "kl_expected": kl_from_log(log_mean_of(as_many), student.log_mean) * self.left,
            "uncertainty": student.mutual_information,
            "uncertainty_teacher": judges.mutual_information,
            "between": between,
            "within": gini_index(student.log_mean) - between,
            "between_teacher": between_teacher,
            "within_teacher": within_teacher,
            "noise": shares[classes],
            "noise_of_all": (whole.gaps.sum(-1).var() * left / count).expand(count),
            "noise_expected": own.var(0) * left,
        }
        return {("verdict", name): value for name, value in values.items()}


def _best(found: Measured) -> tuple[Measured, Tensor]:
    """The Dirichlet with the moments of draws, and its energy distance to just these draws."""
    matched = moment_matched(found.draws.mean(0), moment_concentration(found.draws))
    answer = Measured.of_answer(matched, len(found.draws))
    distance = found.marginals.energy_distance(answer.draws)
    return answer, distance + found.marginals.spread / len(found.draws)


def _largest(log_mean: Tensor, other: Tensor) -> Tensor:
    """The largest difference of a class probability, ``(N,)``."""
    return (log_mean.exp() - other.exp()).abs().amax(-1)
