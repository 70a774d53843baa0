"""Sinkhorn divergence: optimal transport between clouds of draws, blurred a little."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_opu.checks import in_range, positive_float, positive_int
from pyro_opu.distributions import Answer, stratified_draws
from pyro_opu.objectives.base import Objective

#: Largest l1 distance of two points of the simplex, the blur that the iterations start from.
DIAMETER = 2.0


def _samples_loss() -> Callable[..., Callable[..., Tensor]]:
    """geomloss's class of losses between samples."""
    try:
        from geomloss import SamplesLoss
    except ImportError as error:
        raise ImportError(
            "the Sinkhorn divergence needs the package geomloss, which is not installed: "
            'pip install "pyro_opu[sinkhorn]". EnergyDistance needs nothing more and is close.'
        ) from error
    return SamplesLoss


def _l1_cost(points: Tensor, others: Tensor) -> Tensor:
    return torch.cdist(points, others, p=1.0)


def sinkhorn_divergence(
    student: Tensor,
    teacher: Tensor,
    *,
    blur: float,
    scaling: float = 0.7,
    weights: Tensor | None = None,
) -> Tensor:
    r"""Debiased entropic transport cost with the l1 ground metric per input.

    .. math::
        \mathrm{OT}_\varepsilon(q, p) - \tfrac12 \mathrm{OT}_\varepsilon(q, q)
        - \tfrac12 \mathrm{OT}_\varepsilon(p, p), \qquad
        \mathrm{OT}_\varepsilon(q, p) = \min_\gamma
        \mathbb{E}_\gamma \|\pi - \pi'\|_1 + \varepsilon\, \mathrm{KL}(\gamma \,\|\, q \otimes p)

    It goes from :math:`W_1` at :math:`\varepsilon \to 0` to half the energy distance at
    :math:`\varepsilon \to \infty`. The blur falls by a constant factor from the diameter of the
    simplex, one iteration each (geomloss, with dense tensors: all inputs at once, on any device,
    nothing compiled). What is not converged then makes the value too low: found at 30 draws, by up
    to 1 % at a blur of 0.2 and a factor of 0.7, and at a blur of 0.001 by up to 11 %, or 4 % with
    a factor of 0.9. The gradient is that of a converged plan, held fixed.

    Args:
        student: Draws ``(S, N, C)``.
        teacher: Draws ``(T, N, C)``.
        blur: :math:`\varepsilon`, in units of the l1 distance.
        scaling: Factor on the blur from one iteration to the next, in (0, 1).
        weights: Of K strata of S / K student draws each, one after the other, ``(K, N)``, summing
            to one over K; by default one stratum.

    Returns:
        ``(N,)``, differentiable in ``student`` and ``weights``.

    Raises:
        ImportError: geomloss is not installed.

    References:
        Feydy, Sejourne, Vialard, Amari, Trouve and Peyre (2019), Interpolating between optimal
        transport and MMD using Sinkhorn divergences, eq. 3.
    """
    loss = _samples_loss()(
        "sinkhorn",
        p=1,
        blur=blur,
        diameter=DIAMETER,
        scaling=scaling,
        cost=_l1_cost,
        backend="tensorized",
    )
    mine, other = (draws.transpose(0, 1).contiguous() for draws in (student, teacher))
    if weights is None:
        return loss(mine, other)
    size = len(student) // len(weights)
    each = (weights / size).T.repeat_interleave(size, -1).contiguous()
    return loss(each, mine, other.new_full(other.shape[:2], 1 / len(teacher)), other)


class Sinkhorn(Objective):
    r"""Sinkhorn divergence between the teacher's draws and draws of the student.

    Optimal transport without a critic (:func:`.sinkhorn_divergence`). Like every transport cost
    between finite clouds it is not zero between two clouds of one distribution, and it is less
    where the student's cloud is tighter: it prefers students that are too sure, the more so the
    smaller the blur. Found between 32 draws and 32 of a Dirichlet of 10 classes with
    :math:`\alpha_0 = 100`, the best student has 2.9 times that at a blur of 0.05, 1.4 times at 0.2
    and 1.05 times at 1. A large blur leaves little that sets it apart from
    :class:`~pyro_opu.EnergyDistance`, which has no such bias.

    Args:
        blur: :math:`\varepsilon`, in units of the l1 distance.
        scaling: Factor on the blur from one iteration to the next, in (0, 1); the nearer to 1 the
            better converged, which a blur below 0.1 needs.
        num_samples: Student draws per input.

    Raises:
        ValueError: a blur that is not positive, a scaling outside (0, 1), or fewer than two
            samples.
        ImportError: geomloss is not installed.

    References:
        Feydy, Sejourne, Vialard, Amari, Trouve and Peyre (2019), Interpolating between optimal
        transport and MMD using Sinkhorn divergences; Genevay, Peyre and Cuturi (2018), Learning
        generative models with Sinkhorn divergences.
    """

    learning_rate = 3e-5

    def __init__(self, blur: float = 0.2, scaling: float = 0.7, num_samples: int = 32) -> None:
        super().__init__()
        positive_float("blur", blur)
        in_range("scaling", scaling, 0, 1, "()")
        positive_int("num_samples", num_samples, 2)
        _samples_loss()
        self.blur, self.scaling, self.num_samples = blur, scaling, num_samples

    def parts(self, student: Answer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"sinkhorn"}``."""
        samples, weights = stratified_draws(student, self.num_samples)
        value = sinkhorn_divergence(
            samples, draws, blur=self.blur, scaling=self.scaling, weights=weights
        )
        return {"sinkhorn": value.mean()}
