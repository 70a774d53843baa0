"""How well a sampler's run has mixed, site by site: R-hat, effective draws, divergences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyro.infer import MCMC, Predictive
from torch import Tensor

from pyro_opu.checks import positive_int
from pyro_opu.reports.base import Report
from pyro_opu.reports.mixing import effective_sample_size, r_hat
from pyro_opu.utils.tables import cell, table

__all__ = ["Diagnosis", "SiteDiagnosis", "diagnose"]

#: Limits of the verdict, which suit means over the posterior; Vehtari et al. (2021) ask for 1.01
#: and 100 effective draws per chain of at least four, for quantiles and tails.
R_HAT_LIMIT, LEAST_EFFECTIVE = 1.05, 100


@dataclass(frozen=True)
class SiteDiagnosis:
    """One latent site."""

    shape: tuple[int, ...]  #: Of one draw.
    r_hat: float  #: The largest over the site's elements; NaN where an element does not move.
    ess: float  #: The smallest bulk effective sample size.


@dataclass(frozen=True, repr=False)
class Diagnosis(Report):
    """What `diagnose` found.

    Attributes:
        sites: Every latent site by name.
        num_chains: Chains.
        num_draws: Draws of each chain.
        divergences: Divergent draws of each chain; ``None`` for a sampler that has none.
        problems: What is wrong, in words with the numbers; empty for a good run.
    """

    sites: dict[str, SiteDiagnosis]
    num_chains: int
    num_draws: int
    divergences: tuple[int, ...] | None
    problems: tuple[str, ...]
    _totals = ("mixed", "r_hat", "ess")

    @property
    def mixed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def r_hat(self) -> float:
        """The largest R-hat of all sites; NaN where an element does not move."""
        return _worst([site.r_hat for site in self.sites.values()], max)

    @property
    def ess(self) -> float:
        """The smallest effective sample size of all sites."""
        return _worst([site.ess for site in self.sites.values()], min)

    def __repr__(self) -> str:
        chains = "1 chain" if self.num_chains == 1 else f"{self.num_chains} chains"
        header = [f"{chains} of {self.num_draws} draws", "shape", "max R-hat", "min effective"]
        rows = [
            [name, str(s.shape), cell(s.r_hat), "n/a" if math.isnan(s.ess) else f"{s.ess:.0f}"]
            for name, s in self.sites.items()
        ]
        counts = self.divergences
        diverged = "not recorded" if counts is None else ", ".join(map(str, counts))
        verdict = "not mixed: " + "; ".join(self.problems) if self.problems else "mixed"
        if self.num_chains == 1:
            verdict += " (one chain: R-hat compares its halves, and cannot see another mode)"
        return f"{table(header, rows)}\ndivergences per chain: {diverged}\n{verdict}"


def diagnose(run: MCMC | Predictive, *, num_chains: int = 1) -> Diagnosis:
    """Largest R-hat and smallest effective sample size of every site, divergences, and a verdict.

    The verdict asks for an R-hat of at most 1.05 and at least 100 effective draws at every element
    of every site, and no divergence. A network's weights have symmetries, so that chains which
    agree on every prediction can have a large R-hat; for them see :func:`~pyro_opu.mixing`.

    Args:
        run: A ``pyro.infer.MCMC`` after ``run``, or a ``Predictive`` with posterior samples.
        num_chains: Of a ``Predictive``, whose samples hold the chains one after another.

    Returns:
        The report.

    Raises:
        TypeError: ``run`` is neither.
        ValueError: Fewer than 4 draws per chain, or NaN; a wrong ``num_chains``.

    Example:
        >>> import torch
        >>> from pyro.infer import Predictive
        >>> from pyro_opu.reports.convergence import diagnose
        >>> print(diagnose(Predictive(lambda x: x, {"w": torch.zeros(400, 2)}), num_chains=4))
        4 chains of 100 draws  shape  max R-hat  min effective
        w                       (2,)        n/a            n/a
        divergences per chain: not recorded
        not mixed: 'w' does not move

    References:
        Vehtari et al. (2021), Rank-normalization, folding, and localization: an improved R-hat.
    """
    samples = chains_of(run, num_chains)
    chains, draws = next(iter(samples.values())).shape[:2]
    if draws < 4:
        raise ValueError(
            f"`run` must hold at least 4 draws per chain to be judged; got {draws}. Sample more."
        )
    for name, value in samples.items():
        if not value.isfinite().all():
            raise ValueError(
                f"`run` must hold finite draws; got NaN or infinity in {name!r}. Take a smaller "
                "step, or a better start."
            )
    sites = {name: _site(value) for name, value in samples.items()}
    positions = divergences_of(run)
    counts = None if positions is None else tuple(len(each) for each in positions)
    return Diagnosis(sites, chains, draws, counts, tuple(_problems(sites, counts)))


def chains_of(run: MCMC | Predictive, num_chains: int = 1) -> dict[str, Tensor]:
    """Draws ``{site: (chains, draws, ...)}`` of a run, by name."""
    if isinstance(run, MCMC):
        if run._samples is None:
            raise ValueError("`run` must have sampled; got an MCMC before .run(x, y). Run it.")
        samples = run.get_samples(group_by_chain=True)
        return {name: samples[name].detach() for name in sorted(samples)}
    if not isinstance(run, Predictive):
        raise TypeError(
            "`run` must be a pyro.infer.MCMC after .run(...), or a Predictive; got "
            f"{type(run).__name__}. Draws of your own go in as Predictive(model, samples)."
        )
    samples = run.posterior_samples
    if not samples:
        raise ValueError(
            "`run` must hold posterior samples; got a Predictive of a guide or the prior, whose "
            "draws are independent. Pass the MCMC run, or Predictive(model, samples)."
        )
    counts = {name: len(value) for name, value in samples.items()}
    count = next(iter(counts.values()))
    if set(counts.values()) != {count}:
        raise ValueError(
            f"`run` must hold as many draws of every site; got {counts}. Pass samples of one run."
        )
    if count % positive_int("num_chains", num_chains):
        raise ValueError(
            f"`num_chains` must be a positive divisor of the {count} posterior samples; got "
            f"{num_chains!r}. Pass the number of chains that were sampled."
        )
    return {n: samples[n].detach().unflatten(0, (num_chains, -1)) for n in sorted(samples)}


def divergences_of(run: MCMC | Predictive) -> list[list[int]] | None:
    """Positions of the divergent draws of every chain; ``None`` where the sampler has none."""
    return _diagnostic(run, "divergences")


def energies_of(run: MCMC | Predictive) -> list[list[float]] | None:
    """Energy of every draw of every chain; ``None`` where the sampler does not keep it."""
    return _diagnostic(run, "energy")


def _diagnostic(run: MCMC | Predictive, name: str) -> list[list[Any]] | None:
    """What the kernel of every chain says under a name; ``None`` where it says nothing."""
    found: list[Any] = run._diagnostics if isinstance(run, MCMC) else [{}]
    if any(name not in each for each in found):
        return None
    return [list(each[name]) for each in found]


def _site(draws: Tensor) -> SiteDiagnosis:
    shape = tuple(draws.shape[2:])
    if draws.numel() == 0:
        return SiteDiagnosis(shape, math.nan, math.nan)
    largest, smallest = r_hat(draws).max(), effective_sample_size(draws).min()  # NaN passes
    return SiteDiagnosis(shape, float(largest), float(smallest))


def _problems(
    sites: dict[str, SiteDiagnosis], divergences: tuple[int, ...] | None
) -> Iterator[str]:
    for name, site in sites.items():
        if math.isnan(site.r_hat):
            yield f"'{name}' does not move"
        elif site.r_hat > R_HAT_LIMIT:
            yield f"R-hat of '{name}' is {site.r_hat:.2f} (limit {R_HAT_LIMIT})"
        if site.ess < LEAST_EFFECTIVE:
            yield f"'{name}' is worth {site.ess:.0f} draws (at least {LEAST_EFFECTIVE})"
    if diverged := sum(divergences or ()):
        yield f"{diverged} divergences (raise target_accept_prob)"


def _worst(values: list[float], pick: Any) -> float:
    return math.nan if any(map(math.isnan, values)) else pick(values, default=math.nan)
