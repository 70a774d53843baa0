"""Where a student begins: at its teacher's network, or with the moments of its logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_opu.guides.indexing import with_products
from pyro_opu.guides.recording import Recorded, Step, Unrecorded, record
from pyro_opu.teachers.plug_in import PlugIn

__all__ = ["Beginning", "find_beginning"]

#: Products with weights; what they multiply may be the last hidden layer.
_PRODUCTS = {"linear", "matmul", "mm", "addmm", "mv"}
#: Draws of a head that are read at once.
CHUNK = 256
#: Logarithm of a probability of zero, where candidates are compared.
LEAST_LOG = -1e4
#: An uncertain network bends smoothly, as its average does, unless its KL from the posterior's mean
#: then is more than so many times as large. That of MC dropout on MNIST begins 1.4 to 1.6 times as
#: far, and ends farther: by hardswish at 1.5 times the KL that ReLU ends at.
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
            found = with_products(record(plug_in, plug_in.candidates[0], x), x[:2])
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
    for cut, trunk in _features(found):
        parts = [found.until(step).run(x[:2]) for step in cut] or [x[:2]]
        if any(part.ndim not in (1, 2) for part in parts) or (trunk is None and x.ndim != 2):
            continue
        if len(cut) > 1 or parts[0].ndim == 1:
            trunk = found.joined({step: part.ndim for step, part in zip(cut, parts, strict=True)})
        read = Head(found, cut, [part[0] for part in parts])
        head = _head(read)
        if head is None:
            continue
        if plug_in.draws is None or _uncertain(trunk, plug_in):
            return Beginning(trunk, head)
        return Beginning(trunk, head, _heads(read, plug_in.draws))
    return None


def _distance(mean: Tensor, log_probs: Tensor) -> float:
    """KL from the posterior's mean ``(N, C)``, nats."""
    apart = torch.xlogy(mean, mean) - mean * log_probs.clamp_min(LEAST_LOG)
    return float(apart.sum(-1).mean().nan_to_num(torch.inf))


def _features(found: Recorded) -> Iterator[tuple[list[int], Recorded | None]]:
    """What products multiply: the steps, none for the inputs, and what leads to them.

    First all that the last products on every way to the answer multiply, then what each product
    does, the last first.
    """
    several = sorted(_frontier(found))
    if several:
        yield several, found.until(several[0])
    for step in reversed(found.steps):
        if _is_product(step):
            for index in step.inputs("step"):
                trunk = found.until(index)
                if trunk.reads_inputs():
                    yield [index], trunk
            if step.inputs("x"):
                yield [], None


def _frontier(found: Recorded) -> set[int]:
    """What the last products on the ways from inputs to answer multiply; none where one has none.

    What has no weights may be multiplied by numbers, too. On the way there may be any other step;
    the head is asked whether it is linear.
    """
    cut: set[int] = set()
    seen, open_ones = set[int](), [len(found.steps) - 1]
    while open_ones:
        step = found.steps[open_ones.pop()]
        if step.inputs("x"):
            return set()
        before = {index: found.until(index) for index in step.inputs("step")}
        before = {index: trunk for index, trunk in before.items() if trunk.reads_inputs()}
        times = step.name.startswith("mul.") and len(before) == 1
        for index, trunk in before.items():
            if _is_product(step) or (times and not trunk.trained & set(trunk.weights)):
                cut.add(index)
            elif index not in seen:
                seen.add(index)
                open_ones.append(index)
    return cut


def _is_product(step: Step) -> bool:
    return step.name.split(".")[0] in _PRODUCTS


@dataclass(frozen=True)
class Head:
    """What is left of a network where the results of some steps, ``(N, F)`` together, are given.

    Attributes:
        found: The network.
        cut: The steps; none for the inputs themselves.
        rows: One row of the result of each, or of the inputs; a number or ``(F,)``.
    """

    found: Recorded
    cut: list[int]
    rows: list[Tensor]

    @property
    def size(self) -> int:
        """F."""
        return sum(row.numel() for row in self.rows)

    def logits(self, features: Tensor) -> Tensor:
        """Logits, of mean 0, where the features are given."""
        parts = features.split([row.numel() for row in self.rows], 1)
        shaped = [each.reshape(-1, *row.shape) for each, row in zip(parts, self.rows, strict=True)]
        x, known = (None, dict(zip(self.cut, shaped, strict=True))) if self.cut else (features, {})
        log_probs = self.found.rest(x, known, len(features))
        return log_probs - log_probs.mean(-1, keepdim=True)

    def probed(self) -> Tensor:
        """The head by asking at no feature and at every feature alone: right if it is linear."""
        probes = torch.cat([torch.eye(self.size), torch.zeros(1, self.size)]).to(self.rows[0])
        logits = self.logits(probes)
        return torch.cat([logits[:-1] - logits[-1], logits[-1:]]).mT


def _heads(read: Head, draws: dict[str, Tensor]) -> Tensor:
    """The head under draws of the weights ``(S, C, F + 1)``."""

    def under(weights: dict[str, Tensor]) -> Tensor:
        return replace(read, found=read.found.under(weights)).probed()

    heads: Tensor = torch.func.vmap(under, chunk_size=CHUNK)(draws)
    return heads


def _head(read: Head) -> Tensor | None:
    mixed = torch.randn(8, read.size, generator=torch.Generator().manual_seed(0))
    mixed = mixed.to(read.rows[0])
    try:
        expected = read.logits(mixed)
    except LookupError:  # the answer reads the inputs too
        return None
    head = read.probed()
    error = (mixed @ head[:, :-1].mT + head[:, -1] - expected).abs().max()
    return head if error <= LINEAR * (1 + expected.abs().max()) else None
