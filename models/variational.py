"""Fitting a guide to a model by the (tempered) evidence bound, on minibatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import NoneType
from typing import Any

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_median, init_to_value
from pyro.optim import ClippedAdam
from torch import Tensor, nn

from pyro_opu.checks import check_callable, check_inputs, positive_float, positive_int
from pyro_opu.rng import seeded
from pyro_opu.samplers import tempered


class OwnParameters:
    """A guide whose ``pyro.param`` values are its own, not those of Pyro's global store.

    Two guides of one kind name their parameters alike, and in one store the second would silently
    run with the values of the first. Wrapped, each runs with its own; the global store is left as
    it was. Call it like the guide.

    Args:
        guide: Any guide.
    """

    def __init__(self, guide: Callable[..., Any]) -> None:
        self.guide = guide
        self._state: Any = {"params": {}, "constraints": {}}

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Inside, Pyro's store holds these parameters and no others."""
        with pyro.get_param_store().scope(self._state):
            yield

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the guide."""
        with self.in_force():
            return self.guide(*args, **kwargs)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters by name, constrained."""
        with self.in_force():
            return {name: value.detach() for name, value in pyro.get_param_store().items()}


@dataclass(frozen=True)
class Fit:
    """What :func:`fit_svi` found.

    Attributes:
        guide: The fitted guide, with parameters of its own: ``Predictive(model, guide=fit.guide)``.
        elbo: Estimate of the (tempered) evidence bound at every step, ``(steps,)``, in nats over
            all data.
    """

    guide: OwnParameters
    elbo: Tensor


def fit_svi(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    x: Tensor,
    y: Tensor,
    *,
    steps: int = 2000,
    batch_size: int | None = None,
    learning_rate: float = 1e-2,
    final_rate: float = 0.01,
    beta: float = 1.0,
    num_particles: int = 1,
    seed: int | None = None,
) -> Fit:
    r"""Fit a guide q by stochastic gradients of the tempered evidence bound.

    .. math::
        \mathrm{ELBO}_\beta(q, D) \approx \frac NM \sum_{m=1}^M \log p(y_m \mid x_m, \theta)
        - \beta \log\frac{q(\theta)}{p(\theta)}, \quad \theta \sim q

    Unbiased: the M rows are drawn with replacement, the divergence by the same draw of
    :math:`\theta`. Adam, its rate falling geometrically.

    Args:
        model: ``model(x, y)``, its observed sites independent over the rows of ``x``.
        guide: ``guide(x, y)``; an autoguide or a module is trained in place. Parameters of the
            model (``pyro.param``) are trained too.
        x: Inputs ``(N, ...)``.
        y: Labels or targets, N on axis 0.
        steps: Number of steps.
        batch_size: M; by default all rows, in order.
        learning_rate: Adam's at the first step.
        final_rate: That of the last step, as a share of the first.
        beta: :math:`\beta`, the temperature of a cold posterior where below 1.
        num_particles: Draws of :math:`\theta` per step.
        seed: Fixes everything random, and leaves torch's generator as it was.

    Returns:
        The guide with its parameters, and the bound at every step.

    Raises:
        TypeError: ``x`` is no floating tensor.
        ValueError: bad sizes, rates or ``beta``; a bound that stops being finite.

    Example:
        >>> from pyro.infer import Predictive
        >>> from models.neural_network import bayesian_network, perceptron
        >>> from pyro_opu import as_teacher
        >>> x = torch.randn(50, 2)
        >>> model = bayesian_network(perceptron((2, 8, 3)))
        >>> fit = fit_svi(model, mean_field(model), x, torch.arange(50) % 3, steps=5)
        >>> as_teacher(Predictive(model, guide=fit.guide, num_samples=10)).probs(x).shape
        torch.Size([10, 50, 3])

    References:
        Eqs. 10, 11 and 17-20 of Li's lecture notes on Bayesian neural networks (2022).
    """
    check_inputs(x)
    size = len(x) if batch_size is None else batch_size
    _check_settings(len(x), len(y), steps, size, learning_rate, final_rate, beta)
    positive_int("num_particles", num_particles)
    check_callable("guide", guide, "(x, y)")
    rates = {"lr": learning_rate, "lrd": final_rate ** (1 / steps), "clip_norm": math.inf}
    scaled = tempered(model, likelihood=len(x) / size, prior=beta)
    svi = SVI(
        scaled,
        tempered(guide, prior=beta),
        ClippedAdam(rates),
        Trace_ELBO(num_particles=num_particles),
    )
    own, elbo = OwnParameters(guide), torch.empty(steps)
    with seeded(seed), own.in_force():
        for step in range(steps):
            rows = slice(None) if batch_size is None else torch.randint(len(x), (size,))
            # Sites and shapes are the same at every step; checking them once is enough.
            with pyro.validation_enabled(False) if step else nullcontext():
                elbo[step] = -svi.step(x[rows], y[rows])
            if not math.isfinite(elbo[step]):
                raise ValueError(
                    f"`learning_rate` must keep the bound finite; got {float(elbo[step])} at step "
                    f"{step} of {steps} at a rate of {learning_rate}. Lower it, or start closer."
                )
    return Fit(own, elbo)


