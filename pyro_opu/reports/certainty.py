"""Fidelity by how certain the teacher is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pyro_opu.judging.base import LEVELS
from pyro_opu.judging.classes import CERTAINTY
from pyro_opu.judging.nearness import nearness
from pyro_opu.judging.yardstick import FAITHFUL, FEWEST, Array, quotient

__all__ = ["CertaintyRow", "certainty_rows", "values_of"]

#: Nats that float32 answers do not resolve.
RESOLVED = 1e-7


@dataclass(frozen=True)
class CertaintyRow:
    """Means over the inputs of one class of certainty; NaN where undefined."""

    #: The class, by the largest mean probability of the teacher's draws, in words.
    certainty: str
    num_inputs: int
    draws: float  #: Posterior draws whose mean errs as much as the student's.
    kl: float  #: Nats.
    kl_attainable: float  #: Of a perfect student, nats.
    kl_ratio: float  #: The one over the other.
    energy_distance: float
    energy_share: float  #: As a share of the spread of the draws.
    mutual_information: float  #: Nats.
    mutual_information_teacher: float  #: Nats.
    mutual_information_ratio: float  #: The one over the other.
    epistemic_factor: float  #: Typical factor of the mutual information at single inputs.
    #: Median of the student's concentration over that of the teacher's draws, both by moments.
    concentration_median: float
    #: The same ratio of the concentrations of all inputs together (mean Gini uncertainty within
    #: draws over that between them), which few draws do not bias.
    concentration_mean: float
    coverage_50: float  #: Share of the teacher's draws in the student's central 50 % intervals.
    coverage_90: float  #: In those of 90 %.
    beyond: tuple[str, ...]  #: Which of "mean", "epistemic" and "shape" are beyond their limit.
    #: Whether none is; ``None`` of fewer than 10 inputs.
    faithful: bool | None


def values_of(
    turns: Sequence[Mapping[tuple[str, str], Array]], energy: str
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Numbers ``(N,)`` for the verdict, averaged over turns: of all inputs, and for their classes.

    The latter over turns that agree on the classes, and none of a real y. "between" and "within"
    are the parts of the Gini uncertainty. ``energy`` is the row of the energy distance.
    """
    keys = {name: (column, name) for column, name in turns[0] if column == "verdict"}
    keys |= {"kl": ("student", "kl"), "distance": ("student", energy)}
    keys |= {"spread": ("teacher", "spread"), **{name: ("student", name) for name in LEVELS}}

    def averaged(some: Sequence[Mapping[tuple[str, str], Array]]) -> dict[str, Array]:
        return {name: np.mean([turn[key] for turn in some], 0) for name, key in keys.items()}

    whole = averaged(turns)
    if "class" not in keys:
        return whole, {}
    classes = [turn["verdict", "class"] for turn in turns]
    alike = all((each == classes[0]).all() for each in classes)
    parts = whole if alike else averaged(turns[:1])
    of_all = {name: whole[f"{name}_of_all"] for name in ("kl_attainable", "noise")}
    return whole | of_all, parts


def certainty_rows(
    values: Mapping[str, Array], num_draws: int, held: float
) -> tuple[CertaintyRow, ...]:
    """One row per class, the empty ones too, from the values of :func:`values_of`."""
    return tuple(
        _row(
            name,
            {key: part[values["class"] == number] for key, part in values.items()},
            num_draws,
            held,
        )
        for number, name in enumerate(CERTAINTY)
    )


def _row(name: str, values: Mapping[str, Array], num_draws: int, held: float) -> CertaintyRow:
    count = len(values["kl"])
    mean = {key: float(part.mean()) if count else math.nan for key, part in values.items()}
    near = nearness(values, num_draws, held, FAITHFUL.factor) if count else None
    judged = near is not None and count >= FEWEST
    beyond = tuple(what for what, within in near.within.items() if within is False) if near else ()
    mine, theirs = (
        quotient(mean["within" + end], mean["between" + end]) for end in ("", "_teacher")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        own, other = (values["within" + e] / values["between" + e] for e in ("", "_teacher"))
        ratios = own / other
    known = ratios[np.isfinite(ratios)]
    return CertaintyRow(
        certainty=name,
        num_inputs=count,
        draws=near.draws.value if near else math.nan,
        kl=mean["kl"],
        kl_attainable=mean["kl_attainable"],
        kl_ratio=quotient(mean["kl"], mean["kl_attainable"]),
        energy_distance=mean["distance"],
        energy_share=quotient(mean["distance"], mean["spread"]),
        mutual_information=mean["uncertainty"],
        mutual_information_teacher=mean["uncertainty_teacher"],
        mutual_information_ratio=quotient(
            mean["uncertainty"], mean["uncertainty_teacher"], RESOLVED
        ),
        epistemic_factor=near.single.found.value if near else math.nan,
        concentration_median=float(np.median(known)) if len(known) else math.nan,
        concentration_mean=quotient(mine, theirs),
        coverage_50=mean["coverage_50"],
        coverage_90=mean["coverage_90"],
        beyond=beyond if judged else (),
        faithful=not beyond if judged else None,
    )
