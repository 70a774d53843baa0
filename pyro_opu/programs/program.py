"""A Pyro model as a function of a draw and of inputs, known by a look at a few rows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from pyro import poutine
from pyro.infer import Predictive
from torch import Tensor
from torch import distributions as dist

from pyro_opu.checks import ArgumentError
from pyro_opu.inputs import PLAIN, Form
from pyro_opu.programs.cost import Meter, metered
from pyro_opu.programs.latents import FreeSites
from pyro_opu.programs.rows import AnyRows, explained, tied_to_rows
from pyro_opu.programs.samples import Latents, check_ungrouped, choose
from pyro_opu.programs.signature import Call
from pyro_opu.programs.sites import unwrap
from pyro_opu.programs.trace import Observed, Run, few_rows, fresh_latents, quiet
from pyro_opu.programs.vmap import Batched, Draws
from pyro_opu.rng import preserve_rng
from pyro_opu.utils.chunks import some_rows

_JOINT = (dist.MultivariateNormal, dist.LowRankMultivariateNormal)
Few = tuple[Draws, Draws]
Seen = tuple[tuple[Run, Meter], tuple[Run, Meter]]


@dataclass(frozen=True)
class Posterior:
    """Where draws of a model's latents come from: samples, a guide, or the prior.

    Attributes:
        model, guide: At any number of rows.
        samples: ``{site: (S, ...)}``.
        held: S, ``None`` where there are no samples.
        shared: Latents that all rows share.
        local: Whether others grow with the rows.
        tied: Latents of the rows that it was trained on, which are left out.
        run: Evaluates the guide, or the prior, for many draws.
    """

    model: AnyRows
    guide: AnyRows | None
    samples: Draws
    held: int | None
    shared: tuple[str, ...] = ()
    local: bool = False
    tied: frozenset[str] = frozenset()
    run: Batched = field(default_factory=partial(Batched, "the guide"))

    @classmethod
    def of(cls, predictive: Predictive, call: Call) -> Posterior:
        """The number of a ``Predictive``."""
        guide = None if predictive.guide is None else AnyRows(predictive.guide, call)
        samples = dict(predictive.posterior_samples)
        held = predictive.num_samples if samples else None
        run = Batched("the prior" if guide is None else "the guide")
        return cls(AnyRows(predictive.model, call), guide, samples, held, run=run)

    @property
    def is_prior(self) -> bool:
        """Whether there is no posterior."""
        return self.held is None and self.guide is None

    def at(self, latents: Draws, x: Tensor) -> Draws:
        """One draw at these inputs, where the guide draws the latents of the rows, too."""
        if self.guide is None or not self.local:
            return latents
        return self._guided(latents, x)

    def _guided(self, known: Draws, x: Tensor) -> Draws:
        found = fresh_latents(self.guide or self.model, known, x)
        return {name: value for name, value in found.items() if name not in self.tied}

    def few(self, x: Tensor, form: Form) -> Few:
        """One draw at two rows, and at three."""
        known = {name: value[0] for name, value in self.samples.items()}
        if (guide := self.guide) is None:
            return known, known
        two, three = few_rows(x, 2), few_rows(x, 3)
        with quiet(), preserve_rng(), explained(guide, x, known, form):
            return guide.freed(lambda: (self._guided(known, two), self._guided(known, three)))

    def naming(self, few: Few) -> Posterior:
        """The same, which knows from draws at two and at three rows what all rows share."""
        two, three = ({name: value.shape for name, value in each.items()} for each in few)
        shared = tuple(name for name, shape in two.items() if three.get(name) == shape)
        return replace(self, shared=shared, local=len(shared) < len(two))

    def without(self, names: frozenset[str]) -> Posterior:
        """The same without these latents."""
        samples = {k: v for k, v in self.samples.items() if k not in names}
        return replace(self, samples=samples, tied=self.tied | names)

    def pick(self, x: Tensor, num_draws: int, without: str | None = None) -> Latents:
        """So many joint draws of the latents that all rows share, of the samples held or fresh."""
        if self.held is not None:
            every = Latents(self.samples, self.held)
            return every if num_draws == self.held else every.at(choose(self.held, num_draws))
        if not self.shared:
            return Latents({}, num_draws)

        def draw(_: Draws) -> Draws:
            found = fresh_latents(self.guide or self.model, {}, some_rows(x, 2), without)
            return {name: found[name] for name in self.shared}

        with quiet():
            return Latents(self.run(draw, {"": torch.arange(num_draws)}), num_draws)


@dataclass(frozen=True)
class Program:
    """A model as a function of (draw, inputs), and what two runs of it have shown.

    Attributes:
        predictive: The ``Predictive`` that it is read from.
        posterior: Where its draws come from; its model, at any number of rows.
        runs, meters: At two and at three rows, under one draw, and what they cost.
        sites: Those that the posterior does not fix.
        picked: Draws, if the runs were under the first of them.
        run: Evaluates the model for many draws.
    """

    predictive: Predictive
    posterior: Posterior
    runs: tuple[Run, Run]
    meters: tuple[Meter, Meter]
    sites: FreeSites
    picked: Latents | None = None
    run: Batched = field(default_factory=partial(Batched, "the model"))

    @classmethod
    def of(
        cls,
        predictive: Predictive,
        call: Call,
        x: Tensor,
        num_draws: int | None = None,
        form: Form = PLAIN,
    ) -> Program:
        """Run a model at two and at three rows.

        Args:
            predictive: Its samples have been checked.
            call: How the model is asked about inputs.
            x: Inputs ``(N, ...)``.
            num_draws: Draws to pick first, under one of which it is run; those of a prior are known
                only when the observed site is.
            form: The form of several inputs, for errors.

        Raises:
            ValueError: the model cannot be run, or has no such samples.
        """
        posterior = Posterior.of(predictive, call)
        few = posterior.few(x, form)
        posterior, picked = posterior.naming(few), None
        if num_draws is not None and not posterior.is_prior:
            picked = posterior.pick(x, num_draws)
            first = {name: value[0] for name, value in picked.values.items()}
            few = {**few[0], **first}, {**few[1], **first}
        posterior, seen, few = _run_twice(posterior, few, x, form)
        runs, meters = (seen[0][0], seen[1][0]), (seen[0][1], seen[1][1])
        sites = FreeSites(posterior.model, runs, few[0], posterior.shared, x, posterior.is_prior)
        picked = None if picked is None else picked.without(posterior.tied)
        return cls(predictive, posterior, runs, meters, sites, picked)

    @property
    def model(self) -> AnyRows:
        """The model at any number of rows."""
        return self.posterior.model

    @property
    def returned(self) -> Collection[str]:
        """Sites that the ``Predictive`` returns."""
        return self.predictive.return_sites or ()

    def observing(self, site: str) -> Program:
        """The program once its observed site is known: of a prior all others are drawn."""
        if not self.posterior.is_prior:
            return self
        two, three = (run.fresh(without=site) for run in self.runs)
        return replace(self, posterior=self.posterior.naming((two, three)))

    def check_each_row(self, site: str) -> None:
        """Refuse a distribution of every pair of rows, and one of all rows together."""
        two, three = (run.nodes[site]["fn"] for run in self.runs)
        sizes = zip(two.shape(), three.shape(), strict=False)
        axes = [axis for axis, (i, j) in enumerate(sizes) if i != j]
        said = f"`source`'s site '{site}' must have one distribution for every row; it"
        if len(axes) > 1:
            raise ArgumentError(
                f"{said} has one for every pair of rows, shape {tuple(three.shape())} at 3 rows. A "
                "column of parameters, (N, 1), in a plate of N rows is repeated N times: make it "
                "(N,), such as by logits.squeeze(-1)."
            )
        if axes and axes[0] >= len(three.batch_shape) and isinstance(unwrap(three), _JOINT):
            raise ArgumentError(
                f"{said} is one {type(unwrap(three)).__name__} over all rows, which at new rows "
                "knows nothing of those that it was trained on. Draw f at x (of a Gaussian process "
                "given the training rows), and observe y in pyro.plate('data', len(x)) by "
                "dist.Normal(f, noise)."
            )

    def under(self, latents: Draws, x: Tensor, sites: Collection[str]) -> dict[str, Any]:
        """Distributions of these sites at the inputs under one draw; nothing is sampled there."""
        with Observed(sites) as seen, poutine.condition(data=latents):
            self.model(x)
        return seen.fns

    def over(self, draws: Latents, x: Tensor, function: Callable[[Draws], Tensor]) -> Tensor:
        """A function of one draw's latents at the inputs, for all draws ``(S, ...)``."""
        varying, shared = draws.divided()

        def one(latents: Draws) -> Tensor:
            latents = {**shared, **{name: value for name, value in latents.items() if name}}
            return function(self.posterior.at(latents, x))

        with quiet():
            found: Tensor = self.run(one, varying, x)
        return found


