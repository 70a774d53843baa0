"""Fit a guide to a model by the (tempered) evidence bound, on minibatches."""

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

from pyro_opu.checks import (
    ArgumentError,
    ArgumentTypeError,
    check_callable,
    check_inputs,
    check_tensor,
    positive_float,
    positive_int,
)
from pyro_opu.rng import seeded
from pyro_opu.samplers import tempered


class OwnParameters:
    """A guide whose ``pyro.param`` values are its own, not those of Pyro's global store.

    Two guides of one kind name their parameters alike, and in one store the second would silently
    run with the values of the first.
    """

    def __init__(self, guide: Callable[..., object]) -> None:
        self.guide = guide
        self._state: Any = {"params": {}, "constraints": {}}

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Inside, Pyro's store holds these parameters and no others."""
        with pyro.get_param_store().scope(self._state):
            yield

    def __call__(self, *args: object, **kwargs: object) -> Any:
        with self.in_force():
            return self.guide(*args, **kwargs)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters by name, constrained."""
        with self.in_force():
            return {name: value.detach() for name, value in pyro.get_param_store().items()}


@dataclass(frozen=True)
class Fit:
    """The fitted guide, and an estimate of the bound at every step, in nats over all data."""

    guide: OwnParameters
    elbo: Tensor


def fit_svi(
    model: Callable[..., object],
    guide: Callable[..., object],
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

    (eqs. 10, 11 and 17-20 of Li 2022). Unbiased: the M rows are drawn with replacement, the
    divergence by the same draw of :math:`\theta`.

    Args:
        model: ``model(x, y)``, its observed sites independent over the rows of ``x``. Its own
            parameters (``pyro.param``) are trained too.
        guide: ``guide(x, y)``; an autoguide or a module is trained in place.
        x, y: Inputs ``(N, ...)``, and labels or targets with N on axis 0.
        batch_size: M; by default all rows, in order.
        final_rate: Share of Adam's rate left at the end of its geometric fall.
        beta: :math:`\beta`, the temperature; below 1 the posterior is cold.
        num_particles: Draws of :math:`\theta` per step.
        seed: Fixes everything random, and leaves torch's generator as it was.
    """
    x = check_inputs(x).detach()
    check_tensor("y", y, f"({len(x)}, ...)")
    size = positive_int("batch_size", len(x) if batch_size is None else batch_size)
    if y.ndim == 0 or len(y) != len(x):
        raise ArgumentError(
            f"`y` must have one entry per row of `x`, {len(x)}; got shape "
            f"{tuple(y.shape)}. Cut both alike."
        )
    rates = {"learning_rate": learning_rate, "final_rate": final_rate, "beta": beta}
    for name, value in rates.items():
        positive_float(name, value, "The defaults suit small networks.")
    if size > len(x):
        raise ArgumentError(
            f"`batch_size` must be at most the {len(x)} rows of `x`; got {size}. Leave it out to "
            "use all rows at every step."
        )
    steps = positive_int("steps", steps)
    num_particles = positive_int("num_particles", num_particles)
    check_callable("model", model, "(x, y)")
    check_callable("guide", guide, "(x, y)")
    adam = {"lr": learning_rate, "lrd": final_rate ** (1 / steps), "clip_norm": math.inf}
    weighed = tempered(model, likelihood=len(x) / size, prior=beta)
    bound = Trace_ELBO(num_particles=num_particles)
    svi = SVI(weighed, tempered(guide, prior=beta), ClippedAdam(adam), bound)
    own, elbo = OwnParameters(guide), torch.empty(steps)
    with seeded(seed), own.in_force():
        for step in range(steps):
            rows = slice(None) if batch_size is None else torch.randint(len(x), (size,))
            # Sites and shapes are the same at every step; checking them once is enough.
            with pyro.validation_enabled(False) if step else nullcontext():
                elbo[step] = -_stepped(svi, x[rows], y[rows], first=step == 0)
            if not math.isfinite(elbo[step]):
                raise ArgumentError(
                    f"`learning_rate` must keep the bound finite; got {float(elbo[step])} at step "
                    f"{step} of {steps} at a rate of {learning_rate}. Lower it, or start closer."
                )
    return Fit(own, elbo)


def _stepped(svi: SVI, x: Tensor, y: Tensor, *, first: bool) -> float:
    """A step; the first tells whether the model takes the data."""
    try:
        return float(svi.step(x, y))  # type: ignore[arg-type]
    except (ValueError, RuntimeError, NotImplementedError) as error:
        if not first or isinstance(error, ArgumentError):
            raise
        text = " ".join(str(error).split())[:160]
        raise ArgumentError(
            f"`model` must take `x` {tuple(x.shape)} and `y` {tuple(y.shape)}, {y.dtype}; it "
            f"raised: {text}. Labels are whole numbers from 0, of the shape that it observes."
        ) from error


def mean_field(
    model: Callable[..., object],
    start: nn.Module | dict[str, Tensor] | None = None,
    *,
    scale: float = 0.01,
) -> AutoNormal:
    r"""An independent normal :math:`N(\mu_j, \sigma_j^2)` for every weight ("Bayes by backprop").

    Pyro's ``AutoNormal`` with a small scale and means that start at a network's weights: at zero,
    hidden units would stay alike; at draws from a wide prior, their noise would hide the data.
    ``start`` is a network whose parameters are named like the sites, or values by site; other sites
    start at the median of draws of the prior.

    References:
        Eqs. 12-16 of Li (2022); Blundell et al.: Weight uncertainty in neural networks (2015).
    """
    positive_float("scale", scale, "It is a standard deviation.")
    if not isinstance(start, (nn.Module, dict, NoneType)):
        raise ArgumentTypeError(
            "`start` must be a network, a dict site -> value, or None; got "
            f"{type(start).__name__}. Pass network or network.state_dict()."
        )
    values = dict(start.named_parameters()) if isinstance(start, nn.Module) else start or {}
    values = {name: value.detach().clone() for name, value in values.items()}
    first = init_to_value(values=values, fallback=init_to_median)
    return AutoNormal(model, init_loc_fn=first, init_scale=scale)
