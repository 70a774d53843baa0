"""Bayesian logistic regression, binary and multi-class, as Pyro models.

Its posterior by sampling, by variational inference and by Laplace's approximation:

    MCMC(PolyaGammaGibbs(model), 500, 100).run(x, y)              # of pyro_opu; or NUTS
    fit_svi(model, AutoMultivariateNormal(model), x, y).guide     # of pyro_opu.models.variational
    laplace(x, y, 2).guide                                        # of pyro_opu.models.laplace
"""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, check_inputs, positive_float, positive_int
from pyro_opu.models.likelihoods import check_length


def logistic_regression(
    num_classes: int, scale: float = 1.0
) -> Callable[[Tensor, Tensor | None], Tensor]:
    r"""A Pyro model ``model(x, y=None)`` with one weight vector per class.

    .. math::
        w_{dk}, b_k \sim N(0, \mathrm{scale}^2), \quad
        y \sim \mathrm{Cat}(\mathrm{softmax}(x w + b))

    Two classes are a Bernoulli with one weight vector. Sites "weight", "bias", "obs"; ``x (N, D)``
    floating, ``y (N,)`` labels or None.
    """
    num_classes = positive_int("num_classes", num_classes, 2, "Two classes are one logit.")
    positive_float("scale", scale, "It is a standard deviation.")
    outputs = 1 if num_classes == 2 else num_classes

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        if check_inputs(x, features=False).ndim != 2:
            raise ArgumentError(
                f"`x` must have shape (N, D); got {tuple(x.shape)}. Pass x[None] for a single "
                "input, x.flatten(1) for images."
            )
        check_length(y, len(x))
        zeros = torch.zeros(1 + x.shape[1], outputs, device=x.device)
        weight = pyro.sample("weight", dist.Normal(zeros[1:], scale).to_event(2))
        bias = pyro.sample("bias", dist.Normal(zeros[0], scale).to_event(1))
        logits = x.to(weight.dtype) @ weight + bias
        with pyro.plate("data", len(x)):
            if num_classes == 2:
                y = None if y is None else y.to(logits.dtype)  # of any dtype, as of more classes
                return pyro.sample("obs", dist.Bernoulli(logits=logits.squeeze(-1)), obs=y)
            return pyro.sample("obs", dist.Categorical(logits=logits), obs=y)

    return model
