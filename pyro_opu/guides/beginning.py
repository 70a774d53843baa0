"""Where a student begins: at its teacher's network, or with the moments of its logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_opu.guides.recording import Recorded, Unrecorded, record
from pyro_opu.teachers.plug_in import PlugIn

__all__ = ["Beginning", "find_beginning"]

#: Products with weights; what they multiply may be the last hidden layer.
_PRODUCTS = {"linear", "matmul", "mm", "addmm", "mv"}
#: Draws of a head that are read at once.
CHUNK = 256
#: Logarithm of a probability of zero, where candidates are compared.
LEAST_LOG = -1e4
#: An uncertain network bends smoothly, as its average does, unless its KL from the posterior's mean
#: then is more than so many times as large.
MOST_WORSE = 1.25
#: Error of a head that is taken for linear, as a share of its largest logit: rounding.
LINEAR = 1e-4


@dataclass(frozen=True)
class Beginning:
    """A trunk, and a linear head from its F features to class logits.

    Attributes:
        trunk: Steps to the features; ``None`` where they are the inputs ``(N, D)`` themselves.
        head: Weights and, last, biases ``(C, F + 1)``, of mean 0 over the classes.
        draws: The head under draws of the posterior ``(S, C, F + 1)``, where it is over the head
            alone.
    """

    trunk: Recorded | None
    head: Tensor
    draws: Tensor | None = None


@torch.no_grad()
def find_beginning(plug_ins: list[PlugIn], x: Tensor, mean: Tensor) -> Beginning | None:
    """The head of the network that is nearest to the posterior's mean.

    Args:
        plug_ins: Networks of the posterior.
        x: Inputs ``(N, ...)`` at which they are compared.
        mean: The posterior's mean there ``(N, C)``.

    Returns:
        ``None`` where there is no network, where what it computes is not recorded, or where nothing
        on its way determines the logits linearly.
    """
    scored: list[tuple[float, Recorded, PlugIn]] = []
    for plug_in in plug_ins:
        try:
            found = record(plug_in, plug_in.candidates[0], x)
        except Unrecorded:
            continue
        for weights in plug_in.candidates:
            candidate = found.under(weights)
            scored.append((_distance(mean, candidate.run(x)), candidate, plug_in))
    if not scored:
        return None
    distance, found, plug_in = min(scored, key=lambda each: each[0])
    start = _beginning(found, plug_in, x)
    if start is None or not _uncertain(start.trunk, plug_in):
        return start
    smooth = found.smoothed()
    near = _distance(mean, smooth.run(x)) <= MOST_WORSE * distance
    return _beginning(smooth, plug_in, x) if near else start


def _uncertain(trunk: Recorded | None, plug_in: PlugIn) -> bool:
    """Whether the posterior is over the trunk, too."""
    return trunk is not None and bool(set(trunk.weights) & set(plug_in.candidates[0]))


def _beginning(found: Recorded, plug_in: PlugIn, x: Tensor) -> Beginning | None:
    """The trunk and the head of a network, where there is a linear one."""
    for index, trunk in _features(found):
        features = x[:2] if trunk is None else trunk.run(x[:2])
        if features.ndim != 2:
            continue
        head = _head(found, index, features)
        if head is None:
            continue
        if plug_in.draws is None or _uncertain(trunk, plug_in):
            return Beginning(trunk, head)
        return Beginning(trunk, head, _heads(found, index, features, plug_in.draws))
    return None


def _distance(mean: Tensor, log_probs: Tensor) -> float:
    """KL from the posterior's mean ``(N, C)``, nats."""
    apart = torch.xlogy(mean, mean) - mean * log_probs.clamp_min(LEAST_LOG)
    return float(apart.sum(-1).mean().nan_to_num(torch.inf))


def _features(found: Recorded) -> Iterator[tuple[int | None, Recorded | None]]:
    """What products multiply, the last first: the step, and what leads to it; or the inputs."""
    for step in reversed(found.steps):
        if step.name.split(".")[0] in _PRODUCTS:
            for index in step.inputs("step"):
                trunk = found.until(index)
                if any(each.inputs("x") for each in trunk.steps):
                    yield index, trunk
            if step.inputs("x"):
                yield None, None


def _logits(found: Recorded, index: int | None, features: Tensor) -> Tensor:
    """Logits, of mean 0, where the features are given."""
    known = {} if index is None else {index: features}
    log_probs = found.rest(features if index is None else None, known, len(features))
    return log_probs - log_probs.mean(-1, keepdim=True)


def _probed(found: Recorded, index: int | None, features: Tensor) -> Tensor:
    """The head by asking at no feature and at every feature alone: right if it is linear."""
    size = features.shape[1]
    probes = torch.cat([torch.eye(size), torch.zeros(1, size)]).to(features)
    logits = _logits(found, index, probes)
    return torch.cat([logits[:-1] - logits[-1], logits[-1:]]).mT


def _heads(
    found: Recorded, index: int | None, features: Tensor, draws: dict[str, Tensor]
) -> Tensor:
    """The head under draws of the weights ``(S, C, F + 1)``."""

    def under(weights: dict[str, Tensor]) -> Tensor:
        return _probed(found.under(weights), index, features)

    heads: Tensor = torch.func.vmap(under, chunk_size=CHUNK)(draws)
    return heads


def _head(found: Recorded, index: int | None, features: Tensor) -> Tensor | None:
    mixed = torch.randn(8, features.shape[1], generator=torch.Generator().manual_seed(0))
    mixed = mixed.to(features)
    try:
        expected = _logits(found, index, mixed)
    except LookupError:  # the answer reads the inputs too
        return None
    head = _probed(found, index, features)
    error = (mixed @ head[:, :-1].mT + head[:, -1] - expected).abs().max()
    return head if error <= LINEAR * (1 + expected.abs().max()) else None
