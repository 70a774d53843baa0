"""A run of any sampler, a student or a teacher as ArviZ's InferenceData or DataTree."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer import MCMC, Predictive
from pyro.infer.predictive import WeighedPredictive
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from pyro_opu.interop import (
    Arrays,
    Groups,
    Wanted,
    arrays,
    assembled,
    class_groups,
    found_arviz,
    gives_class_probs,
    probs_name,
    site_dims,
)
from pyro_opu.reports.convergence import chains_of, divergences_of
from pyro_opu.rng import preserve_rng, seeded
from pyro_opu.samplers.latents import PossibleValues
from pyro_opu.teachers.base import CHUNK_SIZE
from pyro_opu.teachers.batched import Batched, Draws
from pyro_opu.teachers.runs import is_deterministic
from pyro_opu.teachers.sites import class_log_probs, site_kind

__all__ = ["to_inference_data"]

_LOG_JOINT = ""  # beside the sites' names, none of which is empty


def to_inference_data(
    run: Any,
    *args: Any,
    log_likelihood: bool = True,
    posterior_predictive: bool = True,
    probs: bool = False,
    num_draws: int | None = None,
    num_chains: int = 1,
    seed: int | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    **kwargs: Any,
) -> Any:
    r"""Convert a run, a student or a teacher to ArviZ, for ``az.loo``, ``az.compare``, plots.

    ======================  ====================================================================
    posterior               every latent site, (chain, draw, ...); of a student or a teacher
                            "probs", the class probabilities, (chain, draw, data, class)
    sample_stats            of a run: "diverging", where the kernel records it; "lp", the log joint
                            density of data and constrained latents (without Jacobian)
    log_likelihood          :math:`\log p(y_i|\theta_s)` of every observed site,
                            (chain, draw, N); a subsampling or tempering scale is left out
    posterior_predictive    labels drawn from every observed site's distribution, one per draw;
                            "probs", (chain, draw, N, C), where asked for
    observed_data           the observed sites' values
    constant_data           the other tensors that the model was called with
    ======================  ====================================================================

    ``arviz.from_pyro`` evaluates the likelihood as ``Predictive(parallel=True)`` does, with the
    draws of a vector latent lined up with the data: the group is left out with a warning, or,
    where S = N, may silently hold one number per draw. It also fails for kernels that record no
    divergences, and takes deterministic sites for data. Here every draw has its own run of the
    model, all through :func:`torch.vmap` at once, checked against the loop.

    **A student's LOO.** ``az.loo`` and ``az.waic`` look at one row at a time, and so need only the
    marginals, which a student has: with many draws of :math:`\mathrm{Dir}(\alpha(x_i))`

    .. math::
        \mathrm{elpd}_i = -\log \mathrm{E}\,\pi_{y_i}^{-1}
        = \log\frac{\alpha_{y_i} - 1}{\alpha_0 - 1}, \qquad k_i = 1 / \alpha_{y_i}

    That is one count taken off :math:`\alpha` for the row that is left out, and the Pareto k says
    that draws cannot estimate it where :math:`\alpha_{y_i}` is below about 1.4. It is the
    teacher's LOO as far as the student's marginals are the teacher's, tails included; so hold the
    two side by side by ``az.compare``, on the rows and labels that the posterior was fitted to.
    Nothing is refitted, and at other rows there is nothing to leave out. A student that gives a
    mean alone has a p_loo of 0 in ArviZ 0.x, whatever its teacher's is, and no LOO in 1.x. What a
    student cannot give is anything of several rows at once, since its draws are independent between
    inputs: the number of labels of a class, as in ``az.plot_ppc`` or ``az.plot_bpv``, varies less
    than the teacher's does. R-hat and effective draws say nothing of a student.

    Args:
        run: A ``pyro.infer.MCMC`` after ``run(x, y)``, with any kernel, or a ``Predictive`` with
            posterior samples (one chain, unless ``num_chains`` says more) or a guide (one chain of
            independent draws, ``num_samples`` of them). Or a student: what ``distill`` returns, or
            a guide. Or any other teacher that :func:`~pyro_opu.as_teacher` takes.
        *args: What the model is called with, labels included; of an ``MCMC`` known from its run. Of
            a student or a teacher x ``(N, ...)`` and, for LOO, labels y ``(N,)``.
        log_likelihood: False leaves the group out.
        posterior_predictive: False leaves the group out. With both False the model is not run.
        probs: Class probabilities, too, for sites of class labels.
        num_draws: S, of a student or a teacher; by default ``num_samples`` of a student, all of a
            teacher (500 of one that draws afresh).
        num_chains: Of a ``Predictive`` or a teacher, whose draws hold the chains one after another.
        seed: Fixes guide draws and labels; torch's generators are then left as they were.
        coords: Values along named dimensions, as in ArviZ; ``{"class": names}`` names the classes.
        dims: Names of a variable's dimensions; by default those of the model's plates.
        **kwargs: As ``args``, by name.

    Returns:
        ``arviz.InferenceData`` (a ``DataTree`` with ArviZ 1.x). A kernel that was given a potential
        function knows no model: posterior and "diverging" only.

    Raises:
        ImportError: ArviZ is not installed.
        TypeError: ``run`` is none of these, or a ``WeighedPredictive``; a regressor's student.
        ValueError: no draws; no data for a ``Predictive``; a model that subsamples its data, or has
            latents that the draws do not hold; labels that are no classes of a student.

    Example:
        >>> import torch, pyro, pyro.distributions as dist
        >>> from pyro.infer import MCMC, NUTS
        >>> from pyro_opu.interop.arviz import to_inference_data
        >>> def model(x, y=None):
        ...     w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        ...     with pyro.plate("data", len(x)):
        ...         return pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)
        >>> mcmc = MCMC(NUTS(model), num_samples=5, warmup_steps=5, disable_progbar=True)
        >>> mcmc.run(torch.randn(7, 2), torch.ones(7))
        >>> data = to_inference_data(mcmc)
        >>> data.log_likelihood["obs"].shape
        (1, 5, 7)

        And a student beside it: ``az.compare({"teacher": data, "student":
        to_inference_data(fast, x, y)})``.

    References:
        Kumar, Carroll, Hartikainen and Martin (2019), ArviZ; Vehtari, Gelman and Gabry (2017),
        Eqs. 7-10, for what ``az.loo`` makes of the log-likelihood. The student's closed form is
        this project's.
    """
    arviz = found_arviz()
    answers = gives_class_probs(run)
    if num_draws is not None and not answers:
        raise ValueError(
            f"`num_draws` is for a student or a teacher; got {num_draws!r} and a "
            f"{type(run).__name__}, which holds its draws. Leave it out, or thin the draws: "
            "Predictive(model, {name: value[::10] for name, value in samples.items()})."
        )
    wanted = Wanted(log_likelihood, posterior_predictive, probs, num_draws, num_chains)
    with torch.no_grad(), pyro.validation_enabled(False), poutine.block(), seeded(seed):
        if answers:
            groups = class_groups(run, wanted, *args, **kwargs)
        else:
            groups = _run_groups(run, wanted, args, kwargs)
    return assembled(arviz, groups, coords, dims)


def _run_groups(
    run: MCMC | Predictive, wanted: Wanted, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Groups:
    """The groups of a run, or of a ``Predictive``."""
    read = _read(run, args, kwargs, wanted.num_chains)
    groups: dict[str, Arrays] = {"posterior": arrays(read.samples), "sample_stats": {}}
    names: dict[str, list[str]] = {}
    if read.diverging is not None:
        groups["sample_stats"]["diverging"] = read.diverging
    if read.model is not None and (wanted.log_likelihood or wanted.posterior_predictive):
        sites = _sites(read)
        observed = {n: node for n, node in sites.items() if n not in read.samples}
        densities, labels = _evaluated(read, observed, wanted)
        groups["sample_stats"]["lp"] = densities.pop(_LOG_JOINT)
        groups["log_likelihood"] = densities if wanted.log_likelihood else {}
        groups["posterior_predictive"] = labels
        groups["observed_data"] = arrays({n: v["value"] for n, v in observed.items()})
        groups["constant_data"] = _constants(read, groups["observed_data"])
        names = site_dims(sites, observed, groups)
    return Groups(groups, names, read.note)


@dataclass(frozen=True)
class _Read:
    """What a run holds: draws ``{site: (chains, draws, ...)}``, the model, and its call."""

    samples: Draws
    model: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    diverging: np.ndarray | None
    note: str


def _read(
    run: MCMC | Predictive, args: tuple[Any, ...], kwargs: dict[str, Any], num_chains: int
) -> _Read:
    if isinstance(run, WeighedPredictive):
        raise TypeError(
            "`run` must hold equally likely draws; got a WeighedPredictive. Resample its draws by "
            "their weights and pass a plain Predictive."
        )
    if isinstance(run, MCMC):
        samples = chains_of(run)
        if not (args or kwargs):
            args, kwargs = run._args or (), run._kwargs or {}
        model, note = run.kernel.model, "chains of an MCMC run"
        return _Read(samples, model, args, kwargs, _diverging(run, samples), note)
    if isinstance(run, Predictive) and not (args or kwargs):
        raise ValueError(
            "`run` is a Predictive, which does not know the data; expected what its model is "
            "called with, labels included; got nothing. Write to_inference_data(run, x, y)."
        )
    if isinstance(run, Predictive) and run.guide is not None:
        samples = _guide_draws(run, args, kwargs)
        note = "one chain of independent draws of a guide"
        return _Read(samples, run.model, args, kwargs, None, note)
    samples = chains_of(run, num_chains)
    note = f"posterior samples cut into {num_chains} chain(s)"
    return _Read(samples, run.model, args, kwargs, None, note)


def _diverging(run: MCMC, samples: Draws) -> np.ndarray | None:
    positions = divergences_of(run)
    if positions is None:
        return None
    diverging = np.zeros(next(iter(samples.values())).shape[:2], dtype=bool)
    for chain, places in enumerate(positions):
        diverging[chain, places] = True
    return diverging


def _guide_draws(run: Predictive, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    """One chain of draws of the latents that model and guide share."""
    guide = run.guide

    def draw(_: Draws) -> Draws:
        nodes = poutine.trace(guide).get_trace(*args, **kwargs).nodes
        return {name: nodes[name]["value"] for name in shared}

    with preserve_rng():
        model_nodes = poutine.trace(run.model).get_trace(*args, **kwargs).nodes
        guide_nodes = poutine.trace(guide).get_trace(*args, **kwargs).nodes
    latent = [n for n, node in guide_nodes.items() if node["type"] == "sample"]
    shared = sorted(n for n in latent if model_nodes.get(n, {}).get("type") == "sample")
    draws = Batched("the guide")(draw, {"": torch.arange(run.num_samples)})
    return {name: value[None] for name, value in draws.items()}


def _sites(read: _Read) -> dict[str, Any]:
    """Sample sites of one run under the first draw; refuses a model that it cannot evaluate."""
    assert read.model is not None
    first = {name: value[0, 0] for name, value in read.samples.items()}
    try:
        with preserve_rng(), poutine.condition(data=first), PossibleValues():
            trace = poutine.trace(read.model).get_trace(*read.args, **read.kwargs)
    except (RuntimeError, IndexError) as error:
        raise ValueError(
            "`run`'s model could not be called with the data: "
            f"{str(error).splitlines()[0]}. Pass x and y of the shapes that it was fitted to."
        ) from error
    sites: dict[str, Any] = {n: v for n, v in trace.nodes.items() if v["type"] == "sample"}
    for name, plate in ((n, v["fn"]) for n, v in sites.items() if site_is_subsample(v)):
        if plate.subsample_size not in (None, plate.size):
            raise ValueError(
                f"`run`'s model must see all rows at once; its plate '{name}' draws "
                f"{plate.subsample_size} of {plate.size} at random. Pass log_likelihood=False and "
                "posterior_predictive=False."
            )
    sites = {n: v for n, v in sites.items() if not (site_is_subsample(v) or is_deterministic(v))}
    free = [n for n, node in sites.items() if not node["is_observed"]]  # nor conditioned
    if free:
        raise ValueError(
            f"`run` must hold draws of every latent site; its model has {free} besides. Pass the "
            "labels if they are missing, keep all sites (save_params), or pass "
            "log_likelihood=False and posterior_predictive=False."
        )
    return sites


def _evaluated(read: _Read, observed: dict[str, Any], wanted: Wanted) -> tuple[Arrays, Arrays]:
    """Log densities of observed sites (and the joint one), and labels drawn there, per draw."""
    classes = [n for n, node in observed.items() if site_kind(node["fn"]) is not None]

    def run(draw: Draws) -> Any:
        with poutine.condition(data={n: v for n, v in draw.items() if n}):
            return poutine.trace(read.model).get_trace(*read.args, **read.kwargs)

    def density(draw: Draws) -> Draws:
        trace = run(draw)
        trace.compute_log_prob()
        nodes = {name: trace.nodes[name] for name in observed}
        return {_LOG_JOINT: trace.log_prob_sum()} | {
            n: scale_and_mask(v["unscaled_log_prob"], mask=v["mask"]) for n, v in nodes.items()
        }

    def label(draw: Draws) -> Draws:
        nodes = run(draw).nodes
        drawn = {name: nodes[name]["fn"].sample() for name in observed}
        for name in classes if wanted.probs else []:
            fn = nodes[name]["fn"]
            log_probs = class_log_probs(fn, fn.batch_shape.numel(), name)
            drawn[probs_name(name, classes)] = log_probs.exp().reshape(*fn.batch_shape, -1)
        return drawn

    # The first has no randomness of its own, so that vmap is checked against the loop by numbers.
    batched = Batched("the model")
    densities = _over_draws(batched, density, read)
    return densities, _over_draws(batched, label, read) if wanted.posterior_predictive else {}


def _over_draws(batched: Batched, fn: Callable[[Draws], Draws], read: _Read) -> Arrays:
    """``fn`` at every draw, ``{name: (chains, draws, ...)}``, so many at once as memory bears."""
    chains, draws = next(iter(read.samples.values())).shape[:2]
    flat = {name: value.flatten(0, 1) for name, value in read.samples.items()}
    given = [value for value in (*read.args, *read.kwargs.values()) if isinstance(value, Tensor)]
    step = max(1, CHUNK_SIZE // max([1, *(value.numel() for value in given)]))
    parts = [
        batched(fn, {name: value[start : start + step] for name, value in flat.items()})
        for start in range(0, chains * draws, step)
    ]
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return arrays({n: value.unflatten(0, (chains, draws)) for n, value in joined.items()})


def _constants(read: _Read, observed: Arrays) -> Arrays:
    """The tensors that the model was called with, by name, other than the observed values."""
    model = read.model.forward if isinstance(read.model, nn.Module) else read.model
    try:
        given = inspect.signature(model).bind(*read.args, **read.kwargs).arguments  # type: ignore[arg-type]
    except (TypeError, ValueError):  # Python cannot tell the names
        return {}
    found = arrays({name: value for name, value in given.items() if isinstance(value, Tensor)})
    return {
        name: array
        for name, array in found.items()
        if not any(np.array_equal(array, value) for value in observed.values())
    }
