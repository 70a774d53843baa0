"""Draws of a student and of a teacher as a Wasserstein objective reads them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from pyro_opu.objectives.base import Meeting
from pyro_opu.objectives.energy import energy_distance_loss, energy_slopes

#: Least scale of a witness: a hundred times what float32 resolves on the simplex.
LEAST_SCALE = 1e-5


@dataclass
class Encounter(Meeting):
    """What critic and student read of the draws of both, made once. Points are ``(N, P, C)``."""

    @classmethod
    def of(cls, meeting: Meeting) -> Encounter:
        if isinstance(meeting, cls):
            return meeting
        return cls(**{each.name: getattr(meeting, each.name) for each in fields(Meeting)})

    def held(self) -> Encounter:
        """With the student held, and its draws in one stratum: what a critic reads."""
        if self.weights is None:
            return self
        samples = self.student.sample((len(self.samples),))
        return Encounter(self.x, self.draws, self.student, samples)

    @cached_property
    def both(self) -> Tensor:
        """Draws of the teacher, then of the student, with its gradient."""
        return torch.cat([self.draws, self.samples]).transpose(0, 1).contiguous()

    @cached_property
    def points(self) -> Tensor:
        """Draws of the teacher, mixes of a draw of each, draws of the student; held."""
        theirs, mine = self.draws, self.samples.detach()
        pairs = min(len(theirs), len(mine)) // 2 or 1
        mix = torch.rand(pairs, theirs.shape[1], 1, dtype=theirs.dtype, device=theirs.device)
        mixed = (1 - mix) * theirs[:pairs] + mix * mine[-pairs:]
        return torch.cat([theirs, mixed, mine]).transpose(0, 1).contiguous()

    @property
    def where(self) -> slice:
        """The points at which slopes are held: the mixes, and a quarter as many draws of each."""
        mixes = self.points.shape[1] - len(self.draws) - len(self.samples)
        around, begin = (mixes + 3) // 4, len(self.draws)
        return slice(begin - around, begin + mixes + around)

    def without_mixes(self, values: Tensor) -> Tensor:
        """Values at `both` of those at `points`."""
        theirs, mine = len(self.draws), len(self.samples)
        return torch.cat([values[:, :theirs], values[:, -mine:]], 1)

    @cached_property
    def units(self) -> tuple[Tensor, Tensor]:
        """Centre ``(N, 1, C)`` and scale ``(N, 1, 1)`` of the draws: the mean distance to it."""
        theirs, mine = self.draws, self.samples.detach()
        centre = (theirs.mean(0) + self._mean(mine)) / 2
        far = [(each - centre).abs().sum(-1, keepdim=True) for each in (theirs, mine)]
        scale = (far[0].mean(0) + self._mean(far[1])) / 2
        return centre[:, None], scale[:, None].clamp_min(LEAST_SCALE)

    def _mean(self, values: Tensor) -> Tensor:
        """Mean over the student's draws ``(S, N, ...)`` in their strata."""
        if self.weights is None:
            return values.mean(0)
        return (values.unflatten(0, (len(self.weights), -1)).mean(1) * self.weights[..., None]).sum(
            0
        )

    @cached_property
    def known(self) -> Tensor:
        """Gradient of the energy distance's witness at the points."""
        begin = self.points.shape[1] - len(self.samples)
        return energy_slopes(self.points, slice(begin, None), slice(0, len(self.draws)))

    @cached_property
    def known_gain(self) -> Tensor:
        r"""Half the energy distance ``(N,)``, whose gradient is that of a witness that holds still.

        The distance depends on the student through the witness too, hence half of its gradient. It
        is homogeneous in the draws, and by Euler the sum of these times its slopes.
        """
        if self.weights is not None:
            half = energy_distance_loss(self.samples, self.draws, self.weights) / 2
            return (half + half.detach()) / 2
        slopes = self.without_mixes(self.known)
        theirs, mine = (self.both * slopes).sum(-1).split([len(self.draws), len(self.samples)], 1)
        pull = -mine.mean(1)
        return 2 * (theirs.mean(1) + pull.detach()) + pull - pull.detach()
