"""Judging answers by a posterior's draws: which weights are kept, and what a report says."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from pyro_opu.distributions import Answer, as_answer
from pyro_opu.guides.base import student_at
from pyro_opu.judging.yardstick import as_draws, or_none, quotient, single_factor
from pyro_opu.metrics.distances import split
from pyro_opu.objectives import EnergyDistance, Objective
from pyro_opu.objectives.energy import joint_energy_distance
from pyro_opu.rng import seeded
from pyro_opu.utils.chunks import chunks

__all__ = ["LEVELS", "Judge", "Judged", "PartJudge"]

#: Levels of the central intervals, by the name of the row of their coverage.
LEVELS = {"coverage_50": 0.5, "coverage_90": 0.9}
#: One number per input, by column and quantity.
Judged = dict[tuple[str, str], Tensor]
#: KL in nats that float32 answers resolve; no attainable one counts as less.
RESOLVED = 1e-7
#: Seed of the split into halves; by the numbers that made the draws it would be a split by size.
SPLIT_SEED = 190_612_751
#: Draws of student and teacher per input, at most, whose joint distance is taken.
JOINT_DRAWS = 128


A = TypeVar("A", bound=Answer)
M = TypeVar("M")


@dataclass(frozen=True)
class Judge(ABC, Generic[A]):
    """Inputs with draws of the posterior there, by which answers are judged.

    Attributes:
        x: Inputs ``(N, ...)``, on the student's device.
        draws: The posterior's draws there, ``(S, N, K)``.
        held: Draws M that the posterior holds, these among them, and that the student is taught by;
            ``None`` where every call draws afresh.
        jointly: Whether the energy distance is that of whole draws, in place of their marginals.
    """

    x: Tensor
    draws: Tensor
    held: int | None = None
    jointly: bool = False

    @abstractmethod
    def scores_of(self, answer: A) -> dict[str, float]:
        """:meth:`scores` of an answer."""

    @abstractmethod
    def summary_of(self, answer: A) -> dict[str, Any]:
        """:meth:`summary` of an answer."""

    @abstractmethod
    def by_site(self, answer: A) -> list[tuple[str, PartJudge[Any, Any], Any]]:
        """Observed sites, "" of one number of a row, with the judge and the answer of each."""

    @property
    def size(self) -> float:
        """Draws M that the posterior holds; infinite where every call draws afresh."""
        return self.held or math.inf

    @property
    def num_judging(self) -> int:
        """Draws S in each half."""
        return max(1, len(self.draws) // 2)

    @property
    def left(self) -> float:
        """The share 1 - S / M of the posterior's draws that a half lacks."""
        return 1 - self.num_judging / self.size

    def fits_by_certainty(self, answer: A) -> bool:
        """Whether the epistemic part is right at inputs of every certainty; where it is asked."""
        return True

    def sampling_distance(self) -> float:
        """The energy distance that the draws themselves have: a student below it is not refined."""
        return -math.inf

    def for_objective(self, objective: Objective) -> Judge:
        """The judge of a student that this objective teaches: by whole draws where it is."""
        whole = isinstance(objective, EnergyDistance) and objective.ground == "l2"
        return replace(self, jointly=True) if whole else self

    @torch.no_grad()
    def scores(self, guide: nn.Module) -> dict[str, float]:
        """How near a guide is.

        Returns:
            "energy_distance", the less the better, which decides what is kept; "kl" of the means,
            by all draws; "kl_ratio", by halves of them, as a multiple of :attr:`attainable`; and
            what this is in "draws", the number of posterior draws whose mean errs as much.
        """
        found = self.scores_of(student_at(guide, self.x))
        return {**found, "energy_distance": self._joint(guide)} if self.jointly else found

    @torch.no_grad()
    def summary(self, guide: nn.Module) -> dict[str, Any]:
        """What a report of a finished student says beside its scores.

        Returns:
            The "family" of its answers; "kl_attainable", and "kl_trivial" of one answer for all
            inputs, by halves as "kl_ratio"; the energy distance from all of the posterior,
            "energy_to_posterior", as a share of the draws' spread "energy_share", and
            "energy_of_draws", that of "num_judging" of its draws; the epistemic part of answer and
            teacher ("mutual_information", of a real y "epistemic_share" of the variance; the
            latter with the ending "_teacher"), means over inputs, and "epistemic_factor", by which
            it is typically off at single inputs.
        """
        return self.summary_of(student_at(guide, self.x))

    def _joint(self, guide: nn.Module) -> float:
        """The mean energy distance of whole draws."""
        draws, total = self.draws[:: -(-len(self.draws) // JOINT_DRAWS)], 0.0
        with seeded(0):  # two students are compared on the same noise
            for some in chunks(len(self.x), JOINT_DRAWS, JOINT_DRAWS):
                answer = as_answer(student_at(guide, self.x[some]))
                mine, theirs = answer.rsample((JOINT_DRAWS,)), answer.comparable(draws[:, some])
                total += float(joint_energy_distance(mine, theirs).sum())
        return total / len(self.x)


@dataclass(frozen=True)
class PartJudge(Judge[A], Generic[A, M]):
    """Judges one number of every row, or several alike.

    The mean is judged by two halves of the draws in turn, since all draws may be all that teach,
    and would leave a perfect student no error to be compared with.

    Attributes:
        block: Which block of a report's inputs these are: each is split by random numbers of its
            own.
    """

    block: int = field(default=0, kw_only=True)

    #: Name of the epistemic part of uncertainty, and what :meth:`gaps` are in.
    epistemic: ClassVar[str]
    unit_of_gaps: ClassVar[str]
    #: Draws that have moments.
    fewest: ClassVar[int] = 1

    @abstractmethod
    def mean_of(self, answer: A) -> M:
        """What an answer says of the mean, in the form of :meth:`mean_of_draws`."""

    @abstractmethod
    def mean_of_draws(self, draws: Tensor) -> M:
        """What draws ``(S, N, K)`` say of the mean, with as many moments as are judged."""

    @abstractmethod
    def kl(self, mean: M, other: M) -> Tensor:
        """KL between two means, in nats, ``(N,)``; the ``other`` may be one for all inputs."""

    @abstractmethod
    def energy(self, answer: A) -> Tensor:
        """Energy distance of an answer from what the draws are a sample of, ``(N,)``."""

    @abstractmethod
    def energies(self, answer: A) -> tuple[float, float]:
        """Mean energy distances of an answer and of S draws from the posterior."""

    @abstractmethod
    def epistemic_parts(self, answer: A) -> tuple[Tensor, Tensor, Tensor]:
        """Epistemic parts of an answer and of the posterior ``(N,)``, and of each draw ``(S, N)``,
        whose mean the posterior's is."""

    @abstractmethod
    def gaps(self, answer: A) -> Tensor:
        """How far the mean is from that of all draws, ``(N,)``: total variation, or deviations."""

    def decisions(self, answer: A) -> Tensor | None:
        """A number of answer and draws by which a class is decided, ``(N, 2)``; of labels alone."""
        return None

    def by_site(self, answer: A) -> list[tuple[str, PartJudge[Any, Any], Any]]:
        return [("", self, answer)]

    @property
    def halves(self) -> tuple[Tensor, ...]:
        """Halves of the draws, another split at every input; all, where halves have no moments.

        The same at every call; they are not kept, as they are as many numbers as the draws.
        """
        if len(self.draws) < 2 * self.fewest:
            return (self.draws,)
        with seeded(SPLIT_SEED + self.block):
            return split(self.draws[: 2 * self.num_judging])

    @cached_property
    def means(self) -> list[M]:
        """What each half of the draws says of the mean."""
        return [self.mean_of_draws(half) for half in self.halves]

    def turns(self, answer: A, trivial: A, costly: Tensor) -> list[Judged]:
        """Numbers of every input for a report, by column and quantity.

        Each half of the draws judges in turn, the other being the floor; where the posterior draws
        afresh the first alone. The column "verdict" has what the verdict needs besides.

        Args:
            answer: The student's, batch shape ``(N,)``.
            trivial: One answer for all inputs, ``(N,)``.
            costly: Inputs ``(N,)`` at which a costly distance is taken.
        """
        common = self.of_all(answer)
        order = [(0, 1), (1, 0)][: 1 if math.isinf(self.size) else 2]
        return [common | self.turn(answer, trivial, *each, costly) for each in order]

    @abstractmethod
    def of_all(self, answer: A) -> Judged:
        """What all draws say, in every turn."""

    @abstractmethod
    def turn(self, answer: A, trivial: A, one: int, other: int, costly: Tensor) -> Judged:
        """What the half ``one`` says of the answers and of the ``other``."""

    def extrapolated(self, whole: Tensor, halves: Sequence[Tensor]) -> Tensor:
        r"""Distance of the posterior from the answer with its moments, by all 2 S draws and by S.

        The answer with the moments of n draws has a distance to these of
        :math:`D_n = D + c / n + O(1 / n^2)`, since they are a sample and the moments are fitted to
        them. The line is followed to the number of draws M that the posterior holds:

        .. math:: D_M = D_{2S} - (1 - 2 S / M)\, (D_S - D_{2S})
        """
        return whole - (2 * self.left - 1) * (torch.stack(list(halves)).mean(0) - whole)

    def kl_by_halves(self, mean: M) -> float:
        """The mean KL from both halves of the draws."""
        found = [float(self.kl(half, mean).mean()) for half in self.means]
        return sum(found) / len(found)

    @cached_property
    def attainables(self) -> list[Tensor]:
        """The KL of a perfect student, by each half, ``(N,)``; see :func:`~pyro_opu.fidelity`."""
        whole = self.mean_of_draws(torch.cat(self.halves))
        return [2 * self.left * self.kl(half, whole) for half in self.means]

    @cached_property
    def attainable(self) -> float:
        """The mean of these."""
        found = [float(each.mean()) for each in self.attainables]
        return max(sum(found) / len(found), RESOLVED)

    @cached_property
    def trivial(self) -> float:
        """The KL of one answer for all inputs, by halves."""
        return self.kl_by_halves(self.mean_of_draws(self.draws.reshape(-1, 1, self.draws.shape[2])))

    def scores_of(self, answer: A) -> dict[str, float]:
        mean = self.mean_of(answer)
        ratio = self.kl_by_halves(mean) / self.attainable
        return {
            "energy_distance": float(self.energy(answer).mean()),
            "kl": float(self.kl(self.mean_of_draws(self.draws), mean).mean()),
            "kl_ratio": ratio,
            "draws": as_draws(ratio, self.num_judging, self.held),
        }

    def summary_of(self, answer: A) -> dict[str, Any]:
        energy, of_draws = self.energies(answer)
        mine, theirs, per_draw = self.epistemic_parts(answer)
        factor = single_factor(mine, theirs, per_draw, self.size)
        return {
            "family": type(answer).__name__,
            "num_held_out": len(self.x),
            "held": self.held,
            "kl_attainable": self.attainable,
            "kl_trivial": self.trivial,
            "energy_to_posterior": energy,
            "energy_share": or_none(quotient(energy, of_draws * len(self.draws))),
            "energy_of_draws": of_draws,
            "num_judging": len(self.draws),
            self.epistemic: float(mine.mean()),
            f"{self.epistemic}_teacher": float(theirs.mean()),
            "epistemic_factor": or_none(factor),
        }
