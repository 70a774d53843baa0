r"""How far an input lies outside what a student was taught, from the features of its pass.

An input is far off if its standardised numbers, or the last features that the student has of it,
lie far from those of the rows that the student was taught at. Both distances are Mahalanobis
distances in a principal subspace, with what is left outside it measured in one variance,

.. math::
    d(z) = \sum_{i \le r} \frac{(v_i^\top (z - m))^2}{\lambda_i}
        + \frac{1}{\sigma^2} \Big\| (z - m) - \sum_{i \le r} v_i v_i^\top (z - m) \Big\|^2,

for features with the mean of the nearest class. The larger of the two logarithms, in units in which
median and upper decile agree, is read against the same number of held-out rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.distributions import as_answer
from pyro_opu.guides.base import in_dtype_of
from pyro_opu.guides.joint import marginal_of
from pyro_opu.guides.networks import BLOCK, Standardize
from pyro_opu.rng import seeded

__all__ = ["NOVEL", "Novelty", "answer_and_features", "fit_novelty"]

#: Rows, and numbers in them (34 MB in float64, held five times), that are looked at, at most; parts
#: of them that are held out in turn.
MOST_ROWS, MOST_NUMBERS, FOLDS = 2**13, 2**22, 5
#: Products of a subspace, at most; features beyond which it is found by a randomised method.
MOST_PRODUCTS, MOST_EXACT = 2**16, 1024
#: Share of the mean variance that is added to every variance, and rows that pull the mean of a
#: class to that of all.
RIDGE, PULL = 1e-3, 3.0
#: Held-out rows beyond the last knot of the distribution: the tail begins there.
TAIL_ROWS = 5
#: Novelty above which an input is outside: about one in a hundred like those taught at.
NOVEL = 0.99


class Distance(nn.Module):
    """Logarithm of the Mahalanobis distance to the nearest of C means, ``(N, D) -> (N,)``."""

    means: Tensor
    nearest: Tensor
    offset: Tensor
    directions: Tensor
    weights: Tensor
    rest: Tensor

    def __init__(self, size: int, classes: int, rank: int) -> None:
        super().__init__()
        self.sizes = size, classes, rank
        self.standardize = Standardize((size,))
        shapes = {"means": (classes, size), "nearest": (classes, size), "offset": (classes,)}
        shapes |= {"directions": (size, rank), "weights": (rank,), "rest": (1,)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape))

    @classmethod
    def fitted(cls, rows: Tensor, labels: Tensor) -> Distance:
        """Fit to rows ``(N, D)`` of the classes that ``labels`` ``(N,)`` name."""
        size = rows.shape[1]
        classes = labels.unique(return_inverse=True)[1]
        rank = max(1, min(size, MOST_PRODUCTS // size, len(rows) // 2))
        self = cls(size, int(classes.max()) + 1, rank).to(rows.device)
        self.standardize.fit(rows, (0,))
        z = self.standardize(rows).double()
        counts = classes.bincount().double()[:, None]
        sums = torch.zeros_like(self.means, dtype=torch.float64).index_add_(0, classes, z)
        means = (sums + PULL * z.mean(0)) / (counts + PULL)
        within = z.sub_(means[classes])
        total = within.square().sum() / len(z)
        values, directions = _principal(within, rank)
        left = (total - values.sum()).clamp_min(0) / max(1, size - rank)
        ridge = RIDGE * total / size + 1e-12
        weights, rest = (values + ridge).reciprocal(), (left + ridge).reciprocal()
        rest = rest * (rank < size)  # else what is left is rounding
        nearest = rest * means + (means @ directions * (weights - rest)) @ directions.mT
        found = {"means": means, "nearest": nearest, "offset": (nearest * means).sum(1) / 2}
        found |= {"directions": directions, "weights": weights, "rest": rest[None]}
        for name, value in found.items():
            getattr(self, name).copy_(value)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """At rows ``(N, D)``, in the dtype of its numbers."""
        x = x.to(self.means.dtype)
        z = self.standardize(x)
        if len(self.means) > 1:
            z = z - self.means[(z @ self.nearest.mT - self.offset).argmax(-1)]
        else:
            z = z - self.means
        inside = z @ self.directions
        outside = z - inside @ self.directions.mT  # a difference of sums of squares has few digits
        squares = inside.square() @ self.weights + self.rest * outside.square().sum(-1)
        return squares.clamp_min(1e-12).log()


def _principal(rows: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Largest variances ``(rank,)`` and their directions ``(D, rank)`` of centred rows."""
    if 2 * len(rows) <= rows.shape[1] <= MOST_EXACT:  # else it takes longer
        _, values, directions = torch.linalg.svd(rows, full_matrices=False)
        return values[:rank].square() / len(rows), directions.mT[:, :rank]
    if rows.shape[1] <= MOST_EXACT:
        values, directions = torch.linalg.eigh(rows.mT @ rows / len(rows))
        return values.flip(0)[:rank].clamp_min(0), directions.flip(1)[:, :rank]
    with seeded(0):
        _, values, directions = torch.svd_lowrank(rows, rank)
    return values.square() / len(rows), directions


