"""Sparse Gaussian-process classification as a Pyro model; ``pyro_opu.models.sgpmc`` infers it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, check_inputs, in_range, positive_int
from pyro_opu.models.kernels import Kernel, Parameters
from pyro_opu.models.likelihoods import check_classes
from pyro_opu.models.quadrature import (
    ExpectedBernoulli,
    ExpectedCategorical,
    Link,
    gauss_hermite,
    inverse_link,
    normal_points,
)

__all__ = ["SparseGaussianProcess", "check_data", "gaussian_process", "inducing_points"]

#: Added to the diagonal of a covariance, relative to its mean, so that rounding leaves it positive.
JITTER = {torch.float32: 1e-4, torch.float64: 1e-8}
#: Smallest conditional variance, as a part of the jitter: the slope of its root stays finite.
FLOOR = 1e-2
#: Nodes of the quadrature for two classes, and points per class of that for more.
NODES, POINTS = 20, 64
#: What to do about posterior draws that lack a site.
WHOLE_DRAWS = "Pass draws of sgpmc, or of Predictive(model, guide=svgp, ...) with all its sites."
#: Values of a function, whose spread is that of the posterior.
VALUES: Any = {"epistemic": True}


@dataclass(frozen=True, eq=False)
class SparseGaussianProcess:
    """The model that :func:`gaussian_process` makes and describes; call it as ``model(x, y)``."""

    inducing: Tensor
    num_classes: int
    link: Link
    kernel: Kernel
    joint_rows: int
    nodes: Tensor = field(repr=False)
    weights: Tensor = field(repr=False)

    @property
    def outputs(self) -> int:
        """Latent functions O: one for two classes, otherwise C."""
        return 1 if self.num_classes == 2 else self.num_classes

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Labels ``(N,)`` at the inputs ``x`` ``(N, D)``."""
        check_call(self, x, y)
        parameters = self.kernel.sample(x)
        shape = (len(self.inducing),) if self.outputs == 1 else (self.outputs, len(self.inducing))
        v = pyro.sample("v", dist.Normal(x.new_zeros(shape), 1.0).to_event(len(shape)))
        projection = self.projection(x, parameters)
        loc = (v[..., None, :] if self.outputs == 1 else v) @ projection.mT
        if y is None:
            return self._predict(x, loc, projection, parameters)
        variance = self.variance(x, projection, parameters)[..., None, :]
        with pyro.plate("data", len(x)):
            fn = self.expected(_on_plate(loc), _on_plate(variance))
            return pyro.sample("obs", fn, obs=y)

    def hyper_parameters(self, samples: dict[str, Tensor]) -> Parameters:
        """Select the kernel's sites ``(S, ...)`` from posterior draws."""
        missing = [name for name in self.kernel.names if name not in samples]
        if missing:
            raise ArgumentError(
                f"`samples` must hold the kernel's sites {self.kernel.names}; got "
                f"{sorted(samples)}. {WHOLE_DRAWS}"
            )
        return {name: samples[name] for name in self.kernel.names}

    def lower(self, parameters: Parameters) -> Tensor:
        """L ``(*B, M, M)``, the Cholesky factor of the prior covariance of the inducing values."""
        z = self.inducing
        return _cholesky(self.kernel(z, z, parameters), self.kernel.diagonal(z, parameters))

    def projection(self, x: Tensor, parameters: Parameters) -> Tensor:
        r""":math:`A = K_{xZ} L^{-\top}`, ``(*B, N, M)``: the mean of f at x is A v."""
        cross = self.kernel(x, self.inducing, parameters)
        upper = self.lower(parameters).mT
        return torch.linalg.solve_triangular(upper, cross, upper=True, left=False)

    def variance(self, x: Tensor, projection: Tensor, parameters: Parameters) -> Tensor:
        """Variance ``(*B, N)`` of f at every input given v, the diagonal of K_xx - A A'."""
        prior = self.kernel.diagonal(x, parameters)
        floor = FLOOR * JITTER[x.dtype] * prior.detach()
        return (prior - projection.square().sum(-1)).maximum(floor)

    def expected(self, loc: Tensor, variance: Tensor) -> ExpectedBernoulli | ExpectedCategorical:
        """Expected likelihood of the labels for independent normal f, both ``(*B, O, N)``."""
        loc, scale = torch.broadcast_tensors(loc, variance.sqrt())
        if self.outputs > 1:
            return ExpectedCategorical(loc.mT, scale.mT, self.nodes)
        loc, scale = loc.squeeze(-2), scale.squeeze(-2)
        return ExpectedBernoulli(loc, scale, self.link, self.nodes, self.weights)

    def _predict(
        self, x: Tensor, loc: Tensor, projection: Tensor, parameters: Parameters
    ) -> Tensor:
        """Latent values given v, site "f" ``(1, N)`` or ``(C, N)``, and labels given them."""
        fn: dist.TorchDistribution
        if len(x) <= self.joint_rows:
            covariance = self.kernel(x, x, parameters) - projection @ projection.mT
            lower = _cholesky(covariance, self.kernel.diagonal(x, parameters))
            fn = dist.MultivariateNormal(loc, scale_tril=lower[..., None, :, :])
        else:
            scale = self.variance(x, projection, parameters).sqrt()
            fn = dist.Normal(loc, scale[..., None, :]).to_event(1)
        f = _on_plate(pyro.sample("f", fn.to_event(1), infer=VALUES))
        with pyro.plate("data", len(x)):
            if self.outputs > 1:
                return pyro.sample("obs", dist.Categorical(logits=f.mT))
            if self.link == "logit":
                return pyro.sample("obs", dist.Bernoulli(logits=f.squeeze(-2)))
            return pyro.sample("obs", dist.Bernoulli(probs=inverse_link(f.squeeze(-2), self.link)))


