"""A Pyro model with posterior draws, or a guide, as a teacher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.infer.predictive import WeighedPredictive
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyro_opu.teachers.base import BaseTeacher, choose
from pyro_opu.teachers.batched import Batched, Draws
from pyro_opu.teachers.sites import check_one_trial, class_log_probs, site_kind, unwrap

Model = Callable[..., Any]


class PredictiveTeacher(BaseTeacher):
    r"""The observed site of a :class:`pyro.infer.Predictive` as draws on the simplex.

    For each posterior draw :math:`\theta_s` the model is conditioned on it and run at ``x``; the
    class log-probabilities are read off the observed site's distribution before anything is
    sampled from it, so nothing of the predictive distribution is lost to label noise. All draws go through
    :func:`torch.vmap` at once, equal to the loop; a model that ``vmap`` cannot run is looped over.

    With ``posterior_samples`` the draws are those, in order. With a ``guide`` (or neither, the
    prior) every call draws afresh; latents of the whole model are drawn once and shared by all
    rows of ``x``, latents local to a row are drawn per row.

    Args:
        predictive: The ``Predictive`` to read; it is not changed.
        site: Name of the observed categorical site, needed when there are several.

    Raises:
        TypeError: a ``WeighedPredictive``, whose draws are not equally likely.
        ValueError: ``posterior_samples`` that hold NaN or infinity. At the first call: no
            categorical site, several and none named, an unknown or a latent site named.
    """

    def __init__(self, predictive: Predictive, site: str | None = None) -> None:
        if isinstance(predictive, WeighedPredictive):
            raise TypeError(
                "`source` is a WeighedPredictive, whose draws carry weights; resample its draws by "
                "their weights and pass a plain Predictive."
            )
        self.predictive = predictive
        self._samples: Draws = dict(predictive.posterior_samples)
        for name, value in self._samples.items():
            if value.is_floating_point() and not torch.isfinite(value).all():
                raise ValueError(
                    f"`posterior_samples['{name}']` must be finite; it holds NaN or infinity. "
                    "Check the sampler's divergences and step size."
                )
        self.max_draws = predictive.num_samples if self._samples else None
        self.default_draws = predictive.num_samples
        self._asked_site = site
        self._site: str | None = None
        self._latent_names: tuple[str, ...] = ()
        self._local = False
        # The source of fresh draws: the guide, or without one the prior of the model itself.
        self._source: Model | None = None
        if not self._samples:
            self._source = predictive.guide if predictive.guide is not None else predictive.model
        self._run_source = Batched("the guide")
        self._run_model = Batched("the model")

    @property
    def site(self) -> str:
        """Name of the observed site; known once the teacher has seen an input."""
        if self._site is None:
            raise RuntimeError("the site is not known before the teacher has seen an input")
        return self._site

    def prepare(self, x: Tensor) -> None:
        """Find the observed site and the latents by running the model once at two rows of ``x``."""
        if self._site is not None:
            return
        with _quiet():
            pair, triple = (x[torch.zeros(n, dtype=torch.long)] for n in (2, 3))
            known = {name: value[0] for name, value in self._samples.items()}
            latents = dict(known)
            if self.predictive.guide is not None:
                shapes = [_latents(self.predictive.guide, known, rows) for rows in (pair, triple)]
                latents = shapes[0]
                self._note_latents(*shapes)
            nodes = _trace(self.predictive.model, latents, pair)
            self._site = _find_site(nodes, latents, self._asked_site)
            check_one_trial(nodes[self._site]["fn"], self._site)
            if self._source is self.predictive.model:
                shapes = [
                    _latents(self._source, known, rows, without=self._site)
                    for rows in (pair, triple)
                ]
                self._note_latents(*shapes)

    def run_once(self, x: Tensor) -> dict[str, Any]:
        """Sample sites ``{name: node}`` of one run of the model at ``x`` under one posterior draw."""
        with _quiet(), torch.random.fork_rng(devices=[]):
            latents = {name: value[0] for name, value in self._samples.items()}
            if self.predictive.guide is not None:
                latents = _latents(self.predictive.guide, latents, x)
            return _trace(self.predictive.model, latents, x)

    def _note_latents(self, pair: Draws, triple: Draws) -> None:
        """Tell global latents from those whose shape grows with the number of rows."""
        shared = tuple(n for n in pair if n in triple and pair[n].shape == triple[n].shape)
        self._latent_names = shared
        self._local = len(shared) < len(pair)

    def _pick(self, x: Tensor, num_draws: int) -> _Latents:
        self.prepare(x)
        if self._samples:
            chosen = choose(self.predictive.num_samples, num_draws)
            if num_draws == self.predictive.num_samples:
                return _Latents(self._samples, num_draws)
            return _Latents(
                {k: v[chosen.to(v.device)] for k, v in self._samples.items()}, num_draws
            )
        if not self._latent_names:
            return _Latents({}, num_draws)

        def draw(_: Draws) -> Draws:
            assert self._source is not None
            found = _latents(self._source, {}, x[:2], without=self._site)
            return {name: found[name] for name in self._latent_names}

        with _quiet(), _PlainNormals():
            return _Latents(self._run_source(draw, {"": torch.arange(num_draws)}), num_draws)

    def _evaluate(self, draws: _Latents, x: Tensor) -> Tensor:
        assert self._site is not None
        site, model, guide = self._site, self.predictive.model, self.predictive.guide

        def one(latents: Draws) -> Tensor:
            latents = {name: value for name, value in latents.items() if name}
            if self._local and guide is not None:
                latents = _latents(guide, latents, x)
            with _ClassSite(site) as seen, poutine.condition(data=latents):
                model(x)
            return class_log_probs(seen.fn, len(x), site)

        with _quiet():
            return self._run_model(one, draws.tensors)


class _Latents:
    """Draws of the latents, ``{site: (S, ...)}``, sliced together along S."""

    def __init__(self, values: Draws, size: int) -> None:
        self.values, self.size = values, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: slice) -> _Latents:
        size = len(range(*index.indices(self.size)))
        return _Latents({name: value[index] for name, value in self.values.items()}, size)

    @property
    def tensors(self) -> Draws:
        """The draws with a counter beside them, so that a model without latents has an axis S."""
        return {"": torch.arange(self.size), **self.values}


class _ClassSite(Messenger):
    """Keeps the observed site's distribution, and spares the model sampling from it."""

    def __init__(self, site: str) -> None:
        super().__init__()
        self.site = site
        self.fn: Any = None

    def _pyro_sample(self, msg: Any) -> None:  # noqa: ANN401
        if msg["name"] == self.site:
            self.fn = msg["fn"]
            if msg["value"] is None:
                discrete = site_kind(self.fn) == "categorical"
                dtype = torch.long if discrete else torch.get_default_dtype()
                msg["value"] = torch.zeros(self.fn.shape(), dtype=dtype)


