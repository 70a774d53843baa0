"""Policies for inputs of any shape, read as vectors of features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Beta

from pyro_opu.checks import in_range, positive_float, positive_int
from pyro_opu.transfer.policy import TransferPolicy

__all__ = [
    "Box",
    "Differences",
    "Gaussian",
    "HeldOut",
    "Jitter",
    "Mixup",
    "Permute",
    "Recombine",
    "Seen",
    "Shuffle",
    "Stretch",
]

#: Rows whose neighbours are found, 2^22 distances, and numbers in them, 64 MB.
MOST_NEAR, NEAR_NUMBERS = 2**11, 2**24


@dataclass(frozen=True)
class HeldOut(TransferPolicy):
    """The transfer inputs as they are: rows of x, with replacement."""

    @property
    def made(self) -> str:
        return "rows of x"

    def _draw(self, n: int) -> Tensor:
        return self._rows(n)


@dataclass(frozen=True)
class Jitter(TransferPolicy):
    r"""Rows of x with Gaussian noise, some near the data and some far.

    .. math:: x_i + r\,s \odot \epsilon, \qquad \log r \sim U(\log min\_scale, \log scale)

    s is the standard deviation of each feature, :math:`\epsilon` standard normal, and r one number
    per row; ``min_scale`` is at most ``scale``.
    """

    scale: float = 1.0
    min_scale: float = 0.01

    def __post_init__(self) -> None:
        positive_float("scale", self.scale)
        in_range("min_scale", self.min_scale, 0, self.scale, "(]", "It is at most `scale`.")

    def _statistics(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "std": x.std(dim=0, correction=0)}

    def _draw(self, n: int) -> Tensor:
        rows = self._rows(n)
        size = self._factors(n, math.log(self.min_scale), math.log(self.scale))
        return rows + size * self.buffers["std"] * torch.randn_like(rows)


@dataclass(frozen=True)
class Mixup(TransferPolicy):
    r"""Points between two rows of x: :math:`w x_i + (1 - w) x_j` with :math:`w \sim Beta(a, a)`.

    ``alpha`` is a > 0; 1 is uniform along the segment, smaller stays nearer to its ends.

    References:
        Zhang, Cisse, Dauphin, Lopez-Paz. mixup: Beyond Empirical Risk Minimization. ICLR 2018.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        positive_float("alpha", self.alpha)

    def _draw(self, n: int) -> Tensor:
        x = self.buffers["x"]
        a = torch.tensor(self.alpha, dtype=torch.float32, device=x.device)  # Beta: no half
        weight = Beta(a, a).sample((n, *(1 for _ in x.shape[1:]))).to(x.dtype)
        return torch.lerp(self._rows(n), self._rows(n), weight)


