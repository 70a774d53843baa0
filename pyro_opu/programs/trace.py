"""What a run of a Pyro model tells: its sites and its cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_opu.checks import check_tensor
from pyro_opu.programs.cost import Meter, metered
from pyro_opu.programs.plug_in import PlugIn
from pyro_opu.programs.signature import Model
from pyro_opu.programs.sites import unwrap
from pyro_opu.programs.vmap import Draws
from pyro_opu.rng import exclusive
from pyro_opu.utils.chunks import some_rows
from pyro_opu.utils.laws import is_known


@dataclass(frozen=True)
class Run:
    """One run of a model under one draw.

    Attributes:
        nodes: Its sample sites by name, without those of subsampling.
        plates: Dimensions that its plates take.
        meter: Its cost.
        returned: What the model returned.
        left_out: Names of those latents that are deterministic or observed in the model.
    """

    nodes: dict[str, Any]
    plates: int
    meter: Meter
    returned: Any = None
    left_out: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: Model, latents: Draws, x: Tensor) -> Run:
        """Run a model at the inputs, with these latents fixed."""
        with metered() as meter, _Latents(data=latents) as fixed:
            trace = poutine.trace(model).get_trace(x)
        sites = _sample_sites(trace)
        dims = [each.dim for n in sites for each in n["cond_indep_stack"] if each.vectorized]
        nodes = {node["name"]: node for node in sites if not site_is_subsample(node)}
        returned, left_out = trace.nodes["_RETURN"]["value"], frozenset(fixed.left_out)
        return cls(nodes, -min(dims, default=0), meter, returned, left_out)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a site after the S axis, as ``Predictive`` gives it."""
        node = self.nodes[name]
        return (1,) * (self.plates - len(node["fn"].batch_shape)) + tuple(node["value"].shape)

    def fresh(self, without: str | None = None) -> Draws:
        """Values that the run drew itself."""
        return _fresh(self.nodes.values(), without)


class _Latents(ConditionMessenger):
    """Fixes latents, and leaves deterministic and observed sites as the model has them."""

    def __init__(self, data: Draws) -> None:
        super().__init__(data)
        self.left_out: set[str] = set()

    def _pyro_sample(self, msg: Any) -> None:
        if msg["is_observed"] and msg["name"] in self.data:
            self.left_out.add(msg["name"])
        else:
            super()._pyro_sample(msg)


def trace_of(model: Model, latents: Draws, x: Tensor) -> poutine.Trace:
    """One run of a model at the inputs, with these latents fixed."""
    with poutine.condition(data=latents):
        return poutine.trace(model).get_trace(x)


def _sample_sites(trace: poutine.Trace) -> list[Any]:
    return [node for node in trace.nodes.values() if node["type"] == "sample"]


def _fresh(sites: Iterable[Any], without: str | None) -> Draws:
    return {
        node["name"]: node["value"]
        for node in sites
        if node["name"] != without and not node["is_observed"] and not site_is_subsample(node)
    }


def few_rows(x: Tensor, rows: int) -> Tensor:
    """The first two rows of ``x``, repeated."""
    return some_rows(some_rows(x, 2), rows)


def fresh_latents(source: Model, known: Draws, x: Tensor, without: str | None = None) -> Draws:
    """One joint draw of the source's latents at ``x``; those already known are kept."""
    return {**known, **_fresh(_sample_sites(trace_of(source, known, x)), without)}


class Latents:
    """Draws of the latents, ``{site: (S, ...)}``, sliced together along S."""

    def __init__(self, values: Draws, size: int) -> None:
        self.values, self.size = values, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: slice) -> Latents:
        size = len(range(*index.indices(self.size)))
        return Latents({name: value[index] for name, value in self.values.items()}, size)

    def at(self, index: Tensor) -> Latents:
        """The draws at these indices."""
        values = {name: value[index.to(value.device)] for name, value in self.values.items()}
        return Latents(values, len(index))

    def without(self, names: Collection[str]) -> Latents:
        """The draws of all other latents."""
        return Latents({k: v for k, v in self.values.items() if k not in names}, self.size)

    def divided(self) -> tuple[Draws, Draws]:
        """Draws that vary, with a counter beside them, and values that all draws share.

        Point estimates are shared, as are a kernel's parameters beside a posterior of its function.
        """
        values = self.values
        shared = {name: value[0] for name, value in values.items() if _all_alike(value)}
        varying = {name: value for name, value in values.items() if name not in shared}
        return {"": torch.arange(self.size), **varying}, shared


