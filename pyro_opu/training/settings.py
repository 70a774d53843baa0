"""Settings of a distillation, their defaults, and its batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError
from pyro_opu.distributed import ALONE, Ranks
from pyro_opu.guides.base import in_dtype_of
from pyro_opu.objectives import Objective
from pyro_opu.programs.cost import counted, metered
from pyro_opu.rng import preserve_rng
from pyro_opu.teachers.base import BaseTeacher

#: Teacher's draws per input and step. The noise of so few averages out over the steps, but not at
#: inputs that few batches come near: the warm start takes more, up to so many operations in matrix
#: products and so many numbers; of a posterior that draws afresh at most so many.
NUM_DRAWS, CHEAP_OPERATIONS, CHEAP_NUMBERS, MOST_DRAWS = 32, 2**26, 2**18, 500
#: Parts of a batch with draws of their own: draws are joint over the inputs of one call, so the
#: noise of one set does not average out within the batch.
DRAW_BLOCKS = 4
Effort = Literal["quick", "default", "thorough"]
#: Steps, and most inputs that are labelled once, by effort.
EFFORTS: dict[Effort, tuple[int, int]] = {
    "quick": (1000, 2**14),
    "default": (3000, 2**16),
    "thorough": (12_000, 2**18),
}
#: Posterior draws whose mean errs as that of a student which begins about where it should end:
#: Gaussian processes on Pima begin at 1,200 to 1,700, and end at 1,700, or after all steps at 1,700
#: to 2,500.
BEGINS_NEAR = 1000.0
#: Inputs in a batch, and in one of a student of more than `MANY` weights: that of MC dropout on
#: MNIST, 478,000 weights, is then left with two thirds of the KL.
BATCH, LARGE_BATCH, MANY = 2**8, 2**10, 2**18
#: Share of the steps that the closed-form warm start takes.
WARM_SHARE = 0.9
#: Adam's rate for layers of up to so many units. Students of MC dropout on MNIST, 512 units, are
#: left with 1.6 times the KL by this rate as by half of it or a fifth; at 256 units digits are
#: better off with half of it and Spambase with all of it.
RATE, NARROW = 4e-3, 256


@dataclass(frozen=True)
class PoolSize:
    """Inputs of a pool, none where batches are labelled as they come; draws; inputs in a block."""

    inputs: int = 0
    draws: int = 0
    block: int = 0


@dataclass(frozen=True)
class Settings:
    """Numbers of a distillation; see :func:`~pyro_opu.distill`.

    The teacher is asked for ``warm_draws`` per input in the warm start, for ``num_draws`` after it;
    ``averaging`` is the decay of the exponential average of the weights, ``calibration`` is how
    many numbers there are in the draws that calibrate, and ``start`` is a sketch of the weights of
    the student that it begins at.
    """

    warm_steps: int
    refine_steps: int
    batch_size: int
    warm_draws: int
    num_draws: int
    learning_rate: float
    evaluate_every: int
    patience: int = 5
    averaging: float = 0.99
    pool: PoolSize = PoolSize()
    calibration: int = 0
    start: dict[str, list[float]] | None = None


class Sampler(Protocol):
    """Source of inputs ``(n, ...)``: a fitted transfer policy, or a stream."""

    def sample(self, n: int) -> Tensor: ...


@dataclass(frozen=True)
class Batches:
    """Inputs of a fitted transfer policy, labelled by the teacher.

    Ranks divide the inputs, not the draws, since objectives compare all pairs of draws at an input.
    ``ask(x, num_draws)`` gives the teacher's joint draws ``(S, N, ...)``, at most ``max_draws``.
    """

    ask: Callable[[Tensor, int], Tensor]
    policy: Sampler
    settings: Settings
    device: torch.device
    max_draws: int | None = None
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        if self.settings.batch_size < self.ranks.size:
            raise ArgumentError(
                f"`batch_size` must be at least {self.ranks.size}, the number of ranks that share "
                f"a batch; got {self.settings.batch_size}. Take larger batches, or fewer ranks."
            )

    @property
    def share(self) -> int:
        """This rank's inputs in a batch."""
        return self.ranks.share(self.settings.batch_size)

    def batch(self, num_draws: int) -> tuple[Tensor, Tensor]:
        """Inputs ``(N, ...)`` and the teacher's draws ``(S, N, ...)`` there."""
        x = self.policy.sample(self.share)
        if num_draws == self.max_draws:  # all of them, without noise
            draws = self.ask(x, num_draws)
        elif DRAW_BLOCKS * num_draws <= self.settings.warm_draws:  # as cheap as one call
            each = self.ask(x, DRAW_BLOCKS * num_draws).unflatten(0, (DRAW_BLOCKS, num_draws))
            draws = torch.cat([b[i] for i, b in enumerate(each.chunk(DRAW_BLOCKS, 2))], 1)
        else:
            draws = torch.cat([self.ask(b, num_draws) for b in x.chunk(DRAW_BLOCKS)], 1)
        return x.to(self.device), draws.to(self.device, torch.float32)


def default_rate(guide: nn.Module) -> float:
    r"""Adam's rate by the width w of the guide's widest layer, :math:`0.004 \min(1, 256 / w)`.

    The width is the smaller side of a layer's weight, so that inputs and classes do not count.

    References:
        Yang et al. (2021), Tensor Programs V, table 3: Adam's rate falls as one over the width.
    """
    matrices = (p.flatten(1).shape for p in guide.parameters() if p.ndim > 1)
    return RATE * min(1.0, NARROW / max((min(shape) for shape in matrices), default=NARROW))


def has_many_weights(guide: nn.Module) -> bool:
    """Whether a default guide takes large batches, and labels by more draws."""
    return sum(p.numel() for p in guide.parameters()) > MANY


def pass_operations(guide: nn.Module, x: Tensor) -> int:
    """Floating-point operations of a guide's pass per input."""
    with torch.no_grad(), preserve_rng(), counted(), metered() as meter:
        guide(in_dtype_of(guide, x[:2]))
    return (meter.operations or 0) // 2


def warm_steps(
    num_steps: int, objective: Objective, closed_form: Objective, warm_start: bool
) -> int:
    """Steps of the warm start: all, if the objective is of the same kind."""
    if not warm_start:
        return 0
    same = isinstance(objective, type(closed_form))
    return num_steps if same else max(1, round(WARM_SHARE * num_steps))


def draws_per_step(
    teacher: BaseTeacher,
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
    cheap = min(
        CHEAP_OPERATIONS // max(1, batch_size * cost),
        CHEAP_NUMBERS // (batch_size * teacher.num_outputs),
    )
    warm = max(refine, min(cheap, held or MOST_DRAWS))
    return warm if most is None else min(warm, most), refine
