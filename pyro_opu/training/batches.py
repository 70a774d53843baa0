"""Batches of transfer inputs and their labels: as they come, or of a pool labelled once."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError
from pyro_opu.distributed import ALONE, Ranks
from pyro_opu.guides.base import in_dtype_of
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.objectives import Objective
from pyro_opu.rng import fold_in, seeded
from pyro_opu.training import tuned
from pyro_opu.training.clock import Countdown
from pyro_opu.training.console import tracked
from pyro_opu.training.plan import Plan
from pyro_opu.transfer import TransferPolicy
from pyro_opu.utils.chunks import joined, joined_in_place

__all__ = [
    "READ",
    "Batches",
    "Pool",
    "Recipe",
    "Remade",
    "Sampler",
    "labelled",
    "makes_again",
    "read_once",
]


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
        return x.to(self.device), self._draws(x, num_draws)

    def labels(self, num_draws: int, objective: Objective) -> tuple[Tensor, dict[str, Tensor]]:
        """Inputs, and what a loss reads of the draws there: of a few numbers, block by block."""
        x = self.policy.sample(self.share)
        blocks = x.split(self.plan.step_block or len(x)) if objective.sufficient else [x]
        found = [objective.statistics(self._draws(block, num_draws)) for block in blocks]
        return x.to(self.device), {k: joined([each[k] for each in found], 0) for k in found[0]}

    def _draws(self, x: Tensor, num_draws: int) -> Tensor:
        if num_draws == self.max_draws:  # all of them, without noise
            draws = self.ask(x, num_draws)
        elif tuned.DRAW_BLOCKS * num_draws <= self.plan.warm_draws:  # as cheap as one call
            each = self.ask(x, tuned.DRAW_BLOCKS * num_draws).unflatten(
                0, (tuned.DRAW_BLOCKS, num_draws)
            )
            draws = torch.cat([b[i] for i, b in enumerate(each.chunk(tuned.DRAW_BLOCKS, 2))], 1)
        else:
            draws = torch.cat([self.ask(b, num_draws) for b in x.chunk(tuned.DRAW_BLOCKS)], 1)
        return draws.to(self.device, torch.float32)


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

    @property
    def size(self) -> int:
        """P."""
        return len(self.x)

    def parts(self) -> Iterator[Tensor]:
        """All inputs, some at a time."""
        return iter([self.x])


@dataclass(frozen=True)
class Recipe:
    """Makes so many ``rows`` of a policy by number, each time the same: every number has a seed."""

    policy: Sampler
    rows: int
    seed: int
    device: torch.device

    def make(self, numbers: Sequence[int] | Tensor) -> Tensor:
        """The inputs of these numbers, one after another."""
        return joined_in_place(map(self._one, numbers), len(numbers) * self.rows)

    def _one(self, number: int | Tensor) -> Tensor:
        with seeded(fold_in(self.seed, int(number))):
            return self.policy.sample(self.rows).to(self.device)


def makes_again(policy: Sampler, x: Tensor, device: torch.device) -> bool:
    """Whether a policy of wide inputs gives the same twice by one seed, unlike a stream.

    A GPU has room for a pool that is held, and records steps of such alone.
    """
    wide = math.prod(x.shape[1:]) > tuned.WIDE and device.type == "cpu"
    if not wide or not isinstance(policy, TransferPolicy):
        return False
    recipe = Recipe(policy, 2, 0, device)
    return torch.equal(*recipe.make([0, 0]).chunk(2))


@dataclass
class Remade(Pool):
    """A pool that holds the inputs of a few batches, ``x``, and makes all others again.

    A batch is of other parts every time, since students that meet the same 256 inputs together
    again and again end with 1.7 times the KL.
    """

    recipe: Recipe = field(kw_only=True)
    #: Parts in all, in a batch, and in what is held at once.
    count: int = field(kw_only=True)
    in_batch: int = field(kw_only=True)
    at_once: int = field(kw_only=True)
    #: Whether a loss reads inputs that the guide does not.
    is_read: bool = field(default=True, kw_only=True)
    _held: tuple[int, int] = field(default=(-1, -1), init=False)

    def batch(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The next inputs, and their labels; ``count`` is that of ``in_batch`` parts."""
        turn, number = divmod(self.taken, self.count // self.in_batch)
        held, number = divmod(number, self.at_once // self.in_batch)
        self.taken += 1
        if self._held != (turn, held):
            self._held = turn, held
            self._hold(turn, held * self.at_once)
        rows, mixed = self._order[1][:, number * count : (number + 1) * count]
        statistics = {name: each.index_select(0, rows) for name, each in self.statistics.items()}
        return self.x.index_select(0, mixed) if self.is_read else self.x, statistics

    def _hold(self, turn: int, first: int) -> None:
        """Make some parts of this turn, and mix their inputs."""
        generator = torch.Generator().manual_seed(turn)
        picked = torch.randperm(self.count, generator=generator)[first : first + self.at_once]
        rows = (picked[:, None] * self.recipe.rows + torch.arange(self.recipe.rows)).flatten()
        mixed = torch.randperm(len(rows), generator=generator)
        self._order = turn, torch.stack([rows[mixed], mixed]).to(self.x.device)
        if self.is_read:
            self.x = self.x[:0].clone()  # what was held goes before the next comes
            self.x = self.recipe.make(picked)

    @property
    def size(self) -> int:
        return self.count * self.recipe.rows

    def parts(self) -> Iterator[Tensor]:
        """All inputs, some at a time."""
        return map(self.recipe.make, torch.arange(self.count).split(self.in_batch))


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
    parts: Iterable[Tensor]
    if plan.remade:
        in_batch = next(n for n in (16, 8, 4, 2, 1) if n == 1 or share % (32 * n) == 0)
        recipe = Recipe(
            batches.policy, share // in_batch, int(torch.randint(2**62, ())), batches.device
        )
        numbers = torch.arange(times * in_batch).split(in_batch)
        x, parts = recipe.make([0])[:0].clone(), map(recipe.make, numbers)
    else:
        # A stream moves on from call to call, so inputs are asked for as a run would ask.
        x = joined_in_place((batches.policy.sample(share) for _ in range(times)), times * share)
        parts = [x]
    found: list[dict[str, Tensor]] = []
    done = 0
    blocks = ((len(block), block) for part in parts for block in part.split(plan.label_block))
    for block in tracked(blocks, "labelling", times * share, progress):
        draws = batches.ask(block, plan.label_draws).to(batches.device, torch.float32)
        found.append(objective.statistics(draws))
        done += len(block)
        if countdown is not None and countdown.over and done >= 2 * plan.batch_size:
            break
    statistics = {name: torch.cat([each[name] for each in found]) for name in found[0]}
    taken = objective.batches(steps)
    if plan.remade:
        held = max(1, tuned.HELD_NUMBERS // (share * x.shape[1:].numel()))
        return Remade(
            x,
            statistics,
            taken,
            recipe=recipe,
            count=done // share * in_batch,
            in_batch=in_batch,
            at_once=held * in_batch,
        )
    return Pool(x[:done].to(batches.device), statistics, taken)


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
def read_once(
    guide: nn.Module, pool: Pool, objective: Objective | None = None
) -> tuple[nn.Module, Pool]:
    """The guide and its inputs where what its trunk reads of them stays, as moments of logits do.

    It then has its own weights, and the pool keeps what it reads as :data:`READ`. A critic, and a
    loss of the user's, read the inputs themselves; for one that is ``sufficient`` none are remade.
    """
    trunk = getattr(guide, "trunk", None)
    if not (isinstance(trunk, NetworkTrunk) and trunk.stays):
        return guide, pool
    reads: Any = trunk.moments_at
    width = reads(in_dtype_of(guide, next(pool.parts())[:1])).shape[1]
    if isinstance(pool, Remade):
        columns = pool.x.shape[1:].numel()
        if width >= columns or pool.size * width > tuned.POOL_NUMBERS:
            return guide, pool  # as wide as what is not held
        pool = replace(pool, is_read=objective is None or not objective.sufficient)
    blocks = (rows for some in pool.parts() for rows in some.split(tuned.ROWS))
    moments = joined_in_place((reads(in_dtype_of(guide, each)) for each in blocks), pool.size)
    rest = copy.copy(guide)
    rest._modules = {**guide._modules, "trunk": AfterMoments(trunk)}
    return rest, replace(pool, statistics={**pool.statistics, READ: moments})
