"""Minus the log-joint of a Pyro model in unconstrained space, its gradient, and a chain's state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Transform, constraints

from pyro_opu.samplers.latents import Latents
from pyro_opu.samplers.minibatches import Minibatches
from pyro_opu.utils import Node, is_subsample

#: Entries of the record from which a chain is resumed.
PARTS = ("params", "step", "order", "position", "mean_square")


class Potential:
    r"""Minus the log-joint at unconstrained :math:`z`, with :math:`\theta = f(z)` the latents.

    .. math:: U(z) = -\log p(y, \theta \mid x) - \log |\det \partial f / \partial z|

    The latents form one vector, which a sampler updates in one operation. Normal priors are
    differentiated in closed form, up to a constant: automatic differentiation passes over the
    weights some ten times, as much work as the whole of a network at 100 rows. ``params`` give
    names, shapes, dtype and device; ``transforms`` to unconstrained space lack the identities.
    """

    def __init__(
        self,
        model: Callable[..., object],
        params: dict[str, Tensor],
        transforms: dict[str, Transform],
    ) -> None:
        self.model, self.transforms = model, transforms
        self.latents = Latents.of(params)
        self._scratch = torch.empty_like(self.latents.join(params))

    def gradient(
        self,
        flat: Tensor,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
        out: Tensor | None = None,
    ) -> tuple[float, Tensor]:
        """U at a vector ``(P,)``, up to a constant of Normal priors, and its gradient."""
        flat = flat.detach()
        leaves = {name: leaf.requires_grad_() for name, leaf in self.latents.split(flat).items()}
        with torch.enable_grad():
            values, jacobian = dict(leaves), flat.new_zeros(())
            for name, transform in self.transforms.items():
                value = values[name] = transform.inv(leaves[name])
                jacobian = jacobian + transform.log_abs_det_jacobian(value, leaves[name]).sum()
            with _LogJoint(values, set(leaves) - set(self.transforms)) as joint:
                self.model(*args, **kwargs or {})
            rest = jacobian - joint.total
        inputs = tuple(leaves.values())
        grads = torch.autograd.grad(rest, inputs, materialize_grads=True)
        gradient = torch.cat([grad.reshape(-1) for grad in grads], out=out)
        return rest.item() + self._add_normals(joint.normals, flat, gradient), gradient

    def _add_normals(self, normals: list[_Weighted], flat: Tensor, gradient: Tensor) -> float:
        """Add the Normal priors' gradient in place; their part of U."""
        total = 0.0
        places, values, offs = map(self.latents.split, (gradient, flat, self._scratch))
        for name, weight, normal in normals:
            off = torch.sub(values[name], _unexpanded(normal.loc), out=offs[name])
            precision = weight * _unexpanded(normal.scale) ** -2
            if precision.ndim:
                total += 0.5 * float((off * off * precision).sum())
                places[name].addcmul_(off, precision)
            else:
                total += 0.5 * float(precision * torch.dot(off.view(-1), off.view(-1)))
                places[name].add_(off, alpha=float(precision))
        return total


_Weighted = tuple[str, float, dist.Normal]  # latent site, weight of its log-density, and prior


class _LogJoint(Messenger):
    """Fixes the latents and sums log-densities, except those of fixed Normal priors."""

    def __init__(self, values: dict[str, Tensor], real: set[str]) -> None:
        super().__init__()
        self.values, self.real = values, real
        self.total: Any = 0.0
        self.normals: list[_Weighted] = []

    def _pyro_sample(self, msg: Node) -> None:
        if msg["name"] in self.values:
            msg["value"] = self.values[msg["name"]]

    def _pyro_post_sample(self, msg: Node) -> None:
        if is_subsample(msg) or msg["infer"].get("_deterministic"):
            return
        normal = _fixed_normal(msg) if msg["name"] in self.real else None
        if normal is not None:
            self.normals.append((msg["name"], float(msg["scale"]), normal))
        else:
            log_prob = msg["fn"].log_prob(msg["value"], *msg["args"], **msg["kwargs"])
            self.total = self.total + scale_and_mask(log_prob, msg["scale"], msg["mask"]).sum()


def _fixed_normal(msg: Node) -> dist.Normal | None:
    """The Normal of a site, if its parameters need no gradient."""
    fn = msg["fn"]
    while type(fn) is dist.Independent:
        fn = fn.base_dist
    if type(fn) is not dist.Normal or fn.loc.requires_grad or fn.scale.requires_grad:
        return None
    plain = msg["mask"] is None and isinstance(msg["scale"], int | float)
    return fn if plain and fn.loc.shape == msg["value"].shape else None


def _unexpanded(parameter: Tensor) -> Tensor:
    """The single number of a parameter that was expanded from one."""
    return parameter if any(parameter.stride()) else parameter[(0,) * parameter.ndim]


def is_real(support: object) -> bool:
    """Whether a support is all of R^n."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real


class Chain:
    """Unconstrained latents ``params``, number of the ``step``, and buffers ``(P,)`` of a chain."""

    def __init__(
        self, batches: Minibatches, potential: Potential, params: dict[str, Tensor]
    ) -> None:
        self.batches, self.potential, self.params = batches, potential, params
        self.gradient = potential.latents.join(params)
        self.noise = torch.empty_like(self.gradient)
        self.mean_square = self.gradient.new_empty(0)  # of the gradients; empty before the first
        self.step, self.step_size = 0, math.nan
        self.energy = math.nan  # the potential of the last minibatch, at the start of its step

    def record(self) -> dict[str, Any]:
        """The state from which the chain can be resumed: :data:`PARTS`."""
        return {
            "params": {name: value.detach().clone() for name, value in self.params.items()},
            "step": self.step,
            "order": self.batches.order,
            "position": self.batches.position,
            "mean_square": self.mean_square.clone(),
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Resume from a record, except for the parameters."""
        self.step, self.mean_square = record["step"], record["mean_square"].clone()
        self.batches.order, self.batches.position = record["order"], record["position"]
