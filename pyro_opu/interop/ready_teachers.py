"""Ready Bayesian teachers of a scikit-learn estimator, from data alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, Literal

import torch
from pyro.infer import MCMC, Predictive
from pyro.poutine.messenger import Messenger
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from pyro_opu.checks import ArgumentTypeError, check_callable, positive_float, positive_int
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import dropout_network, fit_network
from pyro_opu.samplers import PolyaGammaGibbs
from pyro_opu.teachers import Source, as_teacher
from pyro_opu.utils.laws import Node

__all__ = ["TeacherFunction", "dropout_teacher", "linear_teacher", "logistic_teacher"]

#: Standardised numbers and masks ``(N, D)``; or these, if any, and codes ``(N,)`` of each category.
TeacherInputs = Tensor | tuple[Tensor, ...]


def logistic_teacher(
    x: TeacherInputs,
    y: Tensor,
    *,
    num_draws: int = 1000,
    warmup_steps: int = 500,
    scale: float = 1.0,
    sample_weight: Tensor | None = None,
) -> Predictive:
    """Posterior of a logistic regression with prior scale ``scale``, by Polya-Gamma sampling."""
    num_draws = positive_int("num_draws", num_draws)
    warmup_steps = positive_int("warmup_steps", warmup_steps, 0)
    classes = _count_classes(y)
    model = logistic_regression(classes, scale)
    weighted = model if sample_weight is None else _Weighted(sample_weight)(model)
    mcmc = MCMC(PolyaGammaGibbs(weighted), num_draws, warmup_steps, disable_progbar=True)
    columns = one_hot(parts_of(x), sizes := sizes_of(x))
    mcmc.run(columns, y.to(columns.dtype) if classes == 2 else y)
    return Predictive(encoded(model, sizes), mcmc.get_samples())


def linear_teacher(
    x: TeacherInputs,
    y: Tensor,
    *,
    num_draws: int = 1000,
    scale: float = 1.0,
    sample_weight: Tensor | None = None,
) -> Callable[..., Any]:
    r"""Draws from the posterior of a linear regression, in closed form.

    .. math::
        w \mid \sigma \sim N(0, \sigma^2 \tau^2), \quad p(\sigma) \propto 1 / \sigma, \quad
        y \sim N(x^\top w + b, \sigma^2)

    with :math:`\tau` = ``scale``; the intercept is one of the weights.
    """
    num_draws = positive_int("num_draws", num_draws, 2)
    positive_float("scale", scale)
    columns = one_hot(parts_of(x), sizes := sizes_of(x)).double()
    columns, target = torch.cat([columns, torch.ones(len(columns), 1)], 1), y.double()
    weights = (torch.ones(len(y)) if sample_weight is None else sample_weight).double()
    weighted = columns * weights[:, None]
    precision = weighted.mT @ columns + torch.eye(columns.shape[1]) / scale**2
    factor = torch.linalg.cholesky(precision)
    mean = torch.cholesky_solve((weighted.mT @ target)[:, None], factor).squeeze(1)
    rate = (weights * (target - columns @ mean) * target).sum() / 2  # half of the sum of squares
    gamma = torch.distributions.Gamma(weights.sum() / 2, rate)
    sigma = gamma.sample((num_draws,)).rsqrt()
    noise = torch.randn(columns.shape[1], num_draws, dtype=torch.float64)
    apart = torch.linalg.solve_triangular(factor.mT, noise, upper=True).mT
    draws = (mean + sigma[:, None] * apart).float()

    return encoded(partial(_lines, draws=draws, sigma=sigma[:, None]), sizes)


def _lines(x: Tensor, *, draws: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``(S, N)`` and deviation ``(S, 1)`` by draws of weights ``(S, D + 1)``."""
    return draws[:, :-1].to(x) @ x.mT + draws[:, -1:].to(x), sigma.to(x)


def dropout_teacher(
    x: TeacherInputs,
    y: Tensor,
    *,
    hidden: tuple[int, ...] = (64, 64),
    p: float = 0.2,
    epochs: int = 200,
    sample_weight: Tensor | None = None,
) -> Any:
    """A perceptron trained with dropout; its masks, units dropped with ``p``, make the draws.

    For a floating ``y`` it learns a mean and the noise's deviation.
    """
    sizes, real = sizes_of(x), y.is_floating_point()
    columns = one_hot(parts_of(x), sizes)
    outputs = 2 if real else _count_classes(y)
    network = dropout_network((columns.shape[1], *hidden, outputs), p)
    fit_network(network, columns, y, epochs=epochs, weights=sample_weight)
    whole: nn.Module = nn.Sequential(network, _Variance()) if real else network
    whole = Encoded(whole, sizes) if sizes else whole
    return as_teacher(whole, output="mean and log variance" if real else "classes")


