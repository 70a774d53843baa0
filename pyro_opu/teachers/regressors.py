"""Any source of a real y as a teacher, and whether a function has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_opu.inputs import PLAIN, Form
from pyro_opu.programs.samples import posterior_of
from pyro_opu.programs.signature import call_of
from pyro_opu.programs.sites import refuse_site
from pyro_opu.rng import preserve_rng
from pyro_opu.teachers.arrays import AnyFunction
from pyro_opu.teachers.function import draws_parameter, unpacked_function
from pyro_opu.teachers.numpyro import NumpyroRegressionTeacher, is_numpyro
from pyro_opu.teachers.posteriors import PosteriorRegressionTeacher, is_posterior
from pyro_opu.teachers.real import (
    FunctionRegressionTeacher,
    RealTeacher,
    RegressionTeacher,
    is_pair,
)


def as_regression_teacher(
    source: Any,
    site: str | None = None,
    *,
    inputs: Callable[..., Tensor] | None = None,
    arguments: Callable[[Any], Any] | None = None,
) -> RealTeacher:
    r"""Make a teacher, draws of :math:`N(f_s(x), \sigma_s(x)^2)`, from a regressor's posterior.

    Args:
        source: A :class:`pyro.infer.Predictive` whose observed site is normal, with one output per
            input; or a function ``x -> (loc, scale)`` or ``(x, num_draws) -> (loc, scale)``, draws
            ``(S, N)`` of y's mean and of the noise's deviation; or such a teacher.
        site: The observed normal site, when the model has several.
        inputs, arguments: As in :func:`~pyro_opu.as_teacher`.

    Example:
        >>> import torch
        >>> from pyro_opu.regression import as_regression_teacher
        >>> w = torch.tensor([1.0, 2.0, 3.0])
        >>> teacher = as_regression_teacher(lambda x: (w[:, None] * x[:, 0], torch.ones(3, 1)))
        >>> teacher.draws(torch.ones(5, 1)).shape
        torch.Size([3, 5, 2])
    """
    source = posterior_of(source)
    if isinstance(source, Predictive):
        return RegressionTeacher(source, site, call_of(inputs, source.model, arguments))
    if (found := from_elsewhere(source, site, inputs, arguments)) is not None:
        return found
    refuse_site(site, source)
    if isinstance(source, RealTeacher):
        return source
    if callable(source) and not isinstance(source, nn.Module):
        return FunctionRegressionTeacher(source)
    raise TypeError(
        "`source` must be a pyro.infer.Predictive with a normal observed site, or a function "
        f"x -> (loc, scale) of draws; got {type(source).__name__}. Wrap it in a function of x."
    )


def from_elsewhere(
    source: Any,
    site: str | None,
    inputs: Callable[..., Tensor] | None,
    arguments: Callable[[Any], Any] | None = None,
) -> Any:
    """The teacher of a real y of NumPyro, or of draws with a function of them; or ``None``."""
    if is_numpyro(source):
        return NumpyroRegressionTeacher(source, site, inputs, arguments)
    return PosteriorRegressionTeacher(*source) if is_posterior(source) else None


def gives_pair(
    source: Any,
    x: Tensor,
    site: str | None,
    inputs: Callable[..., Tensor] | None,
    form: Form = PLAIN,
) -> bool:
    """Whether a source that is no model of Pyro returns (loc, scale) at two rows of ``x``.

    One that cannot be run does not; arguments are those of :func:`as_regression_teacher`.
    """
    if isinstance(source, RealTeacher):
        return True
    try:
        if (teacher := from_elsewhere(source, site, inputs)) is not None:
            teacher.unpack_by(form)
            with torch.no_grad(), preserve_rng():
                return teacher.is_pair(x[:2].clone())
        if not callable(source) or isinstance(source, (nn.Module, type)):
            return False
        keyword, source = draws_parameter(source), AnyFunction(source)
        if form is not PLAIN:
            source, keyword = unpacked_function(source, form)
        with torch.no_grad(), preserve_rng():
            return is_pair(source(x[:2].clone(), **({} if keyword is None else {keyword: 2})))
    except Exception:  # noqa: BLE001 - whatever is wrong with it is explained where it is used
        return False
