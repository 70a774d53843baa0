r"""A regressor as a teacher: draws of the mean :math:`f_\theta(x)` and of the noise's scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro.infer import Predictive
from torch import Tensor, nn
from torch import distributions as dist

from pyro_opu.packing import Packing
from pyro_opu.rng import preserve_rng
from pyro_opu.teachers.arrays import AnyFunction
from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.calls import call_of
from pyro_opu.teachers.chains import posterior_of
from pyro_opu.teachers.function import FunctionDraws, draws_parameter, unpacked_function
from pyro_opu.teachers.pyro_model import ModelDraws
from pyro_opu.teachers.row_latents import mixed_normals
from pyro_opu.teachers.sites import one_per_row, refuse_site, site_kind, unwrap


class RealTeacher(JointDraws):
    r"""A teacher of a real y: draws ``(S, N, 2)`` of the normal that the model gives y.

    The mean :math:`f_s(x)` in units of y, and the logarithm of the noise's standard deviation,
    :math:`\log\sigma_s(x)`.
    """

    kind = "real"
    num_outputs = 2

    def _answer_text(self) -> str:
        return "real y"

    def _check_output(self, draws: Tensor, rows: int) -> Tensor:
        if draws.ndim != 3 or draws.shape[1:] != (rows, 2):
            raise ValueError(
                f"`source` must give one mean and one scale per input, shape (S, {rows}, 2) for "
                f"{rows} inputs; got {tuple(draws.shape)}. Let the model keep the inputs on axis 0."
            )
        if not torch.isfinite(draws.sum()):
            raise ValueError(
                "`source`'s means must be finite and its scales positive; got NaN, infinity or a "
                "scale of 0 or below. Check the posterior draws (torch.isfinite) and the model "
                "at these inputs."
            )
        return draws


class RegressionTeacher(ModelDraws, RealTeacher):
    r"""The observed normal site of a :class:`pyro.infer.Predictive` as draws of its parameters.

    .. math:: y \mid x, \theta_s \sim N(f_s(x), \sigma_s(x)^2)

    Its parameters are read off the site's distribution under each posterior draw, as
    :class:`~pyro_opu.teachers.PredictiveTeacher` reads class probabilities.

    Example:
        >>> import pyro, torch
        >>> import pyro.distributions as dist
        >>> from pyro.infer import Predictive
        >>> def model(x, y=None):
        ...     w = pyro.sample("w", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("data", len(x)):
        ...         return pyro.sample("obs", dist.Normal(w * x[:, 0], 0.5), obs=y)
        >>> teacher = RegressionTeacher(Predictive(model, {"w": torch.tensor([1.0, 2.0])}))
        >>> teacher.draws(torch.ones(1, 1))[..., 0]
        tensor([[1.],
                [2.]])
    """

    allowed = "Normal"

    def _fits(self, fn: Any) -> bool:
        return is_normal(fn)

    def _only_site(self, fits: list[str], found: dict[str, str]) -> str:
        # A latent of a prior may be the only normal site.
        if len(fits) == 1 and (len(found) == 1 or not self._from_prior):
            return fits[0]
        raise ValueError(
            "`site` must name the observed normal site, since it is not the only one that the "
            f"posterior does not fix: {found or 'there is none'}. Pass site='...'."
        )

    def _read(self, fn: Any, rows: int, site: str) -> Tensor:
        return normal_parameters(fn, rows, site)

    def _mixed(self, log_weights: Tensor, said: Tensor) -> Tensor:
        return mixed_normals(log_weights, said)


def is_real(model: ModelDraws, site: str | None) -> bool:
    """Whether a model that has been run observes a real y: a normal site, none of classes."""
    free = model.free_sites()
    if site in free:
        return is_normal(free[site])
    fns = [free[name] for name in model.answered()]
    return not any(map(site_kind, fns)) and any(map(is_normal, fns))


def is_normal(fn: Any) -> bool:
    """Whether a site's distribution is a normal, in ``Independent``, ``Masked`` or not."""
    return isinstance(unwrap(fn), dist.Normal)


def normal_parameters(fn: Any, rows: int, site: str) -> Tensor:
    """Mean and logarithm of the scale ``(N, 2)`` of an observed site's distribution."""
    if not is_normal(fn):
        raise ValueError(
            f"`source`'s site '{site}' must be Normal; got {type(unwrap(fn)).__name__}. Name "
            "the site of the real y with site='...'."
        )
    values = torch.stack([fn.mean, fn.variance.log() / 2], -1)
    advice = "Distill each output of a model with several from a model with that one output."
    return one_per_row(values, rows, f"'{site}' must hold one number", advice)


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
    from pyro_opu.teachers.numpyro import NumpyroRegressionTeacher, is_numpyro
    from pyro_opu.teachers.posteriors import PosteriorRegressionTeacher, is_posterior

    if is_numpyro(source):
        return NumpyroRegressionTeacher(source, site, inputs, arguments)
    return PosteriorRegressionTeacher(*source) if is_posterior(source) else None


def is_regressor(
    source: Any,
    x: Tensor,
    site: str | None,
    inputs: Callable[..., Tensor] | None,
    packing: Packing | None = None,
) -> bool:
    """Whether the source's y is real: its observed site is normal, or it returns (loc, scale).

    A model is run at two and at three rows of ``x``, a function is called at two. A source that
    cannot be run is no regressor; arguments are those of :func:`as_regression_teacher`.
    """
    if isinstance(source, RealTeacher):
        return True
    try:
        source = posterior_of(source)
        if isinstance(source, Predictive):
            model = ModelDraws(source, site, call_of(inputs, source.model))
            if packing is not None:
                model.unpack_by(packing)
            with preserve_rng():
                model.begin(x, min(2, source.num_samples))
            return is_real(model, site)
        if (teacher := from_elsewhere(source, site, inputs)) is not None:
            if packing is not None:
                teacher.unpack_by(packing)
            with torch.no_grad(), preserve_rng():
                return teacher.is_pair(x[:2])
        if not callable(source) or isinstance(source, (nn.Module, type)):
            return False
        keyword, source = draws_parameter(source), AnyFunction(source)
        if packing is not None:
            source, keyword = unpacked_function(source, packing)
        with torch.no_grad(), preserve_rng():
            return _is_pair(source(x[:2], **({} if keyword is None else {keyword: 2})))
    except Exception:  # noqa: BLE001 - whatever is wrong with it is explained where it is used
        return False


class FunctionRegressionTeacher(FunctionDraws, RealTeacher):
    r"""A function ``x -> (loc, scale)`` of draws ``(S, N)``, or ``(x, num_draws) -> ...``.

    Args:
        function: Returns the means :math:`f_s(x)` and the noise's standard deviations
            :math:`\sigma_s(x)`, ``(S, N)`` each, or for the second anything that broadcasts to it.
    """

    def _read(self, values: Any, rows: int) -> Tensor:
        return read_normals(values, rows)


def read_normals(values: Any, rows: int) -> Tensor:
    """Draws ``(S, N, 2)`` of mean and log scale from a pair of tensors, checked."""
    if not _is_pair(values):
        raise TypeError(
            "`source` must return two floating tensors (loc, scale), draws of y's mean and of "
            f"the noise's standard deviation; got {type(values).__name__}. For noise that is "
            "known return torch.full_like(loc, scale)."
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


def _is_pair(values: Any) -> bool:
    """Whether a function's result is a pair of floating tensors."""
    pair = isinstance(values, tuple) and len(values) == 2
    return pair and all(isinstance(v, Tensor) and v.is_floating_point() for v in values)
