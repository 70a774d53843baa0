"""What is read of each part of an outcome where draws are affine, and what is written of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_opu.distributions.normal_logits import LEAST, averaged_logit, moderated

__all__ = ["Kind", "kind_of"]

#: Aleatoric variance of a count beyond its mean, as a share of it, that is rounding; its logarithm.
NO_EXCESS, LOG_NO_EXCESS = 1e-4, -30.0


class Kind(NamedTuple):
    """What is read of each number of a part, affine, and what is written of it."""

    reads: int
    read: Callable[[Tensor], Tensor]  #: From draws ``(S, n, width)``, logarithms of probabilities.
    answer: Callable[[Tensor, Tensor], Tensor]  #: From means and variances ``(n, L, reads)``.
    head: Tensor  #: ``(outputs of the guide, writes)``.
    is_whole: bool = True  #: Whether that is all that the guide says, if the draws are normal.

    @property
    def writes(self) -> int:
        return self.head.shape[1]


def _log_odds(said: Tensor) -> Tensor:
    return said[..., 1:] - said[..., :1]


def _centred(said: Tensor) -> Tensor:
    return said - said.mean(-1, keepdim=True)


def _rate(said: Tensor) -> Tensor:
    """Log mean, and log of what the aleatoric variance is beyond it."""
    f = said[..., 0]
    excess = (2 * said[..., 1]).exp() - f
    none = excess <= NO_EXCESS * f
    return torch.stack([f.log(), torch.where(none, LOG_NO_EXCESS, excess.log())], -1)


def _as_said(said: Tensor) -> Tensor:
    return said


def _scale(said: Tensor) -> Tensor:
    return torch.stack([said[..., 0], said[..., 1].exp()], -1)


def _of_logit(mean: Tensor, variance: Tensor) -> Tensor:
    """Logit of the mean and log concentration ``(n, L, 2)``."""
    return torch.cat(averaged_logit(mean, variance), -1)


def _of_real(mean: Tensor, variance: Tensor) -> Tensor:
    """Mean and log variances ``(n, L, 3)``, by f and log sigma."""
    aleatoric = 2 * (mean[..., 1] + variance[..., 1])
    return torch.stack([mean[..., 0], aleatoric, variance[..., 0].clamp_min(LEAST).log()], -1)


def _of_scale(mean: Tensor, variance: Tensor) -> Tensor:
    """The same, by f and sigma."""
    aleatoric = (mean[..., 1].square() + variance[..., 1]).clamp_min(LEAST).log()
    return torch.stack([mean[..., 0], aleatoric, variance[..., 0].clamp_min(LEAST).log()], -1)


def _of_count(mean: Tensor, variance: Tensor) -> Tensor:
    """What :class:`~pyro_opu.guides.table.TableGuide` writes of a count ``(n, L, 3)``."""
    log_mean, log_excess = (mean + variance / 2).unbind(-1)
    aleatoric = (log_excess - log_mean).exp().log1p()
    return torch.stack([log_mean, aleatoric, variance[..., 0].clamp_min(LEAST).expm1().log()], -1)


#: Of a label of two classes.
LOGIT = Kind(1, _log_odds, _of_logit, torch.tensor([[-0.5, 0.0], [0.5, 0.0], [0.0, 1.0]]))
#: By the kind of a part that is no label; a real y by its log scale, or by its scale.
KINDS = {
    "real": Kind(2, _as_said, _of_real, torch.eye(3)),
    "scale": Kind(2, _scale, _of_scale, torch.eye(3)),
    "counts": Kind(2, _rate, _of_count, torch.eye(3)),
}


def kind_of(kind: str, width: int) -> Kind:
    """What is read of a part that draws say so many numbers of; of a label its logits.

    References:
        MacKay (1992), The evidence framework applied to classification networks, eq. 10, for
        several classes, whose log concentration is learnt.
    """
    if kind in KINDS or width == 2:
        return KINDS.get(kind, LOGIT)
    head = torch.eye(width + 1)[:, :width]
    return Kind(width, _centred, moderated, head, is_whole=False)
