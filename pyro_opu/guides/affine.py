r"""Closed forms: where every draw is affine in the floating inputs, for each value of the indices.

Then the moments of what a draw says of a row are those of its coefficients, and so are the answers:

.. math::
    \eta_s(x, g) = b_s(g)^\top (1, x), \qquad
    \mathbb{E}\,\eta = \bar b(g)^\top (1, x), \quad
    \operatorname{Var} \eta = (1, x)^\top \Sigma(g)\, (1, x)

Logits of varying intercepts and slopes are so, and log rates and means of crossed groups, whatever
the latents behind them do: a scale times an offset is one coefficient. So are means and log rates
of a posterior over the last layer of a network, in what the network computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyro_opu.distributions.normal_logits import LEAST
from pyro_opu.guides.affine_parts import kind_of
from pyro_opu.guides.beginning import NoBeginning, are_few, evenly
from pyro_opu.guides.moments import MomentsTrunk
from pyro_opu.guides.networks import SET_UP, Perceptron, Standardize, in_blocks
from pyro_opu.guides.operations import Operations
from pyro_opu.guides.recorded import Recorded
from pyro_opu.inputs import Form
from pyro_opu.parts import Part, by_part
from pyro_opu.utils.chunks import chunks

__all__ = ["Affine", "AffineTrunk", "check_affine", "find_affine"]

#: Floating columns, numbers in a table, and numbers in all draws at the rows that are asked about,
#: at most; rows that are looked at first.
MOST_COLUMNS, MOST_TABLE, MOST_ASKED, LOOKED = 256, 2**21, 2**28, 32
#: Between rows at which coefficients are checked: a prime, so that they are others than in order.
STRIDE = 7919
#: Error of what is taken for affine, which is rounding: as a share of one, or of the deviation of a
#: real y, and of how far a number is from the mean; of a probability, where a logit has no digits;
#: and as a share of the number itself.
ROUNDING, ROUNDING_OF_PROBS, DIGITS = 3e-4, 1e-5, 1e-6
#: What the draws say of a row, ``(S, N, K)``; logarithms of probabilities.
Asked = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Affine:
    """Coefficients of all draws, by their moments.

    Attributes:
        parts: What is observed; a label is a part by itself.
        kinds: What :func:`.kind_of` takes, of each.
        indices: Pairs of a column that holds an index, and its values.
        standardize: What centres and scales the F other columns.
        mean: ``(G, A, F + 1)`` for G combinations of indices and A affine numbers, the constant
            last.
        factor: ``(G, F + 1, A, F + 1)``, whose squares sum to the variance.
        network: What computes the columns from the inputs; ``None`` where they are inputs.
    """

    parts: tuple[Part, ...]
    kinds: tuple[str, ...]
    indices: list[tuple[int, tuple[int, ...]]]
    standardize: Standardize
    mean: Tensor
    factor: Tensor
    network: Recorded | None = None

    def describe(self, x: Tensor) -> dict[str, Any]:
        """The config of the trunk that begins so, at inputs like x."""
        groups, outputs, size = self.mean.shape
        indices = [[column, list(values)] for column, values in self.indices]
        config = {
            "kind": AffineTrunk.kind,
            "input_shape": list(x.shape[1:]),
            "network": None if self.network is None else Operations.describe(self.network),
            "size": size - 1,
            "outputs": outputs,
            "rank": self.factor.shape[1],
            "hidden": [32, 32],
            "groups": groups,
            "numbers": [
                [kind, part.columns, part.width]
                for kind, part in zip(self.kinds, self.parts, strict=True)
            ],
        }
        return config if self.network is not None else {**config, "indices": indices}

    def in_units(self, shifts: Sequence[Tensor], scales: Sequence[Tensor]) -> Affine:
        """Real numbers in the units of a guide, one shift ``(L,)`` and scale for each part."""
        mean, factor, place = self.mean.clone(), self.factor.clone(), 0
        for part, kind, shift, scale in zip(self.parts, self.kinds, shifts, scales, strict=True):
            count, unit = part.columns * kind_of(kind, part.width).reads, scale.double()
            values, noise = (slice(place + k, place + count, 2) for k in (0, 1))
            if part.kind == "real":
                mean[:, values, -1] -= shift.double()
            for own in (values, noise) if kind == "scale" else (values,) if kind == "real" else ():
                mean[:, own] /= unit[:, None]
                factor[:, :, own] /= unit[:, None]
            if kind == "real":
                mean[:, noise, -1] -= unit.log()
            place += count
        return replace(self, mean=mean, factor=factor)


def check_affine(x: Tensor, parts: Sequence[Part]) -> None:
    """Refuse inputs and outcomes that have no closed form, whatever the draws.

    Raises:
        NoBeginning: inputs of several axes, or many classes.
    """
    if x.ndim != 2:
        raise NoBeginning("inputs of several axes are not affine")
    for part in parts:
        if part.on_simplex and part.width > 2 and not are_few(part.width, 1):
            raise NoBeginning(f"logits of {part.width} classes have too many variances")


@torch.no_grad()
def find_affine(ask: Asked, x: Tensor, form: Form, parts: Sequence[Part]) -> Affine:
    """Moments of the coefficients, where every draw is affine; a few rows are tried first.

    Args:
        ask: The same draws at every call.
        x: Inputs ``(N, D)``.
        form: Says which columns hold an index.
        parts: What is observed; both have passed :func:`check_affine`.

    Raises:
        NoBeginning: it is not, or has too many coefficients.
    """
    kinds = tuple(str(part.kind) for part in parts)
    try:
        return _found(_Read(ask, tuple(parts), kinds), x, form)
    except NoBeginning:
        if "real" not in kinds:
            raise
    other = tuple("scale" if kind == "real" else kind for kind in kinds)
    return _found(_Read(ask, tuple(parts), other), x, form)


@dataclass(frozen=True)
class _Read:
    """Numbers of a row that may be affine."""

    ask: Asked
    parts: tuple[Part, ...]
    kinds: tuple[str, ...]

    def __call__(self, rows: Tensor) -> Tensor:
        """Logits, means, scales and log rates ``(S, N, A)``, in float64."""
        said, found = self.ask(rows), []
        for kind, values in zip(self.kinds, by_part(said, self.parts), strict=True):
            read = kind_of(kind, values.shape[-1]).read(values.double())
            found.append(read.reshape(len(said), len(rows), -1))
        return torch.cat(found, -1)

    def slices(self) -> list[tuple[Part, str, slice]]:
        """Which numbers are of each part."""
        found, place = [], 0
        for part, kind in zip(self.parts, self.kinds, strict=True):
            reads = kind_of(kind, part.width).reads
            found.append((part, kind, slice(place, place + part.columns * reads)))
            place = found[-1][-1].stop
        return found

    def check(self, found: Tensor, said: Tensor) -> None:
        """Refuse numbers ``(S, N, A)`` that are not what is said."""
        off, mean = (found - said).abs(), said.mean((0, 1))
        unit = torch.ones_like(mean)
        for _, kind, own in self.slices():
            if kind in ("real", "scale"):  # in units of y, which may lie far from 0
                f = slice(own.start, own.stop, 2)
                unit[f] = said[..., f].std((0, 1))
            if kind == "scale":
                unit[own.start + 1 : own.stop : 2] = mean[own.start + 1 : own.stop : 2]
        most = ROUNDING * (unit + (said - mean).abs()) + DIGITS * said.abs()
        for part, _, own in self.slices():
            wrong = off[..., own] > most[..., own]
            if part.on_simplex:
                one = int(part.width == 2)  # whose logit is above the first class's, which is 0
                mine, theirs = (
                    pad(each[..., own].unflatten(-1, (part.columns, -1)), (one, 0)).softmax(-1)
                    for each in (found, said)
                )
                wrong &= (mine - theirs)[..., one:].abs().flatten(-2) > ROUNDING_OF_PROBS
            if bool(wrong.any()) or not bool(said[..., own].isfinite().all()):
                raise NoBeginning(f"'{part.site or 'obs'}' is not affine in the inputs")


def _found(numbers: _Read, x: Tensor, form: Form) -> Affine:
    """:func:`find_affine` of these numbers."""
    indices, others = form.indices, form.index_columns
    floats = [column for column in range(x.shape[1]) if column not in others]
    groups, size = math.prod(len(values) for _, values in indices), len(floats) + 1
    outputs = numbers.slices()[-1][-1].stop
    if size > MOST_COLUMNS or groups * outputs * size**2 > MOST_TABLE:
        raise NoBeginning("it would have too many coefficients")
    for part in numbers.parts:
        if part.on_simplex and part.width > 2 and not are_few(part.width, size):
            raise NoBeginning("its logits would have too many variances")
    draws = _check_lines(numbers, x, floats)
    if draws * groups * outputs * size > MOST_ASKED:
        raise NoBeginning("its coefficients would take too many evaluations")
    standardize = Standardize((len(floats),)).to(x.device)
    if floats:
        standardize.fit(x[:, floats], (0,))
    probes = pad(torch.eye(len(floats), dtype=torch.float64, device=x.device), (0, 0, 0, 1))
    at = x[:1].repeat(size, 1)
    at[:, floats] = standardize.inverse(probes).to(x.dtype)
    codes = _combinations(indices, x)
    moments: list[tuple[Tensor, Tensor]] = []
    for some in chunks(groups, draws, size * outputs):
        rows = at.repeat(len(codes[some]), 1)
        rows[:, others] = codes[some].repeat_interleave(size, 0)
        said = numbers(rows).unflatten(1, (-1, size)).movedim(2, -1)  # (S, g, A, F + 1)
        heads = torch.cat([said[..., :-1] - said[..., -1:], said[..., -1:]], -1)
        times = max(1, LOOKED // len(codes[some]))
        rows = x[torch.arange(times * len(codes[some]), device=x.device) * STRIDE % len(x)].clone()
        rows[:, others] = codes[some].repeat(times, 1)
        z = pad(standardize(rows[:, floats]).double(), (0, 1), value=1.0)
        z = z.unflatten(0, (times, -1))
        numbers.check(torch.einsum("sgad,tgd->stga", heads, z).flatten(1, 2), numbers(rows))
        moments.append(_moments(heads, numbers))
    mean, factor = (torch.cat(each) for each in zip(*moments, strict=True))
    return Affine(numbers.parts, numbers.kinds, indices, standardize, mean, factor)


def _combinations(indices: list[tuple[int, tuple[int, ...]]], x: Tensor) -> Tensor:
    """All combinations of values ``(G, I)``, the last index running fastest."""
    values = [torch.tensor(each, dtype=x.dtype, device=x.device) for _, each in indices]
    if not values:
        return x.new_zeros(1, 0)
    return torch.cartesian_prod(*values).reshape(-1, len(values))


def _check_lines(numbers: _Read, x: Tensor, floats: list[int]) -> int:
    """Refuse what bends on a line through two rows, as far beyond the second; returns S."""
    one, two = x[evenly(len(x), LOOKED)], x[evenly(len(x), LOOKED)].flip(0).clone()
    others = [column for column in range(x.shape[1]) if column not in floats]
    two[:, others] = one[:, others]
    three = two.clone()
    three[:, floats] = 2 * two[:, floats] - one[:, floats]
    first, second, third = numbers(torch.cat([one, two, three])).chunk(3, 1)
    numbers.check(2 * second - first, third)
    return len(first)


def _moments(heads: Tensor, numbers: _Read) -> tuple[Tensor, Tensor]:
    """Mean ``(g, A, F + 1)`` and factor ``(g, F + 1, A, F + 1)`` of coefficients, in float64.

    A log deviation that no input changes is given its mean square, whatever its distribution.
    """
    mean = heads.mean(0)
    centred = (heads - mean).movedim(0, -2)  # (g, A, S, F + 1)
    values, directions = torch.linalg.eigh(centred.mT @ centred / (len(heads) - 1))
    factor = (values.clamp_min(0).sqrt()[..., None, :] * directions).mT.movedim(-2, 1)
    for _, kind, own in numbers.slices():
        for number in range(own.start + 1, own.stop, 2) if kind == "real" else ():
            fixed = ~(heads[..., number, :-1].abs() > ROUNDING).any(-1).any(0)  # (g,)
            square = (2 * heads[..., number, -1]).exp().mean(0).log() / 2
            mean[fixed, number, :-1] = 0
            mean[fixed, number, -1] = square[fixed]
            factor[fixed, :, number] = 0
    return mean, factor


class AffineTrunk(MomentsTrunk):
    r"""What affine numbers with normal coefficients average to, in closed form.

    A logit is moderated (:func:`~pyro_opu.distributions.normal_logits.averaged_logit`), and its
    log concentration stands beside it; of several classes each by MacKay's factor, without it. A
    real y has its mean, :math:`\log \mathbb{E}\sigma^2` and
    :math:`\log \operatorname{Var} f`; a count :math:`\log \mathbb{E}\mu = m + v / 2`, the aleatoric
    variance over it, and :math:`\operatorname{Var} \mu / (\mathbb{E}\mu)^2 = e^v - 1`. The heads
    begin at these, and the small network learns what draws that are not normal add.

    Args:
        config: From :meth:`Affine.describe`.
    """

    kind = "affine"
    begins = "moments", "every draw is affine in the inputs, for each index"
    columns: Tensor

    def _build(self, config: dict[str, Any], size: int, hidden: tuple[int, ...]) -> None:
        self.numbers = [
            (kind_of(str(kind), int(width)), int(count)) for kind, count, width in config["numbers"]
        ]
        self.indexed = [
            (int(column), [*map(int, values)]) for column, values in config.get("indices", [])
        ]
        self.outputs, rank, groups = (int(config[name]) for name in ("outputs", "rank", "groups"))
        self.has_one_logit = config["numbers"] == [["classes", 1, 2]]
        self.is_closed_form = all(kind.is_whole for kind, _ in self.numbers)
        start, reason = self.begins
        if self.network is not None:
            reason = "every draw is affine in what a fixed network computes"
        self.begins = "closed form" if self.is_closed_form else start, reason
        self.beside = sum(count * kind.writes for kind, count in self.numbers)
        self.num_features = hidden[-1] + self.beside
        self.register_buffer("mean", torch.zeros(groups, self.outputs, size + 1))
        self.register_buffer("factor", torch.zeros(groups, rank, self.outputs, size + 1))
        held = {column for column, _ in self.indexed}
        floats = [k for k in range(size + len(held)) if k not in held]
        self.register_buffer("columns", torch.tensor(floats, dtype=torch.long))
        for number, (_, values) in enumerate(self.indexed):
            table = torch.zeros(max(values) + 1, dtype=torch.long)
            table[values] = torch.arange(len(values))
            self.register_buffer(f"place_{number}", table)
        small = Perceptron((size + 2 * self.outputs + self.beside,), hidden)
        self.scale, self.layers = small.standardize, small.layers
        self.scale.last = 2 * self.outputs + self.beside

    @torch.no_grad()
    def start_at(self, start: Any, x: Tensor) -> Tensor:
        """Begin there; returns heads ``(B', H + B + 1)``, whose last columns are biases."""
        self.update_moments(start)
        x = x[evenly(len(x), SET_UP)]
        x = x if self.keeps_digits else x.to(self.mean.dtype)
        self.scale.fit(in_blocks(lambda rows: torch.cat(self._read(rows)[0], -1), x), (0,))
        heads = torch.block_diag(*(kind.head for kind, count in self.numbers for _ in range(count)))
        return pad(heads, (self.num_features - self.beside, 1)).to(x.device, self.mean.dtype)

    @torch.no_grad()
    def update_moments(self, start: Any) -> None:
        """Take the coefficients of a posterior that has changed, if it has the same."""
        if not isinstance(start, Affine) or start.factor.shape != self.factor.shape:
            return
        if self.network is not None and start.network is not None:
            if not self.network.fits(start.network):
                return
            self.network.start_at(start.network.weights.values())
        elif self.network is not start.network:
            return
        self.standardize.load_state_dict(start.standardize.state_dict())
        self.mean.copy_(start.mean)
        self.factor.copy_(start.factor)

    def shaped(self, x: Tensor) -> Tensor:
        """Columns that hold no index, or what the network computes."""
        return x[:, self.columns] if self.network is None else self.network(x)

    def _code(self, x: Tensor) -> Tensor:
        """Number of the combination of indices of every row, ``(N,)``."""
        code: Any = 0
        for number, (column, values) in enumerate(self.indexed):
            table: Tensor = getattr(self, f"place_{number}")
            code = code * len(values) + table[x[:, column].long().clamp(0, len(table) - 1)]
        found: Tensor = code
        return found

    def moments_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Standardised floats ``(N, F)``, mean and variance of the affine numbers ``(N, A)``."""
        z = self.standardize(self.shaped(x))
        whole = torch.cat([self.mean[:, None], self.factor], 1)  # (G, 1 + F + 1, A, F + 1)
        if len(whole) == 1:
            weights = whole[0].flatten(0, 1)
            found = torch.addmm(weights[:, -1], z, weights[:, :-1].mT)
        else:
            weights = whole.flatten(1, 2)[self._code(x)]
            found = (weights[..., :-1] @ z[..., None]).squeeze(-1) + weights[..., -1]
        found = found.unflatten(-1, (-1, self.outputs))
        return z, found[:, 0], found[:, 1:].square().sum(1)

    def _read(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        z, mean, variance = self.moments_of(x)
        answers, place = [], 0
        for kind, count in self.numbers:
            own = slice(place, place + count * kind.reads)
            m, v = (each[:, own].unflatten(-1, (count, -1)) for each in (mean, variance))
            answers.append(kind.answer(m, v).flatten(1))
            place = own.stop
        plain = torch.cat(answers, -1)
        return [z.asinh(), mean.asinh(), variance.clamp_min(LEAST).log(), plain], plain
