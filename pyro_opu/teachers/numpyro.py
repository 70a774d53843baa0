"""NumPyro's ``Predictive`` as a teacher: its observed site's distribution, read by JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeGuard

import numpy as np
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.parts.laws import has_own_moments
from pyro_opu.programs.latents import DRAWN, SHARED, behind
from pyro_opu.programs.samples import SamplesError, unknown_name
from pyro_opu.programs.signature import call_of, names_of, parameters_of
from pyro_opu.rng import exclusive
from pyro_opu.teachers.arrays import AnyFunction, ArrayFunction
from pyro_opu.teachers.posteriors import PosteriorTeacher
from pyro_opu.utils.laws import own_members
from pyro_opu.utils.warnings import warn_user

__all__ = ["NumpyroTeacher", "is_numpyro"]

ALLOWED = "Categorical, Bernoulli or another distribution of class labels, or of a real y"


class NumpyroTeacher(PosteriorTeacher):
    """The observed site of a ``numpyro.infer.Predictive`` as draws of its parameters.

    The model runs under its handlers with the sites of a draw substituted, for all draws at once by
    ``jax.vmap``, and the distribution of the observed site is read: no label is sampled. What the
    posterior samples lack is drawn with one key for each draw. A real y may have any
    distribution with a mean and a variance.

    Args:
        predictive: With posterior samples.
        site: The observed site, where the model has several.
        inputs, arguments: As in :func:`~pyro_opu.as_teacher`.
    """

    def __init__(
        self,
        predictive: Any,
        site: str | None = None,
        inputs: Callable[..., object] | None = None,
        arguments: Callable[..., object] | None = None,
    ) -> None:
        if not predictive.posterior_samples:
            raise ArgumentError(
                "`source` must hold posterior samples; this numpyro.infer.Predictive has none. "
                "Pass Predictive(model, mcmc.get_samples()), or of an autoguide Predictive(model, "
                "guide.sample_posterior(key, params, sample_shape=(500,)))."
            )
        self.predictive, self.site = predictive, site
        axes = predictive.batch_ndims
        samples = {k: np.asarray(v) for k, v in predictive.posterior_samples.items()}
        joined = {k: v.reshape(-1, *v.shape[axes:]) for k, v in samples.items()}
        super().__init__(joined, self._predicted, of_all=True)
        self._function = AnyFunction(ArrayFunction(self._function.function))
        self.call = call_of(inputs, predictive.model, arguments)
        self._jitted: Callable[..., Any] | None = None
        self._site_kind: str | None = None

    @property
    def argument_names(self) -> tuple[str, ...]:
        return names_of(self.predictive.model)

    def _source_text(self) -> str:
        return f"NumPyro's {self.predictive.model.__name__}"

    def _read(self, values: Any, rows: int) -> Tensor:
        if isinstance(values, tuple):
            return super()._read(values, rows)
        log_probs: Tensor = values
        return log_probs

    def _predicted(self, draws: Mapping[str, Any], *args: object, **kwargs: object) -> Any:
        """Log class probabilities ``(S, N, C)``, or mean and scale ``(S, N)``, as arrays."""
        import jax
        from jax.tree_util import tree_map

        count = len(next(iter(draws.values())))
        keys = jax.random.split(jax.random.PRNGKey(0), count)
        if self._jitted is None:
            first = {name: value[0] for name, value in draws.items()}
            few = [tree_map(partial(_few, count=rows), (args, kwargs)) for rows in (2, 3)]
            with exclusive():
                self._check_samples(partial(self._trace, {}, keys[0], *few[0]))
                self._look(first, keys, few)
            self._jitted = jax.jit(jax.vmap(self._of_draw, in_axes=(0, 0, None, None)))
        with exclusive():  # it is traced under handlers, which threads share
            found = self._jitted(dict(draws), keys, args, kwargs)
        return tree_map(np.array, found)

    def _trace(self, draw: Mapping[str, Any], key: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        """The model's sites under one draw."""
        from numpyro import handlers

        def value(site: dict[str, Any]) -> Any:
            return None if site["type"] == "deterministic" else draw.get(site["name"])

        model = handlers.substitute(self.predictive.model, substitute_fn=value)
        given = dict(kwargs)
        for position, (name, each) in enumerate(parameters_of(self.predictive.model).items()):
            if position >= len(args) and each.default is each.empty:
                given.setdefault(name, None)
        found: dict[str, Any] = handlers.trace(handlers.seed(model, key)).get_trace(*args, **given)
        return found

    def _check_samples(self, prior: Callable[[], dict[str, Any]]) -> None:
        """Refuse samples by chain, by the sites of the model without samples."""
        try:
            own = prior()
        except Exception:  # noqa: BLE001 - a model that cannot be run without its samples
            return
        shapes = [
            (value.shape, np.shape(own[name]["value"]))
            for name, value in self.samples.items()
            if name in own and own[name]["type"] == "sample" and not own[name]["is_observed"]
        ]
        if shapes and all(found[2:] == each != found[1:] for found, each in shapes):
            chains, draws = shapes[0][0][:2]
            raise ArgumentError(
                f"`posterior_samples` must have one axis of draws, or `batch_ndims` of them; got "
                f"{chains} chains of {draws}, grouped. Pass Predictive(model, samples, "
                "batch_ndims=2), or mcmc.get_samples() without group_by_chain."
            )

    def _look(self, draw: Mapping[str, Any], keys: Any, few: list[Any]) -> None:
        """Find the observed site, and name the latents behind it that the samples lack."""
        two, three = (self._trace(draw, keys[0], *each) for each in few)
        free = {k: site["value"] for k, site in two.items() if self._is_free(site)}
        shared = [k for k in free if np.shape(free[k]) == np.shape(three[k]["value"])]
        other = self._trace(draw, keys[-1] + 1, *few[0])
        depends: dict[str, set[str]] = {name: set() for name in free}
        for changed in free if len(free) > 1 else ():
            now = {**draw, **free, changed: other[changed]["value"]}
            again = self._trace(now, keys[0], *few[0])
            for name in free:
                if not _alike(again[name]["fn"], two[name]["fn"]):
                    depends[name].add(changed)
        last = [k for k in free if not any(k in each for each in depends.values())]
        last = [k for k in last if k not in shared] or last
        self.site = site = self._observed({name: two[name]["fn"] for name in free}, last)
        self._site_kind = _kind(two[site]["fn"])
        found = behind(site, depends) - {site}
        lacking = [k for k in shared if k in found]
        for name in self.samples if lacking else ():
            if name not in two:
                raise SamplesError(unknown_name(name, lacking))
        self.latents = {k: SHARED if k in shared else DRAWN for k in free if k in found}
        for name in self.latents:
            if not two[name]["infer"].get("epistemic"):
                of = "all rows share" if name in shared else "each row has one of"
                warn_user(
                    f"the posterior samples lack the latent '{name}', which {of}: it is drawn anew "
                    "for every draw, and its spread counts as epistemic. Put its draws among the "
                    'samples, or integrate it out in the model; infer={"epistemic": True} at its '
                    "site says that it is meant."
                )

    def _is_free(self, site: Mapping[str, object]) -> bool:
        """Whether the samples do not fix it."""
        sampled = site["type"] == "sample" and not site["is_observed"]
        return sampled and site["name"] not in self.samples

    def _of_draw(self, draw: Any, key: Any, args: Any, kwargs: Any) -> Any:
        """What the observed site's distribution says under one draw."""
        assert self.site is not None
        rows = len(next(each for each in [*args, *kwargs.values()] if each is not None))
        fn = self._trace(draw, key, args, kwargs)[self.site]["fn"]
        return _parameters(fn, self._site_kind, rows, self.site)

    def _observed(self, free: dict[str, Any], last: list[str]) -> str:
        """The site whose label or y the student is to predict, of those that nothing depends on."""
        wanted = [self.site] if self.site is not None else [n for n in last if _kind(free[n])]
        returned = [name for name in wanted if name in (self.predictive.return_sites or ())]
        wanted = returned or wanted
        if len(wanted) == 1 and wanted[0] in free and _kind(free[wanted[0]]):
            return wanted[0]
        found = {name: type(_unwrapped(fn)).__name__ for name, fn in free.items()}
        raise ArgumentError(
            f"`site` must name the observed site, {ALLOWED}; of those that the posterior samples "
            f"do not hold the model has {found or 'none'}. Pass site='...'; give labels a default "
            "of None, so that they are not observed here."
        )


