"""What witnesses have learned, by draws that they have not seen."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_opu.metrics.distances import wasserstein1

__all__ = ["MOST_DRAWS", "MOST_INPUTS", "examined", "lower_bound"]

#: Draws of each side, and inputs, that examine.
MOST_DRAWS, MOST_INPUTS = 256, 64
#: A slope that counts as above 1: a soft penalty lets all be so by a little.
STEEP = 1.05


def examined(
    values: Tensor, gain: Tensor, slope: Tensor, draws: Tensor, samples: Tensor, order: int = 1
) -> dict[str, float]:
    """Signs, slopes and worth of witnesses, as plain numbers.

    Args:
        values: Values of the witnesses at the draws of teacher and student, ``(N, T + S)``.
        gain: The gain of each witness, ``(N,)``.
        slope: At other points, ``(N, P)``.
        draws: The teacher's ``(T, N, C)``.
        samples: The student's ``(S, N, C)``.
        order: The order of the norm that measures distances.

    Returns:
        "negative_gain", the share of witnesses on the wrong side; "slope", the mean one, and
        "steep", the share above 1; "value", the mean :func:`lower_bound` on W1 that the witnesses
        prove. For two classes "exact", the mean W1 of the same draws.
    """
    found = {
        "negative_gain": float((gain < 0).double().mean()),
        "slope": float(slope.mean()),
        "steep": float((slope > STEEP).double().mean()),
        "value": float(lower_bound(values, draws, samples, order).mean()),
    }
    if draws.shape[-1] == 2 and order == 1:
        found["exact"] = float(wasserstein1(draws, samples).mean())
    return found


def lower_bound(values: Tensor, draws: Tensor, samples: Tensor, order: int = 1) -> Tensor:
    r"""Lower bounds ``(N,)`` on W1 between draws, by witnesses of whatever slopes.

    .. math:: \bar\psi(\pi) = \min_j \psi(\pi_j) + \|\pi - \pi_j\|

    is the largest function of slope 1 at most below :math:`\psi` at the draws :math:`\pi_j` of
    both, so that what it gains is never above W1; it is :math:`\psi` where that has no slope above
    1. A soft penalty lets a witness gain about :math:`1 + 1/\lambda` times W1, and dividing by its
    largest slope would give away the rest. The better of :math:`\psi` and :math:`-\psi` counts.
    """
    points = torch.cat([draws, samples]).transpose(0, 1).to(values.dtype)
    apart = torch.cdist(points, points, p=order)
    found = []
    for signed in (values, -values):
        held = (signed[:, None] + apart).amin(-1)
        found.append(held[:, : len(draws)].mean(1) - held[:, len(draws) :].mean(1))
    return torch.stack(found).amax(0)
