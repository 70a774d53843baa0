"""Networks, and Bayesian networks made of them: any ``nn.Module`` as a Pyro model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pyro
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pyro_opu.checks import (
    ArgumentError,
    check_callable,
    check_inputs,
    check_labels,
    check_targets,
    check_tensor,
    in_range,
    instance_of,
    positive_float,
    positive_int,
)
from pyro_opu.checks import sizes as check_sizes
from pyro_opu.models.likelihoods import Likelihood, classification
from pyro_opu.models.normals import IsotropicNormal
from pyro_opu.rng import evaluating

#: ``(name, shape) -> distribution`` of one parameter of the network, its event of that shape.
Prior = Callable[[str, torch.Size], TorchDistributionMixin]
Model = Callable[..., Tensor]


def bayesian_network(
    network: nn.Module, *, prior: float | Prior = 1.0, likelihood: Likelihood = classification
) -> Model:
    r"""A Pyro model ``model(x, y=None)`` of a network whose weights are random.

    .. math::
        \theta_j \sim N(0, \sigma^2), \quad y_n \sim p(y \mid f_\theta(x_n))

    (eqs. 2-5 of Li 2022). Every parameter of the network is a latent site of the same name and
    shape ("0.weight", "0.bias", ...), so a ``state_dict`` is a point of the posterior. A copy in
    evaluation mode is run, in which dropout does nothing. The model runs under ``torch.vmap``, NUTS
    (also with ``jit_compile=True``), SGLD and autoguides, and can be pickled if its arguments can.

    Args:
        network: ``x (N, ...) -> (N, K)``; its own weights are not used.
        prior: Scale :math:`\sigma` of a normal prior on every parameter; or a function of name and
            shape that returns the distribution of a parameter, such as
            ``lambda name, shape: Normal(0.0, shape[-1] ** -0.5).expand(shape).to_event()``.
        likelihood: ``(output, y) -> observation``, of :mod:`pyro_opu.models.likelihoods`:
            ``classification``, or ``regression`` with a noise precision, fixed or latent.

    Example:
        >>> from pyro.infer import Predictive
        >>> model = bayesian_network(perceptron((4, 8, 3)), prior=0.5)
        >>> Predictive(model, num_samples=20)(torch.zeros(5, 4))["obs"].shape
        torch.Size([20, 5])
    """
    if not isinstance(network, nn.Module) or next(network.parameters(), None) is None:
        raise ArgumentError(
            "`network` must have parameters, the latent sites of the model; got "
            f"{type(network).__name__} without. Pass a nn.Module; call a lazy network once before."
        )
    if not callable(prior):
        positive_float("prior", prior, "Or pass a function (name, shape) -> distribution.")
    check_callable("likelihood", likelihood, "(output, y) -> observation")
    return partial(_run, Skeleton(network), prior, likelihood)


def _run(
    network: Skeleton, prior: float | Prior, likelihood: Likelihood, x: Tensor, y: Any = None
) -> Tensor:
    check_inputs(x, features=False)
    if callable(prior):
        priors = {name: prior(name, shape) for name, shape in network.shapes.items()}
    else:
        scale = x.new_tensor(prior)
        priors = {name: IsotropicNormal(scale, shape) for name, shape in network.shapes.items()}
    theta = {name: pyro.sample(name, fn) for name, fn in priors.items()}
    return likelihood(network(theta, x), y)


class Skeleton:
    """A copy of a network without its parameters, called as ``skeleton(theta, x)``.

    Like ``torch.func.functional_call``, and also inside ``torch.jit.trace``, which that refuses and
    NUTS with ``jit_compile=True`` needs. It runs in evaluation mode, in one thread at a time.
    ``shapes`` maps the name of each parameter to its shape, tied ones once.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = copy.deepcopy(network).eval()
        names = {parameter: name for name, parameter in self.network.named_parameters()}
        self.shapes = {name: parameter.shape for parameter, name in names.items()}
        # Each place of a parameter: module, attribute, and the parameter's name.
        self._places: list[tuple[nn.Module, str, str]] = []
        for module in self.network.modules():
            for attribute, parameter in list(module._parameters.items()):
                if parameter is not None:
                    self._places.append((module, attribute, names[parameter]))
                    delattr(module, attribute)

    def __call__(self, theta: Mapping[str, Tensor], x: Tensor) -> Any:
        for module, attribute, name in self._places:
            setattr(module, attribute, theta[name])
        try:
            return self.network(x)
        finally:
            for module, attribute, _ in self._places:
                delattr(module, attribute)