class Novelty(nn.Module):
    r"""Share of held-out rows that lie less far off than x: 0.5 at their median, towards 1 outside.

    Beyond the last few rows the share follows a tail that is slower than any data tell,
    :math:`1 - p_u / (1 + (t - u) / s)`, so that far inputs stay in order.

    Args:
        config: "columns" of the inputs that are read, "inputs" and "features" with sizes, classes
            and rank of each distance, or ``None``; "knots", their number.
    """

    inputs: Distance | None
    features: Distance | None
    units: Tensor
    knots: Tensor
    levels: Tensor
    tail: Tensor

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.columns = [int(column) for column in config["columns"]]
        for name in ("inputs", "features"):
            sizes = config[name]
            setattr(self, name, None if sizes is None else Distance(*map(int, sizes)))
        self.register_buffer("units", torch.zeros(2, 2))  # median, and upper decile less median
        for name in ("knots", "levels"):
            self.register_buffer(name, torch.zeros(int(config["knots"])))
        self.register_buffer("tail", torch.ones(1))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move it, but stay in float32 at least: variances and tails need its range and digits."""
        return super()._apply(lambda tensor: _wide(fn(tensor), tensor), recurse)

    def check(self, numbers: int) -> None:
        """Raise a ValueError unless it can read inputs of so many numbers."""
        read = 0 if self.inputs is None else self.inputs.sizes[0]
        known = set(range(numbers))
        if len(self.columns) != read or not known.issuperset(self.columns) or len(self.knots) < 2:
            raise ValueError(f"a novelty of {read} columns does not fit inputs of {numbers}")

    def distance(self, x: Tensor, features: Tensor | None) -> Tensor:
        """The larger of both distances in units of held-out rows, ``(N,)``."""
        return _larger([part(rows) for part, rows in self._parts(x, features)], self.units)

    def _parts(self, x: Tensor, features: Tensor | None) -> list[tuple[Any, Any]]:
        read = x.flatten(1)
        if len(self.columns) < read.shape[1]:
            read = read[:, self.columns]
        both = [(self.inputs, read), (self.features, features)]
        return [(part, rows) for part, rows in both if part is not None]

    def forward(self, x: Tensor, features: Tensor | None) -> Tensor:
        """Novelty ``(N,)`` of inputs as the guide takes them, and the features of its trunk."""
        t = self.distance(x, features)[:, None]
        low, high = self.knots[:-1], self.knots[1:]
        passed = ((t - low) / (high - low)).clamp(0, 1)
        below = (passed * (self.levels[1:] - self.levels[:-1])).sum(-1)
        beyond = (t[:, 0] - self.knots[-1]).clamp_min(0) / self.tail
        return below + (1 - self.levels[-1]) * (beyond / (1 + beyond))


def _wide(moved: Tensor, tensor: Tensor) -> Tensor:
    """A tensor where it was moved to, without loss of digits if it was moved to fewer."""
    coarse = moved.dtype in (torch.float16, torch.bfloat16)
    return tensor.to(moved.device, torch.float32) if coarse else moved


def _larger(distances: Sequence[Tensor], units: Tensor) -> Tensor:
    """The largest of distances ``(N,)``, each in its units."""
    scaled = [(d - u[0]) / u[1] for d, u in zip(distances, units, strict=False)]
    return torch.stack(scaled).amax(0)


def answer_and_features(guide: nn.Module, x: Tensor) -> tuple[Any, Tensor | None]:
    """What a guide answers at ``x``, and in the same pass the features ``(N, F)`` of its trunk.

    The guide is not touched, so that several threads may ask at once. The features are ``None`` of
    a guide without a ``trunk`` that gives some.
    """
    marginal = marginal_of(guide)
    trunk = getattr(marginal, "trunk", None)
    if not isinstance(trunk, nn.Module):
        return as_answer(guide(x)), None
    keeps, heard = _Keeps(trunk), copy.copy(marginal)
    heard._modules = {**marginal._modules, "trunk": keeps}
    answer, features = as_answer(heard(x)), keeps.features
    if not isinstance(features, Tensor) or not features.is_floating_point():
        return answer, None
    fits = features.ndim > 1 and features.shape[0] == x.shape[0]
    return answer, features.flatten(1) if fits else None


class _Keeps(nn.Module):
    """A trunk that keeps what it gave last."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk
        self.features: Any = None

    def forward(self, *args: object, **kwargs: object) -> Any:
        self.features = self.trunk(*args, **kwargs)
        return self.features


