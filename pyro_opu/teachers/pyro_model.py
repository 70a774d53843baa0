"""A Pyro model with posterior draws, or a guide, as a teacher.

It asks about any number of rows, so at its first call the model is compared with itself as
``Predictive`` runs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from pyro import poutine
from pyro.infer import Predictive
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.inputs import Form
from pyro_opu.parts import SiteLayout
from pyro_opu.parts.kinds import check_law, warn_of_moments
from pyro_opu.parts.observed import observed_by
from pyro_opu.parts.sites import layouts_of
from pyro_opu.programs.asked import all_hold, later
from pyro_opu.programs.cost import Cost, Meter, metered
from pyro_opu.programs.enumerated import Mixture
from pyro_opu.programs.plug_in import CANDIDATES, PlugIn, at_means, plug_in, plug_in_draws
from pyro_opu.programs.posterior import SAID, PosteriorProgram
from pyro_opu.programs.program import Program
from pyro_opu.programs.recorded import VALID
from pyro_opu.programs.recorder import NotRecorded
from pyro_opu.programs.samples import Latents, check_samples, check_unweighed
from pyro_opu.programs.signature import Call, Given, first_argument, names_of
from pyro_opu.programs.trace import quiet
from pyro_opu.programs.vmap import Draws, vectorized
from pyro_opu.programs.written import (
    ROWS,
    AsWritten,
    compare_together,
    compare_with_written,
    spread,
)
from pyro_opu.rng import exclusive, preserve_rng, seeded
from pyro_opu.teachers.base import BaseTeacher, unseen
from pyro_opu.utils.chunks import some_rows
from pyro_opu.utils.printing import name_of
from pyro_opu.utils.warnings import warn_user

#: An error of a quadrature, of a probability or in deviations of y, that is let pass.
SMOOTH = 5e-3


class PredictiveTeacher(BaseTeacher[Latents]):
    r"""The observed sites of a :class:`pyro.infer.Predictive` as draws of what they say.

    The model is conditioned on each posterior draw :math:`\theta_s` and run at ``x``; class
    log-probabilities, or mean and scale, are read off the distributions of the observed sites, so
    nothing is lost to noise; of a distribution of numbers that is no normal they are its moments.
    All draws go through :func:`torch.vmap` at once, equal to the loop; a model that ``vmap`` cannot
    run is looped over.

    With ``posterior_samples`` the draws are those, in order. With a ``guide`` (or neither, the
    prior) every call draws afresh: latents of the whole model once for all rows of ``x``, latents
    local to a row for each row.

    Args:
        predictive: The ``Predictive`` to read; it is not changed.
        site: Name of the one observed site to read; by default all that the ``Predictive`` returns.
        call: How the model is called with inputs, ``x -> (args, kwargs)``; ``model(x)`` by default.

    Attributes:
        compared: At how many rows of the inputs the model has been compared with itself as it is
            written.
        incomparable: Why Predictive cannot run it at these, "" where it can.
    """

    of_chains = True
    compared: int = 0
    incomparable: str = ""

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

    @property
    def argument_names(self) -> tuple[str, ...]:
        return names_of(self.predictive.model)

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
        self.warn_of_laws()
        return layouts_of(self.outcome, x, return_sites, self.program, self.observed)

    def warn_of_laws(self) -> None:
        """Say what a student will not keep of the distributions that are observed."""
        for name in self.observed:
            warn_of_moments(self.program.runs[0].nodes[name]["fn"], name)

    def _source_text(self) -> str:
        guide = self.predictive.guide
        drawn = "the prior" if guide is None else f"guide {name_of(guide)}"
        source = "posterior samples" if self.max_draws else drawn
        return f"site '{self.observed[0]}', {source}" if self._axes else source

    def _measured(self, draws: Latents, x: Tensor) -> Cost:
        """What many draws cost together too, where they are evaluated so."""
        cost, run = super()._measured(draws, x), self.program.run
        if cost.together or len(draws) == 1:  # which may come first
            return cost
        some, meters = draws[: max(2, self._numbers(x) // (3 * cost.width))], list[Meter]()
        with preserve_rng():
            # The first may end in a comparison with the loop; operations are those at two rows.
            for rows in (3, 2) if run.use_vmap is not False else ():
                with metered() as meter:
                    self._evaluate(some, some_rows(x, rows))
                meters.insert(0, meter)
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
        self, latents: Draws, x: Tensor, fixed: AbstractContextManager[object] | None = None
    ) -> Tensor:
        with fixed or nullcontext():
            fns = self.program.under(latents, x, self.observed)
        assert self._axes is not None
        return self.outcome.read(fns, len(x), self._axes)

    def _meters(self, draws: Latents, x: Tensor) -> tuple[Meter, Meter, int]:
        two, three = self.program.meters
        known = Cost.of(x.shape[1:], two, three, 1).serves(x.shape[1:]) and self._cost is None
        if known and not self._mixture:
            return two, three, self._outputs
        return super()._meters(draws, x)

    def _as_program(self, draws: Latents, x: Tensor) -> PosteriorProgram:
        run, posterior = self.program.run, self.program.posterior
        if run.use_vmap is False:
            raise NotRecorded("its draws are looped over, as a warning has said")
        varying, shared = draws.divided()

        def one(draw: Draws, x: Tensor) -> Draws:
            latents = {**shared, **{name: value for name, value in draw.items() if name}}
            return {SAID: self._at(posterior.at(latents, x), x)}

        def alone(draw: Draws, x: Tensor) -> None:
            with exclusive(), torch.no_grad(), poutine.block():
                one(draw, x)

        def program(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
            with quiet(), later() as checks:
                found = vectorized(partial(one, x=inputs[0]), draws, own_tensors=run.own_tensors)
            return found | ({VALID: all_hold(checks)} if checks else {})

        return PosteriorProgram(program, varying, alone)

    def _evaluate(self, draws: Latents, x: Tensor) -> Tensor:
        return self.program.over(draws, x, partial(self._at, x=x))

    def finish(self, x: Tensor, num_draws: int | None = None) -> None:
        self.prepare(x, self.predictive.num_samples)
        draws = self.program.picked
        with preserve_rng():
            self.compare(self._pick(x, min(2, self.max_draws or 2)) if draws is None else draws, x)
        self.look(x[:2], draws, None if self.max_draws else num_draws)

    def _answers(self, draws: Latents, x: Tensor) -> Iterator[Tensor]:
        self.compare(draws, x)
        return super()._answers(draws, x)

    def compare(self, draws: Any, x: Tensor) -> None:
        """Compare under the first of the draws and the last, once at so many rows.

        Raises:
            ValueError: the distribution of a site is another one.
        """
        if self.compared >= min(len(x), ROWS):
            return
        if not self.compared:
            self._tell_unknown()
        self.compared, before, program = min(len(x), ROWS), self.incomparable, self.program
        runs, self.incomparable = [], ""
        for number in sorted({0, len(draws) - 1}):
            with quiet(), preserve_rng():
                of_draw = partial(self._of_draw, draws[number : number + 1])
                found = compare_with_written(program.model, of_draw, x, self.observed)
            if isinstance(found, AsWritten):
                runs.append(found)
            else:
                self.incomparable = found
        if len(runs) > 1 and len(program.sites.nodes) > len(self.observed):
            compare_together(program.run, *runs)
        if self._mixture.has_normals:
            self._choose_rule(draws, x)
        if self.incomparable and not before:
            warn_user(
                "the model could not be compared with what Predictive says, as it runs at "
                f"none of the numbers of rows that were tried: {self.incomparable.rstrip('.')}. "
                "Compare a few answers of the teacher with your own."
            )

    def _choose_rule(self, draws: Any, x: Tensor) -> None:
        """Sum normals of the rows out by the rule that errs least, and say so where it errs.

        A rule errs by about as much as a node fewer makes of it. Gauss and Hermite's is for what is
        smooth in the normal; of a threshold, such as a label ``z > 0``, it is off by a tenth.
        """
        few = spread(x, self.program.model.max_rows)
        with quiet(), preserve_rng():
            ends = [self._of_draw(draws[n : n + 1], few) for n in sorted({0, len(draws) - 1})]

        def under(latents: Draws, fixed: AbstractContextManager[object]) -> Tensor:
            with seeded(0):  # what else is random is the same at all nodes
                return self._under(latents, few, fixed)

        errors: list[tuple[float, Mixture]] = []
        mixed = self.outcome.mixed
        for rules in self._mixture.rules():
            with quiet():
                said = [[mixed(*rule.of(partial(under, e))) for rule in rules] for e in ends]
            errors.append((max(self.outcome.apart(*pair) for pair in said), rules[0]))
            if errors[-1][0] <= SMOOTH:
                break
        error, self._mixture = min(errors, key=lambda pair: pair[0])
        if error > SMOOTH:
            names = [name for name, each in self._mixture.latents.items() if each.normal]
            warn_user(
                f"the latents {names} of the rows are summed out by a quadrature that errs by "
                f"about {error:.1g}: what is observed depends on them in steps, or steeply. Sum "
                "them out in the model, as dist.Bernoulli(Phi(x @ w / s)) does for a label z > 0."
            )

    def _tell_unknown(self) -> None:
        """Warn of sites behind the answer that are observed at the training rows alone."""
        sites = self.program.sites
        unknown = (self.program.model.redrawn & sites.nodes.keys()) - set(self.observed)
        if found := {name for site in self.observed for name in sites.upstream(site)} & unknown:
            warn_user(
                f"{sorted(found)}, behind {list(self.observed)}, are observed at the training "
                "rows alone, and drawn from their distributions at all others. Where they are "
                "known there too, make them inputs, so that they are not."
            )

    def _of_draw(self, draw: Any, x: Tensor) -> Draws:
        """The latents of one draw at these inputs."""
        latents = {name: value[0] for name, value in draw.values.items()}
        return self.program.posterior.at(latents, x)