def check_samples(name: str, value: Any, draws: int) -> None:
    """Refuse posterior samples of a site that are not so many finite draws ``(S, ...)``."""
    check_tensor(f"posterior_samples['{name}']", value, advice="Convert it with torch.as_tensor.")
    if len(value) != draws:
        raise ValueError(
            f"`posterior_samples` must all hold the same number of draws, on axis 0; got "
            f"{len(value)} of '{name}' and {draws} of another site."
        )
    bad = ~torch.isfinite(value[:, None].flatten(1)).all(1)
    if bad.any():
        raise ValueError(
            f"`posterior_samples['{name}']` must be finite; got NaN or infinity in "
            f"{int(bad.sum())} of {len(value)} draws. Leave them out, and check the sampler's "
            "divergences and step size."
        )


def _all_alike(draws: Tensor) -> bool:
    """Whether there are several draws and all are the same; two tell of nearly all that differ."""
    if len(draws) < 2 or not torch.equal(draws[0], draws[1]):
        return False
    return bool((draws == draws[0]).all())


class ObservedSites(Messenger):
    """Keeps the observed sites' distributions, and does not let the model sample from them."""

    def __init__(self, sites: Collection[str], stand_in: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.sites, self.stand_in = sites, stand_in
        self.fns: dict[str, Any] = {}

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.sites:
            self.fns[msg["name"]] = msg["fn"]
            msg["value"] = self.stand_in(msg["fn"])  # in the place of labels, too


class AtMeans(Messenger):
    """Gives every site its mean; raises ``NotImplementedError`` at one that has none."""

    def _pyro_sample(self, msg: Any) -> None:
        if msg["value"] is None and not site_is_subsample(msg):
            msg["value"] = msg["fn"].mean


def at_means(guide: Model | None, draws: Draws, x: Tensor) -> Draws | None:
    """The latents where every site of a guide is at its mean; ``None`` if there are none.

    Of many weights few ``draws`` are looked at, and their mean is far from it.
    """
    if guide is None:
        return None
    try:
        with quiet(), AtMeans():
            found = fresh_latents(guide, {}, some_rows(x, 2))
    except NotImplementedError:
        return None
    centre = {name: found[name] for name in draws}
    alike = all(
        value.shape == draws[name].shape[1:] and bool(value.isfinite().all())
        for name, value in centre.items()
    )
    return centre if alike else None


class Deviations(Messenger):
    """Gives normal sites that a model draws itself their mean and some standard deviations more.

    ``given`` says how many by :func:`deviation`, 0 by default.
    """

    def __init__(self, given: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.given = given

    def _pyro_sample(self, msg: Any) -> None:
        if msg["value"] is None and not site_is_subsample(msg) and _is_normal(msg["fn"]):
            mean, times = msg["fn"].mean, self.given.get(deviation(msg["name"]))
            msg["value"] = mean if times is None else mean + times * msg["fn"].stddev


def plug_in(
    at: Callable[[Draws, Tensor], Tensor],
    runs: tuple[Run, Run],
    known: Collection[str],
    draws: Draws,
    centre: Draws | None,
) -> PlugIn:
    """The network of a model, whose normal sites other than the ``known`` are at their means.

    Args:
        at: What one draw says of the inputs, ``(latents, x)``.
        runs: The model's, at two and at three rows.
        draws: Of the latents ``(S, ...)``.
        centre: Their mean, where it is known.
    """

    def log_probs(latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        with quiet(), Deviations(latents):
            return at(dict(latents), x)

    return PlugIn.of_draws(log_probs, draws, centre, _no_deviations(runs, known))


def deviation(site: str) -> str:
    """Name of the deviation of a site."""
    return f"deviation of {site}"


def _no_deviations(runs: tuple[Run, Run], known: Collection[str]) -> Draws:
    """Zeros by :func:`deviation`, of the shapes at one row, of sites that are not ``known``."""
    zeros = {}
    two, three = (run.nodes for run in runs)
    for name in two.keys() - known:
        if _is_normal(two[name]["fn"]):
            sizes = zip(two[name]["value"].shape, three[name]["value"].shape, strict=True)
            shape = [a if a == b else 1 for a, b in sizes]
            zeros[deviation(name)] = two[name]["value"].new_zeros(shape)
    return zeros


def _is_normal(fn: Any) -> bool:
    normal = torch.distributions.Normal, torch.distributions.MultivariateNormal
    return is_known(unwrap(fn), normal)


@contextmanager
def quiet() -> Iterator[None]:
    """No gradients, no validation (it branches on values), no handlers of the caller."""
    with exclusive(), torch.no_grad(), pyro.validation_enabled(False), poutine.block():
        yield


def is_deterministic(node: Any) -> bool:
    """Whether a site was made by ``pyro.deterministic``."""
    return bool(node["infer"].get("_deterministic", False))
