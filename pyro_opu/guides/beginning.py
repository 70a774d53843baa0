"""Where a student begins: at its teacher's network, or with the moments of its logits."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyro_opu.guides.heads import Head, features, head_of, heads_of
from pyro_opu.guides.networks import in_blocks
from pyro_opu.guides.products import with_products
from pyro_opu.guides.recorded import Recorded
from pyro_opu.guides.recording import record
from pyro_opu.guides.writes import Unrecorded
from pyro_opu.programs.plug_in import PlugIn
from pyro_opu.programs.vmap import loop

__all__ = [
    "SCRATCH",
    "Beginning",
    "NoBeginning",
    "Start",
    "check_digits",
    "cuts",
    "evenly",
    "find_beginning",
    "recorded",
    "uncertain",
]

#: Logarithm of a probability of zero, where candidates are compared.
LEAST_LOG = -1e4
#: Functions that one kernel spans carry a posterior over the kernel, too, where they give its
#: probabilities' variance within this factor; rows and draws by which they are found, at least and
#: at most; draws that are run at once; and the least singular value of the features that counts,
#: as a share of the largest.
CARRIED, PROJECTED, PAIRS, FEW, ROUNDING = 1.5, 256, 512, 16, 1e-4
#: Products of the moments of logits, at most, that a student is told: variances alone. By the whole
#: covariance of ten logits, averaged at 128 points, a student is as near as twice the draws, and a
#: pass costs ten times as much: half of what 500 draws do.
MOST_TOLD = 2**14
#: Error of the logarithm of a logit's variance, root mean square, up to which coefficients count as
#: independent, that of 89 draws; rows at which it is looked at; and classes, at most: of more a
#: student learns a temperature.
DEPENDENT, LOOKED, MOST_LOGITS = 0.15, 128, 128
#: Numbers in all heads that are drawn (256 MB): 10,000 of 512 features and 13 classes.
MOST_HEADS = 2**26
#: Rounding of inputs to float32, in deviations, that a network in float32 is read in spite of; rows
#: at which it is looked for.
MOST_ROUNDING, ROUNDED = 1e-3, 2048


class NoBeginning(Exception):
    """There is no network to begin at; the message says why."""


@dataclass(frozen=True)
class Start:
    """Where a student begins, or why it begins from scratch."""

    beginning: Any
    reason: str = ""


#: Where there is no teacher's network.
SCRATCH = Start(None)


@dataclass(frozen=True)
class Beginning:
    """A trunk, and a linear head from its F features to class logits.

    Attributes:
        trunk: Steps to the features; ``None`` where they are the inputs ``(N, D)`` themselves.
        head: Weights and, last, biases ``(C, F + 1)``, of mean 0 over the classes.
        draws: The head under draws of the posterior ``(S, C, F + 1)``, where it is over the head
            alone, or nearly so (:attr:`process`).
        process: Whether it is over the trunk, too, but the trunk of one draw stands for all, and
            stays as it is: that of a Gaussian process, the functions that one kernel spans.
        projected: Whether the kernel varies between draws, so that these are the nearest functions
            where they were looked at, and others beyond.
        independent: Whether coefficients vary by themselves, as under dropout of features, so that
            the variance of a logit is a sum of squares.
        untrained: Whether the weights of the trunk are random.
        several: Whether the trunk is that of one of several networks, which stands for none.
    """

    trunk: Recorded | None
    head: Tensor
    draws: Tensor | None = None
    process: bool = False
    projected: bool = False
    independent: bool = False
    untrained: bool = False
    several: bool = False

    @property
    def says_something(self) -> bool:
        """Whether it has moments, or a trunk with weights."""
        return self.draws is not None or (self.trunk is not None and bool(self.trunk.weights))

    @property
    def rounds(self) -> bool:
        """Whether the inputs are rounded to float32 before they are centred."""
        weights = {} if self.trunk is None else self.trunk.weights
        return any(value.is_floating_point() for value in weights.values())

    @property
    def lacks_moments(self) -> bool:
        """Whether the posterior is over the head, but a student is not given its variances."""
        many = self.head.shape[1] ** 2 > MOST_TOLD
        return self.draws is not None and many and not self.independent

    def has_few_moments(self) -> bool:
        """Whether a student can read mean and variances of the logits: of one, always."""
        classes, size = self.head.shape
        return classes == 2 or are_few(classes, size)


def are_few(classes: int, size: int) -> bool:
    """Whether the variances of so many logits of so many coefficients are."""
    return classes * size**2 <= MOST_TOLD


@torch.no_grad()
def find_beginning(
    plug_ins: list[PlugIn], x: Tensor, draws: Tensor, others: Tensor | None = None
) -> Beginning:
    """The head of the network that is nearest to the posterior's mean.

    Args:
        plug_ins: Networks of the posterior.
        x: Inputs ``(N, ...)`` at which they are compared.
        draws: The posterior's class probabilities there ``(S, N, C)``.
        others: More inputs ``(M, ...)``, at which no probabilities are known.

    Raises:
        NoBeginning: there is no network, what it computes is not recorded, or nothing on its way
            determines the logits linearly.
    """
    mean = draws.mean(0)
    scored: list[tuple[float, Recorded, PlugIn]] = []
    reason = "the teacher has no network that can be read"
    for plug_in in plug_ins:
        try:
            found = recorded(plug_in, x)
        except Unrecorded as error:
            reason = f"its network cannot be read: {error}"
            continue
        if plug_in.of_noise:
            try:
                return _after_noise(found, plug_in, x)
            except NoBeginning:
                continue
        for weights in plug_in.candidates:
            candidate = found.under(weights)
            scored.append((_distance(mean, in_blocks(candidate.run, x)), candidate, plug_in))
    if not scored:
        raise NoBeginning(reason)
    _, found, plug_in = min(scored, key=lambda each: each[0])
    start = _beginning(found, plug_in, x)
    if start.trunk is not None and plug_in.deviations:
        return _process(start, found, plug_in, x, draws, x if others is None else others)
    if not start.says_something:
        raise NoBeginning("its network has no hidden layer")
    return replace(start, untrained=plug_in.untrained, several=plug_in.several)


def check_digits(x: Tensor, indices: Collection[int] = ()) -> None:
    """Refuse inputs that float32 has too few digits for, if they are not centred first.

    Args:
        x: ``(N, ...)``.
        indices: Columns that hold an index, which must not be rounded at all.

    Raises:
        NoBeginning: rounding moves a column by more than :data:`MOST_ROUNDING` of its deviations.
    """
    rows = x[evenly(len(x), ROUNDED)].flatten(1).double()
    off = (rows.float().double() - rows).abs().amax(0)
    spread = rows.std(0, correction=0)
    most = MOST_ROUNDING * torch.where(spread > 0, spread, rows.abs().amax(0))
    most[list(indices)] = 0.0
    if bool((off > most).any()):
        column = int((off > most).nonzero()[0])
        raise NoBeginning(
            f"float32, in which its network is read, has too few digits for column {column} of x; "
            "subtract its mean"
        )


def recorded(plug_in: PlugIn, x: Tensor) -> Recorded:
    """The steps of a network, in which levels that an index picks are products.

    Raises:
        Unrecorded: as of :func:`.record`.
    """
    return with_products(record(plug_in, plug_in.candidates[0], x), x[:2])


def uncertain(trunk: Recorded | None, plug_in: PlugIn) -> bool:
    """Whether the posterior is over the trunk, too: draws that are all the same are none."""
    drawn, draws = {} if trunk is None else trunk.weights, plug_in.draws or {}
    some = [draws.get(name) for name in drawn if name in plug_in.candidates[0]]
    return any(each is None or bool((each != each[:1]).any()) for each in some)


def cuts(found: Recorded, plug_in: PlugIn, x: Tensor) -> Iterator[tuple[Recorded | None, Head]]:
    """Trunks of a network, ``None`` for the inputs, and what is left of it after each."""
    drawn = frozenset(plug_in.draws or ()) if plug_in.of_noise else plug_in.deviations
    for cut, trunk in features(found, drawn):
        parts = [found.until(step).run(x[:2]) for step in cut] or [x[:2]]
        # Recorded by rows, a vector may be a matrix of one row or one column.
        flat = [_is_vector(part[0]) if plug_in.deviations else part.ndim < 3 for part in parts]
        if not all(flat) or (trunk is None and x.ndim != 2):
            continue
        if len(cut) > 1 or parts[0].ndim != 2:
            trunk = found.joined({step: part.ndim for step, part in zip(cut, parts, strict=True)})
        yield trunk, Head(found, cut, [part[0] for part in parts])


def _beginning(found: Recorded, plug_in: PlugIn, x: Tensor) -> Beginning:
    """The trunk and the head of a network, where there is a linear one."""
    for trunk, read in cuts(found, plug_in, x):
        head = head_of(read)
        if head is None:
            continue
        if plug_in.draws is None or uncertain(trunk, plug_in):
            return Beginning(trunk, head)
        return _over_head(trunk, head, heads_of(read, plug_in.draws, len(head)), x)
    if x.ndim > 2 and not plug_in.deviations:  # its last layer bends, of images: its own answer
        classes = found.run(x[:2]).shape[1]
        centred = torch.eye(classes, classes + 1, device=x.device)
        return Beginning(found, centred - centred.mean(0))
    raise NoBeginning("nothing in its network determines the logits linearly")


def _after_noise(found: Recorded, plug_in: PlugIn, x: Tensor) -> Beginning:
    """The trunk that no noise reaches, which stays as it is, and the head under its draws."""
    for trunk, read in cuts(found, plug_in, x):
        head = None if trunk is None or uncertain(trunk, plug_in) else head_of(read)
        if head is not None:
            assert trunk is not None and plug_in.draws is not None
            most = max(2, MOST_HEADS // head.numel())
            some = {name: each[:most] for name, each in plug_in.draws.items()}
            draws = heads_of(read, some, max(len(head), read.size))  # noise of every feature
            draws += head - draws.mean(0)
            return _over_head(trunk.folded(x[:2]), head, draws, x)
    raise NoBeginning("what it draws at random reaches every trunk of a linear head")


def _over_head(trunk: Recorded | None, head: Tensor, draws: Tensor, x: Tensor) -> Beginning:
    """A posterior over the head alone, ``(S, C, F + 1)``: its trunk stays as it is.

    What a draw says of a row is a function of the features that the trunk gives.
    """
    trunk = None if trunk is None else replace(trunk, trained=frozenset())
    if len(head) > MOST_LOGITS:
        return Beginning(trunk, head, draws)
    x = x[evenly(len(x), LOOKED)]
    read = pad((x if trunk is None else trunk.run(x)).to(draws), (0, 1), value=1.0)
    mean, alone = draws.mean(0), draws.var(0, correction=0) @ read.square().mT
    together = sum(((some - mean) @ read.mT).square().sum(0) for some in draws.split(LOOKED))
    together = together / len(draws)
    off = (together / alone)[alone > 0].log().square().mean().sqrt()
    return Beginning(trunk, head, draws, independent=bool(off <= DEPENDENT))


def _is_vector(row: Tensor) -> bool:
    return row.numel() == max(row.shape, default=1)


def _process(
    start: Beginning, found: Recorded, plug_in: PlugIn, x: Tensor, draws: Tensor, others: Tensor
) -> Beginning:
    """The trunk as it is, with a head for every draw.

    Where the posterior is over the trunk, too, the head is the nearest to what the draw says at
    other inputs, by least squares. Such heads must carry the posterior: at x their mean must be no
    farther from its than the network is, and their variance must be its own.
    """
    assert start.trunk is not None
    if not start.has_few_moments():
        raise NoBeginning("moments of its logits are too many to be read")
    heads, trunk = start.draws, start.trunk.folded(x[:2])
    projected = heads is None
    if heads is None:
        heads = _projected(trunk, found, plug_in, others.to(x.device))
        if heads is None:
            raise NoBeginning("its logits are not finite")
        told, mean = (_with_one(trunk, x) @ heads.mT).softmax(-1), draws.mean(0)
        share = float(told.var(0).sum() / draws.var(0).sum())
        nearer = _distance(mean, told.mean(0).log()) <= _distance(mean, found.run(x))
        if not nearer or not 1 / CARRIED <= share <= CARRIED:
            raise NoBeginning("functions of one kernel do not stand for those of all draws")
    heads = heads.to(start.head.dtype)
    return Beginning(trunk, start.head, heads, process=True, projected=projected)


def _projected(trunk: Recorded, found: Recorded, plug_in: PlugIn, x: Tensor) -> Tensor | None:
    """The heads ``(S, C, F + 1)`` on a trunk that are nearest to what draws say at x, if finite."""
    assert plug_in.draws is not None
    pairs = len(next(iter(plug_in.draws.values()))) // 2  # each with both signs
    picked = evenly(pairs, PAIRS)
    both = torch.cat([picked, picked + pairs])
    under = {name: value[both] for name, value in plug_in.draws.items()}
    size = trunk.run(x[:1]).numel()
    x = x[evenly(len(x), max(PROJECTED, 2 * size))]

    def logits(weights: dict[str, Tensor]) -> Tensor:
        log_probs = found.under(weights).run(x)
        return log_probs - log_probs.mean(-1, keepdim=True)

    try:
        said = torch.func.vmap(logits, chunk_size=FEW)(under).double()
    except RuntimeError:  # an operation that vmap does not know
        said = loop(logits, under).double()
    if not bool(said.isfinite().all()):
        return None
    weight = (1.0 + said.square().mean((0, 2))).rsqrt()[:, None]  # far out logits are large
    inverse = torch.linalg.pinv(weight * _with_one(trunk, x), rtol=ROUNDING)
    heads: Tensor = (inverse @ (weight * said)).mT
    return heads


def _with_one(trunk: Recorded, x: Tensor) -> Tensor:
    """Features in float64, and 1 ``(N, F + 1)``."""
    features = trunk.run(x).double()
    return torch.cat([features, torch.ones_like(features[:, :1])], 1)


def evenly(size: int, most: int) -> Tensor:
    """Indices of at most so many, evenly spread."""
    return torch.linspace(0, size - 1, min(size, most)).long()


def _distance(mean: Tensor, log_probs: Tensor) -> float:
    """KL from the posterior's mean ``(N, C)``, nats."""
    apart = torch.xlogy(mean, mean) - mean * log_probs.clamp_min(LEAST_LOG)
    return float(apart.sum(-1).mean().nan_to_num(torch.inf))