#: The ready teachers by name, of classes and of a real y.
ClassTeacher = Literal["dropout", "logistic"]
RealTeacher = Literal["dropout", "linear"]
CLASSIFIERS: dict[ClassTeacher, Callable[..., Source]] = {
    "dropout": dropout_teacher,
    "logistic": logistic_teacher,
}
REGRESSORS: dict[RealTeacher, Callable[..., Any]] = {
    "dropout": dropout_teacher,
    "linear": linear_teacher,
}


class TeacherFunction(BaseEstimator):
    """A function ``(x, y, **parameters) -> teacher`` whose parameters a grid search can set.

    Example:
        >>> teacher = TeacherFunction(dropout_teacher, p=0.2)
        >>> teacher.set_params(p=0.5).get_params()["p"]
        0.5
    """

    def __init__(self, function: Callable[..., object], **parameters: object) -> None:
        self.function, self.parameters = check_callable("function", function, "(x, y)"), parameters

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(partial(self.function, **self.parameters))

    def __call__(self, x: TeacherInputs, y: Tensor, **options: object) -> Any:
        """The teacher of these data."""
        return self.function(x, y, **self.parameters, **options)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The function and its parameters by name."""
        return {"function": self.function, **self.parameters}

    def set_params(self, **params: Any) -> TeacherFunction:
        """Set some of them."""
        self.function = params.pop("function", self.function)
        self.parameters = {**self.parameters, **params}
        return self


def parts_of(x: TeacherInputs) -> tuple[Tensor, ...]:
    """The inputs as a tuple."""
    return (x,) if isinstance(x, Tensor) else x


def sizes_of(x: TeacherInputs) -> list[int]:
    """Numbers of categories of the codes among the inputs, of which there may be none."""
    return [int(part.max()) + 1 for part in parts_of(x) if not part.is_floating_point()]


def one_hot(parts: tuple[Tensor, ...], sizes: list[int]) -> Tensor:
    """Numbers and codes as one matrix: codes are columns of 0 and 1."""
    if not sizes:
        return parts[0]
    numbers, codes = parts[: -len(sizes)], parts[-len(sizes) :]
    columns = [
        (code[:, None] == torch.arange(size, device=code.device)).float()
        for code, size in zip(codes, sizes, strict=True)
    ]
    return torch.cat([*numbers, *columns], 1)


def encoded(function: Callable[..., object], sizes: list[int]) -> Callable[..., Any]:
    """A function of a matrix as one of inputs with codes of these sizes."""
    return _OfParts(function, sizes) if sizes else function


class _OfParts:
    """A function of a matrix, called with numbers and codes."""

    def __init__(self, function: Callable[..., object], sizes: list[int]) -> None:
        update_wrapper(self, function, updated=())
        self.function, self.sizes = function, sizes

    def __call__(self, *parts: Tensor, **options: object) -> Any:
        return self.function(one_hot(parts, self.sizes), **options)


class _Variance(nn.Module):
    """The log variance in the place of the log deviation."""

    def forward(self, outputs: Tensor) -> Tensor:
        """Outputs ``(N, 2)``."""
        return outputs * outputs.new_tensor([1.0, 2.0])


class Encoded(nn.Module):
    """A network of a matrix as one of inputs with codes of these sizes."""

    def __init__(self, network: nn.Module, sizes: list[int]) -> None:
        super().__init__()
        self.network, self.sizes = network, sizes

    def forward(self, *parts: Tensor) -> Tensor:
        """What the network says of numbers and codes."""
        answer: Tensor = self.network(one_hot(parts, self.sizes))
        return answer


class _Weighted(Messenger):
    """Weights of the rows of the observed site."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = weights

    def _pyro_sample(self, msg: Node) -> None:
        if msg["is_observed"]:
            msg["scale"] = msg["scale"] * self.weights


def _count_classes(y: Tensor) -> int:
    """C, from integer labels."""
    if not isinstance(y, Tensor) or y.is_floating_point() or not y.numel():
        raise ArgumentTypeError(
            "`y` must be a tensor of integer labels from 0. Convert it with .long()."
        )
    return int(y.max()) + 1
