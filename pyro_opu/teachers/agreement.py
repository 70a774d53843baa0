"""Whether a teacher's model says what it says as ``Predictive`` runs it.

A teacher asks about any number of rows: it resizes plates, leaves labels out, makes one site of an
observed one with a mask, and gives ``None`` to arguments without a value. At its first call the
distributions of all sites are compared with those of the model as it is written, given the same
values of all that is drawn. Given these, most models are functions, equal to rounding or not, so
that no alarm is false. Where something else in a model is random, the same random numbers make it
equal. Where it has random numbers of its own, ranks of many runs are compared: of
:data:`TEACHERS` of such models one is refused by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from functools import partial
from statistics import NormalDist
from typing import Any

import torch
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.programs.enumerated import Mixture
from pyro_opu.programs.rows import AnyRows
from pyro_opu.programs.signature import Model
from pyro_opu.programs.sites import arguments_of, unwrap
from pyro_opu.programs.trace import is_deterministic, quiet, trace_of
from pyro_opu.programs.vmap import Draws, close, vectorized
from pyro_opu.rng import preserve_rng, seeded
from pyro_opu.teachers.pyro_model import ModelDraws
from pyro_opu.utils.chunks import some_rows, spread_rows
from pyro_opu.utils.warnings import warn_user

Sites = dict[str, Any]
#: Draws and rows that are compared; rows at least; runs of a model that is random by itself.
DRAWS, ROWS, FEWEST, RUNS = 2, 32, 3, 64
#: An error of a quadrature, of a probability or in deviations of y, that is let pass.
SMOOTH = 5e-3
#: Teachers of models that are random by themselves of which one is refused by chance.
TEACHERS = 10**7
#: Numbers of which ranks are found at once.
AT_ONCE = 2**12


class PredictiveTeacher(ModelDraws):
    r"""The observed sites of a :class:`pyro.infer.Predictive` as draws of what they say.

    The model is conditioned on each posterior draw :math:`\theta_s` and run at ``x``; class
    log-probabilities, or mean and scale, are read off the distributions of the observed sites, so
    nothing is lost to noise; of a law of numbers that is no normal they are its moments.
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

    compared: int = 0
    incomparable: str = ""

    def finish(self, x: Tensor, num_draws: int | None = None) -> None:
        self.prepare(x, self.predictive.num_samples)
        draws = self.program.picked
        with preserve_rng():
            self.compare(self._pick(x, min(2, self.max_draws or 2)) if draws is None else draws, x)
        self.look(x[:2], draws, None if self.max_draws else num_draws)

    def _answers(self, draws: Any, x: Tensor) -> Iterator[Tensor]:
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
        self.compared, before = min(len(x), ROWS), self.incomparable
        pairs: list[_Pair] = []
        for number in sorted({0, len(draws) - 1}):
            with quiet(), preserve_rng():
                of_draw = partial(self._of_draw, draws[number : number + 1])
                self.incomparable = _compare(self.program.model, of_draw, x, self.observed, pairs)
        if len(pairs) == DRAWS and len(self.program.sites.nodes) > len(self.observed):
            self._compare_together(*pairs)
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
        few = _spread(x, self.program.model.max_rows)
        with quiet(), preserve_rng():
            ends = [self._of_draw(draws[n : n + 1], few) for n in sorted({0, len(draws) - 1})]

        def under(latents: Draws, fixed: Any) -> Tensor:
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

    def _compare_together(self, one: _Pair, two: _Pair) -> None:
        """Loop over draws where they say something else together, given all that is drawn.

        Where nothing is drawn the first answer itself is compared with the loop.
        """
        same_rows = torch.equal(one.rows, two.rows) and one.fixed.keys() == two.fixed.keys()
        run, model = self.program.run, self.program.model
        if run.use_vmap is False or one.random or two.random or not same_rows:
            return
        fixed = {name: torch.stack([value, two.fixed[name]]) for name, value in one.fixed.items()}

        def said(values: Draws) -> Draws:
            numbers = _numbers(_drawn(_sites(model, values, one.rows), one.asked))
            return {" ".join(name): value for name, value in numbers.items()}

        try:
            with quiet(), preserve_rng():
                together = vectorized(said, fixed, own_tensors=run.own_tensors)
        except Exception:  # noqa: BLE001 - the first answer says so
            return
        for number, pair in enumerate((one, two)):
            for name, value in _numbers(_drawn(pair.own, pair.asked)).items():
                found = together.get(" ".join(name))
                if found is not None and not close(found[number], value):
                    run.give_up("it gives other numbers than the loop")
                    return

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


