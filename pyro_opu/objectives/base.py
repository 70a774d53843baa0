"""What an objective is: one number to be made small, from the student, the draws and x."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pyro_opu.distributions import Answer


class Objective(nn.Module):
    """A loss between a student's Dirichlet and a teacher's draws, called the same way for all.

    ``objective(student, draws, x)`` is the sum of :meth:`parts`, a mean over the N inputs. One with
    a critic is an :class:`~pyro_opu.objectives.Adversarial`.

    Attributes:
        learning_rate: Student's learning rate that suits this loss after the warm start.
        alternate: Whether h and g are stepped in turn (Algorithm 1 of Cui et al.).
        betas: Adam's, for the student.
        most_draws: Teacher's draws per input in a step of the warm start, at most, where the loss
            itself costs more than cheap draws do.
    """

    learning_rate: float = 1e-4
    alternate: bool = False
    betas: tuple[float, float] = (0.9, 0.99)
    most_draws: int | None = None

    def prepare(self, x: Tensor, num_classes: int) -> None:
        """Size whatever depends on the inputs ``(N, ...)``; called once before training."""

    def anneal(self, progress: float) -> None:
        """Called before every step with the share of the phase that is done, in [0, 1)."""

    def parts(self, student: Answer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """Named terms of the loss, each a scalar; their sum is the loss."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """The settings; a checkpoint is only resumed by an objective that shows the same."""
        plain = (bool, int, float, str)
        settings = {k: v for k, v in vars(self).items() if isinstance(v, plain) and k != "training"}
        return ", ".join(f"{k}={v!r}" for k, v in settings.items() if not k.startswith("_"))

    def forward(self, student: Answer, draws: Tensor, x: Tensor) -> Tensor:
        """The loss.

        Args:
            student: A Dirichlet, or another distribution on the simplex, batch shape ``(N,)``.
            draws: Teacher's draws ``(S, N, C)`` on the simplex.
            x: Inputs ``(N, ...)``; only a critic looks at them.

        Returns:
            Scalar tensor, in nats or in units of the ground metric.
        """
        return torch.stack(list(self.parts(student, draws, x).values())).sum()


def cross_entropy(student: Answer, draws: Tensor) -> Tensor:
    r"""Expected negative log-likelihood of labels drawn from the teacher's predictive, in nats.

    .. math:: -\mathbb{E}_x \sum_k \bar\pi_k \log h_k(x), \quad \bar\pi = \tfrac1S \sum_s \pi_s

    Args:
        student: Batch ``(N,)``, event ``(C,)``.
        draws: ``(S, N, C)``.

    Returns:
        Scalar; at least the entropy of the teacher's mean.
    """
    log_mean = getattr(student, "log_mean", None)
    if log_mean is None:
        log_mean = student.mean.clamp_min(torch.finfo(student.mean.dtype).tiny).log()
    return -(draws.mean(0) * log_mean).sum(-1).mean()
