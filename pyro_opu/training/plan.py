"""The plan of a run: its steps, batches and labels, made of numbers before the first step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pyro_opu.distributed import ALONE, Ranks
from pyro_opu.guides import PredictiveGuide
from pyro_opu.guides.base import in_dtype_of, student_at
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.judging import Judge
from pyro_opu.objectives import Objective
from pyro_opu.objectives.base import Scratch
from pyro_opu.programs.cost import counted, metered
from pyro_opu.rng import preserve_rng
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.training import tuned
from pyro_opu.training.clock import Clock, pace
from pyro_opu.training.console import foretold, say
from pyro_opu.training.held_out import number_kept
from pyro_opu.training.options import Request
from pyro_opu.utils.chunks import some_rows
from pyro_opu.utils.warnings import warn_user

__all__ = ["AT_REST", "Facts", "Plan", "affordable", "pass_operations", "plan_of", "trial"]


class Pace(NamedTuple):
    """Seconds that were measured.

    Attributes:
        label: To label an input.
        step: A loss and its gradient take so many for every input of a batch.
        judging: An evaluation takes so many.
    """

    label: float
    step: float
    judging: float = 0.0


class Affordable(NamedTuple):
    """What there is time for: a batch, steps, how often they are judged, and inputs to label."""

    batch_size: int
    steps: int
    evaluate_every: int
    inputs: int


#: Inputs of a batch, draws at each, and numbers in the draws that calibrate -> what there is time
#: for, and the seconds that come after the steps.
Trial = Callable[[int, int, int], tuple[Affordable, float]]


@dataclass(frozen=True)
class Facts:
    """What a plan rests on, of the teacher and of the student that is to be taught.

    Attributes:
        rows, columns: Transfer inputs to teach at, and numbers in one of them.
        num_outputs, max_draws, draw_cost: Numbers in what a draw says of an input; the draws that
            are held, ``None`` where they are drawn afresh; operations of one, where known.
        weights, width: Numbers in all weights of the student, and units of its widest layer: the
            smaller side of its weight, so that inputs and classes do not count.
        pass_cost: Operations of its pass at an input, where it is large.
        begins_near: Posterior draws whose mean errs as the student's does before the first step; 0
            where it is not asked, as of one with :attr:`one_logit`.
        one_logit: Whether it begins with what one normal logit averages to, which is exact.
        remakes: Whether its inputs are wide and can be made again, so that none need be held.
    """

    rows: int
    columns: int
    num_outputs: int
    max_draws: int | None = None
    draw_cost: int | None = None
    weights: int = 0
    width: int = 0
    pass_cost: int = 0
    begins_near: float = 0.0
    one_logit: bool = False
    remakes: bool = False

    @classmethod
    def of(
        cls,
        request: Request,
        guide: nn.Module,
        teacher: BaseTeacher,
        x: Tensor,
        held_out: Judge,
        begins_near: float | None = None,
        remakes: bool = False,
    ) -> Facts:
        """Measure what a plan of this request rests on, and what is not known of it yet."""
        matrices = (p.flatten(1).shape for p in guide.parameters() if p.ndim > 1)
        weights = sum(p.numel() for p in guide.parameters())
        trunk = guide.trunk if isinstance(guide, PredictiveGuide) else None
        known = isinstance(trunk, NetworkTrunk) and trunk.has_one_logit
        near = request.guide_is_open and request.effort == "default" and not known
        large = request.guide_is_open and weights > tuned.MANY
        if begins_near is None:
            begins_near = held_out.scores(guide)["draws"] if near else 0.0
        return cls(
            rows=len(x),
            columns=math.prod(x.shape[1:]),
            num_outputs=teacher.num_outputs,
            max_draws=teacher.max_draws,
            draw_cost=teacher.operations(x),
            weights=weights,
            width=max((min(shape) for shape in matrices), default=0),
            pass_cost=pass_operations(guide, held_out.x) if large else 0,
            begins_near=begins_near if near else 0.0,
            one_logit=known,
            remakes=remakes,
        )

    @property
    def rate(self) -> float:
        r"""Adam's rate by the width w, :math:`0.004 \min(1, 256 / w)`.

        References:
            Yang et al. (2021), Tensor Programs V, table 3: Adam's rate falls as one over the width.
        """
        return tuned.RATE * min(1.0, tuned.NARROW / max(1, self.width))

    @property
    def largest_batch(self) -> int:
        """Most inputs in a batch, by memory."""
        by_outputs = tuned.OUTPUTS_OF_BATCH // self.num_outputs
        most = min(tuned.INPUTS_OF_BATCH // max(1, self.columns), by_outputs)
        return max(tuned.LEAST_BATCH, most)

    def draws_of_step(self, batch_size: int, most: int | None = None) -> tuple[int, int]:
        """Draws per input in a step of the warm start, at most ``most``, and of the objective."""
        later = min(tuned.NUM_DRAWS, self.max_draws or tuned.NUM_DRAWS)
        if self.draw_cost is None:
            return later, later
        cheap = min(
            tuned.CHEAP_OPERATIONS // max(1, batch_size * self.draw_cost),
            tuned.CHEAP_NUMBERS // (batch_size * self.num_outputs),
        )
        warm = max(later, min(cheap, self.max_draws or tuned.MOST_DRAWS))
        return warm if most is None else min(warm, most), later

    def labels(
        self,
        objective: Objective,
        wanted: int,
        draws: int,
        fixed: bool,
        share: int = 1,
        steps: int = 0,
    ) -> tuple[int, int, int]:
        """Inputs that are labelled once, draws at each, and inputs of a block, which share draws.

        By cost and memory; all are 0 where batches are labelled as they come, as where the loss
        reads every draw. A student that meets the same few draws again would learn their luck. A
        critic lets it learn less: there may be as many draws as a step takes.

        Args:
            objective: The loss that reads them.
            wanted: Inputs in all steps together, or fewer.
            draws, fixed: Draws per input where they are fixed, or the cost of one is not known.
            share: The labels are to cost one over so much of what they may, in as many blocks.
            steps: Operations of all steps; 0 where they do not count.
        """
        outputs, cost = self.num_outputs, self.draw_cost
        kept = outputs * draws if objective.pools_draws else outputs * objective.kept + 2
        fixed = fixed or objective.pools_draws
        most = tuned.MOST_LABELS // tuned.FEWEST_DRAWS // outputs
        columns = 0 if self.remakes else self.columns
        inputs = min(wanted, tuned.POOL_NUMBERS // (columns + kept), most)
        readable = objective.sufficient or objective.pools_draws
        if not readable or not inputs or inputs < min(tuned.FEWEST, wanted):
            return 0, 0, 0
        if inputs < tuned.FEWEST and inputs * columns > tuned.HELD_NUMBERS:
            return 0, 0, 0
        if not fixed and cost is not None:
            whole = inputs * share
            most_draws = self.max_draws or tuned.MOST_DRAWS
            one, numbers = whole * max(1, cost), whole * outputs
            each = tuned.OPERATIONS // one
            if each < most_draws:
                each = min(each, tuned.JOINT_DRAWS * tuned.BLOCK // whole)
            by_steps = int(tuned.LABELS_BY_STEPS * steps) // one
            by_steps = min(by_steps, 2 * tuned.LABELS // numbers)
            each = max(min(each, tuned.LABELS // numbers), by_steps)
            draws = min(most_draws, max(tuned.FEWEST_DRAWS, each))
        block = max(tuned.BLOCK, inputs // tuned.MOST_BLOCKS)
        block = (tuned.HELD_BLOCK if draws == self.max_draws else block) // share
        return inputs, draws, min(block, self.rows_at_once(draws))

    def rows_at_once(self, draws: int) -> int:
        """Inputs in a block with so many draws at each, by memory."""
        return max(1, tuned.BLOCK_NUMBERS // max(draws * self.num_outputs, self.columns))

    def is_remade(self, inputs: int) -> bool:
        """Whether so many inputs are made again, batch by batch, rather than held."""
        return self.remakes and inputs * self.columns > tuned.HELD_NUMBERS


@dataclass(frozen=True)
class Plan:
    """Numbers of a run, the same on all ranks.

    Attributes:
        warm_steps, refine_steps: Steps of the closed-form warm start, and of the objective.
        batch_size: Inputs in a batch of all ranks.
        warm_draws, num_draws: Teacher's draws per input in a step of the warm start, and after it.
        learning_rate: At the top of the first phase's schedule.
        labelled, label_draws, label_block: Inputs of a rank that are labelled once, 0 where batches
            are labelled as they come; draws at each; inputs that share draws.
        remade, step_block: Whether these inputs are made again, batch by batch, rather than held;
            inputs of a batch whose draws are held at once, where the loss keeps none.
        calibration: Numbers in the draws that calibrate.
        follows: Whether the student begins at an earlier one.
        after: Seconds that come after the steps, where seconds are given.
    """

    warm_steps: int
    refine_steps: int
    batch_size: int
    warm_draws: int
    num_draws: int
    learning_rate: float
    evaluate_every: int
    labelled: int = 0
    label_draws: int = 0
    label_block: int = 0
    remade: bool = False
    step_block: int = 0
    calibration: int = 0
    follows: bool = False
    after: float = 0.0

    @property
    def num_steps(self) -> int:
        """Steps of both phases."""
        return self.warm_steps + self.refine_steps

    def seconds(self, pace: Pace, rows: int, outputs: int) -> tuple[float, float]:
        """Seconds of labels and of steps, at most: many students rest before all are taken.

        Args:
            pace: With :attr:`draws_of_label` of this plan at an input.
            rows: Inputs that may calibrate.
            outputs: Numbers in what a draw says of one.
        """
        calibrating = min(self.calibration // outputs, tuned.LABEL_DRAWS * rows)
        inputs = self.labelled or self.num_steps * self.batch_size
        inputs += calibrating // self.draws_of_label
        return inputs * pace.label, tuned.STEP_SPENT * self.num_steps * self.batch_size * pace.step

    @property
    def draws_of_label(self) -> int:
        """Draws at an input that teaches."""
        return self.label_draws or self.warm_draws

    @classmethod
    def of(
        cls,
        request: Request,
        facts: Facts,
        closed_form: Objective,
        objective: Objective,
        *,
        ranks: int = 1,
        trial: Trial | None = None,
    ) -> Plan:
        """The plan of what was asked for; the ``trial`` is for an effort in seconds."""
        training, effort, given = request.training, request.effort, request.training.num_draws
        first = closed_form if training.warm_start else objective
        scratch = Scratch() if training.warm_start else objective.scratch
        many = facts.weights > tuned.MANY
        large = many and request.guide_is_open
        batch_size = training.batch_size or round(
            scratch.batch * (tuned.LARGE_BATCH if large else tuned.BATCH)
        )
        if not training.batch_size:
            batch_size = min(batch_size, facts.largest_batch)
        if request.single_draw:
            batch_size, given = -(-batch_size // 2), 2
        if given is None:
            warm_draws, num_draws = facts.draws_of_step(batch_size, first.most_draws)
        else:
            warm_draws = num_draws = min(given, facts.max_draws or given)
        fewer_steps, fewer_labels = request.share
        one_logit = facts.one_logit and request.guide_is_open and not request.follows
        by_logit = tuned.ONE_LOGIT if one_logit else 1
        calibration = tuned.CALIBRATION_NUMBERS // (fewer_steps * by_logit)
        evaluate_every, after = training.evaluate_every, 0.0
        if isinstance(effort, str):
            near = one_logit or facts.begins_near >= tuned.BEGINS_NEAR
            if request.guide_is_open and effort == "default" and near:
                effort = "quick"
            steps, most = tuned.EFFORTS[effort]
            steps = round(steps * scratch.steps) // fewer_steps
            if large and not training.batch_size:
                most *= tuned.LARGE_BATCH // tuned.BATCH
            most //= fewer_labels
        else:
            assert trial is not None
            calibration = min(calibration, int(tuned.BY_SECOND * effort))
            found, after = trial(batch_size, warm_draws, calibration)
            steps, most = found.steps, found.inputs * ranks
            batch_size = training.batch_size or found.batch_size
            evaluate_every = min(evaluate_every, found.evaluate_every)
        if request.single_draw:
            most = -(-most // 2)
        steps = training.num_steps or steps
        warm_steps = 0
        if training.warm_start:  # all, if the objective is of the same kind
            same = isinstance(objective, type(closed_form))
            warm_steps = steps if same else max(1, round(tuned.WARM_SHARE * steps))
        opening = first.batches(warm_steps or steps)
        cost = 3 * opening * batch_size * facts.pass_cost if large else 0
        labelled, label_draws, block = facts.labels(
            first,
            min(opening * batch_size, most),
            warm_draws,
            training.num_draws is not None or not isinstance(effort, str),
            fewer_labels * by_logit * request.thrift,
            cost,
        )
        fewest = min(tuned.FEWEST_DRAWS, facts.max_draws or tuned.FEWEST_DRAWS)
        chosen = given is not None and not request.single_draw and isinstance(effort, str)
        if labelled < opening * batch_size and many and chosen and num_draws < fewest:
            labelled = label_draws = block = 0  # it would learn the luck of few draws by heart
        if request.single_draw:  # as many sets of draws, which a block shares, as of 32 each
            block = max(1, block * 2 // tuned.FEWEST_DRAWS)
        return cls(
            warm_steps,
            steps - warm_steps,
            batch_size,
            warm_draws,
            num_draws,
            training.learning_rate or scratch.rate * facts.rate,
            evaluate_every,
            -(-labelled // ranks),  # they share the labels, too
            label_draws,
            block,
            facts.is_remade(labelled),
            facts.rows_at_once(warm_draws),
            calibration,
            request.follows,
            after,
        )


#: Of a student that takes no step.
AT_REST = Plan(0, 0, 1, 1, 1, 0.0, 1)


def plan_of(
    request: Request,
    guide: nn.Module,
    closed_form: Objective,
    objective: Objective,
    teacher: BaseTeacher,
    x: Tensor,
    held_out: Judge,
    ranks: Ranks = ALONE,
    begins_near: float | None = None,
    progress: bool = False,
    remakes: bool = False,
) -> Plan:
    """Measure what a :class:`Plan` rests on, and make it.

    Args:
        request: What was asked for.
        guide, closed_form, objective: The student, and its two losses.
        teacher: It has seen an input.
        x: The inputs to teach at.
        held_out: What judges the student.
        ranks: The ranks of the run.
        begins_near: What :class:`Facts` calls so, where it is known.
        progress: Whether to say how long it will take, where that is long.
        remakes: What :class:`Facts` calls so.
    """
    # What rank 0 measures: machines may differ in what they count.
    facts = ranks.broadcast(Facts.of(request, guide, teacher, x, held_out, begins_near, remakes))
    first = closed_form if request.training.warm_start else objective
    clock = request.clock

    def measured(batch_size: int, draws: int) -> Pace:
        some = some_rows(x, batch_size).to(held_out.x.device)
        return Pace(*trial(guide, first, teacher.draws, some, draws, clock.telling))

    def tried(batch_size: int, draws: int, calibration: int) -> tuple[Affordable, float]:
        begun = clock.spent
        held_out.scores(guide)
        judging = clock.spent - begun
        pace = measured(batch_size, draws)._replace(judging=judging)
        asked = min(tuned.LABEL_DRAWS * len(x), calibration / facts.num_outputs)
        kept = tuned.LABEL_DRAWS * number_kept(len(x))
        labels = [count * pace.label / draws for count in (asked, kept)]
        after = after_steps(pace, clock.seconds, labels, calibration)
        left = clock.seconds - clock.spent - after
        found = affordable(pace, left, batch_size)
        if ranks.first:
            warn_of_haste(clock, teacher.seconds, after, left)
        return ranks.broadcast((found, after))

    def planned(request: Request) -> Plan:
        return Plan.of(request, facts, closed_form, objective, ranks=ranks.size, trial=tried)

    plan = planned(request)
    if progress and not clock.runs and not request.single_draw:  # where queries do not cost much
        pace, sizes = measured(plan.batch_size, plan.draws_of_label), (len(x), facts.num_outputs)
        quick = None
        if request.effort != "quick":
            quick = sum(planned(replace(request, effort="quick")).seconds(pace, *sizes))
        gpu = torch.cuda.is_available() and not held_out.x.is_cuda
        say(foretold(*plan.seconds(pace, *sizes), quick, gpu))
    return plan


def after_steps(pace: Pace, seconds: float, labels: Sequence[float], numbers: int) -> float:
    """Seconds that come after the steps: of labels that calibrate and that bound, and the rest."""
    asked = sum(min(each, tuned.JUDGING_SHARE * seconds) for each in labels)
    judged = tuned.EVALUATED_AFTER * pace.judging
    return asked + numbers * tuned.OF_NUMBER + judged + tuned.NOVELTY_SHARE * seconds + tuned.BESIDE


def affordable(pace: Pace, seconds: float, batch_size: int) -> Affordable:
    """What so many seconds are enough for, at this pace and with batches of at most this size."""
    spent = (1 - tuned.LABEL_SHARE) * seconds
    while batch_size > tuned.LEAST_BATCH and spent < tuned.MANY_STEPS * batch_size * pace.step:
        batch_size //= 2
    steps = max(tuned.FEWEST_STEPS, int(spent / (batch_size * pace.step)))
    fewest, most = tuned.EVALUATIONS
    times = min(most, max(fewest, int(tuned.EVALUATED_SHARE * spent / max(pace.judging, 1e-6))))
    inputs = max(batch_size, int(tuned.LABEL_SHARE * seconds / pace.label))
    often = max(1, steps // times) if seconds > 0 else 1
    return Affordable(batch_size, steps, often, inputs)


def warn_of_haste(clock: Clock, asking: float, after: float, left: float) -> None:
    """Say that the seconds are too few, where they are as good as gone before the first step."""
    if left > 0:
        return
    warn_user(
        f"`effort` leaves no time to teach: of {clock.seconds:.3g} seconds {clock.spent:.3g} went "
        f"by before the first step, {asking:.3g} of them in `source`, and what comes after the "
        f"last takes about {after:.2g}. The student stays nearly as it begins. Give it "
        f"{3 * (clock.spent + after):.2g} seconds or more."
    )


def pass_operations(guide: nn.Module, x: Tensor) -> int:
    """Floating-point operations of a guide's pass per input."""
    with torch.no_grad(), preserve_rng(), counted(), metered() as meter:
        guide(in_dtype_of(guide, x[:2]))
    return (meter.operations or 0) // 2


def trial(
    guide: nn.Module,
    objective: Objective,
    ask: Callable[[Tensor, int], Tensor],
    x: Tensor,
    draws: int,
    telling: float = tuned.TELLING,
) -> tuple[float, float]:
    """Seconds to label an input, and of a loss and its gradient for every input of a batch ``x``.

    The trial is with copies of the guide and the loss; ``ask(x, num_draws)`` gives so many draws.
    """
    student, loss = copy.deepcopy(guide), copy.deepcopy(objective)

    def label(rows: int) -> dict[str, Tensor]:
        return objective.statistics(ask(x[:rows], draws).to(x.device, torch.float32))

    with preserve_rng():
        few = label(1)

    def step(rows: int) -> None:
        some = {name: value.repeat_interleave(rows, 0) for name, value in few.items()}
        for parts in loss.of_step(student_at(student, x[:rows]), some, x[:rows]):
            torch.stack(list(parts.values())).sum().backward(retain_graph=True)

    with preserve_rng():
        of_label = pace(label, len(x), x.device, telling)
        return of_label, pace(step, len(x), x.device, telling, tuned.LEAST_BATCH)