def _compare(
    model: AnyRows,
    latents: Callable[[Tensor], Draws],
    x: Tensor,
    observed: Collection[str],
    pairs: list[_Pair],
) -> str:
    """Compare at some rows of x, or at as many as plates and labels have; or say why it cannot.

    The runs that were compared are added to the ``pairs``.
    """
    tries = [_spread(x)]
    tries += [some_rows(x, size) for size in sorted(model.sizes) if size > FEWEST]
    reason = ""
    for rows in tries:
        try:
            pair = _Pair(model, latents(rows), rows, observed)
            gaps = pair.gaps()
        except Exception as error:  # noqa: BLE001 - Predictive cannot run it at these rows either
            reason = reason or (str(error).splitlines() or [type(error).__name__])[0]
            continue
        if gaps:
            name, gap = max(gaps.items(), key=lambda item: item[1])
            raise ArgumentError(
                f"`source`'s model must say the same when it is asked about {len(rows)} rows as "
                f"when Predictive runs it; the distribution of its site '{name}' differs"
                f"{f' by {gap:.2g}' if math.isfinite(gap) else ' in kind or shape'}. A teacher "
                "gives plates the rows that are asked about, leaves labels out, and gives None to "
                "arguments without a value: let nothing in the model depend on these. "
                "pyro_opu.batched(source) runs it as it is written."
            )
        pairs.append(pair)
        return ""
    return reason


def _spread(x: Tensor, most: int | None = None) -> Tensor:
    """Some of the rows, from the first to the last, repeated where they are very few."""
    size = min(len(x), ROWS, most or ROWS)
    return some_rows(spread_rows(x, size), min(max(FEWEST, size), most or ROWS))


class _Pair:
    """Runs of a model as it is written and as a teacher runs it, given the same values.

    Where the first takes some of the rows, the second is asked about these.

    Attributes:
        fixed: The values.
        rows: The inputs that the second is asked about.
        random: Whether something else is random.
    """

    def __init__(
        self, model: AnyRows, latents: Draws, x: Tensor, observed: Collection[str]
    ) -> None:
        self.written = _sites(model.as_written, latents, x)
        fixed, rows, picks = dict(latents), x, {}
        for name, node in self.written.items():
            if not site_is_subsample(node):
                drawn = not (node["is_observed"] or is_deterministic(node))
                if drawn or name in model.redrawn - set(observed):
                    fixed[name] = node["value"]
            elif len(node["value"]) < node["fn"].size == len(x):
                picks[name], rows = node["value"], x[node["value"]]
            elif len(node["value"]) < node["fn"].size:
                fixed[name] = node["value"]
        self.run_written = partial(_sites, model.as_written, {**fixed, **picks}, x)
        self.run_own = partial(_sites, model, fixed, rows)
        self.fixed, self.rows, self.random = fixed, rows, False
        self.own = self.run_own()
        # What else is observed matters where these depend on it; a factor of labels does not.
        self.asked = [k for k, node in self.own.items() if k in observed or not node["is_observed"]]

    def gaps(self) -> dict[str, float]:
        """Sites whose distributions differ, beyond rounding and chance, and by how much."""
        self.random = bool(self._gaps(self.own, self.written))
        if not self.random:
            return {}
        with seeded(0):
            written = self.run_written()
        with seeded(0):
            found = self._gaps(self.run_own(), written)
        with seeded(1):
            random = found and self._gaps(self.run_written(), written)
        return self._by_ranks() if random else found

    def _gaps(self, own: Sites, written: Sites) -> dict[str, float]:
        """Sites whose distributions differ beyond rounding."""
        mine, theirs = _drawn(own, self.asked), _drawn(written, self.asked)
        gaps = {k: _gap(fn, theirs[k]) if k in theirs else math.inf for k, fn in mine.items()}
        return {name: gap for name, gap in gaps.items() if gap}

    def _by_ranks(self) -> dict[str, float]:
        """Differences that chance does not explain, where a model has random numbers of its own."""
        own, written = (
            [_numbers(_drawn(run(), self.asked)) for _ in range(RUNS)]
            for run in (self.run_own, self.run_written)
        )
        found = {}
        for name in own[0].keys() & written[0].keys():
            one, two = (torch.stack([numbers[name] for numbers in side]) for side in (own, written))
            most = NormalDist().inv_cdf(1 - 1 / (2 * TEACHERS * len(own[0]) * one[0].numel()))
            if float(_rank_scores(one, two).abs().max()) > most:
                found[name[0]] = float((one.mean(0) - two.mean(0)).abs().max())
        return found


