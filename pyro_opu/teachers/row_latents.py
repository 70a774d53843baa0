"""Discrete latents that each row has one of, such as a true label behind a noisy one, summed out.

Drawn anew at every call, their noise would pass for that of the posterior; it is aleatoric.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product, takewhile
from math import prod
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_opu.teachers.runs import Run
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


def behind(
    site: str, runs: tuple[Run, Run], free: dict[str, Any], under: Callable[[Fixed], Any]
) -> dict[str, int]:
    """Discrete latents of the rows on which a site depends, and how many values they have.

    Args:
        site: Name of the site.
        runs: At two and at three rows.
        free: Sites that the posterior does not fix, in order.
        under: The site's distribution in a run at two rows; random numbers are always the same.
    """
    sizes = {}
    for name in takewhile(lambda name: name != site, free):
        nodes = [run.nodes[name] for run in runs if name in run.nodes]
        if nodes[0]["is_observed"] or not unwrap(nodes[0]["fn"]).has_enumerate_support:
            continue
        if [prod(_batch(node["fn"])) for node in nodes] == [2, 3]:
            sizes[name] = len(unwrap(nodes[0]["fn"]).enumerate_support(expand=False))
    return {name: sizes[name] for name in sizes if name in _relevant(sizes, under)}


def _relevant(sizes: dict[str, int], under: Callable[[Fixed], Any]) -> set[str]:
    """Latents on which the site's distribution depends, or the probabilities of such latents."""
    if prod(sizes.values()) > MOST_VALUES:
        sizes = {name: min(size, 2) for name, size in sizes.items()}
    if prod(sizes.values()) > MOST_VALUES:
        return set(sizes)

    def arguments(fixed: Fixed) -> Tensor:
        return torch.cat([value.flatten() for _, value in arguments_of(under(fixed))])

    said, log_probs = _all_values(sizes, 2, arguments)
    shape = tuple(sizes.values())
    kept: dict[str, Tensor] = {}
    for axis, name in reversed(list(enumerate(sizes))):
        for each in (said, *kept.values()):
            values = each.reshape(*shape, -1)
            if not torch.equal(values, values.narrow(axis, 0, 1).expand_as(values)):
                kept[name] = log_probs[name]
                break
    return set(kept)


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


def _all_values(
    sizes: dict[str, int], rows: int, under: Callable[[Fixed], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Of all values of the latents: what is said ``(V, ...)``, and their log-probabilities."""
    numbers = product(*map(range, sizes.values()))
    fixed = [Fixed(dict(zip(sizes, each, strict=True)), rows) for each in numbers]
    said = torch.stack([under(each) for each in fixed])
    return said, {name: torch.stack([each.log_probs[name] for each in fixed]) for name in sizes}


def mixture(
    sizes: dict[str, int], rows: int, under: Callable[[Fixed], Tensor]
) -> tuple[Tensor, Tensor]:
    """Log-weights ``(V, N)`` of all values of the latents, and what is said ``(V, N, K)``."""
    said, log_probs = _all_values(sizes, rows, under)
    return torch.stack(list(log_probs.values())).sum(0), said


def mixed_log_probs(log_weights: Tensor, log_probs: Tensor) -> Tensor:
    """Log-probabilities ``(N, C)`` of a mixture, of V in it ``(V, N, C)``."""
    return torch.logsumexp(log_weights[..., None] + log_probs, 0)


def mixed_normals(log_weights: Tensor, normals: Tensor) -> Tensor:
    """Mean and log-scale ``(N, 2)`` of a mixture of normals, of V in it ``(V, N, 2)``."""
    weights, (mean, log_scale) = log_weights.exp(), normals.unbind(-1)
    middle = (weights * mean).sum(0)
    variance = (weights * ((2 * log_scale).exp() + (mean - middle) ** 2)).sum(0)
    return torch.stack([middle, variance.log() / 2], -1)