def is_numpyro(source: object) -> TypeGuard[Any]:
    """Whether it is NumPyro's ``Predictive``, which need not be imported."""
    return any(
        kind.__name__ == "Predictive" and kind.__module__.startswith("numpyro.")
        for kind in type(source).__mro__
    )


def _unwrapped(fn: Any) -> Any:
    """Without wrappers that leave the parameters as they are."""
    while type(fn).__name__ in ("Independent", "MaskedDistribution"):
        fn = fn.base_dist
    return fn


def _kind(fn: Any) -> str | None:
    """Kind of outcome: class labels, a real y with a mean and a variance, or neither."""
    import numpyro.distributions as dist

    fn = _unwrapped(fn)
    inner = fn.base_dist if isinstance(fn, dist.ExpandedDistribution) else fn
    own = own_members(type(inner)) & {"sample", "log_prob"}
    classes = dist.CategoricalLogits, dist.CategoricalProbs, dist.BernoulliLogits
    if isinstance(inner, (*classes, dist.BernoulliProbs)):
        return "classes" if len(own) != 1 else None  # read by log_prob, which is the law drawn
    if (
        inner.event_shape
        or isinstance(inner, (dist.Delta, dist.VonMises))
        or not has_own_moments(inner)
    ):
        return None
    try:
        moments = np.asarray(inner.mean), np.asarray(inner.variance)
    except NotImplementedError:
        return None
    continuous = not getattr(inner.support, "is_discrete", True)
    return "real" if continuous and all(np.isfinite(each).all() for each in moments) else None


def _few(value: Any, count: int) -> Any:
    """The first rows of an input, repeated where there are fewer."""
    return value[np.arange(count) % len(value)] if np.ndim(value) else value


def _alike(one: object, other: object) -> bool:
    """Whether two distributions have the same parameters."""
    from jax.tree_util import tree_leaves

    return all(map(np.array_equal, tree_leaves(one), tree_leaves(other)))


def _parameters(fn: Any, kind: str | None, rows: int, site: str) -> Any:
    """Log probabilities of every class ``(N, C)``, or mean and scale ``(N,)``."""
    import jax.numpy as jnp

    fn = _unwrapped(fn)
    size = math.prod(fn.batch_shape)
    if size not in (1, rows):
        raise ArgumentError(
            f"`source`'s site '{site}' must hold one outcome per input; got batch shape "
            f"{tuple(fn.batch_shape)} for {rows} inputs. Distil one site for each."
        )
    spread = partial(jnp.broadcast_to, shape=(rows,))
    if kind == "real":
        return tuple(spread(each.reshape(-1)) for each in (fn.mean, jnp.sqrt(fn.variance)))
    each = fn.log_prob(fn.enumerate_support(expand=True))
    return jnp.stack([spread(one.reshape(-1)) for one in each], -1)