def gaussian_process(
    inducing: Tensor,
    num_classes: int,
    *,
    link: Link = "logit",
    ard: bool = False,
    linear: bool = True,
    constant: float = 1.0,
    joint_rows: int = 256,
) -> SparseGaussianProcess:
    r"""A Pyro model ``model(x, y=None)``: a Gaussian process through M inducing inputs Z.

    .. math::
        v \sim N(0, I), \quad u = f(Z) = L v, \; L L^\top = K_{ZZ}, \quad
        f(x) \mid v \sim N\bigl(A v, \; K_{xx} - A A^\top\bigr), \; A = K_{xZ} L^{-\top}

    with the kernel and priors of :class:`~pyro_opu.models.kernels.Kernel`; more than two classes
    have one f each and a common kernel. Global sites: "lengthscale", "variance", "slope" (with
    ``linear``) and the whitened "v" ``(M,)`` or ``(C, M)``.

    Given ``y``, the site "obs" scores it by :math:`\mathrm{E}_{f|v} \log p(y|f)`, computed by
    deterministic quadrature: the posterior of the global sites, extended to f by the prior, is then
    the nearest to that of the whole process (Hensman et al. 2015). Without ``y``, the site "f"
    ``(1, N)`` or ``(C, N)`` is drawn given v, and "obs" given f, anew for every posterior draw. Up
    to ``joint_rows`` inputs f is joint over them; beyond, inputs are independent given v. Every
    single input has the same draws, but for a jitter of 1e-4 of the prior variance (1e-8
    in float64); ``joint_rows=0`` is faster where only single inputs matter.

    Args:
        inducing: Z ``(M, D)``, for example :func:`inducing_points`; its dtype is the model's.
        num_classes: C >= 2.
        link: "logit", or for two classes "probit".
        ard: One lengthscale per feature, which mixes slowly under MCMC.
        linear: Add a linear part to the kernel, for trends beyond the inducing inputs.
        constant: Prior variance of a constant mean.
        joint_rows: Largest number of inputs at which f is drawn jointly.

    References:
        Hensman, Matthews, Filippone, Ghahramani: MCMC for variationally sparse Gaussian processes
        (2015), eqs. 4-8; the teacher of section 4.4 of Cui et al. (2019).
    """
    check_inputs(inducing, "inducing")
    if inducing.dtype not in JITTER or inducing.ndim != 2:
        raise (TypeError if inducing.dtype not in JITTER else ValueError)(
            "`inducing` must be float32 or float64 of shape (M, D); got "
            f"{tuple(inducing.shape)}, {inducing.dtype}. Flatten and convert the inputs first."
        )
    num_classes = positive_int("num_classes", num_classes, 2, "Two classes have one function.")
    joint_rows = positive_int("joint_rows", joint_rows, 0, "Pass 0 to do without.")
    if link not in get_args(Link) or (link == "probit" and num_classes > 2):
        raise ArgumentError(
            "`link` must be 'logit', or for two classes 'probit'; got "
            f"{link!r} for {num_classes} classes. Leave it out for the logit."
        )
    if num_classes == 2:
        nodes, weights = gauss_hermite(NODES)
    else:
        nodes = normal_points(POINTS, num_classes)
        weights = torch.full((len(nodes),), 1.0 / len(nodes))
    kernel = Kernel(inducing.shape[1], ard, linear, constant)
    return SparseGaussianProcess(
        inducing, num_classes, link, kernel, joint_rows, nodes.to(inducing), weights.to(inducing)
    )