def perceptron(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between them, of widths ``sizes`` such as (784, 400, 10)."""
    return _linear_layers(sizes, nn.ReLU)


def _linear_layers(sizes: Sequence[int], *between: Callable[[], nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(check_sizes("sizes", sizes, least=2)):
        layers += [nn.Linear(before, after), *(make() for make in between)]
    return nn.Sequential(*layers[: -len(between)])


def convolutional_network(
    image_shape: tuple[int, ...], num_outputs: int, channels: tuple[int, int] = (8, 16)
) -> nn.Sequential:
    """Twice a 3 x 3 convolution, ReLU and 2 x 2 maximum, then a linear layer to ``(N, K)``.

    ``image_shape`` is ``(H, W)`` or ``(ch, H, W)``, H and W at least 4; ``channels`` are those that
    come out of the two convolutions.
    """
    inputs, height, width = (1, *check_sizes("image_shape", image_shape, least=2))[-3:]
    for name, size in (("image_shape[-2]", height), ("image_shape[-1]", width)):
        positive_int(name, size, 4, "Two poolings halve it twice.")
    num_outputs = positive_int("num_outputs", num_outputs)
    first, second = check_sizes("channels", channels, least=2)[:2]
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Unflatten(1, (inputs, height, width))),
        nn.Conv2d(inputs, first, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (height // 4) * (width // 4), num_outputs),
    )


def class_count(network: nn.Module, x: Tensor) -> int:
    """C of a network ``x -> logits (N, C)``, which is checked, as is ``x``."""
    instance_of("network", network, nn.Module, "an nn.Module x -> logits (N, C)")
    check_inputs(x)
    try:
        with torch.no_grad(), evaluating(network):
            return int(network(x[:1].clone()).shape[-1])
    except (RuntimeError, ValueError, IndexError, AttributeError) as error:
        raise ArgumentError(
            f"`x` must be what the network takes; at shape {tuple(x.shape)} it raised: {error}. "
            "Reshape the inputs, or size the network to them."
        ) from error


def dropout_network(sizes: tuple[int, ...], p: float = 0.5) -> nn.Sequential:
    """A perceptron with ReLU and dropout after every hidden layer (Gal and Ghahramani 2016).

    ``sizes`` are the widths, such as (64, 128, 10); ``p`` is the probability of dropping a unit.
    """
    in_range("p", p, 0, 1, "[)")
    return _linear_layers(sizes, nn.ReLU, partial(nn.Dropout, p))


def fit_network(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int = 200,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-4,
    weights: Tensor | None = None,
) -> nn.Module:
    """Train a network by likelihood with Adam, in place; returns it.

    A classifier ``x -> logits (N, C)`` of labels ``(N,)``, or of a floating ``y`` a network
    ``x -> (mean, log scale) (N, 2)``. ``weights`` ``(N,)`` are of the rows.
    :func:`pyro_opu.models.dropout.dropout_l2` says of which prior ``weight_decay`` is.
    """
    epochs = positive_int("epochs", epochs)
    batch_size = positive_int("batch_size", batch_size)
    positive_float("learning_rate", learning_rate)
    in_range("weight_decay", weight_decay, 0)
    outputs, real = class_count(network, x), check_tensor("y", y).is_floating_point()
    x, y = x.detach(), check_targets(y, len(x)) if real else check_labels(y, len(x), outputs)
    if real and outputs != 2:
        raise ArgumentError(
            f"`network` must give a mean and a log scale, (N, 2), for a floating `y`; it gives "
            f"{outputs} numbers. For class labels pass y.long()."
        )
    loss = _normal_loss if real else partial(cross_entropy, reduction="none")
    if weights is None:
        weights = x.new_ones(len(x))
    elif not (check_targets(weights, len(x), "weights") >= 0).all() or not weights.sum() > 0:
        raise ArgumentError("`weights` must be numbers of at least 0, and not all 0.")
    weights = weights.detach() / weights.detach().mean()
    optimizer = torch.optim.Adam(network.parameters(), learning_rate, weight_decay=weight_decay)
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch_size):
            optimizer.zero_grad()
            (weights[rows] * loss(network(x[rows]), y[rows])).mean().backward()
            optimizer.step()
    return network.eval()


def _normal_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Negative log-density of a normal, without its constant."""
    mean, log_scale = outputs.unbind(-1)
    return log_scale + 0.5 * ((y - mean) * (-log_scale).exp()).square()
