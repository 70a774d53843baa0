"""One next step for a student, by what keeps it from being near."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from pyro_opu.judging.yardstick import FAITHFUL, FEWEST_ROWS, NOT_GRADED, grade_of

__all__ = ["Known", "graded", "last_gain", "next_step"]

#: Why a student began from scratch, where it was asked for.
BY_GUIDE = "`guide` was given"
#: Share of the inputs beyond 99 of 100 transfer inputs, from which they count as far.
FAR = 0.1
#: Share that the last quarter of the steps takes off the error of a student that still learns.
LEARNING = 0.1


class Known(NamedTuple):
    """What is known of a student beside its numbers; what is not known is left out."""

    faithful: bool | None = None
    beyond: Collection[str] = ()  #: Of "mean", "epistemic" and "shape", those beyond their limit.
    num_inputs: int = FEWEST_ROWS
    held: float = math.inf  #: Draws that the posterior holds.
    family: float = math.nan  #: What the best two moments leave, as a share of the draws' spread.
    far: float = 0.0  #: Share of the inputs that are more novel than 99 of 100 transfer inputs.
    report: Mapping[str, Any] = {}  #: Of its distillation.


def next_step(known: Known) -> str:
    """One sentence; the first cause that applies.

    Example:
        >>> next_step(Known(beyond={"shape"}, family=0.2))
        'no answer with two moments has this shape (20 % of the spread is left): guide="mixture".'
    """
    if known.faithful:
        return "nothing; it can be used for its posterior."
    if known.num_inputs < FEWEST_ROWS:
        return (
            f"judge it at more inputs: {known.num_inputs} are too few to tell, and need no labels."
        )
    if known.far > FAR:
        return (
            f"teach it there: {100 * known.far:.0f} % of these inputs are farther out than 99 of "
            "100 transfer inputs. Add rows like them to the `x` of distill."
        )
    report = known.report
    mixture = "Mixture" in str(report.get("family", ""))
    if "shape" in known.beyond and known.family > FAITHFUL.share and not mixture:
        return (
            f"no answer with two moments has this shape ({100 * known.family:.0f} % of the spread "
            'is left): guide="mixture".'
        )
    if report.get("start") == "scratch" and report.get("start_reason") not in (None, BY_GUIDE):
        return (
            f"let it begin at the posterior's own network; it began from scratch, since "
            f"{report['start_reason']}."
        )
    if last_gain(report) > LEARNING:
        return (
            f"more steps: the last quarter took {100 * last_gain(report):.0f} % off its error. "
            'effort="thorough".'
        )
    if known.held < FAITHFUL.draws:
        return (
            f"sample more draws: the posterior holds {known.held:.0f}, too few to learn from; or "
            "keep them all, by pyro_opu.batched."
        )
    if known.faithful is None and not known.beyond:
        return "judge it at more inputs, or by more draws: nothing is beyond its limit by far."
    return (
        'more inputs in the `x` of distill (they need no labels), then effort="thorough"; where '
        "that does not do, pyro_opu.batched is exact."
    )


def graded(report: Mapping[str, Any]) -> tuple[str, str]:
    """Grade and next step of a student by the report of its distillation, on held-out inputs.

    The grade is that of its numbers; `pyro_opu.fidelity` looks at classes of certainty, coverage
    and ranks too, and at what chance allows.
    """
    held = float(report.get("held") or math.inf)
    numbers = (report[name] for name in ("draws", "epistemic_factor", "energy_share"))
    draws, factor, share = (math.nan if number is None else number for number in numbers)
    grade = grade_of(draws, factor, share, held=held)
    beyond = {
        "mean": draws < min(FAITHFUL.draws, held),
        "epistemic": factor > FAITHFUL.factor,
        "shape": share > FAITHFUL.share,
    }
    known = Known(
        faithful=not any(beyond.values()) or None,
        beyond={what for what, is_beyond in beyond.items() if is_beyond},
        num_inputs=report.get("num_held_out", FEWEST_ROWS),
        held=held,
        family=report.get("misfit", math.nan),
        report=report,
    )
    if known.num_inputs < FEWEST_ROWS:
        return NOT_GRADED, next_step(known._replace(faithful=None))
    return grade, next_step(known)


def last_gain(report: Mapping[str, Any]) -> float:
    """By how much the KL fell in the last quarter of the evaluations, as a share."""
    found = [r["kl_ratio"] for r in report.get("history", []) if "kl_ratio" in r]
    if len(found) < 2:
        return 0.0
    before = found[min(len(found) - 2, 3 * len(found) // 4)]
    return max(0.0, 1 - report["kl_ratio"] / before) if before else 0.0
