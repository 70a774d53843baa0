r"""A regressor as a teacher: draws of the mean :math:`f_\theta(x)` and of the noise's scale."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor
from torch import distributions as dist

from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.pyro_model import ModelDraws
from pyro_opu.teachers.runs import is_deterministic
from pyro_opu.teachers.sites import site_kind, unwrap

__all__ = ["RealTeacher", "RegressionTeacher", "is_normal", "is_real", "normal_parameters"]


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

    Read in the same way as the class probabilities of
    :class:`~pyro_opu.teachers.PredictiveTeacher`: the model is conditioned on each posterior draw
    and run at ``x``, all draws through :func:`torch.vmap` at once, and the parameters are taken
    off the site's distribution, so nothing is lost to noise.

    Example:
        >>> import pyro, torch
        >>> import pyro.distributions as dist
        >>> from pyro.infer import Predictive
        >>> def model(x, y=None):
        ...     w = pyro.sample("w", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("data", len(x)):
        ...         return pyro.sample("obs", dist.Normal(w * x[:, 0], 0.5), obs=y)
        >>> teacher = RegressionTeacher(Predictive(model, {"w": torch.tensor([1.0, 2.0])}))
        >>> teacher.draws(torch.ones(1, 1))[..., 0], teacher.draws(torch.ones(1, 1))[..., 1].exp()
        (tensor([[1.],
                [2.]]), tensor([[0.5000],
                [0.5000]]))
    """

    def _choose_site(self, nodes: dict[str, Any], latents: Container[str]) -> str:
        return _find_real_site(nodes, latents, self._asked_site, self._from_prior)

    def _read(self, fn: Any, rows: int, site: str) -> Tensor:
        return normal_parameters(fn, rows, site)

    def _stand_in(self, fn: Any) -> Tensor:
        return fn.mean


def _free(nodes: dict[str, Any], latents: Container[str]) -> dict[str, Any]:
    """The sites that the posterior does not fix."""
    return {n: v for n, v in nodes.items() if n not in latents and not is_deterministic(v)}


def is_real(model: ModelDraws, site: str | None) -> bool:
    """Whether a model that has been run observes a real y: a normal site, none of classes."""
    nodes = _free(model.runs[0].nodes, model.posterior_sites)
    kinds = {name: node["fn"] for name, node in nodes.items()}
    if site in kinds:
        return is_normal(kinds[site])
    classes = any(site_kind(fn) for fn in kinds.values())
    return not classes and any(is_normal(fn) for fn in kinds.values())


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
    outputs = values.shape[:-1].numel()
    if outputs == rows:
        return values.reshape(rows, 2)
    if outputs == 1:  # the model does not depend on x: one distribution for all rows
        return values.reshape(1, 2).expand(rows, 2)
    raise ValueError(
        f"`source`'s site '{site}' must hold one number per input; got shape "
        f"{tuple(values.shape[:-1])} for {rows} inputs. Distill each output of a model "
        "with several by itself, from a model with that one output."
    )


def _find_real_site(
    nodes: dict[str, Any], latents: Container[str], asked: str | None, prior: bool
) -> str:
    """The observed normal site; errors name the candidates."""
    free = _free(nodes, latents)
    normals = [name for name, node in free.items() if is_normal(node["fn"])]
    if asked in normals:
        return asked
    if asked is None and len(normals) == 1 and (len(free) == 1 or not prior):
        return normals[0]
    found = {name: type(unwrap(node["fn"])).__name__ for name, node in free.items()}
    if asked is None:
        raise ValueError(
            "`site` must name the observed normal site, since it is not the only one that the "
            f"posterior does not fix: {found or 'there is none'}. Pass site='...'."
        )
    kind = (
        "a latent site of the posterior"
        if asked in latents
        else f"a {found[asked]}"
        if asked in found
        else "which the model does not have"
    )
    raise ValueError(
        f"`site` must name an observed site that is Normal; got '{asked}', {kind}. Candidates: "
        f"{normals}."
    )
