"""Inference for sparse Gaussian processes: variational (SVGP) and by MCMC (SGPMC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import HMC, MCMC, NUTS, Trace_ELBO
from torch import Tensor

from pyro_opu.checks import in_range, positive_float, positive_int
from pyro_opu.models.gaussian_process import SparseGaussianProcess
from pyro_opu.models.normals import gaussian_draw
from pyro_opu.models.pseudo_observations import Transport, Transported, transport_to_posterior
from pyro_opu.samplers import tempered

__all__ = ["SGPMC", "SVGP", "sgpmc", "svgp"]

#: Share of the steps of SVI that may be left out for want of a finite gradient.
LEFT_OUT_MOST = 0.1


@dataclass(frozen=True, eq=False)
class SVGP:
    """A guide: one Gaussian over the log hyper-parameters and v, in this order.

    ``loc`` is the mean ``(K + O M,)``, ``scale_tril`` the Cholesky factor of the covariance;
    neither is a Pyro parameter, so that several guides do not meet in the parameter store.
    """

    model: SparseGaussianProcess
    loc: Tensor
    scale_tril: Tensor

    def __call__(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """One joint draw of the latents; arguments are ignored."""
        flat, density = gaussian_draw("_svgp_latent", self.loc, self.scale_tril)
        size = len(self.model.kernel.medians(self.loc))
        parameters = self.model.kernel.unpack(flat[:size].exp())
        shape = (-1,) if self.model.outputs == 1 else (self.model.outputs, -1)
        latents = {**parameters, "v": flat[size:].reshape(shape)}
        for name, value in latents.items():
            log_density = -value.log().sum() if name in parameters else density
            pyro.sample(name, dist.Delta(value, log_density, event_dim=value.ndim))
        return latents


def svgp(
    model: SparseGaussianProcess,
    x: Tensor,
    y: Tensor,
    *,
    num_steps: int = 300,
    batch_size: int = 256,
    learning_rate: float = 0.003,
) -> SVGP:
    """Variational posterior: one Gaussian over v and the log hyper-parameters, by SVI.

    ``num_steps`` of Adam on minibatches, the rate falling to a twentieth, start at the
    deterministic solution of :func:`~pyro_opu.models.pseudo_observations.transport_to_posterior`,
    made linear in the hyper-parameters. Predict by ``Predictive(model, guide=guide,
    num_samples=S)``.

    Raises:
        FloatingPointError: more than a tenth of the steps had no finite gradient; fewer are left
            out.

    References:
        Hensman, Matthews, Ghahramani: Scalable variational Gaussian process classification (2015).
    """
    num_steps = positive_int("num_steps", num_steps, 0)
    batch_size = positive_int("batch_size", batch_size)
    positive_float("learning_rate", learning_rate)
    start = transport_to_posterior(model, x, y)
    rows = min(batch_size, len(x))
    weighed, elbo = tempered(model, likelihood=len(x) / rows), Trace_ELBO()
    decay = 0.05 ** (1.0 / max(num_steps, 1))
    loc, tril = _linearized(start)
    log_scale = tril.diagonal().log()
    below = (tril / tril.diagonal()[:, None]).tril(-1)  # of a factor with ones on its diagonal
    free = [each.requires_grad_() for each in (loc, log_scale, below)]
    optimizer = torch.optim.Adam(free, learning_rate, betas=(0.9, 0.99))

    def guide() -> SVGP:
        unit = below.tril(-1) + torch.eye(len(loc), dtype=x.dtype, device=x.device)
        return SVGP(model, loc, log_scale.exp()[:, None] * unit)

    left_out = 0
    for _ in range(num_steps):
        chosen = torch.randperm(len(x), device=x.device)[:rows]
        loss = elbo.differentiable_loss(weighed, guide(), x[chosen], y[chosen])
        slopes = torch.autograd.grad(loss, free)
        if all(bool(torch.isfinite(slope).all()) for slope in slopes):
            for each, slope in zip(free, slopes, strict=True):
                each.grad = slope
            optimizer.step()
        else:  # a draw at which the covariance has no Cholesky factor would spoil all later steps
            left_out += 1
        optimizer.param_groups[0]["lr"] *= decay
    if left_out > LEFT_OUT_MOST * num_steps:
        raise FloatingPointError(
            f"{left_out} of {num_steps} steps of svgp had no finite gradient. Standardise `x`, "
            "take fewer inducing inputs, or compute in float64."
        )
    with torch.no_grad():
        fitted = guide()
    return SVGP(model, loc.detach(), fitted.scale_tril)


class SGPMC(NamedTuple):
    """Draws by site, chains one after another, for ``Predictive``; and the run.

    ``mcmc.diagnostics()`` is of the site "noise", the coordinates in which the run was made.
    """

    samples: dict[str, Tensor]
    mcmc: MCMC


def sgpmc(
    model: SparseGaussianProcess,
    x: Tensor,
    y: Tensor,
    *,
    num_samples: int = 300,
    warmup_steps: int = 30,
    num_chains: int = 1,
    trajectory_length: float | None = 2.2,
    target_accept_prob: float = 0.7,
    progress: bool = False,
) -> SGPMC:
    r"""Posterior draws of inducing values and hyper-parameters by HMC or NUTS.

    It runs in the coordinates of :class:`~pyro_opu.models.pseudo_observations.Transport`, in which
    the posterior is nearly standard normal. Only the step size is adapted, and a fixed trajectory a
    little over a quarter of a normal's period :math:`2\pi` needs about half the gradients of a NUTS
    tree. With one lengthscale per feature and many features the hyper-parameters mix slowly (57 of
    Spambase: R-hat 1.9 after 60 draws); look at ``mcmc.diagnostics()``.

    Args:
        num_samples: Draws kept per chain, after ``warmup_steps`` that find the step size.
        trajectory_length: HMC's number of steps times the step size; None for NUTS.
        target_accept_prob: Acceptance that the step size aims at.

    References:
        Hensman, Matthews, Filippone, Ghahramani: MCMC for variationally sparse Gaussian processes
        (2015). Cui et al. (2019), section 4.4.
    """
    num_samples = positive_int("num_samples", num_samples)
    num_chains = positive_int("num_chains", num_chains)
    warmup_steps = positive_int("warmup_steps", warmup_steps, 0)
    if trajectory_length is not None:
        positive_float("trajectory_length", trajectory_length, "Pass None for NUTS.")
    in_range("target_accept_prob", target_accept_prob, 0, 1, "()")
    transport = transport_to_posterior(model, x, y)
    settings: dict[str, Any] = {"step_size": 0.3, "adapt_mass_matrix": False}
    if trajectory_length is not None:
        settings["trajectory_length"] = trajectory_length
    method = NUTS if trajectory_length is None else HMC
    kernel = method(Transported(transport), target_accept_prob=target_accept_prob, **settings)
    start = torch.randn(num_chains, transport.size, dtype=x.dtype, device=x.device)
    mcmc = MCMC(
        kernel,
        num_samples,
        warmup_steps,
        num_chains=num_chains,
        initial_params={"noise": start if num_chains > 1 else start[0]},
        mp_context="spawn" if torch.cuda.is_initialized() else None,  # CUDA is not for forked ones
        disable_progbar=not progress,
    )
    mcmc.run(x, y)
    with torch.no_grad():
        draws = [transport(noise)[0] for noise in mcmc.get_samples()["noise"]]
    samples = {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
    return SGPMC(samples, mcmc)


def _linearized(transport: Transport) -> tuple[Tensor, Tensor]:
    """Mean and factor of the Gaussian that has the transport's mean and slope at its centre."""
    zero = torch.zeros_like(transport.center)

    def mean_of_v(shift: Tensor) -> Tensor:
        return transport.values(transport.parameters(shift))[0].flatten()

    _, factor = transport.values(transport.parameters(zero))
    given_theta = torch.linalg.cholesky(torch.cholesky_inverse(factor))
    tril = torch.block_diag(transport.spread, *given_theta)
    tril[len(zero) :, : len(zero)] = torch.func.jacfwd(mean_of_v)(zero)
    return torch.cat([transport.center, mean_of_v(zero)]), tril
