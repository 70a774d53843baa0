r"""What rows that nothing else has seen promise of the next one: split conformal bounds.

Scores of n kept rows and of a new one like them are exchangeable, as the student was made without
any of them. So the :math:`\lceil (n + 1)(1 - \epsilon) \rceil`-th smallest of n bounds that of the
new row with a probability of at least :math:`1 - \epsilon`, over the kept rows and the new one; and
of at most :math:`1/(n + 1)` more where no scores are equal. Nothing is promised of rows that are
unlike them.

References:
    Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World (2005), section 2.2. Clopper,
    Pearson: The use of confidence or fiducial limits (1934).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from pyro_opu.guides.base import student_at
from pyro_opu.judging.base import Judge
from pyro_opu.judging.yardstick import NOTHING

__all__ = ["certified", "conformal", "differing", "margin", "said_of"]

#: Levels that a report shows, and digits of a score that are kept.
SHOWN, DIGITS = (0.95, 0.99), 6


@torch.no_grad()
def certified(judge: Judge[Any], guide: nn.Module) -> dict[str, Any]:
    """Scores of a student at kept rows, by site, as plain values for its report.

    Returns:
        "num_rows" and "num_draws" of the teacher at each, "held" of its posterior; and "sites",
        with the sorted distances of the "mean", total variation or predictive deviations, of the
        worst number of a row; the sorted factors of the "epistemic" part; of labels "decisions",
        pairs of numbers of student and teacher that are compared with a "threshold", which is by
        default that of the likeliest class; and the "unit" of the first.
    """
    answer, rows = student_at(guide, judge.x), len(judge.x)
    sites = {}
    for site, part, own in judge.by_site(answer):
        mine, theirs, _ = part.epistemic_parts(own)
        factors = (mine.clamp_min(NOTHING) / theirs.clamp_min(NOTHING)).log().abs().exp()
        worst = {"mean": part.gaps(own), "epistemic": factors}
        found: dict[str, Any] = {"unit": part.unit_of_gaps}
        for name, values in worst.items():
            found[name] = sorted(map(_short, values.reshape(rows, -1).amax(1).tolist()))
        decided = part.decisions(own)
        if decided is not None and len(decided) == rows:
            found["threshold"] = 0.5 if own.num_classes == 2 else 0.0
            found["decisions"] = [list(map(_short, pair)) for pair in decided.tolist()]
        sites[site] = found
    return {
        "num_rows": rows,
        "num_draws": len(judge.draws),
        "held": judge.held,
        "sites": sites,
    }


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def conformal(scores: Sequence[float], level: float) -> float | None:
    """The bound on a new score by n sorted ones; ``None`` where n is below level / (1 - level).

    Example:
        >>> conformal([1.0, 2.0, 3.0], 0.75), conformal([1.0, 2.0, 3.0], 0.8)
        (3.0, None)
    """
    place = math.ceil((len(scores) + 1) * level - 1e-9)
    return scores[place - 1] if place <= len(scores) else None


def margin(decisions: Sequence[Sequence[float]], level: float, threshold: float) -> float | None:
    """How far from the threshold a student's number settles the decision; ``None`` as above.

    A new row is further from it *and* decided otherwise by its teacher with a probability of at
    most ``1 - level``, since then the teacher's number lies at least as far on the other side.

    Example:
        >>> margin([[0.75, 0.5], [0.25, 0.5], [0.75, 1.0]], 0.75, 0.5)
        0.25
    """
    mine, theirs = np.array(decisions).T
    nearer = np.where(mine > threshold, mine - theirs, theirs - mine)
    return conformal(sorted(np.maximum(nearer, 0.0).tolist()), level)


def differing(
    decisions: Sequence[Sequence[float]], level: float, threshold: float, beyond: float = 0.0
) -> float:
    """Upper confidence bound on the share of rows that are decided otherwise (Clopper, Pearson).

    Only rows whose number lies at least ``beyond`` from the threshold count; 1 if there are none.

    Example:
        >>> round(differing([[0.9, 0.8]] * 58, 0.95, 0.5), 3)  # none of 58
        0.05
    """
    from scipy.stats import beta

    mine, theirs = np.array(decisions).T
    some = np.abs(mine - threshold) >= beyond
    count, wrong = int(some.sum()), int((some & ((mine > threshold) != (theirs > threshold))).sum())
    return 1.0 if wrong == count else float(beta.ppf(level, wrong + 1, count - wrong))


def said_of(found: Mapping[str, Any]) -> str:
    """One line of a report: bounds of the means, or why there are none.

    Example:
        >>> row = {"unit": "total variation", "mean": [0.01] * 20}
        >>> said_of({"num_rows": 20, "sites": {"": row}})
        'total variation at most 0.01 at 95 % of new rows; 20 kept'
    """
    if "sites" not in found:
        return f"none: {found['reason']}"
    texts = []
    for site, row in found["sites"].items():
        bounds = {level: conformal(row["mean"], level) for level in SHOWN}
        known = [f"{b:.2g} at {100 * at:g} %" for at, b in bounds.items() if b is not None]
        if known:
            texts.append(f"{site} {row['unit']} at most {', '.join(known)}".strip())
    shown = "; ".join(texts) or f"none at {100 * SHOWN[0]:g} %, too few"
    return f"{shown} of new rows; {found['num_rows']} kept"
