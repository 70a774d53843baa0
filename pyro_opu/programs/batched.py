"""All draws of a ``Predictive`` at once: what it gives, with nothing learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from pyro.distributions import Delta
from pyro.infer import Predictive
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor

from pyro_opu.checks import ArgumentTypeError, positive_int
from pyro_opu.inputs import call_with
from pyro_opu.programs.asked import all_hold, later
from pyro_opu.programs.bound import put
from pyro_opu.programs.cost import Cost, metered
from pyro_opu.programs.forms import Call, Forms
from pyro_opu.programs.site_programs import Runs, Shape, SitePrograms, draws_at_once
from pyro_opu.programs.sites import unwrap
from pyro_opu.programs.trace import quiet
from pyro_opu.programs.vmap import COMPARED, Batched, Draws, has_nan, loop
from pyro_opu.programs.vmap_rewrites import Rewrites
from pyro_opu.rng import exclusive, preserve_rng

#: Draws of the two runs whose tensors are measured.
MEASURED = 2, 3


class BatchedPredictive(Predictive):
    """A ``Predictive`` that evaluates its draws together; :func:`~pyro_opu.exact` makes it.

    Every draw sees the model as it is written, whatever ``parallel`` says. Under handlers of the
    caller it is the loop of ``Predictive``, into which they can look.

    Args:
        predictive: From posterior samples, a guide or the prior; it is not changed.
        chunk_size: Numbers in the widest tensor of one evaluation.
    """

    def __init__(self, predictive: Predictive, chunk_size: int | None = None) -> None:
        Predictive.__init__(
            self,
            predictive.model,
            dict(predictive.posterior_samples),
            predictive.guide,
            predictive.num_samples,
            predictive.return_sites,
            predictive.parallel,
        )
        if chunk_size is not None:
            chunk_size = positive_int("chunk_size", chunk_size, advice="Leave it out.")
        self.chunk_size = chunk_size
        self._of_guide, self._of_model = Batched("the guide"), Batched("the model")
        #: Of a draw, and what was in it, by the shapes of the arguments.
        self._widths: dict[Any, tuple[int, Rewrites]] = {}
        self._compared: set[Hashable] = set()  # forms of call, with their sizes
        self._programs: Forms[SitePrograms] = Forms()
        self._never: set[Hashable] = set()  # forms of call that cannot be recorded

    def __getstate__(self) -> dict[str, Any]:
        """All but the records, which are made anew."""
        return {**self.__dict__, "_programs": Forms()}

    @torch.no_grad()
    def forward(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Draw from the predictive distribution: what ``Predictive`` gives, key by key."""
        with exclusive():
            try:
                return self._forward(*call_with(args, kwargs))
            except Exception:
                if not all(isinstance(each, Tensor) for each in (*args, *kwargs.values())):
                    with suppress(Exception):  # a model that takes arrays or tables itself
                        return self._forward(args, kwargs)
                raise

    def _forward(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, Tensor]:
        if am_i_wrapped():
            return super().forward(*args, **kwargs)
        call = Call(args, kwargs)
        with suppress(RuntimeError):  # a kernel that refuses its numbers
            if (answered := self._answered(call, call.form())) is not None:
                return answered
        beside = self.guide, self.num_samples, self.return_sites
        looped = Predictive(self.model, dict(self.posterior_samples), *beside)
        found: dict[str, Tensor] = looped(*args, **kwargs)
        return found

    def _answered(self, call: Call, form: Hashable) -> dict[str, Tensor] | None:
        """The answer, or ``None`` where ``Predictive`` is to give it, or to raise an error."""
        for key in ((form, call.rows), form):
            programs = self._programs[key]
            if programs is not None and programs.serves(call):
                return programs(call.tensors)
        return self._run(call, form)

    def _run(self, call: Call, form: Hashable) -> dict[str, Tensor] | None:
        """What runs of the model give; from now on without them, where they can be recorded."""
        with preserve_rng():
            model = Runs(self.model, call)
            guide = None if self.guide is None else Runs(self.guide, call)
        shapes = self._asked(model)
        size: int = self.num_samples
        ways: Callable[[], AbstractContextManager[Any]] = Rewrites
        if size > 1 and not all(name in self.posterior_samples for name in shapes):
            self._compare(model, guide, form)
            parts = (self._of_model, *([self._of_guide] if guide and guide.shapes else []))
            if all(part.use_vmap is False for part in parts):
                return None  # the loop of ``Predictive`` is the quickest
            vmaps = False not in (self._of_guide.use_vmap, self._of_model.use_vmap)
            if vmaps and form is not None and self._never.isdisjoint((form, (form, call.rows))):
                programs = self._recorded(model, guide, shapes, call, form)
                if programs:
                    return programs(call.tensors)
            size, ways = self._draws_at_once(model, guide, shapes, call.tensors)
        found: dict[str, Tensor] = {}
        with quiet(), ways(), later() as checks:
            for start in range(0, self.num_samples, size):
                block = slice(start, start + size)
                values = self._values(model, guide, shapes, block)
                whole = {k: v.reshape(len(v), *shapes[k]) for k, v in values.items()}
                put(found, block, whole, self.num_samples)
        if checks and not bool(all_hold(checks)):
            return None
        return {name: found[name] for name in shapes}

    def _compare(self, model: Runs, guide: Runs | None, form: Hashable) -> None:
        """Let ``vmap`` and the loop run a few draws, once for a form and its sizes."""
        asked = form, *(tensor.shape for tensor in model.call.tensors)
        if form is None or asked not in self._compared:
            with preserve_rng(), quiet():
                if guide is not None and guide.shapes:
                    _compare(self._of_guide, guide, {"": torch.arange(COMPARED)})
                _compare(self._of_model, model, self._latents(guide, slice(COMPARED)))
            self._compared.add(asked)

    def _recorded(
        self,
        model: Runs,
        guide: Runs | None,
        shapes: dict[str, Shape],
        call: Call,
        form: Hashable,
    ) -> SitePrograms | None:
        """The programs of this form of call, for any rows or else for as many as it has."""
        samples = {"": torch.arange(self.num_samples)} | dict(self.posterior_samples)
        own, never = (self._of_guide.own_tensors, self._of_model.own_tensors), form
        for free in (True, False) if call.rows else (False,):
            try:
                with preserve_rng(), quiet():
                    more = own, free, self.chunk_size
                    programs = SitePrograms(model, guide, tuple(shapes), samples, *more)
                    if programs.serves(call):
                        self._programs[form if free else (form, call.rows)] = programs
                        return programs
                if not programs.fits(call):
                    never = form, call.rows
            except Exception:  # noqa: BLE001, S112 - whatever cannot be recorded is run
                continue
        self._never.add(never)
        return None

    def _asked(self, model: Runs) -> dict[str, Shape]:
        """Shapes of what a call gives, chosen and ordered as ``Predictive`` does."""
        sites = self.return_sites
        if not sites:
            left = () if sites is None or self.guide is not None else self.posterior_samples
            return {name: shape for name, shape in model.shapes.items() if name not in left}
        shapes = {name: shape for name, shape in model.shapes.items() if name in sites}
        if "_RETURN" in sites:
            if model.returned is None:
                raise ArgumentTypeError(
                    "`return_sites` asks for '_RETURN', so the model must return a tensor. Return "
                    "one, or ask for sites by their names."
                )
            shapes["_RETURN"] = model.returned
        return shapes

    def _values(self, model: Runs, guide: Runs | None, names: Iterable[str], block: slice) -> Draws:
        """Values of sites under these draws, ``(s, ...)`` each; held ones need no run."""
        known = self._latents(guide, block)
        values = {name: known[name] for name in names if name in known}
        fresh = [name for name in names if name not in known]
        return values | self._of_model(partial(model.values, fresh), known) if fresh else values

    def _latents(self, guide: Runs | None, block: slice) -> Draws:
        """Draws of the latents ``(s, ...)``, and a counter, as there may be none."""
        draws = {"": torch.arange(self.num_samples)[block]}
        if guide is None:
            return draws | {name: value[block] for name, value in self.posterior_samples.items()}
        if not guide.shapes:
            return draws
        drawn = self._of_guide(partial(guide.values, guide.shapes), draws)
        return draws | {k: v.reshape(len(v), *guide.shapes[k]) for k, v in drawn.items()}

    def _draws_at_once(
        self, model: Runs, guide: Runs | None, names: Iterable[str], tensors: list[Tensor]
    ) -> tuple[int, Callable[[], AbstractContextManager[Any]]]:
        """Draws of a block, by the widest tensor of one, and what they run under."""
        asked = tuple((tensor.shape, tensor.device) for tensor in tensors)
        if asked not in self._widths:
            meters = []
            with preserve_rng(), quiet(), Rewrites() as seen:
                for count in MEASURED:
                    with metered() as meter:
                        self._values(model, guide, names, slice(count))
                    meters.append(meter)
            self._widths[asked] = Cost.of(torch.Size(), meters[0], meters[1], 1).width, seen
        width, seen = self._widths[asked]
        tensors = [*tensors, *self.posterior_samples.values()]
        most = draws_at_once(width, seen, tensors, self.chunk_size)
        size = math.ceil(self.num_samples / math.ceil(self.num_samples / max(1, most)))
        return size, Rewrites if most else nullcontext


def _compare(batched: Batched, runs: Runs, known: Draws) -> None:
    """Let ``vmap`` do for a few draws what the loop does, given all that the loop draws."""
    if batched.use_vmap is False:
        return
    batched.use_vmap = None
    first = runs.nodes({name: value[0] for name, value in known.items()})
    drawn = loop(partial(runs.values, runs.shapes), known)
    free = [k for k in drawn if k not in known and not isinstance(unwrap(first[k]["fn"]), Delta)]
    batched(runs.tensors, {**known, **{name: drawn[name] for name in free}})
    if batched.use_vmap:
        sampled = batched(partial(runs.values, runs.shapes), known)
        if batched.use_vmap and has_nan(sampled) > has_nan(drawn):
            batched.give_up("a site that it samples is NaN")
