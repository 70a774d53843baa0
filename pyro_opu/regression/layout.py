"""How the sites that come back are laid out: names, shapes and dtypes as in ``Predictive``."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from pyro_opu.layout import SiteLayout, _answers, _dtype, _template
from pyro_opu.regression.teacher import RealTeacher, RegressionTeacher, normal_parameters
from pyro_opu.teachers.base import some_rows
from pyro_opu.teachers.pyro_model import is_deterministic

__all__ = ["filled", "read_real_layouts"]


def filled(site: SiteLayout, f: Tensor, y: Tensor) -> Tensor:
    """Lay out draws ``(S, N)`` as this site: of kind "value" those of y, of kind "mean" of f."""
    value = y if site.kind == "value" else f
    count, rows = value.shape
    shape = [rows if size == -1 else size for size in site.shape]
    return value.to(getattr(torch, site.dtype)).reshape(count, *shape)


def read_real_layouts(
    teacher: RealTeacher, x: Tensor, return_sites: Collection[str] | None
) -> tuple[SiteLayout, ...]:
    """The sites a student that replaces this teacher gives back.

    Args:
        teacher: Where the sites come from; one that is not a Pyro model has "obs" and "mean".
        x: Inputs ``(N, ...)``; a few rows of them go through the model.
        return_sites: Names asked for; ``None`` or none at all follows the ``Predictive``.

    Returns:
        One layout per site: of the kind "value", draws of y, or "mean", draws of its mean f.

    Raises:
        TypeError: ``return_sites`` is no collection of names.
        ValueError: a latent site, a site that does not hold the mean of y, or an unknown one is
            asked for; a model whose y has no axis of inputs.
    """
    if isinstance(return_sites, str) or not isinstance(return_sites or (), Collection):
        raise TypeError(
            f"`return_sites` must be a list or tuple of site names; got {return_sites!r}. "
            f"For one site pass [{str(return_sites)!r}]."
        )
    if not isinstance(teacher, RegressionTeacher):
        known = {
            "obs": SiteLayout("obs", "value", _dtype(x), (-1,)),
            "mean": SiteLayout("mean", "mean", _dtype(x), (-1,)),
        }
        return _named(return_sites or ["obs"], known, set())
    teacher.prepare(x)
    nodes = teacher.run_once(some_rows(x, 2))
    possible = _possible(teacher, nodes, x)
    predictive = teacher.predictive
    asked = return_sites or predictive.return_sites
    if asked:
        random = {name for name, node in nodes.items() if not is_deterministic(node)}
        latent = (random | set(predictive.posterior_samples)) - {teacher.site}
        return _named(asked, possible, latent)
    # As Predictive chooses: all sites with a guide or return_sites=None, else those not given.
    everything = predictive.guide is not None or predictive.return_sites is None
    given = set() if everything else set(predictive.posterior_samples)
    default = [name for name in nodes if name not in given]
    left_out = sorted(set(default) - set(possible))
    if left_out:
        warnings.warn(
            f"one pass cannot give the sites {left_out}, which this Predictive returns by "
            f"default; they are left out. Pass return_sites={[teacher.site]!r} to say so yourself.",
            UserWarning,
            stacklevel=4,
        )
    return tuple(possible[name] for name in default if name in possible)


def _named(
    names: Collection[str], possible: dict[str, SiteLayout], latent: set[str]
) -> tuple[SiteLayout, ...]:
    """The layouts of the sites asked for."""
    for name in names:
        if name in latent:
            raise ValueError(
                f"`return_sites` asks for '{name}', a latent site: the student learns the "
                "distribution of y that the posterior induces, not the posterior, so one pass "
                f"cannot give it. Ask for some of {list(possible)}, or read the posterior samples."
            )
        if name not in possible:
            raise ValueError(
                f"`return_sites` asks for {name!r}, which is neither the observed site nor a "
                "deterministic site that holds the mean of y; one pass can give some of "
                f"{list(possible)}."
            )
    return tuple(possible[name] for name in names)


def _possible(
    teacher: RegressionTeacher, nodes: dict[str, Any], x: Tensor
) -> dict[str, SiteLayout]:
    """Layouts of the observed site and of those that hold the mean of y."""
    mean = normal_parameters(nodes[teacher.site]["fn"], 2, teacher.site)[:, 0]
    kinds = {name: "mean" for name, node in nodes.items() if _holds(node, mean)}
    kinds[teacher.site] = "value"
    names = [name for name in nodes if name in kinds]
    two, three = _answers(teacher, x, names)
    layouts = {}
    for name in names:
        shape = _template(two[name].shape[1:], three[name].shape[1:])
        if -1 not in shape:
            raise ValueError(
                f"site '{name}' must hold a value for every input; got shape {shape} whatever "
                "their number. Put it in pyro.plate('data', len(x))."
            )
        layouts[name] = SiteLayout(name, kinds[name], _dtype(two[name]), shape)
    if "mean" not in nodes:
        layouts["mean"] = SiteLayout("mean", "mean", _dtype(x), (-1,))
    return layouts


def _holds(node: Any, mean: Tensor) -> bool:
    """Whether a deterministic site holds the mean of y at two inputs."""
    value = node["value"]
    if not is_deterministic(node) or not value.is_floating_point() or value.numel() != 2:
        return False
    return torch.allclose(value.reshape(2).double(), mean.double(), rtol=1e-5, atol=0)
