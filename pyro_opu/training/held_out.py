"""Transfer inputs that are held out, and the teacher's draws there, which judge a student."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.judging import Judge, judge_of
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.training import tuned
from pyro_opu.training.console import tracked


def number_kept(rows: int) -> int:
    """How many of so many rows :func:`keep_apart` keeps."""
    count = min(tuned.KEPT_MOST, int(tuned.KEPT_SHARE * rows))
    return count if count >= tuned.KEPT_FEWEST else 0


def keep_apart(x: Tensor, keep: bool = True) -> tuple[Tensor, Tensor]:
    """Rows that only the student's bound sees, if any are kept, and all others in random order.

    The same rows whatever the seed: a student that begins at an earlier one of the same x has been
    taught at none of them. Few rows keep none, as too few for a level of .95 would be of no use.
    The order is random, so that the first rows, which judge, set up or calibrate, speak for all.
    """
    count = number_kept(len(x)) if keep else 0
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    others = order[count:][torch.randperm(len(x) - count)]
    return x[order[:count].to(x.device)], x[others.to(x.device)]


def hold_out(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows for validation, and the rows to teach at, of rows in random order."""
    if len(x) < 4:
        raise ArgumentError(
            "`x` must hold at least 4 transfer inputs, some to teach and some to judge by; got "
            f"{len(x)}. More inputs need no labels."
        )
    count = min(tuned.HELD_OUT_MOST, max(2, round(tuned.HELD_OUT_SHARE * len(x))))
    return x[:count], x[count:]


def label_rows(
    teacher: BaseTeacher,
    x: Tensor,
    numbers: int,
    phase: str,
    *,
    device: torch.device,
    progress: bool = False,
    queries: int | None = None,
    draws: int | None = None,
    blocks: int | None = None,
    thrift: int = 1,
    timer: Callable[[], Callable[[int], bool]] | None = None,
) -> Judge:
    """A judge by the teacher's draws at ``x``, about so many ``numbers`` in all, on the device.

    They are fewer where they would cost too many operations. To stay below that, draws are left
    out first, down to a quarter of the most, then inputs, but of up to 1,000 classes 32 are left.
    Where only so many ``queries`` may be made, there are as many inputs as draws. There are at most
    so many ``draws``, and where they are drawn afresh anew for each of so many ``blocks`` of rows.

    Args:
        thrift: Numbers, operations and the most draws are divided by it.
        timer: Is started, and says whether so many inputs are enough; there are then blocks of
            inputs in any case, each spread over all.
    """
    each, numbers = teacher.num_outputs, numbers // thrift
    if queries is None and (cost := teacher.operations(x)):
        numbers = min(numbers, tuned.JUDGING_OPERATIONS // thrift * each // cost)
    fewest = tuned.LABEL_DRAWS // 4
    most = draws or tuned.LABEL_DRAWS // thrift
    most = min(most, max(fewest, numbers // (len(x) * each)))
    fewest = tuned.FEWEST_INPUTS
    if queries is not None:
        most = min(most, max(4, math.isqrt(queries)))
        numbers, fewest = queries * each, 2
    count = min(most, teacher.max_draws or most)
    fewest = min(fewest, tuned.CALIBRATION_NUMBERS // (count * each))
    some = x[: max(2, fewest, numbers // (count * each))]
    count_of_parts = (blocks or tuned.LABEL_BLOCKS) if teacher.max_draws is None else 1
    parts: Sequence[Tensor] = some.chunk(count_of_parts)
    if timer is not None:
        number = max(count_of_parts, -(-len(some) // tuned.TIMED_ROWS))
        parts = [part for part in (some[first::number] for first in range(number)) if len(part)]
    enough, asked, said = timer and timer(), list[Tensor](), list[Tensor]()
    for part in tracked(((len(part), part) for part in parts), phase, len(some), progress):
        asked.append(part)
        said.append(teacher.draws(part, count).to(device, torch.float32))
        if enough is not None and enough(sum(map(len, asked))):
            break
    some = torch.cat(asked)
    return judge_of(teacher.outcome, some.to(device), torch.cat(said, 1), teacher.max_draws)
