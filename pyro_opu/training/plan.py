"""How a distillation divides inputs, draws and steps when its caller does not say."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import check_inputs, positive_int
from pyro_opu.distributed import Ranks
from pyro_opu.objectives import Objective
from pyro_opu.outcomes import Outcome
from pyro_opu.rng import drawing, fold_in
from pyro_opu.teachers.base import JointDraws
from pyro_opu.training.checkpoint import Checkpoint
from pyro_opu.transfer import TransferPolicy, default_transfer
from pyro_opu.transfer.stream import Stream, is_loader

#: Of the transfer inputs this share, at most so many, is kept to judge the student by.
HELD_OUT_SHARE, HELD_OUT_MOST = 0.15, 512
#: Teacher's draws at each input that judges or calibrates, at most.
LABEL_DRAWS = 1000
#: Blocks of such inputs with draws of their own, where the teacher can draw afresh. Draws are joint
#: over inputs: with one block the iterate nearest to their luck would look like the best.
LABEL_BLOCKS = 16
#: Numbers in all draws that judge, which is done often, and that calibrate, which is done once.
JUDGE_NUMBERS, CALIBRATE_NUMBERS = 2**20, 2**23
#: Teacher's draws per input and step. More than that average out over the steps, but not at inputs
#: that few batches come near: the closed-form start takes more, as long as their matrix products
#: take fewer operations than these and they hold fewer numbers; of a posterior that draws afresh at
#: most so many.
NUM_DRAWS, CHEAP_OPERATIONS, CHEAP_NUMBERS, MOST_DRAWS = 32, 2**26, 2**18, 500
#: Share of the steps that the closed-form warm start takes.
WARM_SHARE = 0.9
#: Adam's rate for layers of up to so many units. Students of MC dropout on MNIST, 512 units, are
#: left with 1.6 times the KL by this rate as by half of it or a fifth; at 256 units digits are
#: better off with half of it and Spambase with all of it.
RATE, NARROW = 4e-3, 256


def chosen_seed(seed: int | None, resume: Checkpoint | None) -> int:
    """The seed asked for, that of the run to resume, or one drawn from torch's generator."""
    if seed is not None:
        return seed
    if resume is not None and resume.exists:
        return resume.seed
    with drawing() as generator:
        return int(torch.randint(2**31, (), generator=generator))


def as_transfer_inputs(x: Any, seed: int, ranks: Ranks) -> tuple[Tensor, Stream | None]:
    """Validate the transfer inputs ``(N, ...)``; of a loader its first window, and the stream.

    Raises:
        TypeError: neither a floating tensor nor a loader of such.
        ValueError: inputs that are empty, of a wrong shape or not finite.
    """
    if is_loader(x):
        x = Stream(x, fold_in(seed, 0), ranks)
    if isinstance(x, Stream):
        return check_inputs(x.first), x
    return check_inputs(x), None


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that judge the student, chosen at random, and the rows it is taught at.

    Raises:
        ValueError: fewer than four rows.
    """
    if len(x) < 4:
        raise ValueError(
            "`x` must hold at least 4 transfer inputs, some to teach and some to judge by; got "
            f"{len(x)}. More inputs need no labels."
        )
    order = torch.randperm(len(x)).to(x.device)
    count = min(HELD_OUT_MOST, max(2, round(HELD_OUT_SHARE * len(x))))
    return x[order[:count]], x[order[count:]]


def labelled(
    teacher: JointDraws, outcome: Outcome, x: Tensor, device: torch.device, numbers: int
) -> Any:
    """The teacher's draws at ``x``, fewer draws and then fewer inputs where there are too many.

    Args:
        teacher: It has seen an input.
        outcome: Its outcome, which makes a validation set of the draws.
        x: Inputs ``(N, *input_shape)``.
        device: Where inputs and draws are put.
        numbers: About so many in all draws.
    """
    each = teacher.num_outputs
    most = min(LABEL_DRAWS, max(LABEL_DRAWS // 4, numbers // (len(x) * each)))
    count = min(most, teacher.max_draws or most)
    some = x[: max(2, numbers // (count * each))]
    blocks = some.chunk(LABEL_BLOCKS) if teacher.max_draws is None else [some]
    draws = torch.cat([teacher.draws(block, count) for block in blocks], 1)
    return outcome.validation(some.to(device), draws.to(device, torch.float32), teacher.max_draws)


def transfer_inputs(
    policy: TransferPolicy | None, stream: Stream | None, rest: Tensor, held_out: Tensor
) -> TransferPolicy | Stream:
    """Where batches are drawn from: the policy, or the default one, fitted to what is not held out.

    Args:
        policy: What the caller asked for.
        stream: Of a loader, through whose windows the policy then goes.
        rest: Inputs to teach at ``(N, *input_shape)``.
        held_out: Inputs that judge, which a stream never gives.
    """
    policy = default_transfer(rest) if policy is None else policy
    return policy.fit(rest) if stream is None else stream.follow(policy, rest, held_out)


def chosen_rate(learning_rate: float | None, guide: nn.Module) -> float:
    r"""Adam's rate: as asked for, or by the width w of the guide's widest layer.

    .. math:: 0.004 \min(1, 256 / w)

    A layer is as wide as the smaller side of its weight, so that inputs and classes do not count.

    Args:
        learning_rate: What the caller asked for.
        guide: The student.

    References:
        Yang et al. (2021), Tensor Programs V, table 3: Adam's rate falls as one over the width.
    """
    if learning_rate is not None:
        return learning_rate
    matrices = (p.flatten(1).shape for p in guide.parameters() if p.ndim > 1)
    return RATE * min(1.0, NARROW / max((min(shape) for shape in matrices), default=NARROW))


def warm_steps(
    num_steps: int, objective: Objective, closed_form: Objective, warm_start: bool
) -> int:
    """Steps of the warm start: all, if it has the same objective.

    Raises:
        ValueError: ``num_steps`` is no positive integer.
    """
    positive_int("num_steps", num_steps)
    if not warm_start:
        return 0
    same = isinstance(objective, type(closed_form))
    return num_steps if same else max(1, round(WARM_SHARE * num_steps))


def draws_per_step(
    teacher: JointDraws,
    x: Tensor,
    num_draws: int | None,
    batch_size: int,
    most: int | None = None,
) -> tuple[int, int]:
    """Draws per input in a step of the warm start, at most ``most`` there, and of the objective."""
    held = teacher.max_draws
    if num_draws is not None:
        return (min(num_draws, held or num_draws),) * 2
    refine = min(NUM_DRAWS, held or NUM_DRAWS)
    cost = teacher.operations(x)
    if cost is None:
        return refine, refine
    rows = max(1, batch_size)
    cheap = min(
        CHEAP_OPERATIONS // max(1, rows * cost), CHEAP_NUMBERS // (rows * teacher.num_outputs)
    )
    warm = max(refine, min(cheap, held or MOST_DRAWS))
    return warm if most is None else min(warm, most), refine
