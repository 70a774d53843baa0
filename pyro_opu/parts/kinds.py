"""What a site observes by its distribution, and why one is not taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_opu.checks import ArgumentError
from pyro_opu.distributions.table import Kind
from pyro_opu.programs.sites import site_kind, unwrap, wrapped_log_probs
from pyro_opu.utils.laws import is_known, own_members
from pyro_opu.utils.warnings import warn_user

_NORMAL = (dist.Normal, dist.MultivariateNormal, dist.LowRankMultivariateNormal)
_COUNTS = (dist.Poisson, dist.GammaPoisson, dist.NegativeBinomial)
#: Distributions whose mean and variance are not those of a number.
_NO_NUMBERS = (dist.Delta, dist.VonMises, dist.Unit)
#: Members that say what is drawn.
_DRAWN = {"sample", "rsample", "log_prob", "__call__"}
#: Distributions inside another one, by the names of its attributes.
_INSIDE = ("base_dist", "_component_distribution", "component_dists", "component0", "component1")
#: Classes at which a log-probability is compared.
COMPARED = 4


def kind_of(fn: Distribution) -> Kind | None:
    """What a site of this distribution observes; ``None`` of one that no student answers.

    A real y or a count may have any law with a mean and a variance.
    """
    if (kind := site_kind(fn)) is not None:
        several = int(torch.as_tensor(getattr(unwrap(fn), "total_count", 1)).max()) != 1
        if not several:
            return "classes"
        return "trials" if kind == "binomial" else None
    if is_known(base := unwrap(fn), _NORMAL):
        return "real"
    if not _has_moments(base):
        return None
    return "counts" if _of_counts(base) else "real"


def _of_counts(base: Distribution) -> bool:
    support = getattr(base, "support", None)
    return bool(getattr(support, "is_discrete", False))


def _has_moments(base: Distribution) -> bool:
    """Whether it is of one number, a law whose mean and variance are finite and are its own."""
    discrete = _of_counts(base) and int(torch.as_tensor(_least(base)).min()) < 0
    if base.event_shape or isinstance(base, _NO_NUMBERS) or discrete or not has_own_moments(base):
        return False
    try:
        mean, variance = base.mean, base.variance
    except NotImplementedError:
        return False
    return bool(torch.isfinite(mean).all() and torch.isfinite(variance).all())


def _least(base: Distribution) -> Any:
    """The least value of a count, -1 where it is none."""
    return getattr(base.support, "lower_bound", -1)


def has_own_moments(fn: Distribution) -> bool:
    """Whether mean and variance are of the law that is drawn, not of a parent's."""
    own = own_members(type(fn))
    if own & _DRAWN and not {"mean", "variance"} <= own:
        return False
    found = [vars(fn).get(name) for name in _INSIDE]
    inside = [each for some in found for each in (some if isinstance(some, tuple) else (some,))]
    return all(has_own_moments(each) for each in inside if each is not None)


def said(kind: Kind, fn: Distribution) -> Tensor:
    """What a distribution says of each of its numbers, ``(*shape, K)``."""
    if kind in ("classes", "trials"):
        return wrapped_log_probs(fn)
    mean, variance = _moments(fn)
    return torch.stack([mean, variance.log() / 2], -1)


def _moments(fn: Any) -> tuple[Tensor, Tensor]:
    """Mean and variance; those of Student's t, which torch writes in place, as vmap can do them."""
    base = unwrap(fn)
    if not is_known(base, dist.StudentT):
        return fn.mean, fn.variance
    spread = base.scale**2 * base.df / (base.df - 2)
    mean, variance = torch.broadcast_tensors(base.loc, torch.where(base.df > 2, spread, torch.inf))
    return mean.expand(fn.shape()), variance.expand(fn.shape())


def said_of(fn: Distribution) -> Tensor:
    """:func:`said` of a site's kind."""
    kind = kind_of(fn)
    assert kind is not None
    return said(kind, fn)


def described(fn: Distribution) -> str:
    """The distribution in words, and why it is not taken where that is not plain."""
    base = unwrap(fn)
    name, own = type(base).__name__, own_members(type(base))
    if own and kind_of(fn) is None:
        parent = next(k.__name__ for k in type(base).__mro__ if not own_members(k))
        parts = " and ".join(f"`{each}`" for each in sorted(own))
        return f"{name} (a {parent} with {parts} of its own)"
    return name


def described_all(fns: Mapping[str, Distribution]) -> str:
    """Sites and their distributions."""
    return str({name: described(fn) for name, fn in fns.items()} or "none")


def cure(fns: Mapping[str, Distribution]) -> str:
    """What to do about sites none of which is taken, by the first that says why."""
    if not fns:
        return (
            "Is the observed site among the posterior samples? Leave its labels out of them, or "
            "pass pyro.infer.Predictive(model, samples) a model that samples the label where y is "
            "None."
        )
    for fn in fns.values():
        base = unwrap(fn)
        if kind_of(fn) is not None:
            return "It has no class probabilities; distill and fidelity take it as it is."
        if own_members(type(base)):
            return (
                f"The parameters of {type(base).__name__} do not say its law: give it a `sample` "
                "and a `log_prob` that agree where it has classes, `mean` and `variance` of its "
                "own where its values are numbers, or take a distribution of Pyro, such as "
                "ZeroInflatedPoisson."
            )
        if isinstance(base, dist.Multinomial):
            return "Observe each trial in a row of its own, as Categorical, or each class's count."
        if base.event_shape:
            return (
                f"Each value of {type(base).__name__} is one event of several numbers: observe "
                "them one by one, in a plate, or as a MultivariateNormal of a transform."
            )
    return (
        "A real y or a count needs a finite mean and variance: raise the degrees of freedom of a "
        "StudentT above 2, or observe a transform of y. Draws of any site are those of "
        "pyro_opu.batched."
    )


def check_law(fn: Distribution, site: str) -> None:
    """Refuse a site whose log-probability is not that of what is read off it.

    Raises:
        ValueError: the two differ at a few values.
    """
    base, kind = unwrap(fn), kind_of(fn)
    if kind == "classes" and site_kind(fn) != "multinomial":
        values = base.enumerate_support(expand=True)[:COMPARED]
        read = wrapped_log_probs(base)[..., : len(values)].movedim(-1, 0).exp()
        own = base.log_prob(values).exp()
    elif kind == "real" and is_known(base, dist.Normal):
        values = torch.stack([base.mean, base.mean + base.stddev])
        read = dist.Normal(base.mean, base.stddev, validate_args=False).log_prob(values)
        own = base.log_prob(values)
    else:
        return
    tolerance = 32 * torch.finfo(read.dtype).eps ** 0.5
    if not torch.allclose(read, own.to(read), rtol=tolerance, atol=tolerance, equal_nan=True):
        raise ArgumentError(
            f"`source`'s site '{site}' must have the log_prob of a {described(fn)} with its "
            f"parameters; it differs by {float((read - own).abs().max()):.2g} at some values. "
            "Define `sample` and `log_prob` in a subclass, which is then read by them."
        )


def warn_of_moments(fn: Distribution, site: str) -> None:
    """Say that of a law of another shape the mean and the variance are learnt."""
    base = unwrap(fn)
    if kind_of(fn) == "real" and not is_known(base, _NORMAL):
        warn_user(
            f"site '{site}' is a {type(base).__name__}: its student learns the mean and the "
            "variances, and its draws of y and its intervals are those of a normal with these. "
            "Observe a transform that makes y nearly normal, such as log y, for its shape."
        )
