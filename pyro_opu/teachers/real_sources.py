"""What may be taught from in regression: a ``Predictive``, or a function of means and scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_opu.rng import preserve_rng
from pyro_opu.teachers.calling import call_of
from pyro_opu.teachers.function import FunctionDraws, draws_parameter
from pyro_opu.teachers.pyro_model import ModelDraws
from pyro_opu.teachers.real import RealTeacher, RegressionTeacher, is_real

__all__ = ["FunctionRegressionTeacher", "as_regression_teacher", "is_regressor"]


def as_regression_teacher(
    source: Any, site: str | None = None, *, inputs: Callable[..., Tensor] | None = None
) -> RealTeacher:
    r"""Make a teacher, draws of :math:`N(f_s(x), \sigma_s(x)^2)`, from a regressor's posterior.

    Args:
        source: A :class:`pyro.infer.Predictive` whose observed site is normal, with one output per
            input; or a function ``x -> (loc, scale)`` or ``(x, num_draws) -> (loc, scale)``, draws
            ``(S, N)`` of y's mean and of the noise's deviation; or such a teacher.
        site: The observed normal site, when the model has several.
        inputs: Picks the input from the arguments of a ``Predictive``'s call.

    Example:
        >>> import torch
        >>> from pyro_opu.regression import as_regression_teacher
        >>> w = torch.tensor([1.0, 2.0, 3.0])
        >>> teacher = as_regression_teacher(lambda x: (w[:, None] * x[:, 0], torch.ones(3, 1)))
        >>> teacher.draws(torch.ones(5, 1)).shape
        torch.Size([3, 5, 2])
    """
    if isinstance(source, Predictive):
        return RegressionTeacher(source, site, call_of(inputs, source.model))
    if site is not None:
        raise ValueError(
            "`site` names a site of a Pyro model, so `source` must be a pyro.infer.Predictive; got "
            f"a {type(source).__name__}. Leave `site` out."
        )
    if isinstance(source, RealTeacher):
        return source
    if callable(source) and not isinstance(source, nn.Module):
        return FunctionRegressionTeacher(source)
    raise TypeError(
        "`source` must be a pyro.infer.Predictive with a normal observed site, or a function "
        f"x -> (loc, scale) of draws; got {type(source).__name__}. Wrap it in a function of x."
    )


def is_regressor(
    source: Any, x: Tensor, site: str | None, inputs: Callable[..., Tensor] | None
) -> bool:
    """Whether the source's y is real: its observed site is normal, or it returns (loc, scale).

    A model is run at two and at three rows of ``x``, a function is called at two. What cannot be
    run, and a model with a categorical site that is not told apart by ``site``, is no regressor.

    Args:
        source: Anything.
        x: Inputs ``(N, ...)``.
        site: The observed site, when the model has several.
        inputs: Picks the input from the arguments of a ``Predictive``'s call.
    """
    if isinstance(source, RealTeacher):
        return True
    try:
        if isinstance(source, Predictive):
            model = ModelDraws(source, site, call_of(inputs, source.model))
            with preserve_rng():
                model.begin(x, min(2, source.num_samples))
            return is_real(model, site)
        if not callable(source) or isinstance(source, (nn.Module, type)):
            return False
        keyword = draws_parameter(source)
        with torch.no_grad(), preserve_rng():
            return returns_two(source(x[:2], **({} if keyword is None else {keyword: 2})))
    except Exception:  # noqa: BLE001 - whatever is wrong with it is explained where it is used
        return False


class FunctionRegressionTeacher(FunctionDraws, RealTeacher):
    r"""A function ``x -> (loc, scale)`` of draws ``(S, N)``, or ``(x, num_draws) -> ...``.

    Args:
        function: Returns the means :math:`f_s(x)` and the noise's standard deviations
            :math:`\sigma_s(x)`, ``(S, N)`` each, or for the second anything that broadcasts to it.
    """

    def _read(self, values: Any, rows: int) -> Tensor:
        return _stacked(values, rows)


def _stacked(values: Any, rows: int) -> Tensor:
    """What a function returned as draws ``(S, N, 2)``."""
    if not returns_two(values):
        raise TypeError(
            "`source` must return two floating tensors (loc, scale), draws of y's mean and of "
            f"the noise's standard deviation; got {type(values).__name__}. For noise that is known "
            "return torch.full_like(loc, scale)."
        )
    loc, scale = values
    if loc.ndim != 2 or loc.shape[1] != rows:
        raise ValueError(
            f"`source` must return means of shape (S, N) with N = {rows}; got "
            f"{tuple(loc.shape)}. Draws come first, then inputs."
        )
    try:
        scale = scale.to(loc.dtype).expand_as(loc)
    except RuntimeError as error:
        raise ValueError(
            f"`source` must return scales of the means' shape {tuple(loc.shape)}; got "
            f"{tuple(scale.shape)}."
        ) from error
    return torch.stack([loc, scale.log()], -1).detach()


def returns_two(values: Any) -> bool:
    """Whether a function's result is a pair of floating tensors."""
    return (
        isinstance(values, tuple)
        and len(values) == 2
        and all(isinstance(value, Tensor) and value.is_floating_point() for value in values)
    )
