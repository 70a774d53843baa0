"""Sums and differences over the rows of a pool: their posterior, variance and covariance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_opu.inputs import InputLike
from pyro_opu.joint.draws import joint_draws
from pyro_opu.rng import seeded
from pyro_opu.teachers import Source

__all__ = ["Total", "covariance", "total"]


@dataclass(frozen=True, eq=False)
class Total:
    """The posterior of a weighted sum over the rows of a pool, in float64.

    Attributes:
        draws: The sum's expectation over y under each posterior draw, ``(S,)``.
        outcomes: The sum with y drawn too, under each posterior draw, ``(S,)``.
        mean: Scalar.
        epistemic: Variance of ``draws``: what more data would take away. Scalar.
        aleatoric: Expected variance of the sum under a draw: the noise of all rows. Scalar.
    """

    draws: Tensor
    outcomes: Tensor
    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor

    @property
    def variance(self) -> Tensor:
        """``epistemic + aleatoric``, scalar."""
        return self.epistemic + self.aleatoric

    def __repr__(self) -> str:
        parts = (f"{name} {float(getattr(self, name)):.4g}" for name in ("mean", "variance"))
        return f"Total({', '.join(parts)}, of it epistemic {float(self.epistemic):.4g})"


def total(
    source: Source,
    x: InputLike,
    weights: Tensor | None = None,
    *,
    num_draws: int | None = None,
    seed: int | None = None,
) -> Total:
    r"""The posterior of a sum over the rows of a pool, such as how many of them are of a class.

    .. math:: \sum_n w_{n, y_n} \quad\text{or, of a real y,}\quad \sum_n w_n y_n

    Rows share the posterior draw, so that their errors add up: with the variances of the rows alone
    the epistemic part would be too small. The noise is independent between rows given the draw.

    Args:
        source, num_draws, seed: As in :func:`~pyro_opu.joint.joint_draws`.
        x: The pool, ``(N, ...)``.
        weights: What each class counts, ``(C,)``, or in each row, ``(N, C)``; with two classes by
            default the rows of class 1 are counted. With a real y a factor per row, ``(N,)``, by
            default 1. Weights of 1 and -1 make a difference, 1 / N a mean.

    Returns:
        Draws ``(S,)``, mean and both variances.

    Raises:
        TypeError: a marginal student; no ``weights`` for more than two classes.
        ValueError: ``weights`` of another shape.

    Example:
        >>> slopes = torch.tensor([1.0, 2.0, 3.0])
        >>> line = lambda x: (slopes[:, None] * x[:, 0], torch.ones(3, 1))
        >>> total(line, torch.ones(10, 1)).epistemic, total(line, torch.ones(10, 1)).aleatoric
        (tensor(100., dtype=torch.float64), tensor(10., dtype=torch.float64))
    """
    pool = joint_draws(source, x, num_draws, seed)
    with torch.no_grad(), seeded(seed):
        draws = pool.values(weights).sum(1)
        noise = pool.noise(weights).sum(1).mean()
        return Total(draws, pool.outcomes(weights).sum(1), draws.mean(), draws.var(), noise)


def covariance(
    source: Source,
    x: InputLike,
    weights: Tensor | None = None,
    *,
    num_draws: int | None = None,
    seed: int | None = None,
) -> Tensor:
    """Epistemic covariance between the rows of a pool, of what each row counts.

    The noise of y adds its variance to the diagonal; given the draw, rows are independent.

    Args:
        source, x, weights, num_draws, seed: As in :func:`~pyro_opu.joint.total`.

    Returns:
        ``(N, N)`` in float64, unbiased; its sum is the epistemic variance of the total.

    Example:
        >>> slopes = torch.tensor([1.0, 2.0, 3.0])
        >>> line = lambda x: (slopes[:, None] * x[:, 0], torch.ones(3, 1))
        >>> covariance(line, torch.tensor([[1.0], [-2.0]]))
        tensor([[ 1., -2.],
                [-2.,  4.]], dtype=torch.float64)
    """
    with torch.no_grad():
        values = joint_draws(source, x, num_draws, seed).values(weights)
        return torch.cov(values.mT).reshape(values.shape[1], -1)
