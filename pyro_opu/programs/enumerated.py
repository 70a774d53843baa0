"""Latents that each row has one of, such as noise, or a true label behind a noisy one, summed out.

Drawn anew at every call, their spread would pass for that of the posterior; it is aleatoric.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch import distributions as dist
from torch.distributions import Distribution

from pyro_opu.programs.sites import unwrap
from pyro_opu.programs.trace import Run
from pyro_opu.utils.laws import Node, is_known
from pyro_opu.utils.warnings import warn_user

#: Combinations of values up to which latents are summed out; each takes a run of the model.
MOST_VALUES = 64
#: Nodes of the quadrature of one normal, within 1e-3 of a probability if its logit deviates by 5;
#: of several so many at least.
MOST_NODES, LEAST_NODES = 32, 4


@dataclass(frozen=True)
class Values:
    """The values of a latent that each row has one of: a finite support, or nodes of a normal.

    Attributes:
        axis: Axis of its batch, from the end, that holds the rows.
        columns: Sizes of the other axes, each of whose numbers takes every value.
        count: Values of each number; of a normal Q nodes of a quadrature.
        normal: Whether it is a normal, or a function of one.
        in_steps: Whether these nodes are the middles of Q equally likely parts, for what is said in
            steps; of Gauss-Hermite otherwise.
    """

    axis: int
    columns: tuple[int, ...]
    count: int
    normal: bool = False
    in_steps: bool = False

    @property
    def numbers(self) -> int:
        """Numbers of a row."""
        return prod(self.columns)

    @property
    def nodes(self) -> tuple[Tensor, Tensor]:
        """Nodes of a standard normal, and their weights ``(Q,)``, of variance one in float64."""
        if not self.in_steps:
            found = np.polynomial.hermite_e.hermegauss(self.count)
            nodes, weights = (torch.from_numpy(each) for each in found)
            return nodes, weights / weights.sum()
        middles = (torch.arange(self.count, dtype=torch.float64) + 0.5) / self.count
        nodes = torch.special.ndtri(middles)
        scale = nodes.square().mean().sqrt() if self.count > 1 else torch.ones(())
        return nodes / scale, torch.full_like(nodes, 1 / self.count)

    def at(self, fn: Distribution, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The values of these numbers, one for each column, and their log-weights ``(rows,)``."""
        batch = batch_of(fn)
        index = torch.tensor(numbers).reshape(self.columns)
        index = index.unsqueeze(len(batch) + self.axis).expand(batch)
        if self.normal:
            value, log_weight = _at_node(fn, self.nodes, index)
        else:
            base, support = unwrap(fn), finite_support(fn)
            assert support is not None
            value = support.reshape(len(support), *base.event_shape)[index]
            log_weight = base.log_prob(value)
        rows = batch[self.axis]
        return value, log_weight.expand(batch).movedim(self.axis, 0).reshape(rows, -1).sum(1)


class Fixed(Messenger):
    """Gives latents of the rows the values of these numbers, the same to all rows.

    Attributes:
        log_weights: Log weights of the values by latent, ``(N,)`` each, after a run of the model.
        drawn: Values of the sites ``apart``, which are those of an earlier run where there was one.
    """

    def __init__(
        self,
        latents: dict[str, Values],
        numbers: Sequence[Sequence[int]],
        apart: Collection[str],
        drawn: dict[str, Tensor],
    ) -> None:
        super().__init__()
        self.apart, self.drawn = apart, drawn
        self.latents, self.numbers = latents, dict(zip(latents, numbers, strict=True))
        self.log_weights: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: Node) -> None:
        if (name := msg["name"]) in self.latents:
            found = self.latents[name].at(msg["fn"], self.numbers[name])
            msg["value"], self.log_weights[name] = found
        elif name in self.drawn:
            msg["value"] = self.drawn[name]

    def _pyro_post_sample(self, msg: Node) -> None:
        if msg["name"] in self.apart:
            self.drawn[msg["name"]] = msg["value"]


def finite_support(fn: Distribution) -> Tensor | None:
    """All values ``(V, *1, *event)`` of a site of classes; ``None`` where they are no few."""
    base = unwrap(fn)
    try:
        found: Tensor | None = base.enumerate_support(expand=False)
    except NotImplementedError:
        found = None
    return found


def batch_of(fn: Any) -> tuple[int, ...]:
    """Shape of the values of a site, each of which is a number or an event, as of a process."""
    shape = tuple(fn.shape())
    return shape[: len(shape) - len(inner_of(fn).event_shape)]


def inner_of(fn: Distribution) -> Any:
    """The distribution inside wrappers, and inside transforms that act number by number."""
    base = unwrap(fn)
    by_number = is_known(base, dist.TransformedDistribution) and not any(
        each.codomain.event_dim or each.domain.event_dim for each in base.transforms
    )
    return unwrap(base.base_dist) if by_number else base


def _at_node(
    fn: Distribution, nodes: tuple[Tensor, Tensor], index: Tensor
) -> tuple[Tensor, Tensor]:
    """A normal, or what transforms make of it, at nodes of a quadrature, and log-weights."""
    places, weights = (each.to(inner_of(fn).loc) for each in nodes)
    return moved(fn, places[index]), weights.log()[index]


