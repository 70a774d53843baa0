"""Log-densities of the rows of an observed site, also where all rows are one event."""

from __future__ import annotations

from typing import Any

from pyro.distributions.torch_distribution import ExpandedDistribution
from torch import Tensor
from torch import distributions as dist
from torch.distributions import Distribution

from pyro_opu.interop.groups import log_prob_of
from pyro_opu.programs.sites import site_kind, unwrap, wrapped_log_probs
from pyro_opu.utils.laws import Node
from pyro_opu.utils.warnings import warn_user

__all__ = ["is_of_rows", "of_rows", "of_site"]


def is_of_rows(node: Node, lengths: set[int]) -> bool:
    """Whether the one event of a site holds rows that can be taken apart.

    They are as many as another of the model's arguments has, by its ``lengths``.
    """
    fn = node["fn"]
    rows = next(iter(fn.event_shape), 1)
    if fn.batch_shape.numel() > 1 or rows == 1 or (lengths and rows not in lengths):
        return False
    if fn.batch_shape or not isinstance(_whole(fn), (dist.Independent, dist.MultivariateNormal)):
        warn_user(
            f"Site '{node['name']}' observes {rows} rows as one event of a "
            f"{type(_whole(fn)).__name__}, which cannot be taken apart: its log_likelihood is of "
            "one observation, and az.loo says nothing of rows. Put independent rows in a plate."
        )
        return False
    return True


def of_rows(node: Node) -> Tensor:
    """Log-density ``(N,)`` of the rows of one event, each given the others."""
    fn, value = _whole(node["fn"]), node["value"]
    if isinstance(fn, dist.Independent):
        found = _log_prob(fn.base_dist, value)
        return _summed(fn.base_dist.log_prob(value) if found is None else found)
    precision = fn.precision_matrix
    variance = precision.diagonal(dim1=-2, dim2=-1).reciprocal()
    mean = value - variance * (precision @ (value - fn.loc)[..., None]).squeeze(-1)
    return dist.Normal(mean, variance.sqrt(), validate_args=False).log_prob(value)


def of_site(node: Node) -> Tensor:
    """Log-density of a site's value by its batch dimensions."""
    found = _log_prob(node["fn"], node["value"])
    return node["unscaled_log_prob"] if found is None else found


def _whole(fn: Distribution) -> Any:
    """A distribution before it was expanded."""
    while isinstance(fn, ExpandedDistribution):
        fn = fn.base_dist
    return fn


def _summed(found: Tensor) -> Tensor:
    """Over all but the rows."""
    return found.flatten(1).sum(1) if found.ndim > 1 else found


def _log_prob(fn: Distribution, value: Tensor) -> Tensor | None:
    """Log-density of one label, to the digits that a sure row needs; ``None`` for all else."""
    kind = site_kind(fn) if unwrap(fn) is fn else None
    if kind == "onehot":
        return log_prob_of(value.argmax(-1), wrapped_log_probs(fn))
    if kind in ("categorical", "bernoulli") and not fn.event_shape:
        return log_prob_of(value.long(), wrapped_log_probs(fn))
    return None
