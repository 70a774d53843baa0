"""The interface of objectives, and of those with a critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pyro_opu.distributions import Answer, as_answer


class Scratch(NamedTuple):
    """How a loss is stepped from scratch, in multiples of how the closed form is.

    Attributes:
        rate: Factor of Adam's rate, at the top of its schedule.
        steps: Factor of the steps of an effort.
        batch: Factor of the inputs in a batch.
    """

    rate: float = 1.0
    steps: float = 1.0
    batch: float = 1.0


class Objective(nn.Module):
    """A loss between a student's answers and a teacher's draws.

    ``objective(student, draws, x)`` is the sum of :meth:`parts`, a mean over the N inputs. One with
    a critic is an :class:`~pyro_opu.objectives.Adversarial`.

    Attributes:
        learning_rate: Student's learning rate after the warm start.
        betas: Adam's, for the student.
        most_draws: Most draws of the teacher per input and step of the warm start, where the loss
            costs more than cheap draws do.
        sufficient: Whether :meth:`statistics` are a few numbers per input, whatever the number of
            draws, and beside the answer all that the loss reads.
        pools_draws: Whether a pool may hold the draws themselves, which come again then.
        scratch: How the loss is stepped without a warm start.
        kept: Numbers that they hold for each that a draw says.
    """

    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    most_draws: int | None = None
    sufficient: bool = False
    pools_draws: bool = False
    scratch: Scratch = Scratch()
    kept: int = 1

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Let a class that redefines :meth:`parts` alone read the draws again."""
        super().__init_subclass__(**kwargs)
        if "parts" in vars(cls) and "parts_at" not in vars(cls):
            cls.sufficient = False
            cls.statistics, cls.parts_at = Objective.statistics, Objective.parts_at  # type: ignore[method-assign]

    def prepare(self, x: Tensor, num_classes: int) -> None:
        """Size whatever depends on the inputs ``(N, ...)``; called once before training."""

    def batches(self, steps: int) -> int:
        """Batches that so many first steps of the student read."""
        return steps

    def anneal(self, progress: float) -> None:
        """Called before every step with the fraction of the phase that is done, in [0, 1)."""

    def parts(self, student: Any, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """Named terms of the loss, each a scalar; their sum is the loss."""
        raise NotImplementedError

    def statistics(self, draws: Tensor) -> dict[str, Tensor]:
        """What the loss reads of the draws ``(S, N, K)``, inputs first; here the draws."""
        return {"draws": draws.movedim(1, 0)}

    def parts_at(self, student: Any, statistics: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        """:meth:`parts` from the :meth:`statistics` of the draws."""
        return self.parts(student, statistics["draws"].movedim(0, 1), x)

    def of_step(
        self, student: Answer, statistics: dict[str, Tensor], x: Tensor
    ) -> list[dict[str, Tensor]]:
        """The parts of all losses that a step descends, one after the other."""
        return [self.parts_at(student, statistics, x)]

    def extra_repr(self) -> str:
        """The settings; a checkpoint is resumed only with an objective that shows the same."""
        plain = (bool, int, float, str)
        settings = {k: v for k, v in vars(self).items() if isinstance(v, plain) and k != "training"}
        return ", ".join(f"{k}={v!r}" for k, v in settings.items() if not k.startswith("_"))

    def forward(self, student: Answer, draws: Tensor, x: Tensor) -> Tensor:
        """The loss, a scalar, in nats or in units of the ground metric.

        Args:
            student: The answers at N inputs, batch shape ``(N,)``.
            draws: Teacher's draws ``(S, N, C)`` on the simplex, or ``(S, N, 2)`` of a real y.
            x: Inputs ``(N, ...)``; only a critic reads them.
        """
        return torch.stack(list(self.parts(student, draws, x).values())).sum()


@dataclass
class Meeting:
    """A student and a teacher at N inputs; critic and student are stepped on the same draws.

    Attributes:
        x: Inputs ``(N, ...)``.
        draws: The teacher's ``(S, N, C)``.
        student: The student's answer, where its loss is asked for.
        samples: Its draws ``(S', N, C)``, with its gradient.
        weights: Weights of the strata of the samples; ``None`` is one stratum.
    """

    x: Tensor
    draws: Tensor
    student: Any
    samples: Tensor
    weights: Tensor | None = None


class Adversarial(Objective):
    """A loss whose witness is learned: a critic is stepped between the student's steps.

    The critic descends :meth:`critic_loss` by Adam; the student descends :meth:`parts_of` with the
    critic held, at the batch and the draws of the critic's last round. ``prepare`` must make the
    critic where the constructor has not. Attributes as of :class:`~pyro_opu.WassersteinELBO`.
    """

    betas = (0.5, 0.99)
    most_draws = 32
    pools_draws = True
    critic: nn.Module | None
    critic_steps: int = 1
    critic_warmup: int = 150
    critic_learning_rate: float = 4e-3
    num_samples: int = 32

    def critic_rounds(self, step: int) -> int:
        """Number of critic steps before the student's step of this number, from 0."""
        return self.critic_steps if step else self.critic_warmup

    def batches(self, steps: int) -> int:
        return sum(max(1, self.critic_rounds(step)) for step in range(steps))

    def critic_optimizer(self) -> torch.optim.Optimizer:
        """Adam for the critic, which must have been made."""
        assert self.critic is not None
        parameters = self.critic.parameters()
        return torch.optim.Adam(parameters, self.critic_learning_rate, betas=self.betas, fused=True)

    def meet(self, student: Answer, draws: Tensor, x: Tensor) -> Meeting:
        """Draw from the student, once for critic and student."""
        samples, weights = as_answer(student).stratified_rsample(self.num_samples)
        return Meeting(x, draws, student, samples, weights)

    def critic_loss(self, meeting: Meeting) -> dict[str, Tensor]:
        """Named terms that the critic minimises, scalars; the student is held."""
        raise NotImplementedError

    def parts_of(self, meeting: Meeting) -> dict[str, Tensor]:
        """Named terms that the student minimises, scalars; the critic is held."""
        raise NotImplementedError

    def parts(self, student: Answer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        return self.parts_of(self.meet(student, draws, x))

    def of_step(
        self, student: Answer, statistics: dict[str, Tensor], x: Tensor
    ) -> list[dict[str, Tensor]]:
        meeting = self.meet(student, statistics["draws"].movedim(0, 1), x)
        rounds = [self.critic_loss(meeting) for _ in range(self.critic_rounds(1))]
        return [*rounds, self.parts_of(meeting)]

    def examined(self, student: Answer, draws: Tensor, x: Tensor) -> dict[str, float]:
        """Named numbers of what the critic knows at draws ``(S, N, C)`` that it has not seen."""
        return {}
