"""Schedules of step sizes: constant, polynomial decay, halving."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from pyro_opu.checks import ArgumentError, ArgumentTypeError, in_range, positive_float, positive_int


@dataclass(frozen=True)
class _Schedule:
    """A function of the step ``t = 0, 1, ...`` whose settings are all positive and finite."""

    def __post_init__(self) -> None:
        for field in fields(self):
            positive_float(field.name, getattr(self, field.name))


@dataclass(frozen=True)
class Constant(_Schedule):
    r"""A constant step size, :math:`\eta_t = \eta`, the ``value``."""

    value: float

    def __call__(self, step: int) -> float:
        return self.value


@dataclass(frozen=True)
class PolynomialDecay(_Schedule):
    r"""A power of the step, :math:`\eta_t = a (b + t)^{-\gamma}`.

    With ``gamma`` in (1/2, 1] the step sizes sum to infinity and their squares do not, which makes
    SGLD exact in the limit; ``a`` is the scale, ``b`` a delay in steps.

    References:
        Welling and Teh, Bayesian learning via stochastic gradient Langevin dynamics (2011), eq. 2.

    Example:
        >>> PolynomialDecay(1.0, b=100.0, gamma=0.5)(0)
        0.1
    """

    a: float
    b: float = 1.0
    gamma: float = 0.55

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("gamma", self.gamma, 0, 1, "(]", "Above 1 the chain would come to rest too soon.")

    def __call__(self, step: int) -> float:
        return self.a * (self.b + step) ** -self.gamma


@dataclass(frozen=True)
class Halving(_Schedule):
    r"""A step size cut every k steps, :math:`\eta_t = \eta_0 f^{\lfloor t / k \rfloor}`.

    :math:`\eta_0` is ``initial``, k is ``every``, and f, the ``factor``, is in (0, 1].

    References:
        Korattikara, Rathod, Murphy and Welling, Bayesian dark knowledge (2015), section 3.4.

    Example:
        >>> schedule = Halving(1e-5, every=80_000)
        >>> schedule(79_999), schedule(80_000)
        (1e-05, 5e-06)
    """

    initial: float
    every: int
    factor: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int("every", self.every)
        in_range("factor", self.factor, 0, 1, "(]")

    def __call__(self, step: int) -> float:
        return self.initial * self.factor ** (step // self.every)


def as_schedule(step_size: float | Callable[[int], float]) -> Callable[[int], float]:
    """A callable as it is, a positive number as :class:`Constant`."""
    if callable(step_size):
        return step_size
    if isinstance(step_size, bool) or not isinstance(step_size, int | float):
        raise ArgumentTypeError(
            "`step_size` must be a number or a callable step -> step size; got "
            f"{type(step_size).__name__}. Pass a float, or a schedule such as PolynomialDecay."
        )
    return Constant(checked_step_size(step_size))


def checked_step_size(value: Any, step: int | None = None) -> float:
    """The step size as a float, if it is positive and finite."""
    value = float(value)
    if not (math.isfinite(value) and value > 0):
        where = "" if step is None else f" at step {step}"
        raise ArgumentError(
            f"`step_size` must be positive and finite; got {value!r}{where}. Pass a positive "
            "number, or a schedule that stays positive."
        )
    return value