def inducing_points(x: Tensor, share: float = 0.1, seed: int = 0) -> Tensor:
    """Centres ``(M, D)`` of k-means clusters of the inputs ``x (N, D)``; M is ``share`` times N."""
    from sklearn.cluster import MiniBatchKMeans

    check_inputs(x)
    in_range("share", share, 0, 1, "(]", "It is a part of the inputs; a tenth is usual.")
    seed = positive_int("seed", seed, 0)
    count = max(1, round(share * len(x)))
    clusters = MiniBatchKMeans(count, n_init=1, random_state=seed, batch_size=2048)
    return torch.as_tensor(clusters.fit(x.cpu().numpy()).cluster_centers_).to(x)


def check_data(model: SparseGaussianProcess, x: Tensor, y: Tensor) -> None:
    """Refuse training data that the model cannot learn from."""
    check_inputs(x)
    check_call(model, x, y)
    if len(model.inducing) > len(x):
        raise ArgumentError(
            f"`model` must have at most as many inducing inputs as there are rows, {len(x)}; got "
            f"{len(model.inducing)}. Use the rows themselves: gaussian_process(x, ...)."
        )
    if len(y.unique()) < 2:
        raise ArgumentError(
            f"`y` must hold at least two classes; got {y[0].item():g} in all {len(y)} rows. "
            "Shuffle the rows before splitting them?"
        )


def check_call(model: SparseGaussianProcess, x: Tensor, y: Tensor | None = None) -> None:
    z = model.inducing
    if x.ndim != 2 or x.shape[1] != z.shape[1] or x.dtype != z.dtype:
        raise ArgumentError(
            f"`x` must be {z.dtype} of shape (N, {z.shape[1]}), as the inducing inputs; got "
            f"{tuple(x.shape)}, {x.dtype}. Convert it, or build the model from such inputs."
        )
    if y is not None:
        check_classes(y, len(x), model.num_classes)


def _on_plate(values: Tensor) -> Tensor:
    """Drop the axis of the plate that parallel draws have, ``(S, 1, O, N)``."""
    return values.squeeze(-3) if values.ndim > 2 else values


def _cholesky(covariance: Tensor, prior: Tensor) -> Tensor:
    """Lower factor, with jitter relative to the prior variances; NaN where it does not exist."""
    jitter = JITTER[covariance.dtype] * prior.mean(-1)
    eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    lower, info = torch.linalg.cholesky_ex(covariance + jitter[..., None, None] * eye)
    return torch.where((info > 0)[..., None, None], torch.nan, lower)
