"""One run of a Pyro model: its sites and their shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.modules.module import register_module_forward_pre_hook

from pyro_opu.programs.asked import unvalidated
from pyro_opu.programs.signature import Model
from pyro_opu.programs.sites import stand_in
from pyro_opu.programs.vmap import Draws
from pyro_opu.rng import exclusive
from pyro_opu.utils.chunks import some_rows
from pyro_opu.utils.laws import Node, is_subsample


@dataclass(frozen=True)
class Run:
    """One run of a model under one draw.

    Attributes:
        nodes: Its sample sites by name, without those of subsampling.
        plates: Dimensions that its plates take.
        returned: What the model returned.
        left_out: Names of those latents that are deterministic or observed in the model.
    """

    nodes: dict[str, Any]
    plates: int
    returned: Any = None
    left_out: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: Model, latents: Draws, *args: object, **kwargs: object) -> Run:
        """Run a model called with these arguments, with these latents fixed."""
        with _Latents(data=latents) as fixed:
            trace = poutine.trace(model).get_trace(*args, **kwargs)
        sites = _sample_sites(trace)
        dims = [each.dim for n in sites for each in n["cond_indep_stack"] if each.vectorized]
        nodes = {node["name"]: node for node in sites if not is_subsample(node)}
        returned, left_out = trace.nodes["_RETURN"]["value"], frozenset(fixed.left_out)
        return cls(nodes, -min(dims, default=0), returned, left_out)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a site after the S axis, as ``Predictive`` gives it."""
        node = self.nodes[name]
        return (1,) * (self.plates - len(node["fn"].batch_shape)) + tuple(node["value"].shape)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all sites, as ``Predictive`` gives and orders them."""
        names = sorted(self.nodes, key=lambda name: bool(self.nodes[name]["is_observed"]))
        return {name: self.shape(name) for name in names}

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


class Observed(Messenger):
    """Keeps the distributions of sites, and does not let the model sample from them."""

    def __init__(self, sites: Collection[str]) -> None:
        super().__init__()
        self.sites = sites
        self.fns: dict[str, Any] = {}

    def _pyro_sample(self, msg: Node) -> None:
        if msg["name"] in self.sites:
            self.fns[msg["name"]] = msg["fn"]
            msg["value"] = stand_in(msg["fn"])  # in the place of labels, too


class GivenValues(Messenger):
    """Gives every site that has no value what a function of its distribution and name returns."""

    def __init__(self, value: Callable[[Distribution, str], Tensor | None]) -> None:
        super().__init__()
        self.value = value

    def _pyro_sample(self, msg: Node) -> None:
        if msg["value"] is None and not is_subsample(msg):
            msg["value"] = self.value(msg["fn"], msg["name"])


def trace_of(model: Model, latents: Draws, *args: object, **kwargs: object) -> poutine.Trace:
    """One run of a model called with these arguments, with these latents fixed."""
    with poutine.condition(data=latents):
        return poutine.trace(model).get_trace(*args, **kwargs)


def _sample_sites(trace: poutine.Trace) -> list[Any]:
    return [node for node in trace.nodes.values() if node["type"] == "sample"]


def _fresh(sites: Iterable[Node], without: str | None) -> Draws:
    return {
        node["name"]: node["value"]
        for node in sites
        if node["name"] != without and not node["is_observed"] and not is_subsample(node)
    }


def few_rows(x: Tensor, rows: int) -> Tensor:
    """The first two rows of ``x``, repeated."""
    return some_rows(some_rows(x, 2), rows)


def fresh_latents(source: Model, known: Draws, x: Tensor, without: str | None = None) -> Draws:
    """One joint draw of the source's latents at ``x``; those already known are kept."""
    return {**known, **_fresh(_sample_sites(trace_of(source, known, x)), without)}


@contextmanager
def quiet() -> Iterator[None]:
    """No gradients, no validation (it branches on values), no handlers of the caller."""
    with exclusive(), torch.no_grad(), unvalidated(), poutine.block():
        yield


@contextmanager
def before_calls(act: Callable[[nn.Module], object]) -> Iterator[None]:
    """Inside, this is done with every module that this thread calls, before the call."""
    thread = get_ident()

    def hook(module: nn.Module, _: object) -> None:
        if get_ident() == thread:
            act(module)

    handle = register_module_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def is_deterministic(node: Node) -> bool:
    """Whether a site was made by ``pyro.deterministic``."""
    return bool(node["infer"].get("_deterministic", False))
