"""Fidelity by how certain the teacher is, and what it comes to in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["CertaintyRow", "Verdict", "by_certainty", "certainty_rows", "class_of", "verdict_of"]

_Array = NDArray[np.float64]

#: Upper ends of the classes of certainty: the largest mean probability of the teacher.
ENDS = (0.7, 0.9, 0.99, 0.999)
NAMES = ("below .7", ".7-.9", ".9-.99", ".99-.999", "above .999")
#: A faithful student has at most this multiple of the attainable KL, and a mutual information
#: within this share of the teacher's.
MOST_KL, MOST_ERROR = 2.0, 0.1
#: Nor does its rank correlation with the teacher's uncertainty lie below the one, where that of the
#: teacher, asked again, is at least the other: it would be of no use to a detector.
LEAST_RANKS, TEACHER_RANKS = 0.5, 0.8
#: Standard errors by which a mean must lie beyond its limit: up to twelve are tested at once, and
#: draws of sure posteriors have a long tail.
ERRORS = 3.0
#: Inputs below which a class of certainty is not judged by itself.
FEWEST = 10
#: Nats that count as zero: the rounding of float32 answers.
NOTHING = 1e-7


@dataclass(frozen=True)
class CertaintyRow:
    """Means over the inputs of one class of certainty; NaN where undefined."""

    #: The class, by the largest mean probability of the teacher's draws, in words.
    certainty: str
    num_inputs: int
    kl: float  #: Nats.
    kl_attainable: float  #: Of a perfect student, nats.
    kl_ratio: float  #: The one over the other.
    energy_distance: float
    mutual_information: float  #: Nats.
    mutual_information_teacher: float  #: Nats.
    mutual_information_ratio: float  #: The one over the other.
    #: Median of the student's concentration over that of the teacher's draws, both by moments.
    concentration_median: float
    #: The same ratio of the concentrations of all inputs together (mean Gini uncertainty within
    #: draws over that between them), which few draws do not bias.
    concentration_mean: float
    coverage_50: float  #: Share of the teacher's draws in the student's central 50 % intervals.
    coverage_90: float  #: In those of 90 %.
    faithful: bool | None  #: As `pyro_opu.fidelity` judges; ``None`` of fewer than 10 inputs.


class Verdict(NamedTuple):
    """Whether a student is faithful, and the sentence that says so."""

    faithful: bool
    sentence: str

    def with_ranks(self, student: float, floor: float) -> Verdict:
        """The verdict, whose student's ranks of the inputs, and the teacher's own, agree so far.

        Both are rank correlations with the teacher's uncertainty; NaN says nothing.
        """
        if not (student < LEAST_RANKS and floor >= TEACHER_RANKS):
            return self
        sentence = self.sentence
        if self.faithful:
            start, _, rest = sentence.partition(": ")
            sentence = f"{start} in the mean, but not in rank: {rest}"
        return Verdict(
            False,
            f"{sentence} It ranks the inputs by their uncertainty otherwise: Spearman "
            f"{student:.2g}, of the teacher asked again {floor:.2g}.",
        )


def class_of(mean: Tensor) -> Tensor:
    """Number of the class of certainty of mean probabilities ``(N, C)``, ``(N,)``."""
    ends = torch.tensor(ENDS, dtype=torch.float64, device=mean.device)
    return torch.bucketize(mean.double().amax(-1), ends, right=True)


def ratio(value: float, reference: float, least: float = 0.0) -> float:
    """The quotient; NaN where the reference is no more than ``least``, as of draws that agree."""
    return float(value / reference) if reference > least else math.nan


def by_certainty(turns: list[dict[tuple[str, str], _Array]]) -> dict[str, _Array]:
    """Numbers ``(N,)`` for the rows and the verdict, averaged over turns that agree on classes.

    "between" and "within" are the parts of the Gini uncertainty; "noise" adds up to the variance of
    the class's sum of the teacher's mutual informations.
    """
    first = turns[0]
    if any((turn["certainty", "class"] != first["certainty", "class"]).any() for turn in turns):
        turns = turns[:1]
    names = [key for key in first if key[0] == "certainty"]
    names += [("student", name) for name in ("kl", "energy_distance", "coverage_50", "coverage_90")]
    values = {key[1]: np.mean([turn[key] for turn in turns], 0) for key in names}
    whole = np.mean([turn["attainable", "kl"] for turn in turns], 0)
    return values | {"kl_attainable_of_all": whole}


def certainty_rows(values: Mapping[str, _Array]) -> tuple[CertaintyRow, ...]:
    """One row per class, the empty ones too, from the values of :func:`by_certainty`."""
    return tuple(
        _row(name, {key: part[values["class"] == number] for key, part in values.items()})
        for number, name in enumerate(NAMES)
    )


def _row(name: str, values: Mapping[str, _Array]) -> CertaintyRow:
    count = len(values["kl"])
    mean = {key: float(part.mean()) if count else math.nan for key, part in values.items()}
    mine, theirs = (ratio(mean["within" + end], mean["between" + end]) for end in ("", "_teacher"))
    with np.errstate(divide="ignore", invalid="ignore"):
        own, other = (values["within" + e] / values["between" + e] for e in ("", "_teacher"))
        ratios = own / other
    known = ratios[np.isfinite(ratios)]
    return CertaintyRow(
        name,
        count,
        mean["kl"],
        mean["kl_attainable"],
        ratio(mean["kl"], mean["kl_attainable"]),
        mean["energy_distance"],
        mean["uncertainty"],
        mean["uncertainty_teacher"],
        ratio(mean["uncertainty"], mean["uncertainty_teacher"], NOTHING),
        float(np.median(known)) if len(known) else math.nan,
        ratio(mine, theirs),
        mean["coverage_50"],
        mean["coverage_90"],
        is_faithful(values) if count >= FEWEST else None,
    )


def is_faithful(values: Mapping[str, _Array], noise: str = "noise") -> bool:
    """Whether neither the KL nor the uncertainty lies clearly beyond its limit.

    The draws of a sure posterior are rare where they matter, and may all be missing. The attainable
    KL and the sampling error are then seen too small, and those to be expected if the student is
    right ("kl_expected", "noise_expected") count instead. A student that is not sure enough cannot
    hide behind them: its uncertainty gives it away.
    """
    count = len(values["kl"])
    attainable, variance = values["kl_attainable"], values[noise].sum()
    if "kl_expected" in values:
        attainable = max(attainable, values["kl_expected"], key=np.mean)
        variance = max(variance, values["noise_expected"].sum())
    excess = values["kl"] - MOST_KL * attainable
    error = excess.std(ddof=1) / math.sqrt(count) if count > 1 else 0.0
    mine, theirs = (values[f"uncertainty{end}"].mean() for end in ("", "_teacher"))
    spread = math.sqrt(max(0.0, variance)) / count
    return bool(
        excess.mean() <= ERRORS * error + NOTHING
        and abs(mine - theirs) <= MOST_ERROR * theirs + ERRORS * spread + NOTHING
    )


def verdict_of(
    values: Mapping[str, _Array],
    rows: tuple[CertaintyRow, ...] = (),
    uncertainty: str = "mutual information",
) -> Verdict:
    """The verdict on all inputs, and on every class of certainty (row) with enough of them."""
    count = len(values["kl"])
    if "kl_attainable_of_all" in values:
        values = {**values, "kl_attainable": values["kl_attainable_of_all"]}
    whole = is_faithful(values, "noise_of_all")
    missed = [row for row in rows if row.faithful is False]
    mean = {name: float(part.mean()) for name, part in values.items()}
    kl = ratio(mean["kl"], mean["kl_attainable"])
    information = ratio(mean["uncertainty"], mean["uncertainty_teacher"], NOTHING)
    numbers = _numbers(kl, information, uncertainty)
    word = "Faithful" if whole else "Not faithful"
    if whole and _beyond(mean):
        word = "Not shown to be unfaithful"
        numbers += (
            f"; the limits are {MOST_KL:.3g} times and {100 * MOST_ERROR:.0f} %, with too few "
            "inputs or draws to tell"
        )
    if not missed:
        few = f" {count} inputs say little." if count < FEWEST else ""
        return Verdict(whole, f"{word}: {numbers}.{few}")
    where = "; ".join(
        f"{row.certainty}: {_numbers(row.kl_ratio, row.mutual_information_ratio, uncertainty)}"
        for row in missed
    )
    means = f"{word} on average ({numbers}), but not faithful everywhere:"
    start = means if whole else f"Not faithful: {numbers};"
    return Verdict(False, f"{start} by the teacher's largest mean probability, {where}.")


def _beyond(mean: Mapping[str, float]) -> bool:
    """Whether a mean lies beyond its limit at all, be it by chance."""
    error = abs(mean["uncertainty"] - mean["uncertainty_teacher"])
    return (
        mean["kl"] > MOST_KL * mean["kl_attainable"] + NOTHING
        or error > MOST_ERROR * mean["uncertainty_teacher"] + NOTHING
    )


def _numbers(kl: float, information: float, uncertainty: str) -> str:
    first = "no KL is attainable" if math.isnan(kl) else f"KL {kl:.3g} times attainable"
    if math.isnan(information):
        return f"{first}, no {uncertainty} to compare"
    side = "above" if information >= 1 else "below"
    return f"{first}, {uncertainty} {100 * abs(information - 1):.0f} % {side} the teacher's"