class _PlainNormals(TorchFunctionMode):
    """Writes ``torch.normal(mean, std)`` as mean + std * randn, which ``vmap`` can randomise."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func is torch.normal and len(args) == 2 and all(isinstance(a, Tensor) for a in args):
            mean, std = args
            noise = torch.randn(
                torch.broadcast_shapes(mean.shape, std.shape), dtype=mean.dtype, device=mean.device
            )
            return mean + std * noise
        return func(*args, **(kwargs or {}))


@contextmanager
def _quiet() -> Iterator[None]:
    """No gradients, no validation (it branches on values), no handlers of the caller."""
    with torch.no_grad(), pyro.validation_enabled(False), poutine.block():
        yield


def _trace(model: Model, latents: Draws, x: Tensor) -> dict[str, Any]:
    """Sample sites ``{name: node}`` of one run of the model with some latents fixed."""
    with poutine.condition(data=latents):
        trace = poutine.trace(model).get_trace(x)
    return {
        name: node
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and not site_is_subsample(node)
    }


def is_deterministic(node: Any) -> bool:  # noqa: ANN401
    """Whether a site was made by ``pyro.deterministic``."""
    return bool(node["infer"].get("_deterministic", False))


def _latents(source: Model, known: Draws, x: Tensor, without: str | None = None) -> Draws:
    """One joint draw of the source's latents at ``x``, those already known kept."""
    nodes = _trace(source, known, x)
    fresh = {
        name: node["value"]
        for name, node in nodes.items()
        if name != without and not is_deterministic(node)
    }
    return {**known, **fresh}


def _find_site(nodes: dict[str, Any], latents: Draws, asked: str | None) -> str:
    """The observed categorical site; errors name the candidates."""
    free = {n: v for n, v in nodes.items() if n not in latents and not is_deterministic(v)}
    classes = [n for n, v in free.items() if site_kind(v["fn"]) is not None]
    if asked is not None:
        if asked in latents:
            raise ValueError(
                f"`site` names '{asked}', a latent site of the posterior; expected the observed "
                f"categorical site. Candidates: {classes}."
            )
        if asked not in nodes:
            raise ValueError(
                f"`site` names '{asked}', which the model does not have; expected the observed "
                f"categorical site. Candidates: {classes}."
            )
        if asked not in classes:
            kind = type(unwrap(nodes[asked]["fn"])).__name__
            raise ValueError(
                f"site '{asked}' must be Categorical, OneHotCategorical, Bernoulli, or a one-trial "
                f"Binomial or Multinomial; got {kind}. Candidates: {classes}."
            )
        return asked
    if len(classes) > 1:
        raise ValueError(
            f"the model has several observed categorical sites, {classes}; name one with "
            f"site='{classes[0]}'."
        )
    if not classes:
        found = {n: type(unwrap(v["fn"])).__name__ for n, v in free.items()}
        raise ValueError(
            "the model must have one observed site that is Categorical, OneHotCategorical, "
            "Bernoulli, or a one-trial Binomial or Multinomial; the sites that the posterior does "
            f"not fix are {found or 'none'}. Is the class label's site among the posterior samples?"
        )
    return classes[0]
