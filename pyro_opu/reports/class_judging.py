"""What `pyro_opu.fidelity` measures where the teacher's outcome is a class."""

from __future__ import annotations

import math
from functools import partial
from itertools import permutations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_opu.distributions import SimplexDistribution
from pyro_opu.distributions.dirichlet import PredictiveDirichlet, moment_matched
from pyro_opu.judging.nearness import LEVELS, Nearness, nearness
from pyro_opu.judging.yardstick import quotient, relative_noise, typical_factor
from pyro_opu.metrics.coverage import central_coverage, central_coverage_of_draws
from pyro_opu.metrics.distances import kl_from_log, log_mean_of, split, wasserstein1
from pyro_opu.metrics.marginals import Marginals
from pyro_opu.metrics.ranks import spearman
from pyro_opu.metrics.uncertainty import epistemic_uncertainty, moment_concentration, variance
from pyro_opu.objectives.moments import gini_index, gini_parts
from pyro_opu.reports.answers import check_numbers, student_answer
from pyro_opu.reports.certainty import NAMES, CertaintyRow, certainty_rows, class_of, values_of
from pyro_opu.reports.judging import Judge, Judged, Values, extrapolated, repeated, row_of
from pyro_opu.reports.verdict import CLASSES
from pyro_opu.utils.chunks import chunks

__all__ = ["Measured", "ClassJudge", "from_draws", "posterior"]

#: Draws of an answer, at least, that say where its central intervals end.
FEWEST_DRAWS = 200
_HALVES = ("first half", "second half")
# A mutual information or variance of this size is float32 rounding of draws that all agree.
_ROUNDING = 1e-7


class ClassJudge(Judge):
    """Judges answers over classes; see `pyro_opu.fidelity`."""

    terms = CLASSES

    @property
    def width(self) -> int:
        return self.teacher.num_outputs

    def ask(self, student: Any, x: Tensor) -> SimplexDistribution:
        answer: SimplexDistribution = student_answer(student, x, columns=self.columns)
        if answer.event_shape[0] != self.width:
            raise ValueError(
                f"`student` must have the teacher's {self.width} classes; it has "
                f"{answer.event_shape[0]}. Pass a student that was distilled from this teacher."
            )
        check_numbers(answer.log_mean, answer.log_concentration)
        return answer

    def draws(self, x: Tensor, count: int) -> Tensor:
        """In random order: the order may have been that of a Markov chain."""
        draws = self.teacher.draws(x, count)
        return draws[torch.randperm(len(draws), device=draws.device)]

    def trivial_answer(self, x: Tensor, num_draws: int) -> PredictiveDirichlet:
        mean, square = x.new_zeros(()), x.new_zeros(())
        for part in chunks(len(x), num_draws, self.width * self.columns, self.plan.chunk_size):
            draws = self.teacher.draws(x[part], num_draws).unflatten(1, (-1, self.columns))
            mean = mean + draws.mean(0).sum(0) / len(x)
            square = square + draws.square().sum(-1).mean(0).sum(0) / len(x)
        within, between = 1 - square, square - mean.square().sum(-1)
        return moment_matched(mean, torch.where(between > 0, within / between, torch.inf))

    def judge(self, answer: SimplexDistribution, draws: Tensor, picked: Tensor) -> list[Judged]:
        """Both sets of draws judge in turn where the posterior holds no others."""
        plan = self.plan
        first, second = split(draws)
        taught = posterior(first, second, plan.size)
        mine = from_distribution(answer, max(plan.num_draws, FEWEST_DRAWS))
        again = spreads(draws)
        sides = [from_draws(side, plan.size) for side in (first, second)]
        turns = []
        for target, other in permutations(sides):
            trivial = from_distribution(repeated(self.trivial, *answer.batch_shape), plan.num_draws)
            answers = {"student": mine, "floor": other, "trivial": trivial}
            found = judge(target, answers, taught, picked, plan.wasserstein_draws)
            turns.append(again | found | by_input(mine, target, other, taught))
            if math.isinf(plan.size):
                break
        return turns

    def rows(self, values: Values) -> dict[str, dict[str, float]]:
        row = partial(row_of, values)
        rows = {name: row(name, _mean, 0.0) for name in ("kl", "energy_distance")}
        rows["spread"] = row("spread", _mean, _mean(values["teacher", "spread"]))
        halves = (values[half, "mutual_information"] for half in _HALVES)
        rows["epistemic_factor"] = {**row("", _mean, 1.0), "floor": typical_factor(*halves)}
        rows["wasserstein"] = row("wasserstein", _mean, math.nan)
        for name in ("mutual_information", "variance"):
            truth = values["teacher", name]
            mean = float(truth.mean())
            rows[name] = row(name, _mean, mean)
            error = partial(_relative_error, mean)
            rows[f"{name}_error"] = row(name, error, 0.0, attainable=error(truth))
            first, second = (values[half, name] for half in _HALVES)
            rows[f"{name}_error"]["floor"] = abs(_relative_error(_mean(first), second))
            ranked = partial(spearman, b=truth, rounding=_ROUNDING)
            rows[f"{name}_spearman"] = row(name, ranked, 1.0)
        rows |= {name: row(name, _mean, level) for name, level in LEVELS.items()}
        return rows | {"agreement": row("agreement", _mean, 1.0)}

    def near(self, turns: list[Values]) -> tuple[Nearness, tuple[CertaintyRow, ...]]:
        whole, by_class = values_of(turns)
        judges = self.plan.num_draws, self.plan.size
        return nearness(whole, *judges), certainty_rows(by_class, *judges)

    def facts(self, picked: Tensor) -> dict[str, Any]:
        return {"num_classes": self.width, "wasserstein_inputs": int(picked.sum())}


