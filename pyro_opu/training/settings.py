"""Settings of a distillation, and its batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pyro_opu.checks import positive_float, positive_int
from pyro_opu.distributed import ALONE, Ranks

#: Parts of a batch with draws of their own. Draws are joint over the inputs of one call, and the
#: luck of one set shared by a whole batch does not average out within the batch.
DRAW_BLOCKS = 4


@dataclass(frozen=True)
class Settings:
    """Numbers of a distillation; see :func:`~pyro_opu.distill`.

    Attributes:
        warm_steps: Steps of the warm start.
        refine_steps: Steps under the objective.
        batch_size: Inputs per batch, of all ranks together.
        warm_draws: Teacher's draws per input and step in the warm start.
        num_draws: The same under the objective.
        learning_rate: At the top of the warm start's schedule.
        evaluate_every: Steps between evaluations.
        patience: Evaluations without an improvement that end the refinement.
        averaging: Decay of the exponential average of the weights.
        accumulate: Batches per step.
        precision: Name of the trunk's precision, ``None`` for that of its weights.
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
    accumulate: int = 1
    precision: str | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "evaluate_every", "patience", "accumulate"):
            positive_int(name, getattr(self, name))
        if self.warm_steps + self.refine_steps < 1:
            raise ValueError("`num_steps` must be at least 1.")
        positive_int("num_draws", self.num_draws, 2, "One draw per input has no spread.")
        positive_float("learning_rate", self.learning_rate)


class Sampler(Protocol):
    """Where inputs come from: a fitted transfer policy, or a stream."""

    def sample(self, n: int) -> Tensor:
        """Draw n inputs ``(n, ...)``."""
        ...


@dataclass(frozen=True)
class Batches:
    """Inputs of a fitted transfer policy, labelled by the teacher.

    Ranks divide the inputs, not the draws: each asks for all draws at its own share of the batch.
    So work and memory per rank fall with their number, and what an objective makes of all pairs of
    draws at an input is what it makes of them alone.

    Attributes:
        ask: ``(x, num_draws) ->`` the teacher's joint draws ``(S, N, ...)``.
        policy: Where inputs come from.
        settings: Sizes of batches.
        device: The student's.
        max_draws: Draws that the posterior holds, if it holds them.
        ranks: Those that share a batch.
    """

    ask: Callable[[Tensor, int], Tensor]
    policy: Sampler
    settings: Settings
    device: torch.device
    max_draws: int | None = None
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        if self.settings.batch_size < self.ranks.size:
            raise ValueError(
                f"`batch_size` must be at least {self.ranks.size}, the number of ranks that share "
                f"a batch; got {self.settings.batch_size}. Take larger batches, or fewer ranks."
            )

    @property
    def share(self) -> int:
        """Inputs in a batch of this rank."""
        return self.ranks.share(self.settings.batch_size)

    def batch(self, num_draws: int) -> tuple[Tensor, Tensor]:
        """Inputs ``(N, ...)`` and the teacher's draws ``(S, N, ...)`` there."""
        x = self.policy.sample(self.share)
        if num_draws == self.max_draws:  # no luck in all of them
            draws = self.ask(x, num_draws)
        elif DRAW_BLOCKS * num_draws <= self.settings.warm_draws:  # so many cost little
            each = self.ask(x, DRAW_BLOCKS * num_draws).unflatten(0, (DRAW_BLOCKS, num_draws))
            draws = torch.cat([b[i] for i, b in enumerate(each.chunk(DRAW_BLOCKS, 2))], 1)
        else:
            draws = torch.cat([self.ask(b, num_draws) for b in x.chunk(DRAW_BLOCKS)], 1)
        return x.to(self.device), draws.to(self.device, torch.float32)
