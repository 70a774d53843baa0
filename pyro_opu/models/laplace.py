"""Laplace approximation of a logistic regression, or of a network's last layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_opu.checks import (
    ArgumentError,
    check_inputs,
    check_row_shape,
    positive_float,
    positive_int,
)
from pyro_opu.distributions import laplace_bridge, probit_predictive
from pyro_opu.models.likelihoods import check_classes
from pyro_opu.models.normals import gaussian_draw

#: Newton's method on a strictly convex function; it takes 5 to 15.
MAX_ITERATIONS = 200


@dataclass(frozen=True, eq=False)
class Laplace:
    r"""A Gaussian over the weights of a linear classifier, :math:`q = N(\mathrm{MAP}, H^{-1})`.

    It answers by draws, with :meth:`guide` in Pyro's ``Predictive``, and in closed form by
    :meth:`probit` and :meth:`bridge`.

    Attributes:
        weight: MAP of the site "weight", ``(D, outputs)``; ``outputs`` is C, or 1 for two classes.
        bias: MAP of the site "bias", ``(outputs,)``.
        covariance: Covariance of ``torch.cat([weight, bias[None]]).flatten()``, float64.
    """

    weight: Tensor
    bias: Tensor
    covariance: Tensor

    def guide(self, *args: object, **kwargs: object) -> None:
        """A Pyro guide that draws "weight" and "bias" and ignores its arguments."""
        mean = torch.cat([self.weight, self.bias.unsqueeze(0)])
        flat, density = gaussian_draw("_laplace", mean.flatten(), self._scale_tril.to(mean.dtype))
        drawn = flat.reshape(flat.shape[:-1] + mean.shape)
        pyro.sample("weight", dist.Delta(drawn[..., :-1, :], density, event_dim=2))
        pyro.sample("bias", dist.Delta(drawn[..., -1, :], event_dim=1))

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean ``(N, C)`` and covariance ``(N, C, C)`` of the logits, exact under q.

        .. math:: \mu = W^\top \phi, \quad
                  \Sigma_{kl} = \phi^\top \mathrm{Cov}(w_k, w_l)\, \phi, \quad \phi = (x, 1)

        Two classes have one logit f, returned as :math:`(-f/2, f/2)`: the bridge wants a sum of
        zero.
        """
        advice = "For a last layer pass what goes into it."
        check_row_shape("x", check_inputs(x), self.weight.shape[:1], advice)
        phi, outputs = with_ones(x), len(self.bias)
        mean = phi @ torch.cat([self.weight, self.bias.unsqueeze(0)]).double()
        blocks = self.covariance.reshape(phi.shape[1], outputs, phi.shape[1], outputs)
        covariance = torch.einsum("nd,dkel,ne->nkl", phi, blocks, phi)
        if outputs == 1:
            signs = torch.tensor([-0.5, 0.5]).to(phi)
            mean, covariance = mean * signs, covariance * torch.outer(signs, signs)
        return mean.to(x.dtype), covariance.to(x.dtype)

    def probit(self, x: Tensor) -> Tensor:
        """Mean class probabilities ``(N, C)`` by :func:`~pyro_opu.probit_predictive`."""
        return probit_predictive(*self.logits(x))

    def bridge(self, x: Tensor) -> Tensor:
        """Dirichlet parameters ``(N, C)`` by :func:`~pyro_opu.laplace_bridge`."""
        return laplace_bridge(*self.logits(x))

    @cached_property
    def _scale_tril(self) -> Tensor:
        return torch.linalg.cholesky(self.covariance)


def laplace(x: Tensor, y: Tensor, num_classes: int, scale: float = 1.0) -> Laplace:
    r"""Fit a :mod:`~pyro_opu.models.logistic_regression` by a Gaussian at its mode (MacKay 1992).

    .. math:: H = \sum_n \phi_n\phi_n^\top \otimes (\mathrm{diag}\,p_n - p_n p_n^\top)
              + I / \mathrm{scale}^2

    is the Hessian there of the negative log posterior. Newton's method in float64; memory and time
    grow with the square and the cube of (D + 1) times the number of outputs. ``y`` holds whole
    numbers from 0 to C - 1, of any dtype; ``scale`` is that of the prior of weights and bias.

    Example:
        >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
        >>> fit = laplace(x, torch.tensor([0, 0, 1, 1]), 2)
        >>> fit.probit(torch.tensor([[3.0], [30.0]]))[:, 1]
        tensor([0.8574, 0.9157])
    """
    if check_inputs(x).ndim != 2:
        raise ArgumentError(
            f"`x` must have shape (N, D); got {tuple(x.shape)}. Flatten the inputs: x.flatten(1)."
        )
    num_classes = positive_int("num_classes", num_classes, 2, "Pass the model's.")
    positive_float("scale", scale, "Pass the model's.")
    check_classes(y, len(x), num_classes)
    outputs = 1 if num_classes == 2 else num_classes
    phi, labels = with_ones(x.detach()), y.long()
    target = torch.nn.functional.one_hot(labels, num_classes).double()[:, -outputs:]
    theta = phi.new_zeros(phi.shape[1], outputs)

    def objective(theta: Tensor) -> tuple[Tensor, Tensor]:
        """The negative log posterior, and probabilities (N, outputs)."""
        logits = phi @ theta
        if outputs == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], -1)
        log_probs = logits.log_softmax(-1)
        loss = -log_probs.gather(1, labels.unsqueeze(1)).sum()
        return loss + theta.square().sum() / (2 * scale**2), log_probs.exp()[:, -outputs:]

    value, probs = objective(theta)
    for _ in range(MAX_ITERATIONS):
        gradient = (phi.T @ (probs - target) + theta / scale**2).flatten()
        factor = torch.linalg.cholesky(_hessian(phi, probs, scale))
        step = torch.cholesky_solve(gradient.unsqueeze(-1), factor).squeeze(-1)
        decrement = gradient @ step  # twice what a quadratic would still lose
        if decrement < 1e-16 * (1 + value):
            break
        rate = 1.0
        while True:
            tried = theta - rate * step.view_as(theta)
            new, probs = objective(tried)
            if new <= value - 1e-4 * rate * decrement + 1e-13 * value:  # the last term: rounding
                break
            rate /= 2
        theta, value = tried, new
    covariance = torch.cholesky_inverse(factor)
    theta = theta.to(x.dtype)
    return Laplace(theta[:-1], theta[-1], covariance)


def _hessian(phi: Tensor, probs: Tensor, scale: float) -> Tensor:
    """Hessian of the negative log posterior, for ``theta (D + 1, outputs)`` flattened."""
    features, outputs = phi.shape[1], probs.shape[1]
    hessian = phi.new_empty(features, outputs, features, outputs)
    for k in range(outputs):
        for j in range(k + 1):
            curvature = probs[:, k] * (float(k == j) - probs[:, j])
            block = phi.T @ (curvature.unsqueeze(-1) * phi)  # symmetric, like the whole
            hessian[:, k, :, j] = hessian[:, j, :, k] = block
    flat = hessian.reshape(features * outputs, features * outputs)
    return flat + torch.eye(len(flat)).to(flat) / scale**2


def with_ones(x: Tensor) -> Tensor:
    """Append a one to every row; float64."""
    return torch.cat([x, torch.ones_like(x[:, :1])], -1).double()
