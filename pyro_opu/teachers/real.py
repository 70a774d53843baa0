r"""A regressor as a teacher: draws of the mean :math:`f_\theta(x)` and of the noise's scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_opu.programs.enumerated import mixed_normals, normals_apart
from pyro_opu.programs.program import Program
from pyro_opu.programs.sites import one_per_row
from pyro_opu.teachers.agreement import ComparedDraws
from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.function import FunctionDraws
from pyro_opu.teachers.kinds import described_all, kind_of, said


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


class RegressionTeacher(ComparedDraws, RealTeacher):
    r"""The observed site of a real y of a :class:`pyro.infer.Predictive` as draws of its moments.

    .. math:: y \mid x, \theta_s \sim N(f_s(x), \sigma_s(x)^2)

    Mean and scale are read off the site's distribution under each posterior draw, as
    :class:`~pyro_opu.teachers.PredictiveTeacher` reads class probabilities; of a law that is no
    normal they are its moments.

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

    allowed = "a real number, Normal or of another law with a mean and a variance"

    def _fits(self, fn: Any) -> bool:
        return kind_of(fn) == "real"

    def _only_site(self, fits: list[str], found: dict[str, Any], program: Program) -> str:
        # A latent of a prior may be the only normal site.
        if len(fits) == 1 and (len(found) == 1 or not program.posterior.is_prior):
            return fits[0]
        raise ValueError(
            "`site` must name the observed site of a real y, since it is not the only one that the "
            f"posterior does not fix: {described_all(found)}. Pass site='...'."
        )

    def _read(self, fn: Any, rows: int, site: str) -> Tensor:
        return normal_parameters(fn, rows, site)

    def _mixed(self, log_weights: Tensor, values: Tensor) -> Tensor:
        return mixed_normals(log_weights, values)

    def _mixed_apart(self, one: Tensor, two: Tensor) -> float:
        return normals_apart(one, two)


def is_real(program: Program, site: str | None) -> bool:
    """Whether a model observes a real y, and no classes."""
    free = program.sites.fns
    if site in free:
        return kind_of(free[site]) == "real"
    kinds = {kind_of(free[name]) for name in program.sites.answered(program.returned)}
    return "real" in kinds and "classes" not in kinds


def normal_parameters(fn: Any, rows: int, site: str) -> Tensor:
    """Mean and logarithm of the deviation ``(N, 2)`` of an observed site's distribution."""
    advice = "Distill each output of a model with several from a model with that one output."
    return one_per_row(said("real", fn), rows, f"'{site}' must hold one number", advice)


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
    if not is_pair(values):
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


def is_pair(values: Any) -> bool:
    """Whether a function's result is a pair of floating tensors."""
    pair = isinstance(values, tuple) and len(values) == 2
    return pair and all(isinstance(v, Tensor) and v.is_floating_point() for v in values)
