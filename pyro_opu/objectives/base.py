"""The interface of objectives, and of those with a critic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.distributions import SimplexDistribution


class Objective(nn.Module):
    """A loss between a student's answers and a teacher's draws.

    ``objective(student, draws, x)`` is the sum of :meth:`parts`, a mean over the N inputs. One with
    a critic is an :class:`~pyro_opu.objectives.Adversarial`.

    Attributes:
        learning_rate: Student's learning rate after the warm start.
        alternate: Whether h and g are stepped in turn (Algorithm 1 of Cui et al.).
        betas: Adam's, for the student.
        most_draws: Most draws of the teacher per input and step of the warm start, where the loss
            costs more than cheap draws do.
        sufficient: Whether :meth:`statistics` are a few numbers per input, whatever the number of
            draws.
        kept: Numbers that they hold for each that a draw says.
    """

    learning_rate: float = 1e-4
    alternate: bool = False
    betas: tuple[float, float] = (0.9, 0.99)
    most_draws: int | None = None
    sufficient: bool = False
    kept: int = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let a class that redefines :meth:`parts` alone read the draws again."""
        super().__init_subclass__(**kwargs)
        if "parts" in vars(cls) and "parts_at" not in vars(cls):
            cls.sufficient = False
            cls.statistics, cls.parts_at = Objective.statistics, Objective.parts_at  # type: ignore[method-assign]

    def prepare(self, x: Tensor, num_classes: int) -> None:
        """Size whatever depends on the inputs ``(N, ...)``; called once before training."""

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

    def extra_repr(self) -> str:
        """The settings; a checkpoint is resumed only with an objective that shows the same."""
        plain = (bool, int, float, str)
        settings = {k: v for k, v in vars(self).items() if isinstance(v, plain) and k != "training"}
        return ", ".join(f"{k}={v!r}" for k, v in settings.items() if not k.startswith("_"))

    def forward(self, student: Any, draws: Tensor, x: Tensor) -> Tensor:
        """The loss, a scalar, in nats or in units of the ground metric.

        Args:
            student: The answers at N inputs, batch shape ``(N,)``.
            draws: Teacher's draws ``(S, N, C)`` on the simplex, or ``(S, N, 2)`` of a real y.
            x: Inputs ``(N, ...)``; only a critic reads them.
        """
        return torch.stack(list(self.parts(student, draws, x).values())).sum()


class Adversarial(Objective):
    """A loss whose witness is learned: a critic is stepped between the student's steps.

    The critic descends :meth:`critic_loss` by Adam; the student descends ``parts`` with the critic
    held. ``prepare`` must make the critic where the constructor has not. Attributes as of
    :class:`~pyro_opu.WassersteinELBO`.
    """

    betas = (0.5, 0.99)
    critic: nn.Module | None
    critic_steps: int = 2
    critic_warmup: int = 150
    critic_learning_rate: float = 1e-3
    num_samples: int = 32

    def critic_rounds(self, step: int) -> int:
        """Number of critic steps before the student's step of this number, from 0."""
        return self.critic_steps if step else self.critic_warmup

    def critic_optimizer(self) -> torch.optim.Optimizer:
        """Adam for the critic, which must have been made."""
        assert self.critic is not None
        parameters = self.critic.parameters()
        return torch.optim.Adam(parameters, self.critic_learning_rate, betas=self.betas)

    def critic_loss(self, samples: Tensor, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """Named terms that the critic minimises, scalars; ``samples`` are the student's draws."""
        raise NotImplementedError

    def critic_parts(
        self, student: SimplexDistribution, draws: Tensor, x: Tensor
    ) -> dict[str, Tensor]:
        """:meth:`critic_loss` at fresh draws of the student, which is held."""
        return self.critic_loss(student.sample((self.num_samples,)), draws, x)
