"""Laws of numbers that have a mean and a variance."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_opu.programs.sites import site_kind, unwrap
from pyro_opu.utils.laws import is_known, own_members

__all__ = ["NORMAL", "has_moments", "has_own_moments", "moments", "of_counts"]

NORMAL = (dist.Normal, dist.MultivariateNormal, dist.LowRankMultivariateNormal)
#: Distributions whose mean and variance are not those of a number.
_NO_NUMBERS = (dist.Delta, dist.VonMises, dist.Unit)
#: Members that say what is drawn.
_DRAWN = {"sample", "rsample", "log_prob", "__call__"}
#: Distributions inside another one, by the names of its attributes.
_INSIDE = ("base_dist", "_component_distribution", "component_dists", "component0", "component1")


def of_counts(fn: Distribution) -> bool:
    """Whether its values are counted."""
    support = getattr(unwrap(fn), "support", None)
    return bool(getattr(support, "is_discrete", False))


def has_moments(fn: Distribution) -> bool:
    """Whether it is of one number, and its mean and variance are finite and its own."""
    base = unwrap(fn)
    if site_kind(fn) is not None:
        return False
    discrete = of_counts(base) and int(torch.as_tensor(_least(base)).min()) < 0
    if base.event_shape or isinstance(base, _NO_NUMBERS) or discrete or not has_own_moments(base):
        return False
    try:
        mean, variance = base.mean, base.variance
    except NotImplementedError:
        return False
    return bool(torch.isfinite(mean).all() and torch.isfinite(variance).all())


def _least(base: Any) -> Any:
    """The least value of a count, -1 where it is none."""
    return getattr(base.support, "lower_bound", -1)


def has_own_moments(fn: Distribution) -> bool:
    """Whether mean and variance are of the distribution that is drawn, not of a parent's."""
    own = own_members(type(fn))
    if own & _DRAWN and not {"mean", "variance"} <= own:
        return False
    found = [vars(fn).get(name) for name in _INSIDE]
    inside = [each for some in found for each in (some if isinstance(some, tuple) else (some,))]
    return all(has_own_moments(each) for each in inside if each is not None)


def moments(fn: Any) -> tuple[Tensor, Tensor]:
    """Mean and variance; those of Student's t, which torch writes in place, as vmap can do them."""
    base = unwrap(fn)
    if not is_known(base, dist.StudentT):
        return fn.mean, fn.variance
    spread = base.scale**2 * base.df / (base.df - 2)
    mean, variance = torch.broadcast_tensors(base.loc, torch.where(base.df > 2, spread, torch.inf))
    return mean.expand(fn.shape()), variance.expand(fn.shape())
