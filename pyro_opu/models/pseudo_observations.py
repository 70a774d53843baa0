"""A Gaussian process's posterior made nearly standard normal, for samplers and as a start.

The data fix the values u = L(theta) v, so the whitened values v move whenever theta does, and no
constant mass matrix removes that. :class:`Transport` replaces the likelihood by a Gaussian one of
u, that of pseudo-observations, whose posterior of v given theta is known (Murray, Adams 2010; for
the fixed point Khan, Lin: Conjugate-computation variational inference, 2017).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor

from pyro_opu.checks import instance_of
from pyro_opu.models.gaussian_process import SparseGaussianProcess, check_data
from pyro_opu.models.kernels import Parameters

__all__ = ["Transport", "Transported", "transport_to_posterior"]

#: Log hyper-parameters are kept within this of zero; beyond, covariances overflow.
LOG_LIMIT = 15.0
#: Stands for a bound that is not a number; the line search squares it.
TOO_FAR = 1e8
#: Curvatures of the bound below that of the log-prior are taken as this: no wider than the prior.
LEAST_CURVATURE = 1.0
#: Steps towards the best Gaussian, and their length.
STEPS, STEP = 20, 0.6


@dataclass(frozen=True, eq=False)
class Transport:
    r"""A map from standard normals to hyper-parameters and whitened values.

    .. math::
        \log\theta = \hat\theta + S \epsilon_\theta, \quad
        v = P^{-1} R^\top b + U^{-\top} \epsilon_v, \quad U U^\top = P = I + R^\top B R, \quad
        R = L(\hat\theta)^{-1} L(\theta)

    At ``center`` :math:`\hat\theta` ``(K,)``, R is the identity, and ``curvature`` B ``(O, M, M)``
    and ``slope`` b ``(O, M)`` make :math:`N(P^{-1} b, P^{-1})` the best Gaussian for v; elsewhere
    they are the same Gaussian likelihood of the values u = L v. ``spread`` is S ``(K, K)``, lower
    triangular, and ``lower`` is :math:`L(\hat\theta)`.
    """

    model: SparseGaussianProcess
    center: Tensor
    spread: Tensor
    lower: Tensor
    curvature: Tensor
    slope: Tensor

    @property
    def size(self) -> int:
        """Number of standard normals, K + O M."""
        return len(self.center) + self.slope.numel()

    def parameters(self, noise: Tensor) -> Parameters:
        """Hyper-parameters by site, from K standard normals."""
        log = self.center + self.spread @ noise
        return self.model.kernel.unpack(log.clamp(-LOG_LIMIT, LOG_LIMIT).exp())

    def values(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        """Mean ``(O, M)`` of v given hyper-parameters, and U ``(O, M, M)``."""
        lower = self.model.lower(parameters)
        ratio = torch.linalg.solve_triangular(self.lower, lower, upper=False)
        eye = torch.eye(len(ratio), dtype=ratio.dtype, device=ratio.device)
        factor, info = torch.linalg.cholesky_ex(eye + ratio.mT @ self.curvature @ ratio)
        factor = torch.where((info > 0)[..., None, None], torch.nan, factor)
        mean = torch.cholesky_solve((self.slope @ ratio)[..., None], factor)
        return mean.squeeze(-1), factor

    def __call__(self, noise: Tensor) -> tuple[Parameters, Tensor]:
        """Latents by site, and the log-determinant up to a constant, at noise ``(K + O M,)``."""
        parameters = self.parameters(noise[: len(self.center)])
        mean, factor = self.values(parameters)
        rest = noise[len(self.center) :].reshape(mean.shape)[..., None]
        v = mean + torch.linalg.solve_triangular(factor.mT, rest, upper=True).squeeze(-1)
        log_det = torch.stack([value.log().sum() for value in parameters.values()]).sum()
        log_det = log_det - factor.diagonal(dim1=-2, dim2=-1).log().sum()
        return {**parameters, "v": v.squeeze(0) if self.model.outputs == 1 else v}, log_det


@dataclass(frozen=True, eq=False)
class Transported:
    """The model in the coordinates of a transport: one latent site, "noise" ``(K + O M,)``."""

    transport: Transport

    def __call__(self, x: Tensor, y: Tensor) -> None:
        flat = dist.Normal(x.new_zeros(self.transport.size), 1.0).mask(False).to_event(1)
        latents, log_det = self.transport(pyro.sample("noise", flat))
        with pyro.validation_enabled(False), poutine.condition(data=latents):
            self.transport.model(x, y)
        pyro.factor("jacobian", log_det)


@torch.no_grad()
def transport_to_posterior(model: SparseGaussianProcess, x: Tensor, y: Tensor) -> Transport:
    """The transport of the best Gaussian for v, at the best hyper-parameters; deterministic.

    Twice in turn: the q(v) = N(m, P^-1) of largest evidence bound, by natural-gradient steps, and
    the hyper-parameters of largest bound plus log-prior, by L-BFGS, with q(v) moved along by its
    pseudo-observations. S comes from the bound's curvature there.
    """
    kind, advice = SparseGaussianProcess, "Make one by gaussian_process(inducing, num_classes)."
    check_data(instance_of("model", model, kind, "a SparseGaussianProcess", advice), x, y)
    center = model.kernel.medians(x).log()
    spread = torch.eye(len(center), dtype=x.dtype, device=x.device)
    for _ in range(2):
        center = _climb(_at(model, center, spread, x, y), x, y)
    curvature = _curvature(_at(model, center, spread, x, y), x, y)
    spread = torch.linalg.cholesky(torch.linalg.inv(curvature))
    return _at(model, center, spread, x, y)


def _at(
    model: SparseGaussianProcess, center: Tensor, spread: Tensor, x: Tensor, y: Tensor
) -> Transport:
    """The transport around given hyper-parameters."""
    parameters = model.kernel.unpack(center.exp())
    mean, precision = _best_gaussian(model, parameters, x, y)
    slope = (precision @ mean[..., None]).squeeze(-1)
    eye = torch.eye(precision.shape[-1], dtype=x.dtype, device=x.device)
    return Transport(model, center, spread, model.lower(parameters), precision - eye, slope)


def _best_gaussian(
    model: SparseGaussianProcess, parameters: Parameters, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Mean ``(O, M)`` and precision ``(O, M, M)`` of the q(v) of largest bound.

    There :math:`m = A^\top g` and :math:`P = I + A^\top W A`, with g and W of :func:`_slopes`.
    """
    projection = model.projection(x, parameters)
    left = model.variance(x, projection, parameters)
    eye = torch.eye(projection.shape[1], dtype=x.dtype, device=x.device)
    mean = x.new_zeros(model.outputs, projection.shape[1])
    precision = factor = eye.expand(model.outputs, -1, -1)
    for _ in range(STEPS):
        spread = torch.linalg.solve_triangular(factor, projection.mT, upper=False)
        slope, curvature = _slopes(model, mean @ projection.mT, left + spread.square().sum(-2), y)
        target = eye + projection.mT @ (curvature[..., None] * projection)
        precision = (1.0 - STEP) * precision + STEP * target
        factor = torch.linalg.cholesky(precision)
        change = torch.cholesky_solve((slope @ projection - mean)[..., None], factor)
        mean = mean + STEP * change.squeeze(-1)
    return mean, precision


