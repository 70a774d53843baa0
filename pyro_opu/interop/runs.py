"""A run of a sampler, or a ``Predictive``, in ArviZ's groups: one run of the model per draw."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from pyro import poutine
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.distributions.util import scale_and_mask
from pyro.infer import MCMC, Predictive
from pyro.infer.predictive import WeighedPredictive
from torch import Tensor
from torch import distributions as dist
from torch.distributions import Distribution

from pyro_opu.checks import ArgumentError, ArgumentTypeError
from pyro_opu.interop.groups import Arrays, Groups, Wanted, arrays, chains_of, log_prob_of, new_call
from pyro_opu.programs.signature import function_of, parameters_of
from pyro_opu.programs.sites import class_log_probs, site_kind, unwrap, wrapped_log_probs
from pyro_opu.programs.trace import is_deterministic
from pyro_opu.programs.vmap import Batched, Draws
from pyro_opu.rng import preserve_rng
from pyro_opu.samplers.latents import PossibleValues
from pyro_opu.utils.chunks import NUMBERS
from pyro_opu.utils.laws import Node, is_subsample
from pyro_opu.utils.warnings import warn_user

#: Beside the names of sites, none of which is empty; before those of deterministic ones.
_LOG_JOINT, _SAID = "", "\0"


def run_groups(
    run: MCMC | Predictive, wanted: Wanted, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Groups:
    """The groups of a run, or of a ``Predictive``."""
    read = _read(run, args, kwargs, wanted.num_chains)
    groups: dict[str, Arrays] = {"posterior": arrays(read.samples)}
    names: dict[str, list[str]] = {}
    groups["sample_stats"] = _recorded(run, next(iter(read.samples.values())).shape[:2])
    if read.model is not None and (wanted.log_likelihood or wanted.posterior_predictive):
        sites = _sites(read)
        posterior = groups["posterior"]
        observed = {n: node for n, node in sites.items() if n not in read.samples}
        densities, labels = _evaluated(read, observed, wanted)
        groups["sample_stats"]["lp"] = densities.pop(_LOG_JOINT)
        for name in [name for name in densities if name.startswith(_SAID)]:
            posterior.setdefault(name.removeprefix(_SAID), densities.pop(name))
        groups["log_likelihood"] = densities if wanted.log_likelihood else {}
        groups["posterior_predictive"] = labels
        groups["observed_data"] = arrays({n: v["value"] for n, v in observed.items()})
        groups["constant_data"] = _constants(read, groups["observed_data"])
        names = _site_dims(sites, observed, groups)
        if wanted.predictions is not None:
            groups |= _predicted(read, list(observed), wanted)
    elif wanted.predictions is not None:
        raise ArgumentError(
            "`predictions` need the model, which is run for log_likelihood or "
            "posterior_predictive, and which a kernel of a potential function does not know. Leave "
            "one of them on."
        )
    return Groups(groups, names, read.note)


def _recorded(run: MCMC | Predictive, shape: tuple[int, ...]) -> Arrays:
    """What the kernel says of every draw, (chain, draw)."""
    found: Arrays = {}
    positions, energies = (_diagnostic(run, name) for name in ("divergences", "energy"))
    if positions is not None:
        found["diverging"] = np.zeros(shape, dtype=bool)
        for chain, places in enumerate(positions):
            found["diverging"][chain, places] = True
    if energies is not None:
        found["energy"] = np.array(energies)
    return found


def _diagnostic(run: MCMC | Predictive, name: str) -> list[list[Any]] | None:
    """What the kernel of every chain says under a name; ``None`` where it says nothing."""
    found: list[Any] = run._diagnostics if isinstance(run, MCMC) else [{}]
    if any(name not in each for each in found):
        return None
    return [list(each[name]) for each in found]


class _Read(NamedTuple):
    """What a run holds: draws ``{site: (chains, draws, ...)}``, the model, and its call."""

    samples: Draws
    model: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    note: str


def _read(
    run: MCMC | Predictive, args: tuple[Any, ...], kwargs: dict[str, Any], num_chains: int
) -> _Read:
    if isinstance(run, WeighedPredictive):
        raise ArgumentTypeError(
            "`run` must hold equally likely draws; got a WeighedPredictive. Resample its draws by "
            "their weights and pass a plain Predictive."
        )
    if isinstance(run, MCMC):
        samples = chains_of(run)
        if not (args or kwargs):
            args, kwargs = run._args or (), run._kwargs or {}
        return _Read(samples, run.kernel.model, args, kwargs, "chains of an MCMC run")
    if isinstance(run, Predictive) and not (args or kwargs):
        raise ArgumentError(
            "`run` is a Predictive, which does not know the data; expected what its model is "
            "called with, labels included; got nothing. Write to_inference_data(run, x, y)."
        )
    if isinstance(run, Predictive) and run.guide is not None:
        samples = _guide_draws(run, args, kwargs)
        note = "one chain of independent draws of a guide"
    else:
        samples = chains_of(run, num_chains)
        note = f"posterior samples cut into {num_chains} chain(s)"
    return _Read(samples, run.model, args, kwargs, note)


def _guide_draws(run: Predictive, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Draws:
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
        raise ArgumentError(
            "`run`'s model could not be called with the data: "
            f"{str(error).splitlines()[0]}. Pass x and y of the shapes that it was fitted to."
        ) from error
    sites: dict[str, Any] = {n: v for n, v in trace.nodes.items() if v["type"] == "sample"}
    for name, plate in ((n, v["fn"]) for n, v in sites.items() if is_subsample(v)):
        if plate.subsample_size not in (None, plate.size):
            raise ArgumentError(
                f"`run`'s model must see all rows at once; its plate '{name}' draws "
                f"{plate.subsample_size} of {plate.size} at random. Pass log_likelihood=False and "
                "posterior_predictive=False."
            )
    sites = {n: v for n, v in sites.items() if not (is_subsample(v) or is_deterministic(v))}
    free = [n for n, node in sites.items() if not node["is_observed"]]  # nor conditioned
    if free:
        raise ArgumentError(
            f"`run` must hold draws of every latent site; its model has {free} besides. Pass the "
            "labels if they are missing, keep all sites (save_params), or pass "
            "log_likelihood=False and posterior_predictive=False."
        )
    return sites


def _evaluated(read: _Read, observed: Mapping[str, Node], wanted: Wanted) -> tuple[Arrays, Arrays]:
    """Log densities of observed sites (and the joint one), and labels drawn there, per draw."""

    def run(draw: Draws) -> Any:
        with poutine.condition(data={n: v for n, v in draw.items() if n}):
            return poutine.trace(read.model).get_trace(*read.args, **read.kwargs)

    lengths = {
        len(value)
        for value in (*read.args, *read.kwargs.values())
        if isinstance(value, Tensor) and value.ndim
        if not any(value is node["value"] for node in observed.values())
    }
    events = {name for name, node in observed.items() if _is_of_rows(node, lengths)}

    def density(draw: Draws) -> Draws:
        trace = run(draw)
        trace.compute_log_prob()
        nodes = {name: trace.nodes[name] for name in observed}
        said = {_SAID + n: v["value"] for n, v in trace.nodes.items() if _is_said(v)}
        return {_LOG_JOINT: trace.log_prob_sum(), **said} | {
            n: scale_and_mask((_of_rows if n in events else _of_site)(v), mask=v["mask"])
            for n, v in nodes.items()
        }

    def label(draw: Draws) -> Draws:
        nodes = run(draw).nodes
        drawn = {name: nodes[name]["fn"].sample() for name in observed}
        return drawn | (_probs(nodes, list(observed)) if wanted.probs else {})

    # Densities first: without randomness, so that vmap is checked against the loop by numbers.
    batched = Batched("the model")
    densities = _over_draws(batched, density, read)
    return densities, _over_draws(batched, label, read) if wanted.posterior_predictive else {}


def _is_said(node: Node) -> bool:
    return node["type"] == "sample" and is_deterministic(node)


def _over_draws(batched: Batched, fn: Callable[[Draws], Draws], read: _Read) -> Arrays:
    """``fn`` at every draw, ``{name: (chains, draws, ...)}``, in chunks that fit in memory."""
    chains, draws = next(iter(read.samples.values())).shape[:2]
    flat = {name: value.flatten(0, 1) for name, value in read.samples.items()}
    given = [value for value in (*read.args, *read.kwargs.values()) if isinstance(value, Tensor)]
    step = max(1, NUMBERS // max([1, *(value.numel() for value in given)]))
    parts = [
        batched(fn, {name: value[start : start + step] for name, value in flat.items()})
        for start in range(0, chains * draws, step)
    ]
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return arrays({n: value.unflatten(0, (chains, draws)) for n, value in joined.items()})


def _predicted(read: _Read, observed: list[str], wanted: Wanted) -> dict[str, Arrays]:
    """What the observed sites draw at new rows, under every draw."""
    args, kwargs = new_call(wanted.predictions)
    model = function_of(read.model)
    try:
        bound = inspect.signature(model).bind_partial(*args, **kwargs)
        needed = [n for n, p in parameters_of(model).items() if p.default is p.empty]
        kwargs |= {name: None for name in needed if name not in bound.arguments}
    except (TypeError, ValueError):  # Python cannot tell the names, or says what is wrong below
        pass
    new = read._replace(args=args, kwargs=kwargs)

    def label(draw: Draws) -> Draws:
        with poutine.condition(data={n: v for n, v in draw.items() if n}):
            nodes: Any = poutine.trace(read.model).get_trace(*args, **kwargs).nodes
        tied = [name for name in observed if nodes[name]["is_observed"]]
        if tied:
            raise ArgumentError(
                f"`predictions` must leave labels out; site(s) {tied} are observed there too. Give "
                "the model its labels as an argument that may be None."
            )
        found: Draws = {name: nodes[name]["value"] for name in observed}
        return found | (_probs(nodes, observed) if wanted.probs else {})

    try:
        drawn = _over_draws(Batched("the model at new rows"), label, new)
    except (RuntimeError, IndexError, TypeError, KeyError) as error:
        raise ArgumentError(
            "`predictions` must be what the model is called with at new rows, without labels; it "
            f"raised {type(error).__name__}: {str(error).splitlines()[0]}. Latents of each row "
            "that the draws hold fit the old rows alone."
        ) from error
    return {"predictions": drawn, "predictions_constant_data": _constants(new, {})}


def _constants(read: _Read, observed: Arrays) -> Arrays:
    """The tensors that the model was called with, by name, other than the observed values."""
    model = function_of(read.model)
    try:
        given = inspect.signature(model).bind(*read.args, **read.kwargs).arguments
    except (TypeError, ValueError):  # Python cannot tell the names
        return {}
    found = arrays({name: value for name, value in given.items() if isinstance(value, Tensor)})
    known = observed.values()
    return {n: a for n, a in found.items() if not any(np.array_equal(a, each) for each in known)}


def _site_dims(
    sites: Mapping[str, Node], observed: Mapping[str, Node], groups: dict[str, Arrays]
) -> dict[str, list[str]]:
    """Axes of variables after chain and draw: plates of the sites, classes, and rows of inputs."""
    names = {name: _plate_names(name, node) for name, node in sites.items()}
    classes = [name for name in observed if site_kind(observed[name]["fn"]) is not None]
    for name in classes:
        probs = _probs_name(name, classes)
        names[probs] = [*names[name], probs.replace("probs", "class")]
    rows = {groups["observed_data"][n].shape[0]: names[n][0] for n in observed if names[n]}
    plates = {plate for given in names.values() for plate in given}
    for name, array in groups["constant_data"].items():
        if array.ndim and len(array) in rows and not plates & set(groups["constant_data"]):
            names.setdefault(name, [rows[len(array)]])
    return names


def _probs(nodes: Mapping[str, Node], observed: list[str]) -> Draws:
    """Class probabilities ``(..., C)`` of the sites that have some."""
    classes = [name for name in observed if site_kind(nodes[name]["fn"]) is not None]
    found = {}
    for name in classes:
        fn = nodes[name]["fn"]
        log_probs = class_log_probs(fn, fn.batch_shape.numel(), name)
        found[_probs_name(name, classes)] = log_probs.exp().reshape(*fn.batch_shape, -1)
    return found


def _probs_name(site: str, classes: list[str]) -> str:
    """The name of a site's class probabilities among those of all sites that have classes."""
    return "probs" if len(classes) == 1 else f"probs_{site}"


