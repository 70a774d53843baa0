"""What is read of each part of an outcome where draws are affine, and what is written of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_opu.distributions.normal_logits import LEAST

__all__ = ["Kind", "kind_of", "label_head"]

#: Aleatoric variance of a count beyond its mean, as a share of it, that is rounding; its logarithm.
NO_EXCESS, LOG_NO_EXCESS = 1e-4, -30.0


class Kind(NamedTuple):
    """What is read of each number of a part, affine, and what is written of it."""

    reads: int
    read: Callable[[Tensor], Tensor]  #: From draws ``(S, n, width)``, logarithms of probabilities.
    head: Tensor  #: ``(outputs of the guide, writes)``.
    #: From means and variances ``(n, L, reads)``; of logits their covariances decide.
    answer: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def joint(self) -> bool:
        """Whether it is a label."""
        return self.answer is None

    @property
    def writes(self) -> int:
        return self.head.shape[1]


def _log_odds(said: Tensor) -> Tensor:
    return said[..., 1:] - said[..., :1]


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


#: By the kind of a part that is no label; a real y by its log scale, or by its scale.
KINDS = {
    "real": Kind(2, _as_said, torch.eye(3), _of_real),
    "scale": Kind(2, _scale, torch.eye(3), _of_scale),
    "counts": Kind(2, _rate, torch.eye(3), _of_count),
}


def kind_of(kind: str, width: int) -> Kind:
    """What is read of a part that draws say so many numbers of; of a label its logits."""
    return KINDS.get(kind) or Kind(width - 1, _log_odds, label_head(width))


def label_head(classes: int) -> Tensor:
    """Class logits of mean 0 and log alpha_0, from logits above the first's and log alpha_0."""
    logits = torch.eye(classes)[:, 1:] - 1.0 / classes
    return torch.block_diag(logits, torch.ones(1, 1))
