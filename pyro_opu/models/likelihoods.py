"""Likelihoods of networks: what is observed, given the network's output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyro
import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_tensor, positive_float

#: ``(output (N, K), y or None) -> observation``; samples the site "obs" in the plate "data".
Likelihood = Callable[[Tensor, Tensor | None], Tensor]


def classification(logits: Tensor, y: Tensor | None = None) -> Tensor:
    r"""Labels of logits ``(N, C)``, :math:`y \sim \mathrm{Cat}(\mathrm{softmax}(f(x)))`."""
    if logits.ndim != 2:
        raise ArgumentError(
            f"`x` must give logits (N, C), a row for each input; the network gives "
            f"{tuple(logits.shape)}. Flatten the inputs, or pass x[None] for a single one."
        )
    check_length(y, len(logits))
    with pyro.plate("data", len(logits)):
        return pyro.sample("obs", dist.Categorical(logits=logits), obs=y)


def check_length(y: Tensor | None, rows: int) -> None:
    """Refuse labels that are not one real number per row: Pyro would broadcast or leave out."""
    if y is not None and check_tensor("y", y, "(N,)").is_complex():
        raise ArgumentTypeError(
            "`y` must be real; got complex numbers. Pass labels, or (N,) numbers."
        )
    if y is not None and y.shape != (rows,):
        raise ArgumentError(
            f"`y` must hold one label per row of `x`, shape ({rows},); got {tuple(y.shape)}. Were "
            "labels and inputs filtered in the same way?"
        )


def check_classes(y: Tensor, rows: int, num_classes: int) -> None:
    """Refuse labels that are not one whole number from 0 to C - 1 per row, of any dtype."""
    check_length(check_tensor("y", y, "(N,)"), rows)
    bad = ~((y >= 0) & (y < num_classes) & (y == y.round()))  # also where NaN
    if bad.any():
        raise ArgumentError(
            f"`y` must hold whole numbers from 0 to {num_classes - 1}; got {y[bad][0].item():g} "
            f"in {int(bad.sum())} of {len(y)} rows. Labels -1 and 1 become 0 and 1 by (y + 1) / 2."
        )


def regression(precision: float | TorchDistributionMixin = 1.0) -> Likelihood:
    r"""Real targets with normal noise, :math:`y_n \sim N(f(x_n), 1/\lambda)` (eq. 2 of Li 2022).

    An output ``(N, 1)`` is the mean of targets ``(N,)``, an output ``(N, K)`` that of targets
    ``(N, K)`` with independent noise. ``precision`` is :math:`\lambda`, or its prior, such as
    ``Gamma(6, 6)``, and then a latent site "precision".
    """
    if not isinstance(precision, TorchDistributionMixin):
        positive_float("precision", precision, "It is one over the variance, or its prior.")
    return partial(_normal, precision)


def _normal(
    precision: float | TorchDistributionMixin, output: Tensor, y: Tensor | None = None
) -> Tensor:
    mean = output.squeeze(-1) if output.shape[-1] == 1 else output
    if y is not None and y.shape != mean.shape:
        raise ArgumentError(
            f"`y` must have shape {tuple(mean.shape)}, as the network's outputs do; got "
            f"{tuple(y.shape)}. One target per input is (N,), not (N, 1)."
        )
    if isinstance(precision, TorchDistributionMixin):
        noise = pyro.sample("precision", precision)
    else:
        noise = mean.new_tensor(precision)
    with pyro.plate("data", len(mean)):
        return pyro.sample("obs", dist.Normal(mean, noise.rsqrt()).to_event(mean.ndim - 1), obs=y)
