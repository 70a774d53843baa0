"""An objective with a critic: what a training loop must know to step both."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pyro_opu.distributions import SimplexDistribution
from pyro_opu.objectives.base import Objective


class Adversarial(Objective):
    """A loss whose witness is learned: a critic is stepped between the student's steps.

    The critic descends :meth:`critic_loss` by Adam; the student descends ``parts`` with the
    critic held. ``prepare`` must make the critic where the constructor has not.

    Attributes:
        critic: The adversary; ``None`` until it is prepared.
        critic_steps: Critic steps before each student step but the first.
        critic_warmup: Critic steps before the student's first step.
        critic_learning_rate: Adam's, for the critic.
        num_samples: Student draws per input.
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
        """Named terms that the critic minimises, scalars.

        Args:
            samples: Student draws ``(S', N, C)``, without gradient.
            draws: Teacher draws ``(S, N, C)``.
            x: Inputs ``(N, ...)``.
        """
        raise NotImplementedError

    def critic_parts(
        self, student: SimplexDistribution, draws: Tensor, x: Tensor
    ) -> dict[str, Tensor]:
        """:meth:`critic_loss` at fresh draws of the student, which is held."""
        return self.critic_loss(student.sample((self.num_samples,)), draws, x)