def _mean(values: Any) -> float:
    return float(values.mean())


def _relative_error(mean: float, values: Any) -> float:
    return quotient(_mean(values), mean, _ROUNDING) - 1


class Measured(NamedTuple):
    """A predictive distribution at ``n`` inputs, to judge or to be judged."""

    log_mean: Tensor  # (n, C)
    draws: Tensor  # (S, n, C)
    mutual_information: Tensor  # (n,)
    variance: Tensor  # (n,)
    distribution: SimplexDistribution | None = None  # of a student


def from_draws(draws: Tensor, size: float = math.inf) -> Measured:
    """A teacher's answer, from draws ``(S, n, C)`` of the ``size`` that its posterior holds."""
    mean, spread = draws.mean(0), draws.var(0)
    # The entropy of a mean of S draws is low by sum_k Var(pi_k) / (2 S m_k), to first order in 1/S.
    bias = (spread / mean.clamp_min(torch.finfo(mean.dtype).tiny)).sum(-1) / 2
    information = epistemic_uncertainty(draws) + bias * (1 / len(draws) - 1 / size)
    return Measured(log_mean_of(draws), draws, information, spread.sum(-1) * (1 - 1 / size))


def from_distribution(answer: SimplexDistribution, num_draws: int) -> Measured:
    """A student's answer: its own measures, and draws to compare draws with."""
    log_mean, draws = answer.log_mean.double().log_softmax(-1), answer.sample((num_draws,))
    return Measured(log_mean, draws, epistemic_uncertainty(answer), variance(answer), answer)


class Posterior(NamedTuple):
    """What both sets of draws say together."""

    answer: Measured  # of all 2 S draws
    best: Measured  # the Dirichlet with their moments
    best_distance: Tensor  # its energy distance to the posterior, (n,)
    size: float  # draws that the posterior holds; infinite where it draws afresh

    @property
    def all_held(self) -> bool:
        """Whether these are all draws of the posterior, but for one of an odd number."""
        return self.size - len(self.answer.draws) < 2


def posterior(first: Tensor, second: Tensor, size: float) -> Posterior:
    """The posterior from two disjoint sets of its draws, ``(S, N, C)`` each."""
    draws = torch.cat([first, second])
    best, whole = _best(draws)
    left = 1 - len(draws) / size
    halves = [_best(part)[1] for part in (first, second)] if left else [whole]
    return Posterior(from_draws(draws, size), best, extrapolated(whole, halves, left), size)


def _best(draws: Tensor) -> tuple[Measured, Tensor]:
    """The Dirichlet with the moments of draws, and its energy distance to just these draws."""
    matched = moment_matched(draws.mean(0), moment_concentration(draws))
    answer = from_distribution(matched, len(draws))
    marginals = Marginals(draws)
    distance = marginals.energy_distance(answer.draws)
    return answer, distance + marginals.spread / len(draws)


def judge(
    target: Measured,
    answers: dict[str, Measured],
    taught: Posterior,
    chosen: Tensor,
    wasserstein_draws: int,
) -> Judged:
    """Every answer, by column, against the draws of the target, input by input."""
    weights = answers["floor"].log_mean.exp()
    cut = None if target.draws.shape[-1] == 2 else min(wasserstein_draws, len(target.draws))
    marginals = Marginals(target.draws)
    attainable = _attainable(target, taught)
    # A boundary between classes is crossed in proportion to the error, not to its square.
    sampling = 2 * (1 - len(target.draws) / taught.size)
    missed = taught.answer.log_mean.argmax(-1) != target.log_mean.argmax(-1)
    out: Judged = {
        ("teacher", "mutual_information"): target.mutual_information,
        ("teacher", "variance"): target.variance,
        ("teacher", "spread"): marginals.spread,
        ("attainable", "kl"): attainable,
        ("attainable", "agreement"): 1 - missed * math.sqrt(sampling),
    }
    for column, answer in (answers | {"best": taught.best}).items():
        if column == "best":  # any mean can be that of a Dirichlet
            kl, distance = attainable, taught.best_distance
        else:
            kl = kl_from_log(target.log_mean, answer.log_mean)
            distance = marginals.energy_distance(answer.draws)
        if column in ("student", "trivial"):  # to all M draws, not to what they are a sample of
            distance = distance + marginals.spread / taught.size
        out |= {
            (column, "kl"): kl,
            (column, "energy_distance"): distance,
            (column, "mutual_information"): answer.mutual_information,
            (column, "variance"): answer.variance,
            (column, "agreement"): answer.log_mean.argmax(-1) == target.log_mean.argmax(-1),
        }
        if chosen.any():
            here = chosen.to(target.draws.device)
            samples = (target.draws[:cut, here], answer.draws[:cut, here])
            out[column, "wasserstein"] = wasserstein1(*samples)
        if answer.distribution is not None:
            covered = _coverage(answer, target.draws, weights, list(LEVELS.values()))
            out |= {(column, name): part for name, part in zip(LEVELS, covered, strict=True)}
    return out


