"""Transfer inputs labelled once, so that training steps ask no teacher."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pyro_opu.guides.base import in_dtype_of, student_at
from pyro_opu.guides.plug_in import AfterMoments, MomentsTrunk
from pyro_opu.objectives import Objective
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.training.console import tracked
from pyro_opu.training.settings import MOST_DRAWS, Batches, PoolSize

__all__ = ["Pool", "affordable", "labelled", "pool_size", "read_once"]

#: Numbers in all tensors of a pool (1 GB): 2^18 images of MNIST. A third of them leave its student
#: with 1.5 times the KL. One of fewer inputs than `FEWEST` is learnt by heart, so batches are then
#: labelled as they come.
NUMBERS, FEWEST = 2**28, 2**13
#: Operations to label a pool, and numbers in all draws of its labels, where there are more than
#: `FEWEST_DRAWS` per input: up to ten seconds of one core. The luck of few draws is noise in steps.
OPERATIONS, LABELS, FEWEST_DRAWS = 2**38, 2**27, 32
#: Draws of all blocks together that are enough where all are too dear: twice as many leave students
#: of Gaussian processes with .7 to .85 of the KL, and take twice the time.
JOINT_DRAWS = 2**14
#: Operations of labels that a student of many weights is worth, as a multiple of those of its
#: steps: by a third of them that of MC dropout on MNIST learns the luck of the draws, and is left
#: with 1.4 times the KL.
LABELS_BY_STEPS = 2.5
#: Numbers in the fewest draws of all inputs: 2^16 inputs of 1,000 classes.
MOST_LABELS = 2**31
#: Inputs that share draws, which are joint over them: the luck of one set averages out over the
#: sets, so there are no more than so many. Held draws, all taken, have no luck.
BLOCK, HELD_BLOCK, MOST_BLOCKS = 2**9, 2**12, 2**8
#: Numbers in the draws of a block, and inputs that a guide reads at once.
BLOCK_NUMBERS, ROWS = 2**23, 2**12
#: Of seconds that are given, the share for labels; what a step takes, with its share of Adam and
#: of judging, as a multiple of its loss and gradient alone; and the least steps.
LABEL_SHARE, STEP_SPENT, FEWEST_STEPS = 0.3, 1.5, 50


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


def pool_size(
    teacher: BaseTeacher,
    x: Tensor,
    objective: Objective,
    wanted: int,
    draws: int,
    fixed: bool,
    share: int = 1,
    steps: int = 0,
) -> PoolSize:
    """Inputs and draws of a pool, by cost and memory; none where the loss reads every draw.

    A student that meets the same few draws again would learn their luck. A critic lets it learn
    less: of draws a pool may hold as many as a step takes.

    Args:
        teacher: The teacher, which has seen an input.
        x: Inputs ``(N, ...)``.
        objective: Its loss.
        wanted: Inputs in all steps together, or fewer.
        draws: Draws per input where they are ``fixed``, or the cost of one is not known.
        fixed: Whether the user has said how many.
        share: The pool is to cost one over so much of what it may, in as many blocks.
        steps: Operations of all steps; 0 where they do not count.
    """
    outputs, cost = teacher.num_outputs, teacher.operations(x)
    kept = outputs * draws if objective.pools_draws else outputs * objective.kept + 2
    fixed = fixed or objective.pools_draws
    most = NUMBERS // (math.prod(x.shape[1:]) + kept), MOST_LABELS // FEWEST_DRAWS // outputs
    inputs = min(wanted, *most)
    readable = objective.sufficient or objective.pools_draws
    if not readable or not inputs or inputs < min(FEWEST, wanted):
        return PoolSize()
    if not fixed and cost is not None:
        whole = inputs * share
        most_draws = teacher.max_draws or MOST_DRAWS
        one, numbers = whole * max(1, cost), whole * outputs
        each = OPERATIONS // one
        if each < most_draws:
            each = min(each, JOINT_DRAWS * BLOCK // whole)
        by_steps = min(int(LABELS_BY_STEPS * steps) // one, 2 * LABELS // numbers)
        draws = min(most_draws, max(FEWEST_DRAWS, min(each, LABELS // numbers), by_steps))
    block = max(BLOCK, inputs // MOST_BLOCKS)
    block = (HELD_BLOCK if draws == teacher.max_draws else block) // share
    return PoolSize(inputs, draws, min(block, max(1, BLOCK_NUMBERS // (draws * outputs))))


@torch.no_grad()
def labelled(
    batches: Batches, objective: Objective, steps: int = 0, progress: bool = False
) -> Pool:
    """The pool of these settings, after so many ``steps``; ``objective`` says what it keeps."""
    size, share = batches.settings.pool, batches.share
    # A stream moves on from call to call, so inputs are asked for as a run would ask.
    x = torch.cat([batches.policy.sample(share) for _ in range(max(1, size.inputs // share))])
    found: list[dict[str, Tensor]] = []
    blocks = ((len(block), block) for block in x.split(size.block))
    for block in tracked(blocks, "labelling", len(x), progress):
        draws = batches.ask(block, size.draws).to(batches.device, torch.float32)
        found.append(objective.statistics(draws))
    statistics = {name: torch.cat([each[name] for each in found]) for name in found[0]}
    taken = objective.batches(steps)
    return Pool(x.to(batches.device), statistics, taken)


@torch.no_grad()
def read_once(guide: nn.Module, pool: Pool) -> tuple[nn.Module, Pool]:
    """The guide and its inputs where what its trunk tells of them stays, as moments of logits do.

    It then has its own weights, and the pool what it reads in the place of the inputs.
    """
    trunk = getattr(guide, "trunk", None)
    if not (isinstance(trunk, MomentsTrunk) and trunk.stays):
        return guide, pool
    told = torch.cat([trunk.moments_at(in_dtype_of(guide, some)) for some in pool.x.split(ROWS)])
    rest = copy.copy(guide)
    rest._modules = {**guide._modules, "trunk": AfterMoments(trunk)}
    return rest, replace(pool, x=told)


def affordable(
    guide: nn.Module,
    objective: Objective,
    ask: Callable[[Tensor, int], Tensor],
    x: Tensor,
    draws: int,
    seconds: float,
    later: int,
) -> tuple[int, int]:
    """Steps, and inputs to label before them, that take so many seconds, by a trial of each.

    Args:
        guide: The student, which stays as it is.
        objective: The loss of the first phase.
        ask: The teacher, ``(x, num_draws) -> (S, N, ...)``.
        x: Inputs of a batch ``(N, ...)``, on the student's device.
        draws: Draws per input.
        seconds: How many there are.
        later: Draws at one input that are asked for after the steps.
    """
    student, loss = copy.deepcopy(guide), copy.deepcopy(objective)

    def now() -> float:
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        return time.perf_counter()

    for _ in range(2):  # the first call of anything is slow
        begun = now()
        statistics = objective.statistics(ask(x, draws).to(x.device, torch.float32))
        labelled = now()
        for parts in loss.of_step(student_at(student, x), statistics, x):
            torch.stack(list(parts.values())).sum().backward(retain_graph=True)
        step = now() - labelled
    label = (labelled - begun) / len(x)
    seconds -= later * label / draws
    steps = int(seconds * (1 - LABEL_SHARE) / (STEP_SPENT * step))
    inputs = int(seconds * LABEL_SHARE / label)
    return max(FEWEST_STEPS, steps), max(len(x), inputs)