@torch.no_grad()
def fit_novelty(guide: nn.Module, x: Tensor, indices: Sequence[int] = ()) -> Novelty | None:
    """Fit to rows of ``x`` ``(N, *input_shape)``, on the device of the guide.

    Every row is held out once: its distance is that to the density of the other parts, so that all
    rows calibrate. ``indices`` are columns that hold an index and are not read as numbers. ``None``
    where there is nothing to read, or fewer than four rows.
    """
    weight = next(guide.parameters(), x)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    order = order[: min(MOST_ROWS, max(64, MOST_NUMBERS // x[0].numel()))]
    x = in_dtype_of(guide, x[order.to(x.device)].to(weight.device))
    columns = [column for column in range(x[0].numel()) if column not in set(indices)]
    seen = [_seen(guide, rows) for rows in x.split(BLOCK)]
    labels = torch.cat([each for each, _ in seen])
    features = [each for _, each in seen if each is not None]
    parts = {
        "inputs": (x.flatten(1)[:, columns], torch.zeros_like(labels)) if columns else None,
        "features": (torch.cat(features), labels) if features else None,
    }
    known = {name: part for name, part in parts.items() if part is not None}
    if not known or len(x) < 4:
        return None
    folds = torch.arange(len(x), device=x.device) % FOLDS
    distances = []
    for rows, classes in known.values():
        apart = rows.new_zeros(len(rows), dtype=torch.float32)
        for fold in folds.unique():
            out = folds == fold
            apart[out] = Distance.fitted(rows[~out], classes[~out])(rows[out]).float()
        distances.append(apart)
    middle, upper = (torch.stack([d.quantile(q) for d in distances]) for q in (0.5, 0.9))
    units = torch.stack([middle, (upper - middle).clamp_min(1e-6)], 1)
    knots, levels, tail = _calibrated(_larger(distances, units).double())
    fitted = {name: Distance.fitted(*part) for name, part in known.items()}
    sizes: dict[str, Any] = {name: None for name in parts}
    sizes |= {name: list(part.sizes) for name, part in fitted.items()}
    novelty = Novelty({"columns": columns, "knots": len(knots), **sizes}).to(weight.device)
    for name, part in fitted.items():
        getattr(novelty, name).load_state_dict(part.state_dict())
    novelty.units[: len(units)] = units
    for name, value in {"knots": knots, "levels": levels, "tail": tail}.items():
        getattr(novelty, name).copy_(value)
    return novelty.requires_grad_(False).eval()


def _seen(guide: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Predicted classes ``(N,)``, 0 where there are none, and features."""
    answer, features = answer_and_features(guide, x)
    if answer.num_classes is None:
        return torch.zeros(len(x), dtype=torch.long, device=x.device), features
    return answer.mean.argmax(-1), features


def _calibrated(held_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Knots and levels of the distribution of held-out distances ``(M,)``, and the tail's scale."""
    last = min(0.5, TAIL_ROWS / len(held_out))
    some = [k / 20 for k in range(19)] + [1 - 0.1 / 1.5**k for k in range(20)]
    levels = held_out.new_tensor([*(each for each in some if each < 1 - last - 1e-9), 1 - last])
    knots = held_out.quantile(levels)
    gaps = (1e-6 * (1 + knots.abs())).cumsum(0)  # rows may be alike
    knots = knots + gaps
    beyond = held_out[held_out > knots[-1]]
    spread = (knots[-1] - held_out.median()).clamp_min(1e-6) / 4
    tail = (beyond - knots[-1]).median() if len(beyond) else spread
    return knots, levels, tail.clamp_min(0.1 * spread)[None]