def mean_field(
    model: Callable[..., Any],
    start: nn.Module | dict[str, Tensor] | None = None,
    *,
    scale: float = 0.01,
) -> AutoNormal:
    r"""An independent normal distribution for every weight ("Bayes by backprop").

    .. math:: q(\theta) = \prod_j N(\theta_j;\, \mu_j, \sigma_j^2)

    Pyro's ``AutoNormal`` with means that start at a network's weights and a small scale. At zero,
    hidden units are all alike and stay so; at draws from a wide prior, the noise of the draws hides
    the data.

    Args:
        model: The model, such as :func:`~models.neural_network.bayesian_network`.
        start: Where the means start: a network with the sites' names as its parameters' (fresh or
            trained), or values by site; other sites, and all without it, at the median of 15 draws
            of the prior.
        scale: Where the standard deviations start.

    Returns:
        The guide, to be given to :func:`fit_svi`.

    Example:
        >>> from models.neural_network import bayesian_network, perceptron
        >>> network = perceptron((2, 8, 3))
        >>> guide = mean_field(bayesian_network(network), network)

    References:
        Eqs. 12-16 of Li's lecture notes on Bayesian neural networks (2022).
        Blundell, Cornebise, Kavukcuoglu and Wierstra: Weight uncertainty in neural networks (2015).
    """
    positive_float("scale", scale, "It is a standard deviation.")
    if not isinstance(start, (nn.Module, dict, NoneType)):
        raise TypeError(
            f"`start` must be a network, a dict site -> value, or None; got "
            f"{type(start).__name__}. Pass network or network.state_dict()."
        )
    values = dict(start.named_parameters()) if isinstance(start, nn.Module) else start or {}
    values = {name: value.detach().clone() for name, value in values.items()}
    first = init_to_value(values=values, fallback=init_to_median)
    return AutoNormal(model, init_loc_fn=first, init_scale=scale)


def _check_settings(
    rows: int,
    labels: int,
    steps: int,
    size: int,
    learning_rate: float,
    final_rate: float,
    beta: float,
) -> None:
    if labels != rows:
        raise ValueError(
            f"`y` must have one entry per row of `x`, {rows}; got {labels}. Cut both alike."
        )
    positive_int("steps", steps)
    for name, value in (
        ("learning_rate", learning_rate),
        ("final_rate", final_rate),
        ("beta", beta),
    ):
        positive_float(name, value, "The defaults suit small networks.")
    if positive_int("batch_size", size) > rows:
        raise ValueError(
            f"`batch_size` must be between 1 and the {rows} rows of `x`; got {size}. Leave it out "
            "to use all rows at every step."
        )
