"""Monte Carlo dropout as a guide: rows of weights set to zero."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, instance_of, positive_float

_HOMOGENEOUS = (nn.ReLU, nn.LeakyReLU, nn.Identity, nn.Flatten)


@dataclass(frozen=True)
class _Layer:
    """A linear layer and the rates at which its outputs and its inputs are dropped."""

    name: str
    linear: nn.Linear
    drop: float = 0.0
    drop_inputs: float = 0.0


class DropoutGuide:
    r"""Guide of Monte Carlo dropout for ``bayesian_network(network)``: rows of weights are zeroed.

    .. math::
        q(W^l_i, b^l_i) = \pi_l\, \delta(0, 0) + (1 - \pi_l)\, \delta(M^l_i, m^l_i), \quad
        M^l = W^l / (1 - \pi_l)

    with the network's own rates :math:`\pi_l` (eqs. 23-24 of Li 2022; Gal and Ghahramani 2016).
    Dropping rows drops units; dropout of the inputs drops columns of the first layer. Draws are
    distributed as the network's in training mode, each mask shared by all rows of ``x``.
    ``as_teacher(network)`` draws alike and holds masks instead of weights, which take 1 GB for
    500 draws of a 784-400-400-10 network.

    Trained by an ELBO this is dropout with the l2 term of :func:`dropout_l2`; the rest of the
    divergence is infinite but constant, and left out. Auxiliary masks, 1 where kept, are the sites
    "0.keep" ``(out,)`` of a layer that drops and "0.keep_inputs" ``(in,)``.

    Args:
        network: ``nn.Sequential`` of ``Linear``, ``ReLU`` (``LeakyReLU``, ``Identity``,
            ``Flatten``) and ``Dropout``; not changed.
        name: Prefix of Pyro's parameters, M and m. Two guides in one process need two, or
            :class:`~pyro_opu.models.variational.OwnParameters`, as ``fit_svi`` uses.
    """

    def __init__(self, network: nn.Sequential, name: str = "dropout") -> None:
        self.name = instance_of("name", name, str, "a string", "Leave it out.")
        self._layers = _read(network)
        #: Site -> probability that one of its numbers is kept.
        self.kept: dict[str, float] = {}
        for layer in self._layers:
            self.kept[f"{layer.name}.weight"] = (1 - layer.drop) * (1 - layer.drop_inputs)
            if layer.linear.bias is not None:
                self.kept[f"{layer.name}.bias"] = 1 - layer.drop
        self._means = {
            site: (network.get_parameter(site).detach() / kept).requires_grad_()
            for site, kept in self.kept.items()
        }

    def __call__(self, x: Tensor, y: Tensor | None = None) -> dict[str, Tensor]:
        """Draw the sites; returns them by name."""
        draws: dict[str, Tensor] = {}
        for layer in self._layers:
            inputs, units = layer.linear.in_features, layer.linear.out_features
            rows = self._keep(f"{layer.name}.keep", layer.drop, units)
            columns = self._keep(f"{layer.name}.keep_inputs", layer.drop_inputs, inputs)
            for site in (f"{layer.name}.weight", f"{layer.name}.bias"):
                if site not in self.kept:
                    continue
                value = self.mean(site)
                if value.ndim == 2 and columns is not None:
                    value = value * columns
                if rows is not None:
                    value = value * (rows[:, None] if value.ndim == 2 else rows)
                draws[site] = pyro.sample(site, dist.Delta(value, event_dim=value.ndim))
        return draws

    def mean(self, site: str) -> Tensor:
        """M or m of a site: its value where nothing is dropped."""
        name, mine = f"{self.name}.{site}", self._means[site]
        value = pyro.param(name, mine)
        if value is not mine:
            raise ArgumentError(
                f"`name` must differ between guides that share Pyro's parameter store; got one "
                f"whose '{name}' is there already. Pass another, or OwnParameters(guide)."
            )
        return value

    def _keep(self, site: str, drop: float, units: int) -> Tensor | None:
        if drop == 0:
            return None
        probs = next(iter(self._means.values())).new_full((units,), 1 - drop)
        fn = dist.Bernoulli(probs).mask(False).to_event(1)
        return pyro.sample(site, fn, infer={"is_auxiliary": True})


def dropout_l2(guide: DropoutGuide, prior_scale: float) -> Tensor:
    r"""The l2 term of dropout: the trainable part of its divergence from a normal prior.

    .. math::
        \sum_l \frac{1 - \pi_l}{2\sigma^2} \bigl(\|M^l\|^2 + \|m^l\|^2\bigr)
        = -\mathrm{E}_q \log p(\theta) - \frac n2 \log 2\pi\sigma^2

    with n weights and :math:`\sigma` = ``prior_scale`` (section 3.2 of Li 2022). A ``weight_decay``
    :math:`\lambda` of :func:`~pyro_opu.models.neural_network.fit_network` at N rows is this term
    with a prior of scale :math:`\sigma = (N \lambda (1 - \pi_l))^{-1/2}`.
    """
    instance_of("guide", guide, DropoutGuide, "a DropoutGuide", "Make one: DropoutGuide(network).")
    positive_float("prior_scale", prior_scale, "Pass that of the model's prior.")
    terms = [kept * guide.mean(site).square().sum() for site, kept in guide.kept.items()]
    return torch.stack(terms).sum() / (2 * prior_scale**2)


def _read(network: nn.Sequential) -> list[_Layer]:
    """The linear layers with their dropout rates."""
    advice = "Use as_teacher(network) for other networks with dropout."
    instance_of("network", network, nn.Sequential, "a nn.Sequential", advice)
    layers: list[_Layer] = []
    inputs = 0.0  # dropout met before the first layer
    for name, module in network.named_children():
        if isinstance(module, nn.Linear):
            layers.append(_Layer(name, module, drop_inputs=inputs))
            inputs = 0.0
        elif type(module) is nn.Dropout and module.p < 1 and not (layers and layers[-1].drop):
            if layers:
                layers[-1] = replace(layers[-1], drop=module.p)
            else:
                inputs = module.p
        elif not isinstance(module, _HOMOGENEOUS):
            raise ArgumentError(
                "`network` must be made of Linear, ReLU and Dropout with p < 1, one after a layer; "
                f"got '{name}', {module}. {advice}"
            )
    if not layers:
        raise ArgumentError(f"`network` must hold a Linear layer; got {network}. {advice}")
    return layers
