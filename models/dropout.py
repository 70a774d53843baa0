"""Monte Carlo dropout as a guide: rows of weights set to zero."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_opu.checks import positive_float

_HOMOGENEOUS = (nn.ReLU, nn.LeakyReLU, nn.Identity, nn.Flatten)


@dataclass(frozen=True)
class _Layer:
    """A linear layer with the rates at which its outputs and its inputs are dropped."""

    name: str
    linear: nn.Linear
    drop: float = 0.0
    drop_inputs: float = 0.0

    def kept(self) -> dict[str, float]:
        """The parameters of the layer, and the probability that a number of each is kept."""
        rows = 1 - self.drop
        weight = {"weight": rows * (1 - self.drop_inputs)}
        return weight if self.linear.bias is None else {**weight, "bias": rows}


class DropoutGuide:
    r"""The guide of Monte Carlo dropout: a row of weights and its bias are there or zero.

    .. math::
        q(W^l_i, b^l_i) = \pi_l\, \delta(0, 0) + (1 - \pi_l)\, \delta(M^l_i, m^l_i)

    A guide of ``bayesian_network(network)`` with the network's own dropout rates. Row i of layer l
    makes unit i of that layer, so dropping rows is dropping units: with the same masks both give
    the same outputs. A layer not followed by dropout, as the last one, is a point mass. Dropout of
    the network's inputs drops columns of the first layer instead.

    Torch multiplies what it keeps by 1/(1 - p) in training, eq. 23 does not. ReLU commutes with
    that factor, so a network is turned into a guide by :math:`M^l = W^l / (1 - \pi_l)`, and then
    the guide's draws are distributed as the network's in training mode, each mask shared by all
    rows of ``x``: ``as_teacher(Predictive(model, guide=guide, num_samples=S))`` is
    ``as_teacher(network)``. The second is leaner, since it holds masks where the first holds
    whole weights, 1 GB for 500 draws of a 784-400-400-10 network.

    Trained by an ELBO it is dropout with the l2 term of :func:`dropout_l2`, the rest of the
    divergence, infinite but constant, left out; each step has one mask for all its rows.

    Sites: the network's parameters, ``Delta``; auxiliary "0.keep" ``(out,)`` per layer that drops,
    "0.keep_inputs" ``(in,)``, of no density, 1 where kept. Parameters: "dropout.0.weight", ...,
    the M and m.

    Args:
        network: A ``nn.Sequential`` of ``Linear``, ``ReLU`` (``LeakyReLU``, ``Identity``,
            ``Flatten``) and ``Dropout``, such as :func:`~models.neural_network.dropout_network`,
            trained or not. It is not changed.
        name: Prefix of the parameters' names. Two guides in one process need two names, unless
            each has been through :func:`~models.variational.fit_svi` or
            :class:`~models.variational.OwnParameters`.

    Raises:
        TypeError: ``network`` is no ``nn.Sequential``.
        ValueError: layers of other kinds; a rate of 1. At the call: Pyro's store holds parameters
            of another guide of this name.

    Example:
        >>> from pyro.infer import Predictive
        >>> from models.neural_network import bayesian_network, dropout_network
        >>> from pyro_opu import as_teacher
        >>> network = dropout_network((4, 8, 3))
        >>> predictive = Predictive(
        ...     bayesian_network(network), guide=DropoutGuide(network), num_samples=20)
        >>> as_teacher(predictive).probs(torch.zeros(5, 4)).shape
        torch.Size([20, 5, 3])

    References:
        Eqs. 23-24 of Li's lecture notes on Bayesian neural networks (2022).
        Gal and Ghahramani: Dropout as a Bayesian approximation (2016).
    """

    def __init__(self, network: nn.Sequential, name: str = "dropout") -> None:
        if not isinstance(name, str):
            raise TypeError(f"`name` must be a string, a prefix; got {name!r}. Leave it out.")
        self.name = name
        self._layers = _read(network)
        self._means = {
            f"{layer.name}.{kind}": _scaled(getattr(layer.linear, kind), kept)
            for layer in self._layers
            for kind, kept in layer.kept().items()
        }

    def __call__(self, x: Tensor, y: Tensor | None = None) -> dict[str, Tensor]:
        """Draw the sites; returns them by name."""
        draws: dict[str, Tensor] = {}
        for layer in self._layers:
            rows = self._keep(f"{layer.name}.keep", layer.drop, layer.linear.out_features)
            columns = self._keep(
                f"{layer.name}.keep_inputs", layer.drop_inputs, layer.linear.in_features
            )
            for kind in layer.kept():
                site = f"{layer.name}.{kind}"
                value = self.mean(site)
                if kind == "weight" and columns is not None:
                    value = value * columns
                if rows is not None:
                    value = value * (rows[:, None] if kind == "weight" else rows)
                draws[site] = pyro.sample(site, dist.Delta(value, event_dim=value.ndim))
        return draws

    def mean(self, site: str) -> Tensor:
        """M or m of a site: what it is where nothing is dropped."""
        name, mine = f"{self.name}.{site}", self._means[site]
        value = pyro.param(name, mine)
        if value is not mine:
            raise ValueError(
                f"`name` must differ between guides that share Pyro's parameter store; another "
                f"guide's '{name}' is there already. Pass name=..., or wrap each guide: "
                "OwnParameters(guide)."
            )
        return value

    def kept(self) -> Iterator[tuple[str, float]]:
        """The sites with the probability that one of their numbers is not set to zero."""
        for layer in self._layers:
            for kind, kept in layer.kept().items():
                yield f"{layer.name}.{kind}", kept

    def _keep(self, site: str, drop: float, units: int) -> Tensor | None:
        if drop == 0:
            return None
        probs = next(iter(self._means.values())).new_full((units,), 1 - drop)
        fn = dist.Bernoulli(probs).mask(False).to_event(1)
        return pyro.sample(site, fn, infer={"is_auxiliary": True})


def dropout_l2(guide: DropoutGuide, prior_scale: float) -> Tensor:
    r"""The l2 term of dropout, what its divergence from a normal prior leaves to be trained.

    .. math::
        \sum_l \frac{1 - \pi_l}{2\sigma^2} \bigl(\|M^l\|^2 + \|m^l\|^2\bigr)
        = -\mathrm{E}_q \log p(\theta) - \frac n2 \log 2\pi\sigma^2

    Exactly that expectation, n the number of weights; ``Trace_ELBO`` estimates it. In terms of
    ``weight_decay``, :math:`\lambda`, of :func:`~models.neural_network.fit_network` (Adam's, not
    AdamW's), which adds :math:`\frac\lambda2\|W\|^2` to the mean loss over N rows of a network with
    torch's weights :math:`W = (1-\pi) M`: :math:`\lambda = 1 / (N \sigma^2 (1 - \pi_l))`. So one
    weight decay is a prior of scale :math:`(N \lambda)^{-1/2}` on layers that are not dropped, and
    :math:`(N \lambda (1 - \pi_l))^{-1/2}` on those that are: 1.3 and 1.8 for
    N = 60,000, :math:`\lambda = 10^{-5}` and :math:`\pi = 1/2`.

    Args:
        guide: The guide, with dropped inputs or not.
        prior_scale: :math:`\sigma`, of the prior of all weights.

    Returns:
        A scalar, differentiable in the guide's parameters.

    Raises:
        TypeError: ``guide`` is another one.
        ValueError: ``prior_scale`` is not positive and finite.

    References:
        Section 3.2 of Li's lecture notes on Bayesian neural networks (2022).
    """
    if not isinstance(guide, DropoutGuide):
        raise TypeError(
            f"`guide` must be a DropoutGuide; got {type(guide).__name__}. Make it of the network: "
            "DropoutGuide(network)."
        )
    positive_float("prior_scale", prior_scale, "Pass that of the model's prior.")
    terms = [kept * guide.mean(site).square().sum() for site, kept in guide.kept()]
    return torch.stack(terms).sum() / (2 * prior_scale**2)


def _scaled(weight: Tensor, kept: float) -> Tensor:
    """M or m: torch's weights with the factor of its dropout."""
    return (weight.detach() / kept).requires_grad_()


def _read(network: nn.Sequential) -> list[_Layer]:
    """The linear layers with their dropout rates."""
    if not isinstance(network, nn.Sequential):
        raise TypeError(
            f"`network` must be a nn.Sequential, whose order says what is dropped; got a "
            f"{type(network).__name__}. Use as_teacher(network) for other networks with dropout."
        )
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
            raise ValueError(
                "`network` must be made of Linear, ReLU and Dropout with p < 1, one after a layer; "
                f"got '{name}', {module}. Use as_teacher(network) for other networks with dropout."
            )
    if not layers:
        raise ValueError(
            f"`network` must hold a Linear layer, whose rows are dropped; got {network}. Use "
            "as_teacher(network) for other networks with dropout."
        )
    return layers
