"""A Pyro model with posterior draws, or a guide, as a teacher."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from pyro import poutine
from pyro.infer import Predictive
from torch import Tensor

from pyro_opu.inputs import Form
from pyro_opu.programs.cost import Cost, Meter, metered
from pyro_opu.programs.enumerated import Mixture
from pyro_opu.programs.latents import FreeSites
from pyro_opu.programs.plug_in import CANDIDATES, PlugIn, plug_in_draws
from pyro_opu.programs.rows import AnyRows, explained, tied_to_rows
from pyro_opu.programs.samples import check_ungrouped, check_unweighed
from pyro_opu.programs.signature import Call, Given, first_argument
from pyro_opu.programs.sites import stand_in
from pyro_opu.programs.trace import (
    Latents,
    ObservedSites,
    Run,
    at_means,
    check_samples,
    few_rows,
    fresh_latents,
    plug_in,
    quiet,
)
from pyro_opu.programs.vmap import Batched, Draws
from pyro_opu.rng import preserve_rng
from pyro_opu.teachers.base import JointDraws, choose, unseen
from pyro_opu.teachers.kinds import check_law, cure, described, warn_of_moments
from pyro_opu.utils.chunks import some_rows
from pyro_opu.utils.printing import name_of

Known = TypeVar("Known", bound="ModelDraws")


class ModelDraws(JointDraws):
    """The observed site of a :class:`pyro.infer.Predictive`, read under each posterior draw.

    A subclass says which distributions it may have, and what they say.
    """

    #: Distributions that the observed site may have, in words.
    allowed: ClassVar[str]
    of_chains = True

    def __init__(
        self, predictive: Predictive, site: str | None = None, call: Call = first_argument
    ) -> None:
        check_unweighed("source", predictive)
        self.predictive = predictive
        self.call = call
        self._model = AnyRows(predictive.model, call)
        self._guide = None if predictive.guide is None else AnyRows(predictive.guide, call)
        self._samples: Draws = dict(predictive.posterior_samples)
        for name, value in self._samples.items():
            check_samples(name, value, predictive.num_samples)
        self.max_draws = predictive.num_samples if self._samples else None
        self.default_draws = predictive.num_samples
        self._asked_site = site
        self._site: str | None = None
        self._runs: tuple[Run, Run] | None = None  # at two and at three rows
        self._free: FreeSites | None = None
        self._outputs = 0
        self._latent_names: tuple[str, ...] = ()  # of those that all rows share
        self._local = False  # whether others grow with the rows
        self._tied: frozenset[str] = frozenset()  # to the rows it was trained on: not used
        self._row_latents = Mixture()  # over those that are summed out
        self.posterior_sites: set[str] = set()
        self._expected = False  # whether the runs were under the first of the draws picked
        self._from_prior = not self._samples and self._guide is None
        self._run_source = Batched("the prior" if self._guide is None else "the guide")
        self._run_model = Batched("the model")

    def _unpack_by(self, form: Form) -> None:
        own, guide = self.call, self.predictive.guide
        if (
            own is not first_argument
            and not isinstance(own, Given)
            and form.kind in ("tuple", "dict")
        ):
            raise ValueError(
                "`inputs` picks one input from a call's arguments; `x` holds several. Leave "
                "`inputs` out: a tuple is given by position, a dict by name."
            )
        self.call = form.call if own is first_argument else lambda x: own(form.unpack(x))
        self._model = AnyRows(self.predictive.model, self.call)
        self._guide = None if guide is None else AnyRows(guide, self.call)

    @property
    def runs(self) -> tuple[Run, Run]:
        """The runs of the model at two and at three rows by which it became known."""
        if self._runs is None:
            raise unseen("the model")
        return self._runs

    @property
    def site(self) -> str:
        """Name of the observed site."""
        if self._site is None:
            if self._runs is None:
                raise unseen("site")
            self._site = site = self._choose_site()
            self.free.check_names(self._samples, self.observed)
            self._row_latents, self.latents = self.free.summed_out(self.observed)
            nodes = self._runs[0].nodes
            for name in self.observed:
                check_law(nodes[name]["fn"], name)
                warn_of_moments(nodes[name]["fn"], name)
            read = self._read_all({name: nodes[name]["fn"] for name in self.observed}, 2)
            self._outputs = read.shape[-1]
            if self._from_prior:
                self._name_latents([run.fresh(without=site) for run in self._runs])
            elif self._expected and not self._row_latents:
                self._run_model.expected = read[None]
        return self._site

    @property
    def observed(self) -> tuple[str, ...]:
        """Names of the observed sites that it reads."""
        return (self.site,)

    def prepare(self, x: Tensor) -> None:
        """Find the observed site and the latents, by runs of the model at two and three rows."""
        if self._runs is None:
            self._run_twice(self._seen_latents(x), x)
        self.site  # noqa: B018 - raises where there is none

    def _seen_latents(self, x: Tensor) -> list[Draws]:
        """The posterior's latents, at two and at three rows."""
        known = {name: value[0] for name, value in self._samples.items()}
        shapes = [known, known]
        if (guide := self._guide) is not None:
            few = [few_rows(x, rows) for rows in (2, 3)]
            with quiet(), preserve_rng(), explained(guide, x, known, self.form):
                shapes = guide.freed(lambda: [self._guided(known, each) for each in few])
        self._name_latents(shapes)
        return shapes

    def _guided(self, known: Draws, x: Tensor) -> Draws:
        """One joint draw of the guide; those already known are kept."""
        found = fresh_latents(self._guide or self._model, known, x)
        return Latents(found, 1).without(self._tied).values

    def _name_latents(self, shapes: list[Draws]) -> None:
        """Find the latents that all rows share: the shapes of others grow with the rows."""
        two, three = ({k: v.shape for k, v in each.items()} for each in shapes)
        self._latent_names = tuple(k for k, shape in two.items() if three.get(k) == shape)
        self._local = len(self._latent_names) < len(two)

    def _run_twice(self, latents: list[Draws], x: Tensor) -> None:
        two, three = few_rows(x, 2), few_rows(x, 3)  # what grows grows with the rows
        model, samples = self._model, self._samples

        def prior() -> Draws:
            return model.freed(lambda: fresh_latents(model, {}, two))

        def run() -> tuple[Run, Run]:
            return Run.of(model, latents[0], two), Run.of(model, latents[1], three)

        with quiet(), preserve_rng(), explained(model, x, samples, self.form):
            try:
                self._runs = model.freed(run)
            except Exception:
                check_ungrouped(samples, prior)
                if not (tied := tied_to_rows(model, latents[0], (two, three))):
                    raise
                latents = self._leave_out(tied, latents)
                self._runs = model.freed(run)
        latents = self._leave_out(self._runs[0].left_out, latents)
        own = {k: node["fn"].shape() for k, node in self._runs[0].nodes.items()}
        if any(own.get(k, v.shape[1:]) != v.shape[1:] for k, v in self._samples.items()):
            check_ungrouped(samples, prior)
        self.max_rows, self.posterior_sites = model.max_rows, set(latents[0])
        more = self._latent_names, x, self._from_prior
        self._free = FreeSites(model, self._runs, latents[0], *more)

    def _leave_out(self, names: frozenset[str], latents: list[Draws]) -> list[Draws]:
        """The latents, and from now on the samples, without those of these names."""
        self._tied |= names
        self._samples = {k: v for k, v in self._samples.items() if k not in names}
        self._name_latents(left := [Latents(v, 1).without(names).values for v in latents])
        return left

    @property
    def free(self) -> FreeSites:
        """The sites that the posterior does not fix."""
        if self._free is None:
            raise unseen("the model")
        return self._free

    def answered(self) -> list[str]:
        """Free sites that are no latents behind others."""
        return self.free.answered(self.predictive.return_sites or ())

    def _choose_site(self) -> str:
        """The observed site; errors name the candidates."""
        asked, free, nodes = self._asked_site, self.free.fns, self.runs[0].nodes
        fits = [name for name, fn in free.items() if self._fits(fn)]
        if asked in fits:
            return asked
        if asked is None:
            free = {name: free[name] for name in self.answered()}
            fits = [name for name in fits if name in free]
            named = [name for name in fits if name in (self.predictive.return_sites or ())]
            return named[0] if len(named) == 1 else self._only_site(fits, free)
        kind = (
            "a latent site of the posterior"
            if asked in self.posterior_sites
            else f"a {described(nodes[asked]['fn'])}"
            if asked in nodes
            else "which the model does not have"
        )
        raise ValueError(
            f"`site` must name an observed site that is {self.allowed}; got '{asked}', {kind}. "
            f"Candidates: {fits}. {cure({asked: free[asked]}) if asked in free else ''}"
        )

    def _fits(self, fn: Any) -> bool:
        """Whether an observed site may have this distribution."""
        raise NotImplementedError

    def _only_site(self, fits: list[str], found: dict[str, Any]) -> str:
        """The one site that fits; ``found`` has the distributions of all that may be observed."""
        raise NotImplementedError

    def _read_all(self, fns: dict[str, Any], rows: int) -> Tensor:
        """What the observed sites' distributions say of each row, ``(rows, K)``."""
        return self._read(fns[self.site], rows, self.site)

    def _read(self, fn: Any, rows: int, site: str) -> Tensor:
        """What the observed site's distribution says of each row, ``(rows, K)``."""
        raise NotImplementedError

    def _source_text(self) -> str:
        guide = self.predictive.guide
        drawn = "the prior" if guide is None else f"guide {name_of(guide)}"
        source = "posterior samples" if self._samples else drawn
        return source if self._site is None else f"site '{self._site}', {source}"

    def begin(self, x: Tensor, num_draws: int) -> Latents | None:
        """Pick draws and run the model under the first; those of a prior are picked later."""
        latents = self._seen_latents(x)
        if self._from_prior:
            self._run_twice(latents, x)
            return None
        draws = self._drawn(x, num_draws)
        first = {name: value[0] for name, value in draws.values.items()}
        self._expected = not self._local
        self._run_twice([{**each, **first} for each in latents], x)
        return draws.without(self._tied)

    def _measured(self, draws: Any, x: Tensor) -> Cost:
        """What many draws cost together too, where they are evaluated so."""
        known = self._cost
        cost = super()._measured(draws, x)
        if cost is known or len(draws) == 1:
            return cost
        some, meters = draws[: max(2, self._numbers(x) // (3 * cost.width))], []
        with preserve_rng():
            for rows in (2, 3) if self._run_model.use_vmap is not False else ():
                with metered() as meter:
                    self._evaluate(some, some_rows(x, rows))
                meters.append(meter)
        self._cost = cost.under(len(some), *meters) if self._run_model.use_vmap else cost
        return self._cost

    def operations(self, x: Tensor) -> int | None:
        """Those of a draw; ``None`` where draws are looped over, which takes more than they do."""
        found = super().operations(x)
        return None if self._run_model.use_vmap is False else found

    def become(self, kind: type[Known], **more: Any) -> Known:
        """A teacher of this kind that knows as much, and more."""
        teacher = kind(self.predictive, self._asked_site)
        teacher.__dict__ |= vars(self) | more
        return teacher

    def _pick(self, x: Tensor, num_draws: int) -> Latents:
        draws = self.begin(x, num_draws) if self._runs is None else None
        self.site  # noqa: B018 - whose choice names the latents of a prior
        return self._drawn(x, num_draws) if draws is None else draws

    def _drawn(self, x: Tensor, num_draws: int) -> Latents:
        if num_draws == self.max_draws:
            return Latents(self._samples, num_draws)
        if self._samples:
            held = self.predictive.num_samples
            return Latents(self._samples, held).at(choose(held, num_draws))
        if not self._latent_names:
            return Latents({}, num_draws)

        def draw(_: Draws) -> Draws:
            source = self._model if self._guide is None else self._guide
            found = fresh_latents(source, {}, some_rows(x, 2), without=self._site)
            return {name: found[name] for name in self._latent_names}

        with quiet():
            return Latents(self._run_source(draw, {"": torch.arange(num_draws)}), num_draws)

    def plug_ins(self, x: Tensor) -> list[PlugIn]:
        """The model under the mean of the latents, or under a draw of them."""
        self.prepare(x)
        if self._row_latents or (self._local and not self._from_prior):
            return []
        held = self.max_draws
        draws = self._drawn(x, min(CANDIDATES, held or CANDIDATES)).values
        draws = self._drawn(x, plug_in_draws(draws, held)).values
        known = {*self.observed, *self.posterior_sites, *draws}
        return [plug_in(self._at, self.runs, known, draws, at_means(self._guide, draws, x))]

    def _at(self, latents: Draws, x: Tensor) -> Tensor:
        """What one draw says of the inputs."""
        if not self._row_latents:
            return self._under(latents, x)
        return self._mixed(*self._row_latents.of(partial(self._under, latents, x)))

    def _mixed(self, log_weights: Tensor, said: Tensor) -> Tensor:
        """What a mixture says, of V in it ``(V, N, K)`` with weights ``(V, N)``."""
        raise NotImplementedError

    def _under(self, latents: Draws, x: Tensor, fixed: Any = nullcontext()) -> Tensor:  # noqa: B008
        with ObservedSites(self.observed, stand_in) as seen, fixed:
            with poutine.condition(data=latents):
                self._model(x)
        return self._read_all(seen.fns, len(x))

    def _meters(self, draws: Any, x: Tensor) -> tuple[Meter, Meter, int]:
        self.site  # noqa: B018 - by whose choice the outputs are known
        two, three = (run.meter for run in self.runs)
        known = Cost.of(x.shape[1:], two, three, 1).serves(x.shape[1:]) and self._cost is None
        if known and not self._row_latents:
            return two, three, self._outputs
        return super()._meters(draws, x)

    def _evaluate(self, draws: Latents, x: Tensor) -> Tensor:
        self.site  # noqa: B018 - whose choice must not be made under vmap
        varying, shared = draws.divided()

        def one(latents: Draws) -> Tensor:
            latents = {**shared, **{name: value for name, value in latents.items() if name}}
            if self._local and self._guide is not None:
                latents = self._guided(latents, x)
            return self._at(latents, x)

        with quiet():
            return self._run_model(one, varying, x)
