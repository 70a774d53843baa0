"""A phase of a distillation: what a step of the student, and of a critic, looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.guides.base import student_at
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.objectives import Adversarial, Objective
from pyro_opu.objectives.base import Meeting
from pyro_opu.training import tuned
from pyro_opu.training.batches import READ, Batches, Pool, read_once
from pyro_opu.training.descent import (
    Descent,
    RecordedDescent,
    RecordedRounds,
    Schedule,
    Steps,
    cosine,
    falling,
)
from pyro_opu.training.fit import Phase
from pyro_opu.training.plan import pass_operations


class Game:
    """Losses of a critic and of a student, who meet at the batches of the critic's last round.

    Args:
        objective: Its critic has been made.
        meet: Makes a batch, of the next inputs or of these rows of a pool: the teacher's draws, the
            student's answer and its draws.
    """

    def __init__(self, objective: Adversarial, meet: Callable[[Tensor | None], Meeting]) -> None:
        self.objective, self.meet = objective, meet
        self._last: Meeting | None = None

    def critic_losses(self, rows: Tensor | None = None) -> tuple[dict[str, Tensor], Any]:
        """Named terms of the critic's loss at a new batch, and the student's answer there."""
        self._last = meeting = self.meet(rows)
        return self.objective.critic_loss(meeting), meeting.student

    def student_losses(self, rows: Tensor | None = None) -> tuple[dict[str, Tensor], Any]:
        """Named terms of the student's loss at the critic's batch, or at a new one."""
        meeting, self._last = self._last or self.meet(rows), None
        return self.objective.parts_of(meeting), meeting.student


def by_share(guide: nn.Module) -> list[dict[str, Any]]:
    """Weights of a student in groups, each with its "share" of the learning rate.

    A teacher's network is moved slowly.
    """
    trunks = [each for each in guide.modules() if isinstance(each, NetworkTrunk)]
    slow = [each.network for each in trunks if each.network is not None and not each.untrained]
    taken = dict.fromkeys(weight for network in slow for weight in network.parameters())
    own = [each for each in guide.parameters() if each not in taken]
    rest = [{"params": list(taken), "share": tuned.NETWORK_SHARE}] if taken else []
    return [{"params": own, "share": 1.0}, *rest]


@contextmanager
def few_threads(guide: nn.Module, x: Tensor, rows: int) -> Iterator[None]:
    """One thread while the steps of a small student are taken on a processor, then as before.

    Threads of a small product wait for one another longer than they work: beside any other busy
    process such a step takes up to 30 times as long on two threads as on one.
    """
    before = torch.get_num_threads()
    small = not x.is_cuda and 3 * rows * pass_operations(guide, x) <= tuned.SINGLE_THREAD
    torch.set_num_threads(1 if small else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def distillation_phase(
    name: str,
    objective: Objective,
    guide: nn.Module,
    batches: Batches,
    *,
    steps: int,
    rate: float,
    num_draws: int,
    pool: Pool | None = None,
    schedule: Schedule | None = None,
) -> Phase:
    """A phase with fresh optimizers, of the student and of a critic.

    The objective must be prepared, so that its critic exists. The schedule rises to ``rate``; the
    teacher gives ``num_draws`` per input and step where there is no ``pool`` of labelled inputs.
    """
    weight = batches.share / batches.plan.batch_size
    descent = partial(Descent, ranks=batches.ranks, weight=weight)
    reader = guide
    if pool is not None:
        reader, pool = read_once(guide, pool, objective)

    def labelled_batch(rows: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        if pool is not None:
            return pool.batch(batches.share) if rows is None else pool.at(rows)
        return batches.labels(num_draws, objective)

    def answered(x: Tensor, statistics: dict[str, Tensor]) -> Any:
        return student_at(reader, statistics.pop(READ, x))

    def student_losses(rows: Tensor | None = None) -> tuple[dict[str, Tensor], Any]:
        x, statistics = labelled_batch(rows)
        student = answered(x, statistics)
        return objective.parts_at(student, statistics, x), student

    recorded = pool is not None and _recordable(pool, objective, batches)
    rows: Any = None if pool is None else partial(pool.rows, batches.share)
    losses: Any = student_losses
    critics: list[Any] = []
    if isinstance(objective, Adversarial):

        def meet(rows: Tensor | None) -> Meeting:
            x, statistics = labelled_batch(rows)
            student = answered(x, statistics)
            return objective.meet(student, statistics["draws"].movedim(0, 1), x)

        game = Game(objective, meet)
        losses, rival = game.student_losses, objective.critic_optimizer()
        pace = falling(objective.critic_learning_rate, steps), objective.critic_rounds
        if recorded:
            critics = [RecordedRounds(lambda r: game.critic_losses(r)[0], rows, rival, *pace)]
        else:
            critics = [descent(game.critic_losses, rival, *pace, prefix="critic ")]
    rates = schedule or cosine(rate, steps)
    adam = torch.optim.Adam(by_share(guide), lr=rate, betas=objective.betas, fused=True)
    turn: Steps = descent(losses, adam, rates)
    if recorded:
        turn = RecordedDescent(lambda r: losses(r)[0], rows, adam, rates, *critics)
    return Phase(name, steps, turn, critics, objective.anneal, module=objective)


def _recordable(pool: Pool, objective: Objective, batches: Batches) -> bool:
    """Whether a step is one run of kernels on one GPU, the same for every batch."""
    if isinstance(objective, Adversarial):
        if type(objective).critic_rounds is not Adversarial.critic_rounds:
            return False  # they may differ from step to step
    return pool.x.is_cuda and batches.ranks.size == 1
