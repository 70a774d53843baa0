"""Transfer inputs: those held out to validate a student, and those it is taught at."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, check_inputs
from pyro_opu.choosing import Choice
from pyro_opu.distributed import Ranks
from pyro_opu.inputs import Inputs, inputs_of
from pyro_opu.rng import fold_in
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.training.console import tracked
from pyro_opu.transfer.stream import Stream, is_loader

#: Fraction of the transfer inputs held out for validation, and its cap.
HELD_OUT_SHARE, HELD_OUT_MOST = 0.15, 512
#: Teacher's draws at each input that validates or calibrates, at most.
LABEL_DRAWS = 1000
#: Blocks of such inputs with draws of their own, where the teacher can draw afresh: with one block
#: of joint draws the iterate nearest to their noise would look like the best.
LABEL_BLOCKS = 16
#: Numbers in all draws that validate, which is done often, and that calibrate, which is done once.
VALIDATION_NUMBERS, CALIBRATION_NUMBERS = 2**20, 2**23
#: Inputs that validate, though, if they have no more numbers than those that calibrate: by four, as
#: 1,000 classes would leave, no order is known.
FEWEST_INPUTS = 32


def as_transfer_inputs(
    x: Any, source: Any, seed: int, ranks: Ranks
) -> tuple[Inputs, Stream | None]:
    """The transfer inputs, and a loader's stream, of which they are the first window."""
    if is_loader(x):
        stream = Stream(x, fold_in(seed, 0), ranks)
        return Inputs(check_inputs(stream.first), stream.form), stream
    inputs = inputs_of(x, source)
    found = inputs.like(inputs)  # whose indices are those that are seen in it
    return Inputs(found.tensor.detach(), found.form), None


def hold_out(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows for validation, chosen at random, and the rows to teach at."""
    if len(x) < 4:
        raise ArgumentError(
            "`x` must hold at least 4 transfer inputs, some to teach and some to judge by; got "
            f"{len(x)}. More inputs need no labels."
        )
    order = torch.randperm(len(x)).to(x.device)
    count = min(HELD_OUT_MOST, max(2, round(HELD_OUT_SHARE * len(x))))
    return x[order[:count]], x[order[count:]]


def validation_set(
    teacher: BaseTeacher,
    choice: Choice,
    x: Tensor,
    device: torch.device,
    numbers: int,
    phase: str,
    progress: bool = False,
    queries: int | None = None,
) -> Any:
    """The teacher's draws at ``x``, about so many ``numbers`` in all, on the device.

    To stay below that, draws are left out first, down to a quarter of the most, then inputs, but
    of up to 1,000 classes 32 are left. Where only so many ``queries`` may be made, there are as
    many inputs as draws.
    """
    each = teacher.num_outputs
    most = min(LABEL_DRAWS, max(LABEL_DRAWS // 4, numbers // (len(x) * each)))
    fewest = FEWEST_INPUTS
    if queries is not None:
        most = min(most, max(4, math.isqrt(queries)))
        numbers, fewest = queries * each, 2
    count = min(most, teacher.max_draws or most)
    fewest = min(fewest, CALIBRATION_NUMBERS // (count * each))
    some = x[: max(2, fewest, numbers // (count * each))]
    blocks = some.chunk(LABEL_BLOCKS) if teacher.max_draws is None else [some]
    items = tracked(((len(block), block) for block in blocks), phase, len(some), progress)
    draws = torch.cat([teacher.draws(block, count) for block in items], 1)
    return choice.judge(some.to(device), draws.to(device, torch.float32), teacher.max_draws)
