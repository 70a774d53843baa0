"""The network of a posterior: its model under one value of what the posterior is of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_opu.programs.signature import Model
from pyro_opu.programs.sites import unwrap
from pyro_opu.programs.trace import GivenValues, Run, fresh_latents, quiet
from pyro_opu.programs.vmap import Draws
from pyro_opu.utils.chunks import some_rows
from pyro_opu.utils.laws import is_known

__all__ = ["CANDIDATES", "PlugIn", "plug_in_draws"]

#: Single draws that a student may begin with; draws that give the moments of the weights, and
#: numbers in them (128 MB), at most.
CANDIDATES, PLUG_IN_DRAWS, PLUG_IN_NUMBERS = 8, 8000, 2**25
#: Pairs of signs where nothing else is drawn.
SIGNS = 256
LogProbs = Callable[[Mapping[str, Tensor], Tensor], Tensor]


@dataclass(frozen=True)
class PlugIn:
    """What a draw says of a row, as a function of weights and inputs, without randomness.

    Attributes:
        log_probs: ``(weights, x (N, ...)) -> (N, K)``: log class probabilities, or the numbers of
            :meth:`.BaseTeacher.draws`.
        candidates: Weights by name; the mean of the posterior, where it has one, and some draws.
        draws: Draws of the weights by name ``(S, ...)``, where the posterior is over them.
        deviations: Names of those by which a normal latent of a row is away from its mean, in
            standard deviations; with any, ``log_probs`` takes one row, and does so under ``vmap``.
        of_noise: Whether ``draws`` are what a network draws at random, not weights of it.
        untrained: Whether the weights are random, those of a network in the form of the answers.
        several: Whether the candidates are all networks of the posterior, which has no other.
    """

    log_probs: LogProbs
    candidates: list[dict[str, Tensor]]
    draws: dict[str, Tensor] | None = None
    deviations: frozenset[str] = frozenset()
    of_noise: bool = False
    untrained: bool = False
    several: bool = False

    @classmethod
    def of_draws(
        cls,
        log_probs: LogProbs,
        draws: Mapping[str, Tensor],
        centre: dict[str, Tensor] | None = None,
        deviations: Mapping[str, Tensor] | None = None,
    ) -> PlugIn:
        """A network under the mean of draws ``{site: (S, ...)}``, where it exists, or some.

        ``centre`` is the mean itself, where it is known, and ``deviations`` are zeros of the shapes
        of those. Their draws are signs, which have mean 0 and variance 1: every draw of the rest
        comes once with each, so that they vary with nothing else.
        """
        size = min((len(value) for value in draws.values()), default=1)
        some = [{k: v[s] for k, v in draws.items()} for s in range(min(size, CANDIDATES))]
        if all(value.is_floating_point() for value in draws.values()):
            some.insert(0, {name: value.mean(0) for name, value in draws.items()})
        if centre is not None:
            some.insert(0, centre)
        found = dict(draws)
        if deviations:
            some = [{**each, **deviations} for each in some]
            found = {name: torch.cat([value, value]) for name, value in found.items()}
            pairs = size if draws else SIGNS
            for name, zero in deviations.items():
                sign = 2.0 * torch.randint(2, (pairs, *zero.shape)).to(zero) - 1.0
                found[name] = torch.cat([sign, -sign])
        return cls(log_probs, some, found or None, frozenset(deviations or ()))


def plug_in_draws(some: Mapping[str, Tensor], held: int | None) -> int:
    """How many draws to look at, of ``held`` ones, by the size of ``some`` ``{site: (S, ...)}``."""
    size = sum(value[0].numel() for value in some.values())
    most = max(CANDIDATES, PLUG_IN_NUMBERS // max(1, size))
    return min(PLUG_IN_DRAWS, held or PLUG_IN_DRAWS, most)


def at_means(guide: Model | None, draws: Draws, x: Tensor) -> Draws | None:
    """The latents where every site of a guide is at its mean; ``None`` if there are none.

    Where weights are many, few ``draws`` are looked at, and their mean is far from it.
    """
    if guide is None:
        return None
    try:
        with quiet(), GivenValues(lambda fn, _: fn.mean):
            found = fresh_latents(guide, {}, some_rows(x, 2))
    except NotImplementedError:
        return None
    centre = {name: found[name] for name in draws}
    alike = all(
        value.shape == draws[name].shape[1:] and bool(value.isfinite().all())
        for name, value in centre.items()
    )
    return centre if alike else None


def plug_in(
    at: Callable[[Draws, Tensor], Tensor],
    runs: tuple[Run, Run],
    known: Collection[str],
    draws: Draws,
    centre: Draws | None,
) -> PlugIn:
    """The network of a model, whose normal sites other than the ``known`` are at their means.

    Args:
        at: What one draw says of the inputs, ``(latents, x)``.
        runs: The model's, at two and at three rows.
        draws: Draws of the latents ``(S, ...)``.
        centre: Their mean, where it is known.
    """

    def log_probs(latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        def deviated(fn: Distribution, site: str) -> Tensor | None:
            if not _is_normal(fn):
                return None
            times = latents.get(deviation(site))
            return fn.mean if times is None else fn.mean + times * fn.stddev

        with quiet(), GivenValues(deviated):
            return at(dict(latents), x)

    return PlugIn.of_draws(log_probs, draws, centre, _no_deviations(runs, known))


def deviation(site: str) -> str:
    """Name of the deviation of a site."""
    return f"deviation of {site}"


def _no_deviations(runs: tuple[Run, Run], known: Collection[str]) -> Draws:
    """Zeros by :func:`deviation`, of the shapes at one row, of sites that are not ``known``."""
    zeros = {}
    two, three = (run.nodes for run in runs)
    for name in two.keys() - known:
        if _is_normal(two[name]["fn"]):
            sizes = zip(two[name]["value"].shape, three[name]["value"].shape, strict=True)
            shape = [a if a == b else 1 for a, b in sizes]
            zeros[deviation(name)] = two[name]["value"].new_zeros(shape)
    return zeros


def _is_normal(fn: Distribution) -> bool:
    normal = torch.distributions.Normal, torch.distributions.MultivariateNormal
    return is_known(unwrap(fn), normal)