def _run_twice(
    posterior: Posterior, few: Few, x: Tensor, form: Form
) -> tuple[Posterior, Seen, Few]:
    """Runs at two rows and at three; latents that belong to other rows are left out of the rest."""
    two, three = few_rows(x, 2), few_rows(x, 3)  # what grows grows with the rows
    model, samples = posterior.model, posterior.samples

    def prior() -> Draws:
        return model.freed(lambda: fresh_latents(model, {}, two))

    def run() -> Seen:
        seen = []
        for latents, rows in zip(few, (two, three), strict=True):
            with metered() as meter:
                found = Run.of(model, latents, rows)
            seen.append((found, meter))
        return seen[0], seen[1]

    def leave_out(names: frozenset[str]) -> tuple[Posterior, Few]:
        left = [{k: v for k, v in each.items() if k not in names} for each in few]
        return posterior.without(names).naming((left[0], left[1])), (left[0], left[1])

    with quiet(), preserve_rng(), explained(model, x, samples, form):
        try:
            seen = model.freed(run)
        except Exception:
            check_ungrouped(samples, prior)
            if not (tied := tied_to_rows(model, few[0], (two, three))):
                raise
            posterior, few = leave_out(tied)
            seen = model.freed(run)
    posterior, few = leave_out(seen[0][0].left_out)
    own = {k: node["fn"].shape() for k, node in seen[0][0].nodes.items()}
    if any(own.get(k, v.shape[1:]) != v.shape[1:] for k, v in posterior.samples.items()):
        check_ungrouped(samples, prior)
    return posterior, seen, few
