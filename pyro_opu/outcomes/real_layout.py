"""How the sites that come back are laid out: names, shapes and dtypes as in ``Predictive``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from pyro_opu.outcomes.layout import SiteLanguage, SiteLayout, read_sites
from pyro_opu.teachers.pyro_model import is_deterministic
from pyro_opu.teachers.real import RealTeacher, RegressionTeacher, normal_parameters

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
    shape = None if isinstance(teacher, RegressionTeacher) else (-1,)
    return read_sites(teacher, x, return_sites, shape, REAL)


def _real_kinds(nodes: dict[str, Any], site: str) -> dict[str, str]:
    """The observed site, and those that hold the mean of y."""
    mean = normal_parameters(nodes[site]["fn"], 2, site)[:, 0]
    kinds = {name: "mean" for name, node in nodes.items() if _holds(node, mean)}
    return {**kinds, site: "value"}


def _holds(node: Any, mean: Tensor) -> bool:
    """Whether a deterministic site holds the mean of y at two inputs."""
    value = node["value"]
    if not is_deterministic(node) or not value.is_floating_point() or value.numel() != 2:
        return False
    return torch.allclose(value.reshape(2).double(), mean.double(), rtol=1e-5, atol=0)


REAL = SiteLanguage(
    learned="y",
    held="the mean of y",
    label=("value", ""),
    extra="mean",
    shape=lambda fn, site: (-1,),
    kinds=_real_kinds,
)
