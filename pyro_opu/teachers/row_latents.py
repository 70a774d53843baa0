"""Discrete latents that each row has one of, such as a true label behind a noisy one, summed out.

Drawn anew at every call, their noise would pass for that of the posterior; it is aleatoric.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product, takewhile
from math import prod
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_opu.rng import preserve_rng
from pyro_opu.teachers.batched import Draws
from pyro_opu.teachers.calls import Model
from pyro_opu.teachers.runs import Run, quiet, trace_of
from pyro_opu.teachers.sites import arguments_of, unwrap
from pyro_opu.utils.warnings import warn_user

#: Combinations of values up to which latents are summed out; each takes a run of the model.
MOST_VALUES = 64


class Fixed(Messenger):
    """Gives latents of N rows the values of these numbers, the same to all rows.

    Attributes:
        log_probs: Of the values by latent, ``(N,)`` each, after a run of the model.
    """

    def __init__(self, numbers: dict[str, int], rows: int) -> None:
        super().__init__()
        self.numbers, self.rows = numbers, rows
        self.log_probs: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: Any) -> None:
        name, fn = msg["name"], msg["fn"]
        if name in self.numbers:
            base = unwrap(fn)
            value = base.enumerate_support(expand=False)[self.numbers[name]]
            msg["value"] = value.expand(fn.shape())
            self.log_probs[name] = base.log_prob(value).expand(_batch(fn)).reshape(self.rows)


def _batch(fn: Any) -> tuple[int, ...]:
    """Shape of the latents of a site, each of which is a number or a one-hot vector."""
    shape = tuple(fn.shape())
    return shape[: len(shape) - len(unwrap(fn).event_shape)]


def row_latents(site: str, runs: tuple[Run, Run], free: dict[str, Any]) -> dict[str, list[Tensor]]:
    """Discrete latents that each row has one of, drawn before a site, and values for two rows.

    Args:
        site: Name of the site.
        runs: At two and at three rows.
        free: Sites that the posterior does not fix, in order.
    """
    values = {}
    for name in takewhile(lambda name: name not in (site, f"{site}_unobserved"), free):
        nodes = [run.nodes[name] for run in runs if name in run.nodes]
        fn = nodes[0]["fn"]
        if nodes[0]["is_observed"] or not unwrap(fn).has_enumerate_support:
            continue
        if [prod(_batch(node["fn"])) for node in nodes] == [2, 3]:
            support = unwrap(fn).enumerate_support(expand=False)
            values[name] = [value.expand(fn.shape()) for value in support]
    return values


def dependence(
    model: Model,
    latents: Draws,
    x: Tensor,
    free: Collection[str],
    values: Mapping[str, Sequence[Tensor]],
) -> dict[str, set[str]]:
    """By site, those others on whose values its distribution depends.

    All combinations are tried; where they are too many, of two values each, or one change of one
    site at a time.

    Args:
        model: Run at the inputs ``x`` with these ``latents``, always by the same random numbers.
        free: Sites that are looked at.
        values: Of the others.
    """
    sizes = [len(each) for each in values.values()]
    if prod(sizes) > MOST_VALUES:
        sizes = [min(size, 2) for size in sizes]
    tried = {tuple(int(i == axis) for i in range(len(sizes))) for axis in range(-1, len(sizes))}
    if prod(sizes) <= MOST_VALUES:
        tried = set(product(*map(range, sizes)))
    found = {}
    for numbers in tried:
        picked = zip(values.items(), numbers, strict=True)
        some = {name: each[number] for (name, each), number in picked}
        with quiet(), preserve_rng():
            nodes = trace_of(model, {**latents, **some}, x).nodes
        found[numbers] = {k: [v for _, v in arguments_of(nodes[k]["fn"])] for k in free}
    depends: dict[str, set[str]] = {site: set() for site in free}
    for (numbers, now), (axis, name) in product(found.items(), enumerate(values)):
        before = found[(*numbers[:axis], 0, *numbers[axis + 1 :])]
        for site in free:
            pairs = zip(now[site], before[site], strict=True)
            if not all(a is b or torch.equal(a, b) for a, b in pairs):
                depends[site].add(name)
    return depends


def behind(site: str, depends: Mapping[str, set[str]]) -> set[str]:
    """Sites on which a site depends, itself or through others."""
    found: set[str] = set()
    left = [site]
    while left:
        new = depends[left.pop()] - found
        found |= new
        left += new
    return found


def affordable(sizes: dict[str, int]) -> dict[str, int]:
    """The latents, or none and a warning where they take too many values to sum them out."""
    if (count := prod(sizes.values())) <= MOST_VALUES:
        return sizes
    warn_user(
        f"the latents {list(sizes)}, of which each row has one, take {count} values together, more "
        f"than the {MOST_VALUES} that are summed out: drawn anew for every draw of the posterior, "
        "they count as epistemic uncertainty. Sum them out in the model."
    )
    return {}


def mixture(
    sizes: dict[str, int], rows: int, under: Callable[[Fixed], Tensor]
) -> tuple[Tensor, Tensor]:
    """Log-weights ``(V, N)`` of all values of the latents, and what is said ``(V, N, K)``."""
    numbers = product(*map(range, sizes.values()))
    fixed = [Fixed(dict(zip(sizes, each, strict=True)), rows) for each in numbers]
    said = torch.stack([under(each) for each in fixed])
    log_probs = [torch.stack([each.log_probs[name] for each in fixed]) for name in sizes]
    return torch.stack(log_probs).sum(0), said


def mixed_log_probs(log_weights: Tensor, log_probs: Tensor) -> Tensor:
    """Log-probabilities ``(N, C)`` of a mixture, of V in it ``(V, N, C)``."""
    return torch.logsumexp(log_weights[..., None] + log_probs, 0)


def mixed_normals(log_weights: Tensor, normals: Tensor) -> Tensor:
    """Mean and log-scale ``(N, 2)`` of a mixture of normals, of V in it ``(V, N, 2)``."""
    weights, (mean, log_scale) = log_weights.exp(), normals.unbind(-1)
    middle = (weights * mean).sum(0)
    variance = (weights * ((2 * log_scale).exp() + (mean - middle) ** 2)).sum(0)
    return torch.stack([middle, variance.log() / 2], -1)
