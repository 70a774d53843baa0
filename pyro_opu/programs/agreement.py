"""Whether a quick program says what the original says.

Many draws at once stand for the loop, a recording for the model, a model at any number of rows for
the one that is written. Each is compared with what it stands for by :func:`compare`, at its first
call: given all that is drawn most programs are functions, equal to rounding or not, so that no
alarm is false. Where something else in a program is random, the same random numbers make it equal.
Where it has random numbers of its own, ranks of many runs can be compared (:func:`by_ranks`): of
:data:`REFUSED` such programs one is refused by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_opu.programs.sites import arguments_of, unwrap
from pyro_opu.rng import seeded

#: Error of a GPU's product, as a part of the largest number: convolutions there keep 10 bits by
#: default, of one draw and of many by kernels of their own.
TF32 = 2**-8
#: Seeds that are tried to see whether an original is random: labels of few rows are often equal.
SEEDS = 4
#: Runs of which ranks are compared.
RUNS = 64
#: Programs with random numbers of their own of which one is refused by chance.
REFUSED = 10**7
#: Numbers of which ranks are found at once.
AT_ONCE = 2**12

#: What a program says by name: tensors, or distributions of sites.
Said = Mapping[str, Tensor] | Mapping[str, Distribution]


class Agreement(NamedTuple):
    """What a comparison has found.

    Attributes:
        gaps: By how much what they say differs beyond rounding, infinity where its kind or shape
            does; empty where they agree.
        random: If they do not, whose random numbers the original draws.
    """

    gaps: dict[str, float]
    random: Literal["none", "torch", "its own"] = "none"


def compare(quick: Callable[[], Said], original: Callable[[], Said]) -> Agreement:
    """Compare what two programs say when both draw the same of torch's random numbers."""
    with seeded(0):
        expected = original()
    with seeded(0):
        found = gaps(quick(), expected)
    if not found:
        return Agreement(found)

    def differs(seed: int) -> bool:
        with seeded(seed):
            return bool(gaps(original(), expected))

    if differs(0):
        return Agreement(found, "its own")
    return Agreement(found, "torch" if any(map(differs, range(1, 1 + SEEDS))) else "none")


def by_ranks(quick: Callable[[], Said], original: Callable[[], Said]) -> dict[str, float]:
    """Differences of distributions over many runs that chance does not explain, by site."""
    own, other = ([_numbers(run()) for _ in range(RUNS)] for run in (quick, original))
    found = {}
    for name in own[0].keys() & other[0].keys():
        one, two = (torch.stack([numbers[name] for numbers in side]) for side in (own, other))
        most = NormalDist().inv_cdf(1 - 1 / (2 * REFUSED * len(own[0]) * one[0].numel()))
        if float(_rank_scores(one, two).abs().max()) > most:
            found[name[0]] = float((one.mean(0) - two.mean(0)).abs().max())
    return found


def close(a: Tensor, b: Tensor) -> bool:
    """Equal to float rounding; a function with randomness of its own never is."""
    eps = torch.finfo(b.dtype).eps if b.is_floating_point() else 0.0
    relative, absolute = max(1e-3, 16 * eps), max(1e-4, 16 * eps)  # the second for half precision
    if b.is_cuda and b.is_floating_point() and b.numel():
        absolute = max(absolute, TF32 * float(b.abs().amax().nan_to_num(posinf=0.0)))
    return a.shape == b.shape and torch.allclose(
        a.double(), b.double(), rtol=relative, atol=absolute, equal_nan=True
    )


def gaps(said: Said, expected: Said) -> dict[str, float]:
    """What differs beyond rounding, and by how much."""
    both = said.keys() & expected.keys()
    found = {name: _gap(said[name], expected[name]) for name in said if name in both}
    found |= dict.fromkeys(said.keys() ^ expected.keys(), math.inf)
    return {name: gap for name, gap in found.items() if gap}


def _gap(one: Any, two: Any) -> float:
    """The largest difference of two tensors, or arguments of distributions; 0 for rounding."""
    if not isinstance(one, Tensor):
        if type(unwrap(one)) is not type(unwrap(two)) or one.shape() != two.shape():
            return math.inf
        mine, theirs = _arguments(one), _arguments(two)
        names = mine.keys() & theirs.keys()  # one may have computed more than it was given
        return max((_gap(mine[name], theirs[name]) for name in names), default=0.0)
    if one.shape != two.shape:
        return math.inf
    if close(one, two):
        return 0.0
    return float((one.double() - two.double()).abs().nan_to_num(math.inf).max())


def _arguments(fn: Tensor | Distribution) -> dict[str, Tensor]:
    """Arguments of a distribution by name, and of what it wraps."""
    found: dict[str, Tensor] = {}
    for name, value in arguments_of(fn):
        found[name if name not in found else f"{name} of its base"] = value
    return found


def _numbers(fns: Said) -> dict[tuple[str, str], Tensor]:
    """Arguments of distributions by site and name, ``(K,)`` each."""
    named = [(site, _arguments(fn)) for site, fn in fns.items()]
    return {(site, k): v.flatten().double() for site, found in named for k, v in found.items()}


def _rank_scores(one: Tensor, two: Tensor) -> Tensor:
    """Mann and Whitney's statistic of samples ``(R, K)`` in its standard deviations, ``(K,)``."""
    runs, found = len(one), []
    for a, b in zip(one.split(AT_ONCE, 1), two.split(AT_ONCE, 1), strict=True):
        more = (a[:, None] > b).sum((0, 1)) - (a[:, None] < b).sum((0, 1))
        found.append(more / 2 / math.sqrt(runs**2 * (2 * runs + 1) / 12))
    return torch.cat(found)