def _plate_names(name: str, node: Node) -> list[str]:
    """For every batch dimension of a site the plate's name, or else the site's and a number."""
    shape = node["fn"].batch_shape
    plates = {
        (frame.dim + len(shape), frame.size): frame.name
        for frame in node["cond_indep_stack"]
        if frame.vectorized
    }
    return [plates.get((dim, size), f"{name}_dim_{dim}") for dim, size in enumerate(shape)]


def _is_of_rows(node: Node, lengths: set[int]) -> bool:
    """Whether the one event of a site holds rows that can be taken apart.

    They are as many as another of the model's arguments has, by its ``lengths``.
    """
    fn = node["fn"]
    rows = next(iter(fn.event_shape), 1)
    if fn.batch_shape.numel() > 1 or rows == 1 or (lengths and rows not in lengths):
        return False
    if fn.batch_shape or not isinstance(_whole(fn), (dist.Independent, dist.MultivariateNormal)):
        warn_user(
            f"Site '{node['name']}' observes {rows} rows as one event of a "
            f"{type(_whole(fn)).__name__}, which cannot be taken apart: its log_likelihood is of "
            "one observation, and az.loo says nothing of rows. Put independent rows in a plate."
        )
        return False
    return True


def _of_rows(node: Node) -> Tensor:
    """Log-density ``(N,)`` of the rows of one event, each given the others."""
    fn, value = _whole(node["fn"]), node["value"]
    if isinstance(fn, dist.Independent):
        found = _log_prob(fn.base_dist, value)
        found = fn.base_dist.log_prob(value) if found is None else found
        return found.flatten(1).sum(1) if found.ndim > 1 else found
    precision = fn.precision_matrix
    variance = precision.diagonal(dim1=-2, dim2=-1).reciprocal()
    mean = value - variance * (precision @ (value - fn.loc)[..., None]).squeeze(-1)
    return dist.Normal(mean, variance.sqrt(), validate_args=False).log_prob(value)


def _of_site(node: Node) -> Tensor:
    """Log-density of a site's value by its batch dimensions."""
    found = _log_prob(node["fn"], node["value"])
    return node["unscaled_log_prob"] if found is None else found


def _whole(fn: Distribution) -> Any:
    """A distribution before it was expanded."""
    while isinstance(fn, ExpandedDistribution):
        fn = fn.base_dist
    return fn


def _log_prob(fn: Distribution, value: Tensor) -> Tensor | None:
    """Log-density of one label, to the digits that a sure row needs; ``None`` for all else."""
    kind = site_kind(fn) if unwrap(fn) is fn else None
    if kind == "onehot":
        return log_prob_of(value.argmax(-1), wrapped_log_probs(fn))
    if kind in ("categorical", "bernoulli") and not fn.event_shape:
        return log_prob_of(value.long(), wrapped_log_probs(fn))
    return None
