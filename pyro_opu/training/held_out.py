"""Transfer inputs that are held out, and the teacher's draws there, which judge a student."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.judging import Judge, judge_of
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.training import tuned
from pyro_opu.training.console import tracked


def hold_out(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows for validation, chosen at random, and the rows to teach at."""
    if len(x) < 4:
        raise ArgumentError(
            "`x` must hold at least 4 transfer inputs, some to teach and some to judge by; got "
            f"{len(x)}. More inputs need no labels."
        )
    order = torch.randperm(len(x)).to(x.device)
    count = min(tuned.HELD_OUT_MOST, max(2, round(tuned.HELD_OUT_SHARE * len(x))))
    return x[order[:count]], x[order[count:]]


def label_rows(
    teacher: BaseTeacher,
    x: Tensor,
    numbers: int,
    phase: str,
    *,
    device: torch.device,
    progress: bool = False,
    queries: int | None = None,
) -> Judge:
    """A judge by the teacher's draws at ``x``, about so many ``numbers`` in all, on the device.

    They are fewer where they would cost too many operations. To stay below that, draws are left
    out first, down to a quarter of the most, then inputs, but of up to 1,000 classes 32 are left.
    Where only so many ``queries`` may be made, there are as many inputs as draws.
    """
    each = teacher.num_outputs
    if queries is None and (cost := teacher.operations(x)):
        numbers = min(numbers, tuned.JUDGING_OPERATIONS * each // cost)
    most = min(tuned.LABEL_DRAWS, max(tuned.LABEL_DRAWS // 4, numbers // (len(x) * each)))
    fewest = tuned.FEWEST_INPUTS
    if queries is not None:
        most = min(most, max(4, math.isqrt(queries)))
        numbers, fewest = queries * each, 2
    count = min(most, teacher.max_draws or most)
    fewest = min(fewest, tuned.CALIBRATION_NUMBERS // (count * each))
    some = x[: max(2, fewest, numbers // (count * each))]
    blocks = some.chunk(tuned.LABEL_BLOCKS) if teacher.max_draws is None else [some]
    items = tracked(((len(block), block) for block in blocks), phase, len(some), progress)
    draws = torch.cat([teacher.draws(block, count) for block in items], 1)
    said = draws.to(device, torch.float32)
    return judge_of(teacher.outcome, some.to(device), said, teacher.max_draws)
