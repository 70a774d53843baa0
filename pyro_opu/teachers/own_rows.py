"""Whether a teacher is surer at the transfer inputs than beside them: it was fitted to them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_opu.rng import seeded
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.utils.warnings import warn_user

__all__ = ["MemorizedWarning", "OwnRows", "check_own_rows", "own_rows"]

#: Rows that are asked at, and draws; rows among which their neighbours are found, and how many.
ROWS, DRAWS, AMONG, NEIGHBOURS = 256, 64, 2048, 8
#: Numbers in all draws, at once and together.
NUMBERS, IN_ALL = 2**22, 2**25
#: Fewer rows, or more columns, are not looked at: neighbours of images mixed pixel by pixel are no
#: images.
FEWEST, MOST_COLUMNS = 40, 128
#: Spread beside the rows, as a multiple of that at them, and standard errors of the difference,
#: from which it is said. Posteriors of logistic regressions, dropout networks and ensembles at rows
#: that they have not seen are between 0.85 and 1.1; forests at their own rows between 1.4 and 1.7.
RATIO, ERRORS = 1.3, 4.0
#: Each output's standard deviation in draws that agree, by rounding.
STILL = 1e-4


class MemorizedWarning(UserWarning):
    """The teacher's draws agree at the transfer inputs, since it was fitted to them."""


class OwnRows(NamedTuple):
    """The teacher's variance over draws, at rows and beside them; errors of the difference."""

    at: float
    beside: float
    errors: float

    @property
    def memorized(self) -> bool:
        """Whether the spread collapses at the rows themselves."""
        return self.errors > ERRORS and self.beside > RATIO * self.at


@torch.no_grad()
def own_rows(teacher: BaseTeacher, x: Tensor) -> OwnRows | None:
    """Compare the spread of a teacher's draws at rows of ``x`` with that beside them.

    A row beside has half of its columns, chosen at random, from one of its 8 nearest neighbours: as
    near to the data as a new row, and to any model that has not been fitted to the rows as good as
    they are. ``None`` where that cannot be said: few rows, images, another outcome.
    """
    if x.ndim != 2 or len(x) < FEWEST or not 1 < x.shape[1] <= MOST_COLUMNS:
        return None
    if not teacher.outcome.single:
        return None
    count = min(DRAWS, teacher.max_draws or DRAWS)
    with seeded(0):
        among = x[torch.randperm(len(x), device=x.device)[:AMONG]]
        rows = among[: min(ROWS, max(FEWEST, IN_ALL // (2 * count * teacher.num_outputs)))]
        beside = torch.where(torch.rand_like(rows) < 0.5, _neighbours(rows, among), rows)
        both = torch.cat([rows, beside])
        blocks = both.split(max(1, NUMBERS // (count * teacher.num_outputs)))
        means = (teacher.outcome.means(teacher.draws(rows, count).double()) for rows in blocks)
        at, near = torch.cat([each.var(0).sum(-1) for each in means]).chunk(2)
    gap = near - at
    error = float(gap.std()) / math.sqrt(len(gap))
    if float(near.mean()) < STILL**2 or not error > 0:
        return None
    return OwnRows(float(at.mean()), float(near.mean()), float(gap.mean()) / error)


def _neighbours(rows: Tensor, among: Tensor) -> Tensor:
    """One of the nearest other rows for each, at random."""
    scale = among.std(0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    apart = torch.cdist((rows / scale).float(), (among / scale).float())
    apart = torch.where(apart > 0, apart, torch.inf)  # the row itself, and its copies
    near = apart.topk(min(NEIGHBOURS, len(among) - 1), largest=False).indices
    chosen = torch.randint(near.shape[1], (len(rows), 1), device=rows.device)
    return among[near.gather(1, chosen)[:, 0]]


def check_own_rows(teacher: BaseTeacher, x: Tensor) -> OwnRows | None:
    """:func:`own_rows` before a distillation, with a warning of a teacher that knows the rows."""
    found = own_rows(teacher, x)
    if found is not None and found.memorized:
        warn_user(
            f"The teacher's draws agree at rows of `x` (variance {found.at:.2g}) and not beside "
            f"them ({found.beside:.2g}): it was fitted to these rows, and its student is taught "
            "there that it is surer than it is at new ones. Pass rows that the teacher has not "
            "seen; or let members that have not seen a row answer there, "
            "pyro_opu.teachers.out_of_bag(ensemble, x), bagged_contexts(classifier, x, y).",
            MemorizedWarning,
        )
    return found
