"""The linear head of a recorded network: what it multiplies, and its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_opu.guides.recorded import Recorded, Step
from pyro_opu.utils.chunks import joined_in_place

__all__ = ["Head", "features", "head_of", "heads_of", "under_draws"]

#: Products with weights; what they multiply may be the last hidden layer.
_PRODUCTS = {"linear", "matmul", "mm", "addmm", "mv"}
#: Draws of a head that are read at once, and numbers in features asked about and what draws make.
CHUNK, CHUNK_NUMBERS = 256, 2**22
#: Features that are asked about at once.
PROBES = 2**8
#: Where a feature is asked about: at 1 the rounding of log probabilities, summed over 2,000
#: features, moves a logit by .002.
FAR = 2.0**6
#: Error of a head that is taken for linear, as a share of its largest logit: rounding.
LINEAR = 1e-4


def features(found: Recorded, drawn: frozenset[str]) -> Iterator[tuple[list[int], Recorded | None]]:
    """What products multiply: the steps, none for the inputs, and what leads to them.

    First all that the last products on every way to the answer multiply, then what each product
    does, the last first.
    """
    several = sorted(_frontier(found, drawn))
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


def _frontier(found: Recorded, drawn: frozenset[str]) -> set[int]:
    """What the last products on the ways from inputs to answer multiply; none where one has none.

    What has no weights may be multiplied by numbers, too, and anything by deviations. On the way
    there may be any other step; the head is asked whether it is linear.
    """
    cut: set[int] = set()
    seen, open_ones = set[int](), [len(found.steps) - 1]
    while open_ones:
        step = found.steps[open_ones.pop()]
        if step.inputs("x"):
            return set()
        every = {index: found.until(index) for index in step.inputs("step")}
        before = {index: trunk for index, trunk in every.items() if trunk.reads_inputs()}
        others = {name for index in every.keys() - before for name in every[index].weights}
        times = step.name.startswith("mul.") and len(before) == 1
        is_drawn = bool(drawn & {*others, *step.inputs("weight")})
        for index, trunk in before.items():
            fixed = is_drawn or not trunk.trained & set(trunk.weights)
            ends = _is_product(step) and not drawn & set(trunk.weights)
            if ends or (times and fixed):
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

    def answer(self, features: Tensor) -> Tensor:
        """What the network answers where the features are given."""
        parts = features.split([row.numel() for row in self.rows], 1)
        shaped = [each.reshape(-1, *row.shape) for each, row in zip(parts, self.rows, strict=True)]
        x, known = (None, dict(zip(self.cut, shaped, strict=True))) if self.cut else (features, {})
        return self.found.rest(x, known, len(features))

    def logits(self, features: Tensor) -> Tensor:
        """Logits, of mean 0, where the features are given."""
        log_probs = self.answer(features)
        return log_probs - log_probs.mean(-1, keepdim=True)

    def probed(self) -> Tensor:
        """The head by asking at no feature and at every feature alone: right if it is linear."""
        like = self.rows[0]
        constant, found = self.logits(like.new_zeros(1, self.size)), []
        most = min(PROBES, max(1, CHUNK_NUMBERS // self.size))
        for start in range(0, self.size, most):
            count = min(most, self.size - start)
            probes = FAR * torch.eye(count, self.size, dtype=like.dtype, device=like.device)
            found.append((self.logits(probes.roll(start, 1)) - constant) / FAR)
        return torch.cat([*found, constant]).mT


def heads_of(read: Head, draws: dict[str, Tensor], width: int) -> Tensor:
    """The head under draws of the weights ``(S, C, F + 1)``; a draw makes so many of a row."""
    return under_draws(read, draws, Head.probed, min(PROBES, read.size) * width)


def under_draws(
    read: Head, draws: dict[str, Tensor], ask: Callable[[Head], Tensor], numbers: int
) -> Tensor:
    """What is asked of the head under each draw of the weights ``(S, ...)``, of so many numbers."""

    def under(weights: dict[str, Tensor]) -> Tensor:
        return ask(replace(read, found=read.found.under(weights)))

    count = len(next(iter(draws.values())))
    size = min(CHUNK, max(1, CHUNK_NUMBERS // numbers))
    blocks = ({k: v[i : i + size] for k, v in draws.items()} for i in range(0, count, size))
    return joined_in_place(map(torch.func.vmap(under), blocks), count)


def head_of(read: Head) -> Tensor | None:
    """The head ``(C, F + 1)``; ``None`` where it is not linear, or reads the inputs too."""
    mixed = torch.randn(8, read.size, generator=torch.Generator().manual_seed(0))
    mixed = mixed.to(read.rows[0])
    try:
        expected = read.logits(mixed)
    except LookupError:  # the answer reads the inputs too
        return None
    head = read.probed()
    error = (mixed @ head[:, :-1].mT + head[:, -1] - expected).abs().max()
    return head if error <= LINEAR * (1 + expected.abs().max()) else None