@torch.enable_grad()
def _slopes(
    model: SparseGaussianProcess, loc: Tensor, variance: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean slope, and minus the mean curvature, ``(O, N)`` of log p(y | f) for normal f."""
    loc, variance = loc.detach().requires_grad_(), variance.detach().requires_grad_()
    value = model.expected(loc, variance).log_prob(y).sum()
    slope, half = torch.autograd.grad(value, (loc, variance))
    return slope, (-2.0 * half).clamp_min(0.0)


def _bound(transport: Transport, shift: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Evidence bound plus log-prior of the hyper-parameters at noise ``(K,)``."""
    model, parameters = transport.model, transport.parameters(shift)
    mean, factor = transport.values(parameters)
    projection = model.projection(x, parameters)
    spread = torch.linalg.solve_triangular(factor, projection.mT, upper=False)
    variance = model.variance(x, projection, parameters) + spread.square().sum(-2)
    fit = model.expected(mean @ projection.mT, variance).log_prob(y).sum()
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum()
    trace = torch.cholesky_inverse(factor).diagonal(dim1=-2, dim2=-1).sum()
    divergence = 0.5 * (trace + mean.square().sum() - mean.numel()) + log_det
    return fit - divergence + model.kernel.log_prior(parameters)


@torch.enable_grad()
def _climb(transport: Transport, x: Tensor, y: Tensor) -> Tensor:
    """Log hyper-parameters of the largest bound."""
    free = x.new_zeros(len(transport.center), requires_grad=True)
    optimizer = torch.optim.LBFGS([free], max_iter=10, max_eval=15, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -_bound(transport, free, x, y)
        if not torch.isfinite(loss):  # a step too far: the line search must come back
            free.grad = torch.zeros_like(free)
            return torch.full_like(loss, TOO_FAR)
        loss.backward()
        return loss

    optimizer.step(closure)
    return (transport.center + transport.spread @ free.detach()).clamp(-LOG_LIMIT, LOG_LIMIT)


@torch.enable_grad()
def _curvature(transport: Transport, x: Tensor, y: Tensor) -> Tensor:
    """Minus the bound's Hessian ``(K, K)``, by differences of gradients, made positive."""
    width = 0.1

    def gradient(shift: Tensor) -> Tensor:
        shift = shift.clone().requires_grad_()
        return torch.autograd.grad(-_bound(transport, shift, x, y), shift)[0]

    steps = width * torch.eye(len(transport.center), dtype=x.dtype, device=x.device)
    hessian = torch.stack([gradient(step) - gradient(-step) for step in steps]) / (2.0 * width)
    values, vectors = torch.linalg.eigh(0.5 * (hessian + hessian.mT))
    return vectors @ values.clamp_min(LEAST_CURVATURE).diag() @ vectors.mT
