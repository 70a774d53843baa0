"""Scores of predicted probabilities on labelled data: accuracy, NLL, Brier score, ECE."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, check_labels, check_log_probs, check_probs, positive_int

__all__ = ["Calibration", "calibration", "expected_calibration_error"]


@dataclass(frozen=True)
class Calibration:
    r"""Scores of predicted class probabilities :math:`p_n` against labels :math:`y_n`.

    The Brier score is :math:`\frac{1}{N} \sum_n \sum_k (p_{nk} - 1[y_n = k])^2`, from 0 to 2.
    """

    accuracy: float  #: Share of inputs whose likeliest class is the label.
    nll: float  #: Negative log-likelihood, nats.
    brier: float
    ece: float  #: `expected_calibration_error`.


def calibration(log_probs: Tensor, y: Tensor) -> Calibration:
    """All scores of normalised log-probabilities ``(N, C)`` and integer labels y ``(N,)``.

    Example:
        >>> calibration(torch.tensor([[0.8, 0.2], [0.6, 0.4]]).log(), torch.tensor([0, 1])).accuracy
        0.5
    """
    y = _labels(y, check_log_probs("log_probs", log_probs, "(N, C)"))
    log_probs = log_probs.double()
    probs = log_probs.exp()
    hit = torch.nn.functional.one_hot(y, probs.shape[-1])
    return Calibration(
        accuracy=(log_probs.argmax(-1) == y).double().mean().item(),
        nll=-log_probs.gather(-1, y[:, None]).mean().item(),
        brier=(probs - hit).square().sum(-1).mean().item(),
        ece=expected_calibration_error(probs, y),
    )


def expected_calibration_error(probs: Tensor, y: Tensor, num_bins: int = 15) -> float:
    r"""Mean gap between confidence and accuracy over equally wide bins of confidence.

    .. math:: \mathrm{ECE} = \sum_b \frac{N_b}{N} \left| \mathrm{acc}_b - \mathrm{conf}_b \right|

    with the confidence of an input its largest probability. It is biased upwards on few inputs, and
    blind to errors that cancel inside a bin.

    Args:
        probs: Class probabilities, shape ``(N, C)``.
        y: Labels, integers in ``[0, C)``, shape ``(N,)``.
        num_bins: Number of bins, closed on the right: :math:`((b-1)/B, b/B]`.

    Example:
        >>> probs = torch.tensor([[0.75, 0.25]] * 4)
        >>> expected_calibration_error(probs, torch.tensor([0, 0, 0, 1]))  # right 3 times in 4
        0.0

    References:
        Guo et al., *On calibration of modern neural networks*, 2017, eq. 3.
    """
    y = _labels(y, check_probs("probs", probs, "(N, C)"))
    num_bins = positive_int("num_bins", num_bins)
    confidence, predicted = probs.double().max(-1)
    gap = (predicted == y).double() - confidence
    which = (confidence * num_bins).ceil().long().sub(1).clamp(0, num_bins - 1)
    return float(torch.bincount(which, gap, num_bins).abs().sum() / len(y))


def _labels(y: Tensor, probs: Tensor) -> Tensor:
    """The labels beside the probabilities ``(N, C)``."""
    if probs.ndim != 2:
        raise ArgumentError(
            f"`probs` must have shape (N, C); got {tuple(probs.shape)}. Average draws first, "
            "probs.mean(0)."
        )
    return check_labels(y, *probs.shape).to(probs.device)