def _coverage(answer: Measured, draws: Tensor, weights: Tensor, levels: list[float]) -> Tensor:
    if isinstance(answer.distribution, PredictiveDirichlet):
        return central_coverage(answer.distribution, draws, weights, levels)
    return central_coverage_of_draws(answer.draws, draws, weights, levels)


def spreads(draws: Tensor) -> Judged:
    """Mutual information and variance of both halves of joint draws ``(2 S, n, C)``."""
    out: Judged = {}
    for half, part in zip(_HALVES, draws.chunk(2), strict=True):
        answer = from_draws(part)
        out[half, "mutual_information"] = answer.mutual_information
        out[half, "variance"] = answer.variance
    return out


def by_input(student: Measured, target: Measured, other: Measured, taught: Posterior) -> Judged:
    r"""What a table by certainty needs, input by input.

    Where both sets are all that the posterior holds, they say how certain it is. Otherwise one set
    does, and the other judges: by its own draws an input without one of the rare draws that carry
    the mutual information of a sure input would count as surer than it is.

    The mutual information is the mean of :math:`\mathrm{KL}(\pi_s\,\|\,m)` over draws, and its
    gradient in m vanishes, so its sampling error is that of a mean: of the sum over a class, or
    over all inputs, since these share their draws. Every input bears an equal share.
    """
    judges, seen = (taught.answer, taught.answer) if taught.all_held else (target, other)
    classes = class_of(seen.log_mean.exp())
    members = torch.nn.functional.one_hot(classes, len(NAMES)).double()
    left = max(0.0, 1 / len(judges.draws) - 1 / taught.size)
    gaps = _gaps(taught.answer)
    shares = (gaps @ members).var(0) * left / members.sum(0).clamp_min(1)
    log_mean, between = student.log_mean, student.variance.double()
    between_teacher, within_teacher = gini_parts(judges.draws.double())
    sampling = 1 - len(target.draws) / taught.size
    as_many = student.draws[: len(target.draws)]
    # By its own halves: the other set, which says where the input belongs, must not say this too.
    first, second = (
        kl_from_log(log_mean_of(half), target.log_mean) for half in target.draws.chunk(2)
    )
    halves = (first + second) / 2 * sampling
    judging, own = _gaps(judges), _gaps(student)
    few = own.mean(0) * (1 + 1 / len(own))  # what as many of the student's draws say of it
    information = student.mutual_information.double()
    by_chance = math.sqrt(max(0.0, 1 - len(taught.answer.draws) / taught.size)) / 2
    values = {
        "class": classes,
        "other": (log_mean.argmax(-1) != taught.answer.log_mean.argmax(-1)).double(),
        # A boundary between classes is crossed in proportion to the error, not to its square.
        "other_by_chance": (target.log_mean.argmax(-1) != other.log_mean.argmax(-1)) * by_chance,
        "gap": _largest(log_mean, taught.answer.log_mean),
        "gap_by_chance": _largest(target.log_mean, other.log_mean) * by_chance,
        "noise_single": relative_noise(judging, taught.size),
        "uncertainty_redrawn": information + (few - information) * math.sqrt(left * len(own)),
        "kl_attainable": _attainable(target, taught) if taught.all_held else halves,
        "kl_attainable_of_all": _attainable(target, taught),
        "kl_expected": kl_from_log(log_mean_of(as_many), log_mean) * sampling,
        "uncertainty": student.mutual_information,
        "uncertainty_teacher": judges.mutual_information,
        "between": between,
        "within": gini_index(log_mean) - between,
        "between_teacher": between_teacher,
        "within_teacher": within_teacher,
        "noise": shares[classes],
        "noise_of_all": (gaps.sum(-1).var() * left / len(classes)).expand(len(classes)),
        "noise_expected": own.var(0) * left,
    }
    return {("certainty", name): value for name, value in values.items()}


def _largest(log_mean: Tensor, other: Tensor) -> Tensor:
    """The largest difference of a class probability, ``(n,)``."""
    return (log_mean.exp() - other.exp()).abs().amax(-1)


def _gaps(answer: Measured) -> Tensor:
    """KL of every draw from the mean, ``(S, n)``."""
    draws = answer.draws.double()
    return torch.xlogy(draws, draws).sum(-1) - (draws * answer.log_mean).sum(-1)


def _attainable(target: Measured, taught: Posterior) -> Tensor:
    """KL of a perfect student, by the draws that judge; see `pyro_opu.fidelity`."""
    sampling = 2 * (1 - len(target.draws) / taught.size)
    return kl_from_log(target.log_mean, taught.answer.log_mean) * sampling
