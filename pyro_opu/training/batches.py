"""Batches of transfer inputs and their labels: as they come, or of a pool labelled once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError
from pyro_opu.distributed import ALONE, Ranks
from pyro_opu.guides.base import in_dtype_of
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.objectives import Objective
from pyro_opu.training import tuned
from pyro_opu.training.clock import Countdown
from pyro_opu.training.console import tracked
from pyro_opu.training.plan import Plan

__all__ = ["READ", "Batches", "Pool", "Sampler", "labelled", "read_once"]


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
    plan: Plan
    device: torch.device
    max_draws: int | None = None
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        if self.plan.batch_size < self.ranks.size:
            raise ArgumentError(
                f"`batch_size` must be at least {self.ranks.size}, the number of ranks that share "
                f"a batch; got {self.plan.batch_size}. Take larger batches, or fewer ranks."
            )

    @property
    def share(self) -> int:
        """This rank's inputs in a batch."""
        return self.ranks.share(self.plan.batch_size)

    def batch(self, num_draws: int) -> tuple[Tensor, Tensor]:
        """Inputs ``(N, ...)`` and the teacher's draws ``(S, N, ...)`` there."""
        x = self.policy.sample(self.share)
        if num_draws == self.max_draws:  # all of them, without noise
            draws = self.ask(x, num_draws)
        elif tuned.DRAW_BLOCKS * num_draws <= self.plan.warm_draws:  # as cheap as one call
            each = self.ask(x, tuned.DRAW_BLOCKS * num_draws).unflatten(
                0, (tuned.DRAW_BLOCKS, num_draws)
            )
            draws = torch.cat([b[i] for i, b in enumerate(each.chunk(tuned.DRAW_BLOCKS, 2))], 1)
        else:
            draws = torch.cat([self.ask(b, num_draws) for b in x.chunk(tuned.DRAW_BLOCKS)], 1)
        return x.to(self.device), draws.to(self.device, torch.float32)


#: Among the statistics of a pool: what a guide reads in the place of the inputs.
READ = "read"


@dataclass
class Pool:
    """Inputs ``(P, ...)``, and what a loss reads of the teacher's draws there.

    Batches go through the inputs again and again, in another order each time. ``taken`` is how many
    have been given.
    """

    x: Tensor
    statistics: dict[str, Tensor]
    taken: int = 0
    _order: tuple[int, Tensor] = (-1, torch.empty(0))

    def batch(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The next ``count`` inputs, and their labels."""
        return self.at(self.rows(count))

    def rows(self, count: int) -> Tensor:
        """Numbers of the next ``count`` inputs, at most P."""
        turn, number = divmod(self.taken, len(self.x) // count)
        self.taken += 1
        if self._order[0] != turn:
            generator = torch.Generator().manual_seed(turn)
            order = torch.randperm(len(self.x), generator=generator)
            self._order = turn, order.to(self.x.device)
        return self._order[1][number * count : (number + 1) * count]

    def at(self, rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Inputs of these numbers, and their labels."""
        statistics = {name: each.index_select(0, rows) for name, each in self.statistics.items()}
        return self.x.index_select(0, rows), statistics


def joined_in_place(parts: Iterator[Tensor], rows: int) -> Tensor:
    """Parts of so many rows in all, of which two are never held."""
    whole, done = torch.empty(0), 0
    for part in parts:
        if not done:
            whole = part.new_empty(rows, *part.shape[1:])
        whole[done : done + len(part)] = part
        done += len(part)
    return whole


@torch.no_grad()
def labelled(
    batches: Batches,
    objective: Objective,
    steps: int = 0,
    progress: bool = False,
    countdown: Countdown | None = None,
) -> Pool:
    """The pool of this plan, after so many ``steps``; ``objective`` says what it keeps.

    It has fewer inputs where the ``countdown`` is over before, but as many as two batches.
    """
    plan, share = batches.plan, batches.share
    times = max(1, plan.labelled // share)
    # A stream moves on from call to call, so inputs are asked for as a run would ask.
    x = joined_in_place((batches.policy.sample(share) for _ in range(times)), times * share)
    found: list[dict[str, Tensor]] = []
    done = 0
    blocks = ((len(block), block) for block in x.split(plan.label_block))
    for block in tracked(blocks, "labelling", len(x), progress):
        draws = batches.ask(block, plan.label_draws).to(batches.device, torch.float32)
        found.append(objective.statistics(draws))
        done += len(block)
        if countdown is not None and countdown.over and done >= 2 * plan.batch_size:
            break
    x = x[:done]
    statistics = {name: torch.cat([each[name] for each in found]) for name in found[0]}
    taken = objective.batches(steps)
    return Pool(x.to(batches.device), statistics, taken)


class AfterMoments(nn.Module):
    """What a trunk makes of its ``moments_at``, which stay while it is trained."""

    def __init__(self, trunk: Any) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, moments: Tensor) -> Tensor:
        """Features, as of the trunk."""
        found: Tensor = self.trunk.from_moments(moments)
        return found


@torch.no_grad()
def read_once(guide: nn.Module, pool: Pool) -> tuple[nn.Module, Pool]:
    """The guide and its inputs where what its trunk reads of them stays, as moments of logits do.

    It then has its own weights, and the pool keeps what it reads as :data:`READ`. A critic, and a
    loss of the user's, read the inputs themselves.
    """
    trunk = getattr(guide, "trunk", None)
    if not (isinstance(trunk, NetworkTrunk) and trunk.stays):
        return guide, pool
    reads: Any = trunk.moments_at
    moments = torch.cat([reads(in_dtype_of(guide, some)) for some in pool.x.split(tuned.ROWS)])
    rest = copy.copy(guide)
    rest._modules = {**guide._modules, "trunk": AfterMoments(trunk)}
    return rest, replace(pool, statistics={**pool.statistics, READ: moments})