@dataclass(frozen=True)
class Differences(TransferPolicy):
    r"""Rows of x moved along the difference of two other rows that are near to one another.

    .. math:: x_i + u\,(x_k - x_j), \qquad k \in \text{the nearest rows of } j, \quad u \sim U(0, 1)

    New rows differ from those of x as these do from one another, so students of networks are
    nearer to their teachers there. Distances are of features divided by their standard deviations,
    among up to 2,048 rows. ``neighbours`` says how many are near.

    References:
        Chawla, Bowyer, Hall, Kegelmeyer. SMOTE: Synthetic Minority Over-sampling Technique. JAIR
        2002, which moves a row along its own differences.
    """

    neighbours: int = 10

    def __post_init__(self) -> None:
        positive_int("neighbours", self.neighbours)

    def _statistics(self, x: Tensor) -> dict[str, Tensor]:
        most = min(len(x), MOST_NEAR, max(2, NEAR_NUMBERS // x[0].numel()))
        picked = torch.linspace(0, len(x) - 1, most, device=x.device).long()
        rows = x[picked].reshape(len(picked), -1).float()
        std, mean = torch.std_mean(rows, 0, correction=0)
        rows -= mean  # else a constant feature is endless in units of its deviation
        rows /= std.clamp_min(torch.finfo(rows.dtype).tiny)
        squares = torch.linalg.vector_norm(rows, dim=1).square()  # cdist copies the rows, twice
        apart = torch.addmm(squares[:, None] + squares, rows, rows.mT, alpha=-2)
        apart.fill_diagonal_(torch.inf)
        near = apart.topk(min(self.neighbours, max(1, len(rows) - 1)), largest=False).indices
        return {"x": x, "picked": picked, "near": picked[near]}

    def _draw(self, n: int) -> Tensor:
        rows, near, picked = self._rows(n), self.buffers["near"], self.buffers["picked"]
        first = torch.randint(len(near), (n,), device=rows.device)
        other = torch.randint(near.shape[1], (n,), device=rows.device)
        x = self.buffers["x"]
        part = torch.rand(n, *(1 for _ in x.shape[1:]), dtype=x.dtype, device=x.device)
        return rows + part * (x[near[first, other]] - x[picked[first]])


@dataclass(frozen=True)
class Stretch(TransferPolicy):
    r"""Rows of x moved along the line through the mean, inwards and outwards.

    .. math:: \bar x + r\,(x_i - \bar x), \qquad \log r \sim U(-\log factor, \log factor)

    In tables with heavy tails this teaches how a line through the data continues further out.
    ``factor`` is above 1.
    """

    factor: float = 4.0

    def __post_init__(self) -> None:
        in_range("factor", self.factor, 1, ends="()", advice="A factor of 1 is HeldOut().")

    def _statistics(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "mean": x.mean(dim=0)}

    def _draw(self, n: int) -> Tensor:
        rows, size = self._rows(n), math.log(self.factor)
        return torch.lerp(self.buffers["mean"], rows, self._factors(n, -size, size))


@dataclass(frozen=True)
class Box(TransferPolicy):
    """Uniform in the bounding box of x, each side moved outwards by ``expand`` widths."""

    expand: float = 0.1

    def __post_init__(self) -> None:
        in_range("expand", self.expand, 0)

    def _statistics(self, x: Tensor) -> dict[str, Tensor]:
        low, high = x.amin(dim=0), x.amax(dim=0)
        margin = self.expand * (high - low)
        return {"low": low - margin, "high": high + margin}

    def _draw(self, n: int) -> Tensor:
        low, high = self.buffers["low"], self.buffers["high"]
        place = torch.rand(n, *low.shape, dtype=low.dtype, device=low.device)
        return torch.lerp(low, high, place)


@dataclass(frozen=True)
class Shuffle(TransferPolicy):
    """The product of the marginals: every feature is drawn from its own column of x."""

    def _draw(self, n: int) -> Tensor:
        x = self.buffers["x"]
        columns = x.reshape(len(x), -1)
        picks = torch.randint(len(x), (n, columns.shape[1]), device=x.device)
        return columns.gather(0, picks).view(n, *x.shape[1:])


@dataclass(frozen=True)
class Recombine(TransferPolicy):
    r"""Rows of x with some features redrawn, each from its own column, few more often than many.

    A row redraws a share :math:`u^2`, u uniform, of its features. What asks one column at a time,
    as trees do, is so asked near the rows and at new combinations of their values.
    """

    def _draw(self, n: int) -> Tensor:
        rows, x = self._rows(n), self.buffers["x"]
        columns = x.reshape(len(x), -1)
        size = n, columns.shape[1]
        others = columns.gather(0, torch.randint(len(x), size, device=x.device))
        share = torch.rand(n, 1, device=x.device).square()
        redrawn = torch.rand(size, device=x.device) < share
        return torch.where(redrawn, others, rows.reshape(size)).view(rows.shape)


@dataclass(frozen=True)
class Gaussian(TransferPolicy):
    """A Gaussian blob with the mean and the enlarged standard deviation of each feature of x.

    Args:
        scale: Factor on the standard deviations.
        max_scale: At least ``scale``: every row then has a factor of its own, log-uniform between
            the two, so that a student learns what its teacher says however far away.
    """

    scale: float = 2.0
    max_scale: float | None = None

    def __post_init__(self) -> None:
        positive_float("scale", self.scale)
        if self.max_scale is not None:
            in_range("max_scale", self.max_scale, self.scale, advice="It is at least `scale`.")

    def _statistics(self, x: Tensor) -> dict[str, Tensor]:
        return {"mean": x.mean(dim=0), "std": x.std(dim=0, correction=0)}

    def _draw(self, n: int) -> Tensor:
        mean, std = self.buffers["mean"], self.buffers["std"]
        normal = torch.randn(n, *mean.shape, dtype=mean.dtype, device=mean.device)
        if self.max_scale is None:
            return mean + self.scale * std * normal
        return (
            mean + self._factors(n, math.log(self.scale), math.log(self.max_scale)) * std * normal
        )


@dataclass(frozen=True)
class Seen(TransferPolicy):
    """What another policy gives, with indices among those of x.

    A row whose indices the policy has left as they are in x keeps them; where one has become
    something else, all its indices are those of another row.

    Args:
        policy: Any policy.
        columns: Columns that hold an index.
        blanks: Columns whose value may be missing, the column that is then 1, and what stands for
            it, which no policy changes.
    """

    policy: TransferPolicy
    columns: Sequence[int]
    blanks: Sequence[tuple[int, int, float]] = ()

    @property
    def made(self) -> str:
        return self.policy.made

    @property
    def fitted(self) -> bool:
        """Whether the policy inside is."""
        return self.policy.fitted

    def fit(self, x: Tensor) -> Seen:
        """Fit the policy inside, and keep the indices."""
        found = super().fit(x)
        object.__setattr__(found, "policy", self.policy.fit(x))
        return found

    def _draw(self, n: int) -> Tensor:
        rows, x = self.policy.sample(n).clone(), self.buffers["x"]
        made_up = torch.zeros(n, dtype=torch.bool, device=rows.device)
        for column in self.columns:
            made_up |= ~torch.isin(rows[:, column], x[:, column])
        columns = list(self.columns)
        others = self._rows(n)
        rows[:, columns] = torch.where(made_up[:, None], others[:, columns], rows[:, columns])
        for value, missing, fill in self.blanks:
            rows[:, value] = rows[:, value].masked_fill(rows[:, missing] > 0.5, fill)
        return rows


@dataclass(frozen=True)
class Permute(TransferPolicy):
    """Rows of x with their features, which must share a scale, in a random order for each row."""

    def _draw(self, n: int) -> Tensor:
        rows = self._rows(n)
        flat = rows.reshape(n, -1)
        order = torch.rand(flat.shape, device=flat.device).argsort(dim=1)
        return flat.gather(1, order).view(rows.shape)
