"""A Pyro model with posterior draws, or a guide, as a teacher."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from pyro.infer import Predictive
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.inputs import Form
from pyro_opu.parts import SiteLayout
from pyro_opu.parts.kinds import check_law, warn_of_moments
from pyro_opu.parts.observed import observed_by
from pyro_opu.parts.sites import layouts_of
from pyro_opu.programs.cost import Cost, Meter, metered
from pyro_opu.programs.enumerated import Mixture
from pyro_opu.programs.plug_in import CANDIDATES, PlugIn, at_means, plug_in, plug_in_draws
from pyro_opu.programs.program import Program
from pyro_opu.programs.samples import Latents, check_samples, check_unweighed
from pyro_opu.programs.signature import Call, Given, first_argument
from pyro_opu.programs.vmap import Draws
from pyro_opu.rng import preserve_rng
from pyro_opu.teachers.base import BaseTeacher, unseen
from pyro_opu.utils.chunks import some_rows
from pyro_opu.utils.printing import name_of


class ModelDraws(BaseTeacher):
    """The observed sites of a :class:`pyro.infer.Predictive`, read under each posterior draw."""

    of_chains = True

    def __init__(
        self, predictive: Predictive, site: str | None = None, call: Call = first_argument
    ) -> None:
        check_unweighed("source", predictive)
        check_samples(predictive)
        self.predictive, self.call = predictive, call
        self.default_draws = predictive.num_samples
        self.max_draws = predictive.num_samples if predictive.posterior_samples else None
        self._asked_site = site
        self._axes: dict[str, int] | None = None  # by observed site, of the rows
        self._program: Program | None = None
        self._mixture = Mixture()  # over latents of the rows that are summed out
        self._outputs = 0

    def _unpack_by(self, form: Form) -> None:
        own = self.call
        picked = own is not first_argument and not isinstance(own, Given)
        if picked and form.kind in ("tuple", "dict"):
            raise ArgumentError(
                "`inputs` picks one input from a call's arguments; `x` holds several. Leave "
                "`inputs` out: a tuple is given by position, a dict by name."
            )
        self.call = form.call if own is first_argument else lambda x: own(form.unpack(x))

    @property
    def program(self) -> Program:
        """The model, known by a look at a few rows."""
        if self._program is None:
            raise unseen("the model")
        return self._program

    @property
    def observed(self) -> tuple[str, ...]:
        """Names of the observed sites that it reads."""
        if self._axes is None:
            raise unseen("observed")
        return tuple(self._axes)

    def prepare(self, x: Tensor, num_draws: int | None = None) -> None:
        """Look at the model, by runs at two and three rows, under the first of so many draws."""
        if self._program is None:
            args = self.predictive, self.call, x, num_draws, self.form
            self._know(Program.of(*args), x)

    def _know(self, program: Program, x: Tensor) -> None:
        """Find the observed sites of a program that has been looked at, and what is said there."""
        self._outcome, self._axes = observed_by(program, x, self._asked_site)
        program.sites.check_names(program.posterior.samples, self.observed)
        mixture, latents = program.sites.summed_out(self.observed)
        fns = {name: program.runs[0].nodes[name]["fn"] for name in self.observed}
        for name, fn in fns.items():
            check_law(fn, name)
            warn_of_moments(fn, name)
        read = self.outcome.read(fns, 2, self._axes)
        if program.picked is not None and not program.posterior.local and not mixture:
            program.run.expected = read[None]
        self._outputs, self._mixture, self.latents = read.shape[-1], mixture, latents
        self.max_rows, self._program = program.model.max_rows, program.observing(self.observed[0])

    def layouts(
        self, x: Tensor, return_sites: Collection[str] | None = None
    ) -> tuple[SiteLayout, ...]:
        """The sites that a student gives back, as the ``Predictive`` does."""
        self.prepare(x)
        return layouts_of(self.outcome, x, return_sites, self.program, self.observed)

    def _source_text(self) -> str:
        guide = self.predictive.guide
        drawn = "the prior" if guide is None else f"guide {name_of(guide)}"
        source = "posterior samples" if self.max_draws else drawn
        return f"site '{self.observed[0]}', {source}" if self._axes else source

    def _measured(self, draws: Any, x: Tensor) -> Cost:
        """What many draws cost together too, where they are evaluated so."""
        known, run = self._cost, self.program.run
        cost = super()._measured(draws, x)
        if cost is known or len(draws) == 1:
            return cost
        some, meters = draws[: max(2, self._numbers(x) // (3 * cost.width))], []
        with preserve_rng():
            for rows in (2, 3) if run.use_vmap is not False else ():
                with metered() as meter:
                    self._evaluate(some, some_rows(x, rows))
                meters.append(meter)
        self._cost = cost.under(len(some), *meters) if run.use_vmap else cost
        return self._cost

    def operations(self, x: Tensor) -> int | None:
        """Operations of a draw; ``None`` where draws are looped over, which costs more."""
        found = super().operations(x)
        return None if self.program.run.use_vmap is False else found

    def _pick(self, x: Tensor, num_draws: int) -> Latents:
        if self._program is None:
            self.prepare(x, num_draws)
            if self.program.picked is not None:
                return self.program.picked
        return self.program.posterior.pick(x, num_draws, without=self.observed[0])

    def plug_ins(self, x: Tensor) -> list[PlugIn]:
        """The model under the mean of the latents, or under a draw of them."""
        self.prepare(x)
        program, posterior, held = self.program, self.program.posterior, self.max_draws
        if self._mixture or (posterior.local and not posterior.is_prior):
            return []
        draws = self._pick(x, min(CANDIDATES, held or CANDIDATES)).values
        draws = self._pick(x, plug_in_draws(draws, held)).values
        known = {*self.observed, *program.sites.latents, *draws}
        return [plug_in(self._at, program.runs, known, draws, at_means(posterior.guide, draws, x))]

    def _at(self, latents: Draws, x: Tensor) -> Tensor:
        """What one draw says of the inputs."""
        if not self._mixture:
            return self._under(latents, x)
        return self.outcome.mixed(*self._mixture.of(partial(self._under, latents, x)))

    def _under(
        self, latents: Draws, x: Tensor, fixed: AbstractContextManager[Any] | None = None
    ) -> Tensor:
        with fixed or nullcontext():
            fns = self.program.under(latents, x, self.observed)
        assert self._axes is not None
        return self.outcome.read(fns, len(x), self._axes)

    def _meters(self, draws: Any, x: Tensor) -> tuple[Meter, Meter, int]:
        two, three = self.program.meters
        known = Cost.of(x.shape[1:], two, three, 1).serves(x.shape[1:]) and self._cost is None
        if known and not self._mixture:
            return two, three, self._outputs
        return super()._meters(draws, x)

    def _evaluate(self, draws: Latents, x: Tensor) -> Tensor:
        return self.program.over(draws, x, partial(self._at, x=x))
