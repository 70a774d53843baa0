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
    """A linear layer and the rates at which its outputs and its inputs are dropped."""

    name: str
    linear: nn.Linear
    drop: float = 0.0
    drop_inputs: float = 0.0

    def kept(self) -> dict[str, float]:
        """Parameter of the layer -> probability that one of its numbers is kept."""
        rows = 1 - self.drop
        weight = {"weight": rows * (1 - self.drop_inputs)}
        return weight if self.linear.bias is None else {**weight, "bias": rows}


class DropoutGuide:
    r"""Guide of Monte Carlo dropout: each row of weights is kept or set to zero.

    .. math::
        q(W^l_i, b^l_i) = \pi_l\, \delta(0, 0) + (1 - \pi_l)\, \delta(M^l_i, m^l_i)

    (eqs. 23-24 of Li 2022; Gal and Ghahramani 2016), a guide of ``bayesian_network(network)`` with
    the network's own dropout rates. Row i of layer l makes unit i, so dropping rows drops units;
    dropout of the inputs drops columns of the first layer. A layer without dropout after it is a
    point mass.

    :math:`M^l = W^l / (1 - \pi_l)` holds the factor that torch applies in training and that ReLU
    commutes with. So draws are distributed as the network's in training mode, each mask shared by
    all rows of ``x``. ``as_teacher(network)`` has the same law and holds masks instead of weights,
    which take 1 GB for 500 draws of a 784-400-400-10 network.

    Trained by an ELBO this is dropout with the l2 term of :func:`dropout_l2`; the rest of the
    divergence is infinite but constant, and left out. Each step has one mask for all its rows.

    Sites: the network's parameters, ``Delta``; auxiliary masks, 1 where kept, of no density,
    "0.keep" ``(out,)`` per layer that drops and "0.keep_inputs" ``(in,)``.

    Args:
        network: ``nn.Sequential`` of ``Linear``, ``ReLU`` (``LeakyReLU``, ``Identity``,
            ``Flatten``) and ``Dropout``, trained or not; it is not changed.
        name: Prefix of the names of Pyro's parameters, the M and m. Two guides in one process need
            two, unless each is fitted by :func:`~pyro_opu.models.variational.fit_svi` or wrapped in
            :class:`~pyro_opu.models.variational.OwnParameters`.

    Example:
        >>> from pyro.infer import Predictive
        >>> from pyro_opu.models.neural_network import bayesian_network, dropout_network
        >>> from pyro_opu import as_teacher
        >>> network = dropout_network((4, 8, 3))
        >>> model, guide = bayesian_network(network), DropoutGuide(network)
        >>> predictive = Predictive(model, guide=guide, num_samples=20)
        >>> as_teacher(predictive).probs(torch.zeros(5, 4)).shape
        torch.Size([20, 5, 3])
    """

    def __init__(self, network: nn.Sequential, name: str = "dropout") -> None:
        if not isinstance(name, str):
            raise TypeError(f"`name` must be a string, a prefix; got {name!r}. Leave it out.")
        self.name = name
        self._layers = _read(network)
        self._means = {
            f"{layer.name}.{kind}": (getattr(layer.linear, kind).detach() / kept).requires_grad_()
            for layer in self._layers
            for kind, kept in layer.kept().items()
        }

    def __call__(self, x: Tensor, y: Tensor | None = None) -> dict[str, Tensor]:
        """Draw the sites; returns them by name."""
        draws: dict[str, Tensor] = {}
        for layer in self._layers:
            inputs, units = layer.linear.in_features, layer.linear.out_features
            rows = self._keep(f"{layer.name}.keep", layer.drop, units)
            columns = self._keep(f"{layer.name}.keep_inputs", layer.drop_inputs, inputs)
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
        """M or m of a site: its value where nothing is dropped."""
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
        """Yield each site with the probability that one of its numbers is kept."""
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
    r"""The l2 term of dropout: what trains in its divergence from a normal prior.

    .. math::
        \sum_l \frac{1 - \pi_l}{2\sigma^2} \bigl(\|M^l\|^2 + \|m^l\|^2\bigr)
        = -\mathrm{E}_q \log p(\theta) - \frac n2 \log 2\pi\sigma^2

    with n weights and :math:`\sigma` = ``prior_scale`` (section 3.2 of Li 2022), differentiable in
    the guide's parameters. A ``weight_decay`` :math:`\lambda` (Adam's, not AdamW's) of
    :func:`~pyro_opu.models.neural_network.fit_network` at N rows is this term with a prior of scale
    :math:`\sigma = (N \lambda (1 - \pi_l))^{-1/2}`: for N = 60,000 and :math:`\lambda = 10^{-5}`
    1.3 without dropout and 1.8 with :math:`\pi = 1/2`.
    """
    if not isinstance(guide, DropoutGuide):
        raise TypeError(
            f"`guide` must be a DropoutGuide; got {type(guide).__name__}. Make it of the network: "
            "DropoutGuide(network)."
        )
    positive_float("prior_scale", prior_scale, "Pass that of the model's prior.")
    terms = [kept * guide.mean(site).square().sum() for site, kept in guide.kept()]
    return torch.stack(terms).sum() / (2 * prior_scale**2)


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
