"""Steps, batches and labels of a distillation: what the user has said, and defaults by cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor, nn

from pyro_opu.distributed import Ranks
from pyro_opu.guides import PredictiveGuide
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.judging import Judge
from pyro_opu.objectives import Objective
from pyro_opu.objectives.base import Scratch
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.training.checkpoint import weights_sketch
from pyro_opu.training.options import Training
from pyro_opu.training.pool import FEWEST_DRAWS, affordable, pool_size
from pyro_opu.training.settings import (
    BATCH,
    BEGINS_NEAR,
    EFFORTS,
    LARGE_BATCH,
    Effort,
    PoolSize,
    Settings,
    default_rate,
    draws_per_step,
    has_many_weights,
    pass_operations,
    warm_steps,
)
from pyro_opu.training.validation import CALIBRATION_NUMBERS, HELD_OUT_SHARE, LABEL_DRAWS

__all__ = ["FOLLOWING", "Asked"]

#: Steps, with the draws that calibrate, and labels from scratch, as multiples of those of a student
#: that begins at another. Labels are what nearness costs: a tenth of them leaves students of MC
#: dropout on digits with 1.2 times the KL, a fifth with 1.07.
FOLLOWING = (10, 5)
#: Labels of a student that is not told its logit, with the draws that calibrate, as a multiple of
#: those of one that is: by a quarter of them Gaussian processes on Pima end at 1.0 to 1.1 times the
#: KL in .7 of the time, by an eighth at up to 1.4.
TOLD = 4


@dataclass(frozen=True)
class Asked:
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
        begun: When the run began, by ``time.perf_counter()``.
        default_guide: Whether the guide is the default one, or that of an earlier student.
        follows: Whether it is that of an earlier student.
    """

    effort: Effort | float
    training: Training
    begun: float
    default_guide: bool
    follows: bool

    @property
    def pairs(self) -> bool:
        """Whether the teacher is asked for one draw at a time, and every input twice."""
        return self.training.num_draws == 1

    @property
    def look(self) -> int | None:
        """Draws to look at before; ``None`` is all."""
        return 2 if self.pairs else None

    @property
    def judging(self) -> int | None:
        """Queries that judge: where few teach, the share of them that is held out of the inputs."""
        if not self.pairs:
            return None
        steps, most = EFFORTS[self.effort if isinstance(self.effort, str) else "default"]
        teach = min((self.training.num_steps or steps) * (self.training.batch_size or BATCH), most)
        return round(HELD_OUT_SHARE * teach / self.fewer[1])

    def ask(self, teacher: BaseTeacher) -> Callable[[Tensor, int], Tensor]:
        """The teacher's draws; two of one input are from two calls where it draws afresh."""
        if not self.pairs or teacher.max_draws is not None:
            return teacher.draws
        return lambda x, count: torch.cat([teacher.draws(x, 1) for _ in range(count)])

    def _would_learn_luck(self, guide: nn.Module, teacher: BaseTeacher) -> bool:
        """Whether a student that meets labels of so few draws again learns them by heart."""
        if self.training.num_draws is None or self.pairs or not isinstance(self.effort, str):
            return False  # nobody asked for few, or queries or seconds are what is dear
        few = self.training.num_draws < min(FEWEST_DRAWS, teacher.max_draws or FEWEST_DRAWS)
        return few and has_many_weights(guide)

    @property
    def fewer(self) -> tuple[int, int]:
        """Steps and labels of a run from scratch, as multiples of this one's."""
        return FOLLOWING if self.follows else (1, 1)

    def settings(
        self,
        guide: nn.Module,
        closed_form: Objective,
        objective: Objective,
        teacher: BaseTeacher,
        x: Tensor,
        held_out: Judge,
        ranks: Ranks,
    ) -> Settings:
        """Numbers of the run, the same on all ranks; ``x`` are the inputs to teach at."""
        large = self.default_guide and has_many_weights(guide)
        first = closed_form if self.training.warm_start else objective
        scratch = Scratch() if self.training.warm_start else objective.scratch
        batch_size = self.training.batch_size or round(
            scratch.batch * (LARGE_BATCH if large else BATCH)
        )
        larger = LARGE_BATCH // BATCH if large and not self.training.batch_size else 1
        num_draws = self.training.num_draws
        if self.pairs:
            batch_size, num_draws = -(-batch_size // 2), 2
        most = first.most_draws
        per_step = draws_per_step(teacher, x, num_draws, batch_size, most)
        fewer, fewer_labels = self.fewer
        effort = self.effort
        told = self.default_guide and not self.follows and _tells_one_logit(guide)
        if isinstance(effort, str):
            if self.default_guide and effort == "default":
                near = ranks.first and held_out.scores(guide)["draws"] >= BEGINS_NEAR
                effort = "quick" if told or ranks.broadcast(near) else effort
            steps, most_inputs = EFFORTS[effort]
            steps = round(steps * scratch.steps) // fewer
            most_inputs = most_inputs * larger // fewer_labels
        else:
            left = effort - (time.perf_counter() - self.begun)
            later = min(CALIBRATION_NUMBERS // teacher.num_outputs, LABEL_DRAWS * len(x))
            some = x[:batch_size].to(held_out.x.device)
            draws = per_step[0]
            trial = affordable(guide, first, teacher.draws, some, draws, left, later)
            steps, each = ranks.broadcast(trial)
            most_inputs = each * ranks.size
        if self.pairs:
            most_inputs = -(-most_inputs // 2)
        steps = self.training.num_steps or steps
        warm = warm_steps(steps, objective, closed_form, self.training.warm_start)
        opening = first.batches(warm or steps)
        inputs = opening * batch_size
        fixed = self.training.num_draws is not None or not isinstance(effort, str)
        cost = pass_operations(guide, held_out.x) if large else 0
        share = fewer_labels * (TOLD if told else 1)
        size = min(inputs, most_inputs), per_step[0], fixed, share, 3 * opening * batch_size * cost
        pool = pool_size(teacher, x, first, *size)
        if pool.inputs < inputs and self._would_learn_luck(guide, teacher):
            pool = PoolSize()  # each step has draws of its own
        pool = replace(pool, inputs=-(-pool.inputs // ranks.size))  # ranks share the labels, too
        if self.pairs:  # as many sets of draws, which the inputs of a block share, as of 32 each
            pool = replace(pool, block=max(1, pool.block * 2 // FEWEST_DRAWS))
        return Settings(
            warm,
            steps - warm,
            batch_size,
            *ranks.broadcast(per_step),
            self.training.learning_rate or scratch.rate * default_rate(guide),
            self.training.evaluate_every,
            pool=PoolSize(*ranks.broadcast(astuple(pool))),
            calibration=CALIBRATION_NUMBERS // (fewer * (TOLD if told else 1)),
            start=weights_sketch(guide) if self.follows else None,
        )


def _tells_one_logit(guide: nn.Module) -> bool:
    """Whether it begins with what one normal logit averages to, which is exact."""
    if not isinstance(guide, PredictiveGuide):
        return False
    return isinstance(guide.trunk, NetworkTrunk) and guide.trunk.has_one_logit
