"""What a site observes by its distribution, and why one is not taken."""

from __future__ import annotations

from collections.abc import Mapping

import pyro.distributions as dist
import torch
from torch.distributions import Distribution

from pyro_opu.checks import ArgumentError
from pyro_opu.parts.base import Part
from pyro_opu.parts.classes import ClassPart
from pyro_opu.parts.laws import NORMAL
from pyro_opu.parts.outcome import KINDS
from pyro_opu.parts.real import RealPart
from pyro_opu.programs.sites import site_kind, unwrap, wrapped_log_probs
from pyro_opu.utils.laws import is_known, own_members
from pyro_opu.utils.warnings import warn_user

#: Classes at which a log-probability is compared.
COMPARED = 4


def kind_of(fn: Distribution) -> type[Part] | None:
    """What a site of this distribution observes; ``None`` of one that no student answers."""
    return next((part for part in KINDS.values() if part.takes(fn)), None)


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
                f"The parameters of {type(base).__name__} do not say how it draws: give it "
                "a `sample` and a `log_prob` that agree where it has classes, `mean` and "
                "`variance` of its own where its values are numbers, or take a distribution of "
                "Pyro, such as ZeroInflatedPoisson."
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
    if kind is ClassPart and site_kind(fn) != "multinomial":
        values = base.enumerate_support(expand=True)[:COMPARED]
        read = wrapped_log_probs(base)[..., : len(values)].movedim(-1, 0).exp()
        own = base.log_prob(values).exp()
    elif kind is RealPart and is_known(base, dist.Normal):
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
    """Say that of a distribution of another shape the mean and the variance are learnt."""
    base = unwrap(fn)
    if kind_of(fn) is RealPart and not is_known(base, NORMAL):
        warn_user(
            f"site '{site}' is a {type(base).__name__}: its student learns the mean and the "
            "variances, and its draws of y and its intervals are those of a normal with these. "
            "Observe a transform that makes y nearly normal, such as log y, for its shape."
        )
