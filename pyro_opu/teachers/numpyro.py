"""NumPyro's ``Predictive`` as a teacher: its observed site's distribution, read by JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeGuard

import numpy as np
from torch import Tensor

from pyro_opu.rng import exclusive
from pyro_opu.teachers.arrays import AnyFunction, ArrayFunction
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.teachers.calls import call_of, parameters_of
from pyro_opu.teachers.posteriors import PosteriorDraws
from pyro_opu.teachers.real import RealTeacher, read_normals

__all__ = ["NumpyroRegressionTeacher", "NumpyroTeacher", "is_numpyro"]

ALLOWED = "Categorical, Bernoulli or another law of class labels, or Normal"


class NumpyroDraws(PosteriorDraws):
    """The observed site of a ``numpyro.infer.Predictive`` as draws of its parameters.

    The model runs under its handlers with the sites of a draw substituted, for all draws at once by
    ``jax.vmap``, and the distribution of the observed site is read: no label is sampled. What the
    posterior samples lack is drawn with one key for each draw.
    """

    def __init__(
        self,
        predictive: Any,
        site: str | None = None,
        inputs: Callable[..., Any] | None = None,
        arguments: Callable[[Any], Any] | None = None,
    ) -> None:
        if not predictive.posterior_samples:
            raise ValueError(
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

    def _source_text(self) -> str:
        return f"NumPyro's {self.predictive.model.__name__}"

    def _predicted(self, draws: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Log class probabilities ``(S, N, C)``, or mean and scale ``(S, N)``, as arrays."""
        import jax

        count = len(next(iter(draws.values())))
        keys = jax.random.split(jax.random.PRNGKey(0), count)
        if self._jitted is None:
            first = {name: value[0] for name, value in draws.items()}
            with exclusive():
                self.site = self._observed(self._trace(first, keys[0], args, kwargs))
            self._jitted = jax.jit(jax.vmap(self._of_draw, in_axes=(0, 0, None, None)))
        with exclusive():  # it is traced under handlers, which threads share
            found = self._jitted(dict(draws), keys, args, kwargs)
        return jax.tree_util.tree_map(np.array, found)

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

    def _of_draw(self, draw: Any, key: Any, args: Any, kwargs: Any) -> Any:
        """What the observed site's distribution says under one draw."""
        assert self.site is not None
        rows = len(next(each for each in [*args, *kwargs.values()] if each is not None))
        return _parameters(self._trace(draw, key, args, kwargs)[self.site]["fn"], rows, self.site)

    def _observed(self, sites: dict[str, Any]) -> str:
        """The site whose label or y the student is to predict."""
        free = {
            name: site["fn"]
            for name, site in sites.items()
            if site["type"] == "sample" and name not in self.samples and not site["is_observed"]
        }
        wanted = [self.site] if self.site is not None else [n for n, f in free.items() if _kind(f)]
        returned = [name for name in wanted if name in (self.predictive.return_sites or ())]
        wanted = returned or wanted
        if len(wanted) == 1 and wanted[0] in free and _kind(free[wanted[0]]):
            return wanted[0]
        found = {name: type(_unwrapped(fn)).__name__ for name, fn in free.items()}
        raise ValueError(
            f"`site` must name the observed site, {ALLOWED}; of those that the posterior samples "
            f"do not hold the model has {found or 'none'}. Pass site='...'; give labels a default "
            "of None, so that they are not observed here."
        )


class NumpyroTeacher(NumpyroDraws, BaseTeacher):
    """A ``numpyro.infer.Predictive`` of class labels, which ``as_teacher(predictive)`` makes.

    Args:
        predictive: With posterior samples.
        site: The observed site, where the model has several.
        inputs, arguments: As in :func:`~pyro_opu.as_teacher`.
    """

    def _read(self, values: Any, rows: int) -> Tensor:
        if isinstance(values, tuple):
            raise TypeError(
                f"`source` must observe class labels; its site '{self.site}' is Normal. Pass it to "
                "distill, or to pyro_opu.regression.as_regression_teacher."
            )
        found: Tensor = values
        return found


class NumpyroRegressionTeacher(NumpyroDraws, RealTeacher):
    """A ``numpyro.infer.Predictive`` whose observed site is normal.

    Args:
        predictive, site, inputs, arguments: As of :class:`NumpyroTeacher`.
    """

    def _read(self, values: Any, rows: int) -> Tensor:
        return read_normals(values, rows)


def is_numpyro(source: Any) -> TypeGuard[Any]:
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
    """Of class labels, of a real y or neither."""
    import numpyro.distributions as dist

    fn = _unwrapped(fn)
    inner = fn.base_dist if isinstance(fn, dist.ExpandedDistribution) else fn
    classes = dist.CategoricalLogits, dist.CategoricalProbs, dist.BernoulliLogits
    if isinstance(inner, (*classes, dist.BernoulliProbs)):
        return "classes"
    return "real" if isinstance(inner, dist.Normal) else None


def _parameters(fn: Any, rows: int, site: str) -> Any:
    """Log probabilities of every class ``(N, C)``, or mean and scale ``(N,)``."""
    import jax.numpy as jnp

    fn = _unwrapped(fn)
    size = math.prod(fn.batch_shape)
    if size not in (1, rows):
        raise ValueError(
            f"`source`'s site '{site}' must hold one outcome per input; got batch shape "
            f"{tuple(fn.batch_shape)} for {rows} inputs. Distil one site for each."
        )
    spread = partial(jnp.broadcast_to, shape=(rows,))
    if _kind(fn) == "real":
        return tuple(spread(each.reshape(-1)) for each in (fn.mean, jnp.sqrt(fn.variance)))
    each = fn.log_prob(fn.enumerate_support(expand=True))
    return jnp.stack([spread(one.reshape(-1)) for one in each], -1)
