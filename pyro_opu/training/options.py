"""What a user asks of a distillation."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from pyro_opu.checks import ArgumentError, check_bool, positive_float, positive_int
from pyro_opu.choosing import NETWORK, GuideName
from pyro_opu.guides.joint import JointGuide
from pyro_opu.predictive.one_pass import OnePassPredictive
from pyro_opu.training import tuned
from pyro_opu.training.clock import Clock

__all__ = ["Request", "Training"]

#: Entry of a report: whether the family of the answers is the one that suits the posterior.
BY_DEFAULT = "family_by_default"


@dataclass(frozen=True)
class Training:
    """How a student is trained; the default is what :func:`~pyro_opu.distill` does by itself.

    Args:
        num_steps: As in :func:`~pyro_opu.distill`, where it may be said instead.
        batch_size: Inputs per batch, of all ranks together. By default 256, or 1,024 where the
            default student has more than 2^18 weights, and then four times the labelled inputs.
        num_draws: Teacher's draws per input and step (all of a smaller posterior). By default 32,
            and in the warm start as many more, up to all, as cost little: all 500 of a logistic
            regression of two classes, 32 of a network. 1 is for a teacher whose queries cost much,
            a simulator or a language model: it is asked for one draw at a time, at each of half as
            many inputs twice (``training/plan.py``); as many queries judge as are 15 % of those
            that teach; and neither g is recalibrated nor memorization of the rows looked for. From
            2 to 31 are drawn anew at every step where there are more than 2^18 weights, which would
            learn the luck of labels that come again; it takes longer.
        learning_rate: Adam's at the top of the first phase's schedule. By default 4e-3 where no
            layer is wider than 256 units, otherwise 1.024 over the width of the widest.
        warm_start: False starts the objective from scratch, at ``learning_rate``.
        recalibrate: Choose the family at the end, and shift g towards the teacher's mean mutual
            information, as far as that lowers the energy distance over the transfer inputs. False
            stays with the Dirichlet, and the teacher's variance: ``fast.report["recalibration"]``.
        evaluate_every: Steps between evaluations.

    Raises:
        TypeError, ValueError: an argument of a wrong type or value.

    Example:
        >>> from pyro_opu import Training
        >>> Training(num_draws=8, evaluate_every=50)
        Training(num_draws=8, evaluate_every=50)
    """

    num_steps: int | None = None
    batch_size: int | None = None
    num_draws: int | None = None
    learning_rate: float | None = None
    warm_start: bool = True
    recalibrate: bool = True
    evaluate_every: int = 100

    def __repr__(self) -> str:
        """What was said, so that the signature of ``distill`` is short."""
        said = ((each.name, getattr(self, each.name), each.default) for each in fields(self))
        shown = (f"{name}={value!r}" for name, value, usual in said if value != usual)
        return f"Training({', '.join(shown)})"

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size", "num_draws"):
            if (value := getattr(self, name)) is not None:
                positive_int(name, value)
        if self.learning_rate is not None:
            positive_float("learning_rate", self.learning_rate)
        check_bool("warm_start", self.warm_start)
        check_bool("recalibrate", self.recalibrate)
        positive_int("evaluate_every", self.evaluate_every)

    def steps(self, num_steps: int | None) -> int | None:
        """The steps that are asked for, here or by this argument of ``distill``.

        Raises:
            ValueError: both are, and differ.
        """
        if None not in (num_steps, self.num_steps) and num_steps != self.num_steps:
            raise ArgumentError(
                f"`num_steps` must be said once; got {num_steps} and {self.num_steps} in "
                "`training`. Leave one of them out."
            )
        return self.num_steps if num_steps is None else num_steps


@dataclass(frozen=True)
class Request:
    r"""What ``distill`` was asked for, in its words.

    With ``num_draws=1`` a query, one draw at one input, is what costs. The moments of one input
    need two draws, :math:`\pi` and :math:`\pi'` of two calls:

    .. math::
        \mathbb{E}\,\tfrac12\|\pi - \pi'\|^2 = \mathbb{E}A, \qquad
        1 - \mathbb{E}\,\tfrac12(\|\pi\|^2 + \|\pi'\|^2) = \mathbb{E}B

    (:class:`~pyro_opu.MomentMatching`), so half as many inputs have two queries. The student's
    mean in the place of :math:`\pi'` would make A too large by :math:`\|\bar\pi - h\|^2`, which is
    more than A itself where the teacher is sure.

    Attributes:
        begun: When it was asked, by ``time.perf_counter()``.
    """

    effort: tuned.Effort | float = "default"
    training: Training = field(default_factory=Training)
    guide: nn.Module | GuideName | None = None
    start: OnePassPredictive | None = None
    begun: float = field(default_factory=time.perf_counter)

    @property
    def clock(self) -> Clock:
        """The seconds that were asked for, if they were."""
        return Clock(math.inf if isinstance(self.effort, str) else self.effort, self.begun)

    @property
    def joint(self) -> bool:
        """Whether the student's draws are to be joint over inputs."""
        return self.guide == JointGuide.kind or (self.start is not None and self.start.joint)

    @property
    def marginal(self) -> nn.Module | GuideName | None:
        """The guide that answers input by input, where the user has named one."""
        return None if self.guide == JointGuide.kind else self.guide

    @property
    def guide_is_open(self) -> bool:
        """Whether that guide is the default one, or that of an earlier student."""
        return self.marginal is None

    @property
    def law_is_open(self) -> bool:
        """Whether the draws may choose what the guide's moments are read as; see :data:`.LAWS`."""
        if self.follows:
            return self.start_by_default
        return self.guide_is_open or (isinstance(self.guide, str) and self.guide == NETWORK)

    @property
    def start_by_default(self) -> bool:
        """Whether the draws chose the family of the earlier student, as its report says."""
        return self.start is not None and bool(self.start.report.get(BY_DEFAULT, False))

    @property
    def follows(self) -> bool:
        """Whether an earlier student's guide is where it begins."""
        return self.start is not None

    @property
    def share(self) -> tuple[int, int]:
        """Steps and labels of a run from scratch, as multiples of this one's."""
        return tuned.FOLLOWING if self.follows else (1, 1)

    @property
    def thrift(self) -> int:
        """What a default run asks of the teacher, as a multiple of what this one does."""
        return tuned.THRIFT if self.effort == "quick" else 1

    @property
    def single_draw(self) -> bool:
        """Whether the teacher is asked for one draw at a time, and every input twice."""
        return self.training.num_draws == 1

    def may_rest(self, loss: Any) -> bool:
        """Whether a student in closed form may take no step: nobody has asked for any."""
        asked = loss is not None or self.training.num_steps is not None or self.single_draw
        special = self.joint or self.follows or not self.training.warm_start
        return not (asked or special) and self.effort in ("quick", "default")

    @property
    def look(self) -> int | None:
        """Draws to look at before; ``None`` is all."""
        return 2 if self.single_draw else None

    @property
    def judging(self) -> int | None:
        """Queries that judge: where few teach, the share of them that is held out of the inputs."""
        if not self.single_draw:
            return None
        effort: tuned.Effort = self.effort if isinstance(self.effort, str) else "default"
        steps, most = tuned.EFFORTS[effort]
        batch = self.training.batch_size or tuned.BATCH
        teach = min((self.training.num_steps or steps) * batch, most)
        return round(tuned.HELD_OUT_SHARE * teach / self.share[1])