def moved(fn: Distribution, deviations: Tensor | float) -> Tensor:
    """A normal, or what transforms make of it, at so many deviations from its mean."""
    inner = inner_of(fn)
    value: Tensor = inner.loc + inner.scale * deviations
    for transform in unwrap(fn).transforms if inner is not unwrap(fn) else ():
        value = transform(value)
    return value


def row_values(name: str, runs: tuple[Run, Run], some: Callable[[], object]) -> Values | None:
    """The values of a latent that each row has its own of, or ``None`` where it has no such.

    A normal may be noise of the row, or the value of a process there, which more data would tell. A
    process has mean and scale of every input; one that has the same of either at all inputs is
    noise. ``infer={"epistemic": ...}`` at the site decides otherwise.

    Args:
        runs: At two and at three rows.
        some: Gives the site at several other inputs, or ``None`` where they are alike.
    """
    nodes = [run.nodes[name] for run in runs]
    fn, marked = nodes[0]["fn"], nodes[0]["infer"].get("epistemic")
    two, three = (batch_of(node["fn"]) for node in nodes)
    axes = [axis for axis, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    if nodes[0]["is_observed"] or marked is True or len(axes) != 1:
        return None
    place = axes[0] - len(two), (*two[: axes[0]], *two[axes[0] + 1 :])
    if (support := finite_support(fn)) is not None:
        return Values(*place, len(support))
    if not is_known(inner_of(fn), dist.Normal) or (
        marked is None and not _noise(fn, place[0], some)
    ):
        return None
    return Values(*place, 0, normal=True)


def _noise(fn: Any, axis: int, some: Callable[[], Any]) -> bool:
    """Whether a normal has the same mean, or the same scale, at all inputs."""
    inner = inner_of(fn)
    if any(_shared(each, axis) for each in (inner.loc, inner.scale)):
        return True
    elsewhere = some()
    if elsewhere is None:
        return False
    inner = inner_of(elsewhere["fn"])
    parameters = (each.movedim(axis, 0) for each in (inner.loc, inner.scale))
    return any(bool((each == each[:1]).all()) for each in parameters)


def _shared(parameter: Tensor, axis: int) -> bool:
    """Whether a parameter is one for all rows by its making."""
    if -axis > parameter.ndim:
        return True
    return parameter.shape[axis] == 1 or parameter.stride(axis) == 0


def affordable(latents: dict[str, Values]) -> dict[str, Values]:
    """The latents that can be summed out together, with their numbers of values.

    All, or those of finite support, or none: a warning names the others.
    """
    finite = {name: each for name, each in latents.items() if not each.normal}
    for some in (latents, finite, {}):
        nodes = _nodes(some, MOST_NODES)
        if nodes >= (LEAST_NODES if any(each.normal for each in some.values()) else 1):
            break
    if left := [name for name in latents if name not in some]:
        taken = prod((each.count or LEAST_NODES) ** each.numbers for each in latents.values())
        warn_user(
            f"the latents {left}, of which each row has one, take {taken:,} values together, more "
            f"than the {MOST_VALUES} that are summed out: drawn anew for every draw of the "
            "posterior, they count as epistemic uncertainty. Sum them out in the model."
        )
    return {k: replace(each, count=nodes) if each.normal else each for k, each in some.items()}


def _nodes(latents: dict[str, Values], most: int) -> int:
    """Nodes that each normal may have; 0 where those of finite support are too many already."""
    values = prod(each.count**each.numbers for each in latents.values() if not each.normal)
    normals = sum(each.numbers for each in latents.values() if each.normal)
    return min(most, int((MOST_VALUES / values) ** (1 / max(1, normals)) + 1e-9))


@dataclass(frozen=True)
class Mixture:
    """What a draw says as a mixture over the values of its row latents, if it has such.

    Attributes:
        latents: Those that are summed out, and their values.
        apart: Sites that depend on none of them: one value is drawn for all of theirs.
    """

    latents: dict[str, Values] = field(default_factory=dict)
    apart: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.latents)

    def rules(self) -> Iterator[tuple[Mixture, Mixture]]:
        """The same with either kind of nodes of its normals, and beside it with a node fewer."""
        for in_steps in (False, True):
            nodes = _nodes(self.latents, MOST_VALUES if in_steps else MOST_NODES)
            yield self._with(nodes, in_steps), self._with(nodes - 1, in_steps)

    def _with(self, nodes: int, in_steps: bool) -> Mixture:
        latents = {
            k: replace(each, count=nodes, in_steps=in_steps) if each.normal else each
            for k, each in self.latents.items()
        }
        return replace(self, latents=latents)

    @property
    def has_normals(self) -> bool:
        """Whether its sum is a quadrature."""
        return any(each.normal for each in self.latents.values())

    def of(self, under: Callable[[Fixed], Tensor]) -> tuple[Tensor, Tensor]:
        """Log-weights ``(V, N)`` of all values, and what is said under each ``(V, N, K)``."""
        drawn: dict[str, Tensor] = {}
        ranges = ((range(each.count), each.numbers) for each in self.latents.values())
        grids = [list(product(values, repeat=numbers)) for values, numbers in ranges]
        fixed = [Fixed(self.latents, each, self.apart, drawn) for each in product(*grids)]
        said = torch.stack([under(each) for each in fixed])
        weights = [torch.stack([each.log_weights[name] for each in fixed]) for name in self.latents]
        return torch.stack(weights).sum(0), said