def _sites(model: Model, latents: Draws, x: Tensor) -> Sites:
    nodes = trace_of(model, latents, x.clone()).nodes  # a change of inputs is refused elsewhere
    return {name: node for name, node in nodes.items() if node["type"] == "sample"}


def _drawn(sites: Sites, names: Collection[str]) -> dict[str, Any]:
    """Distributions by site; that of the missing values stands for a site with a mask."""
    nodes = {name: sites[name] for name in names if name in sites}
    for name, node in nodes.items():
        if is_deterministic(node):
            nodes[name] = sites.get(f"{name}_unobserved", node)
    return {
        name: node["fn"]
        for name, node in nodes.items()
        if not (is_deterministic(node) or site_is_subsample(node))
    }


def _gap(one: Any, two: Any) -> float:
    """The largest difference of the arguments of two distributions, 0 where it is rounding."""
    if type(unwrap(one)) is not type(unwrap(two)) or one.shape() != two.shape():
        return math.inf
    gap, mine, theirs = 0.0, _arguments(one), _arguments(two)
    for name in mine.keys() & theirs.keys():  # one may have computed more than it was given
        a, b = mine[name], theirs[name]
        if a.shape != b.shape:
            return math.inf
        if not close(a, b):
            gap = max(gap, float((a.double() - b.double()).abs().nan_to_num(math.inf).max()))
    return gap


def _arguments(fn: Any) -> dict[str, Tensor]:
    """Arguments of a distribution by name, and of what it wraps."""
    found: dict[str, Tensor] = {}
    for name, value in arguments_of(fn):
        found[name if name not in found else f"{name} of its base"] = value
    return found


def _numbers(fns: dict[str, Any]) -> dict[tuple[str, str], Tensor]:
    """Arguments of distributions by site and name, ``(K,)`` each."""
    found = {}
    for site, fn in fns.items():
        for name, value in _arguments(fn).items():
            found[site, name] = value.flatten().double()
    return found


def _rank_scores(one: Tensor, two: Tensor) -> Tensor:
    """Mann and Whitney's statistic of samples ``(R, K)`` in its standard deviations, ``(K,)``."""
    runs, found = len(one), []
    for a, b in zip(one.split(AT_ONCE, 1), two.split(AT_ONCE, 1), strict=True):
        more = (a[:, None] > b).sum((0, 1)) - (a[:, None] < b).sum((0, 1))
        found.append(more / 2 / math.sqrt(runs**2 * (2 * runs + 1) / 12))
    return torch.cat(found)
