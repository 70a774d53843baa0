"""Steps, batches and labels of a distillation: what the user has said, and defaults by cost."""

from __future__ import annotations

import time
from dataclasses import astuple, dataclass

import torch
from torch import Tensor, nn

from pyro_opu.distributed import Ranks
from pyro_opu.objectives import Objective
from pyro_opu.outcomes import ValidationSet
from pyro_opu.teachers.base import JointDraws
from pyro_opu.training.autocast import checked_precision
from pyro_opu.training.checkpoint import weights_sketch
from pyro_opu.training.pool import affordable, pool_size
from pyro_opu.training.settings import (
    AT_ATTAINABLE,
    BATCH,
    EFFORTS,
    PoolSize,
    Settings,
    default_batch,
    default_rate,
    draws_per_step,
    warm_steps,
)
from pyro_opu.training.validation import CALIBRATION_NUMBERS, LABEL_DRAWS

__all__ = ["FOLLOWING", "Asked"]

#: Steps, with the draws that calibrate, and labels from scratch, as multiples of those of a student
#: that begins at another. Labels are what nearness costs: a tenth of them leaves students of MC
#: dropout on digits with 1.2 times the KL, a fifth with 1.07.
FOLLOWING = (10, 5)


@dataclass(frozen=True)
class Asked:
    """What ``distill`` was asked for, in its words.

    Attributes:
        begun: When the run began, by ``time.perf_counter()``.
        default_guide: Whether the guide is the default one, or that of an earlier student.
        follows: Whether it is that of an earlier student.
    """

    effort: str | float
    num_steps: int | None
    batch_size: int | None
    num_draws: int | None
    learning_rate: float | None
    warm_start: bool
    evaluate_every: int
    accumulate: int
    precision: torch.dtype | None
    begun: float
    default_guide: bool
    follows: bool

    @property
    def fewer(self) -> tuple[int, int]:
        """Steps and labels of a run from scratch, as multiples of this one's."""
        return FOLLOWING if self.follows else (1, 1)

    def settings(
        self,
        guide: nn.Module,
        closed_form: Objective,
        objective: Objective,
        teacher: JointDraws,
        x: Tensor,
        held_out: ValidationSet,
        ranks: Ranks,
    ) -> Settings:
        """Numbers of the run, the same on all ranks; ``x`` are the inputs to teach at."""
        batch_size, larger = self.batch_size, 1
        if batch_size is None:
            batch_size = default_batch(guide) if self.default_guide else BATCH
            larger = batch_size // BATCH
        most = closed_form.most_draws
        per_step = draws_per_step(teacher, x, self.num_draws, batch_size, most)
        fewer, fewer_labels = self.fewer
        effort = self.effort
        if isinstance(effort, str):
            if self.default_guide and effort == "default":
                near = ranks.first and held_out.judge(guide)["kl_ratio"] <= AT_ATTAINABLE
                effort = "quick" if ranks.broadcast(near) else effort
            steps, most_inputs = EFFORTS[effort]
            steps, most_inputs = steps // fewer, most_inputs * larger // fewer_labels
        else:
            left = effort - (time.perf_counter() - self.begun)
            later = min(CALIBRATION_NUMBERS // teacher.num_outputs, LABEL_DRAWS * len(x))
            some = x[:batch_size].to(held_out.x.device)
            draws = per_step[0]
            trial = affordable(guide, closed_form, teacher.draws, some, draws, left, later)
            steps, most_inputs = ranks.broadcast(trial)
        steps = self.num_steps or steps
        warm = warm_steps(steps, objective, closed_form, self.warm_start)
        wanted = min(warm * self.accumulate * -(-batch_size // ranks.size), most_inputs)
        fixed = self.num_draws is not None or not isinstance(effort, str)
        pool = pool_size(teacher, x, closed_form, wanted, per_step[0], fixed, fewer_labels)
        return Settings(
            warm,
            steps - warm,
            batch_size,
            *ranks.broadcast(per_step),
            default_rate(guide) if self.learning_rate is None else self.learning_rate,
            self.evaluate_every,
            accumulate=self.accumulate,
            precision=checked_precision(self.precision, guide),
            pool=PoolSize(*ranks.broadcast(astuple(pool))),
            start=weights_sketch(guide) if self.follows else None,
        )
