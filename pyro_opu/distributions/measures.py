"""Measures of uncertainty: closed forms, from moments, or estimated from draws.

The formulas, and what is estimated, are in ``pyro_opu.metrics.uncertainty``, the public face.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, check_probs, check_tensor

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801
        """Kept once read; functools has a lock in Python 3.11, which torch.compile cannot enter."""

        def __init__(self, func: Callable[[Any], Any]) -> None:
            self.func, self.__doc__ = func, func.__doc__

        def __get__(self, owner: Any, kind: object = None) -> Any:
            if owner is None:
                return self
            value = owner.__dict__[self.func.__name__] = self.func(owner)
            return value


__all__ = [
    "ClassMeasures",
    "DirichletMeasures",
    "DrawMeasures",
    "Measures",
    "NormalMeasures",
    "SimplexMeasures",
]


class Measures:
    """Measures of one answer, one number per input (the mean: what it is a mean of).

    Attributes:
        kind: "classes" or "real", as of a teacher.
        units: Name of each measure -> its unit.
        usual: Names of those that a file has by default.
        dtype: What they are rounded to; they are computed in float64 where classes are concerned.
    """

    kind: ClassVar[str] = "classes"
    units: ClassVar[dict[str, str]]
    usual: tuple[str, ...]
    dtype: torch.dtype

    def rounded(self, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """The measures of these names, by default all, in the answer's dtype."""
        return {name: getattr(self, name).to(self.dtype) for name in names or self.units}


class NormalMeasures(Measures):
    """Mean and variances of a real y, ``(N,)`` each, in the answer's precision."""

    kind = "real"
    units: ClassVar[dict[str, str]] = {
        "mean": "units of y",
        "total": "units of y squared",
        "aleatoric": "units of y squared",
        "epistemic": "units of y squared",
    }
    usual = tuple(units)

    def __init__(self, mean: Tensor, aleatoric: Tensor, epistemic: Tensor) -> None:
        self.dtype = mean.dtype
        self.mean, self.aleatoric, self.epistemic = mean, aleatoric, epistemic
        self.total = aleatoric + epistemic


class ClassMeasures(Measures):
    """What all measures of class probabilities share."""

    units: ClassVar[dict[str, str]] = {
        "mean": "probability",
        "concentration": "pseudo-counts",
        "total": "nats",
        "aleatoric": "nats",
        "epistemic": "nats",
        "expected_pairwise_kl": "nats",
        "variance": "probability squared",
        "max_probability": "probability",
        "differential_entropy": "nats",
    }
    usual = ("mean", "concentration", "epistemic")
    mean: Tensor
    log_mean: Tensor

    @cached_property
    def total(self) -> Tensor:
        return -(self.mean * self.log_mean).sum(-1)

    @property
    def max_probability(self) -> Tensor:
        return self.mean.amax(-1)

    @property
    def concentration(self) -> Tensor:
        """Concentration of the Dirichlet with this mean and variance; infinite without spread."""
        raise NotImplementedError

    @property
    def differential_entropy(self) -> Tensor:
        """Minus infinity where there is no density."""
        raise NotImplementedError


class DirichletMeasures(ClassMeasures):
    """Closed forms; every property is float64 and of the batch shape."""

    def __init__(self, log_mean: Tensor, log_concentration: Tensor) -> None:
        self.dtype = log_mean.dtype
        self._given = log_mean, log_concentration

    @cached_property
    def log_mean(self) -> Tensor:  # type: ignore[override]
        """Logarithm of the mean, normalised again, as float32 rows sum to 1 within 1e-7 only."""
        return self._given[0].log_softmax(-1, dtype=torch.float64)

    @cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        return self.log_mean.exp()

    @cached_property
    def log_alpha_0(self) -> Tensor:
        return self._given[1].double()

    @cached_property
    def epistemic(self) -> Tensor:
        """By a table where it is rounded to float32, which errs by less than that rounding."""
        exact = self.dtype == torch.float64
        return self._information(_digamma_gap if exact else _tabulated_gap)

    def _information(self, gap: Callable[[Tensor], Tensor]) -> Tensor:
        log_mean = torch.constant_pad_nd(self.log_mean, (0, 1))  # and of all classes
        found = gap(log_mean + self._given[1].unsqueeze(-1))
        return (torch.constant_pad_nd(self.mean, (0, 1), -1.0) * found).sum(-1).clamp(min=0.0)

    @property
    def aleatoric(self) -> Tensor:
        """Without a table, as little may be left of the total."""
        return (self.total - self._information(_digamma_gap)).clamp(min=0.0)

    @property
    def expected_pairwise_kl(self) -> Tensor:
        return (self.mean.shape[-1] - 1) * (-self.log_alpha_0).exp()

    @property
    def variance(self) -> Tensor:
        return -(self.mean * self.log_mean.expm1()).sum(-1) / (self.concentration + 1.0)

    @property
    def differential_entropy(self) -> Tensor:
        return in_float64(self.log_mean, self.log_alpha_0).entropy()

    @property
    def concentration(self) -> Tensor:
        return self.log_alpha_0.exp()


class SimplexMeasures(ClassMeasures):
    r"""The measures that follow from four moments, exact where these are.

    .. math::
        \text{epistemic} = H[m] - \mathrm{E} H[\pi], \quad
        \mathrm{E}\,KL(\pi\,\|\,\pi') = -\mathrm{E} H[\pi] - \sum_k m_k\, \mathrm{E}\log\pi_k, \quad
        \alpha_0 = \frac{1 - \sum_k m_k^2 - v}{v}

    Args:
        dtype: What a caller rounds to.
        log_mean: :math:`\log m`, ``(N, C)``.
        aleatoric: :math:`\mathrm{E} H[\pi]`, ``(N,)``.
        variance: :math:`v = \sum_k \mathrm{Var}\,\pi_k`, ``(N,)``.
        expected_log: :math:`\mathrm{E}\log\pi_k`, ``(N, C)``; may be minus infinity.
        differential_entropy: Called for it when asked; ``None`` where there is no density.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        log_mean: Tensor,
        aleatoric: Tensor,
        variance: Tensor,
        expected_log: Tensor,
        differential_entropy: Callable[[], Tensor] | None = None,
    ) -> None:
        self.dtype = dtype
        self.log_mean = log_mean.double().log_softmax(-1)
        self.mean = self.log_mean.exp()
        self.variance = variance.double().clamp(min=0.0)
        self.aleatoric = aleatoric.double().clamp(min=0.0)
        self._expected_log = expected_log.double()
        self._entropy = differential_entropy

    @property
    def epistemic(self) -> Tensor:
        return (self.total - self.aleatoric).clamp(min=0.0)

    @property
    def expected_pairwise_kl(self) -> Tensor:
        cross = -(self.mean * self._expected_log).sum(-1)
        return (cross - self.aleatoric).clamp(min=0.0)

    @property
    def concentration(self) -> Tensor:
        within = -(self.mean * self.log_mean.expm1()).sum(-1) - self.variance
        return torch.where(self.variance > 0, within.clamp(min=0.0) / self.variance, torch.inf)

    @property
    def differential_entropy(self) -> Tensor:
        if self._entropy is None:
            return torch.full_like(self.variance, -torch.inf)
        return self._entropy().double()


class DrawMeasures(ClassMeasures):
    """Estimates from draws ``(S, N, C)``; every property is float64 and of shape (N,)."""

    def __init__(self, draws: Tensor) -> None:
        _check_draws(draws)
        self.draws = at_least_float32(draws)
        self.dtype = self.draws.dtype

    @property
    def count(self) -> int:
        """S, of at least two draws, for a measure of how they differ."""
        if len(self.draws) < 2:
            raise ArgumentError(
                "`source` must hold at least 2 draws (S, N, C) for a measure of their spread; got "
                f"shape {tuple(self.draws.shape)}. Draw more, or ask for total_uncertainty, "
                "aleatoric_uncertainty or max_probability."
            )
        return len(self.draws)

    def _mean_over_draws(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Average of a function of points, in float64 blocks that stay in cache (2 MB)."""
        first, *rest = self.draws.split(max(1, 2**18 // max(1, self.draws[0].numel())))
        total = function(first.double()).sum(0)
        for block in rest:
            total = total + function(block.double()).sum(0)
        return total / len(self.draws)

    @cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        return self._mean_over_draws(lambda p: p)

    @cached_property
    def total(self) -> Tensor:
        return torch.special.entr(self.mean).sum(-1)

    @cached_property
    def aleatoric(self) -> Tensor:
        return self._mean_over_draws(lambda p: torch.special.entr(p).sum(-1))

    @property
    def epistemic(self) -> Tensor:
        _ = self.count
        return (self.total - self.aleatoric).clamp(min=0.0)

    @cached_property
    def mean_log(self) -> Tensor:
        """Average logarithm of the probabilities, raised to the smallest normal number."""
        tiny = torch.finfo(self.dtype).tiny
        return self._mean_over_draws(lambda p: p.clamp(min=tiny).log())

    @cached_property
    def within(self) -> Tensor:
        """Average variance of the label's indicators under a draw."""
        return self._mean_over_draws(lambda p: (p * (1.0 - p)).sum(-1))

    @property
    def expected_pairwise_kl(self) -> Tensor:
        count = self.count
        cross_entropy = -(self.mean * self.mean_log).sum(-1)
        return ((cross_entropy - self.aleatoric) * count / (count - 1)).clamp(min=0.0)

    @cached_property
    def variance(self) -> Tensor:
        count = self.count
        square = self._mean_over_draws(lambda p: (p - self.mean).square().sum(-1))
        return square * (count / (count - 1))

    @cached_property
    def concentration(self) -> Tensor:
        return torch.where(self.variance > 0, self.within / self.variance, torch.inf)

    @property
    def differential_entropy(self) -> Tensor:
        alpha_0, log_mean = self.concentration, self.mean.log()
        value = in_float64(log_mean, alpha_0.log()).entropy()
        return torch.where((alpha_0 > 0) & alpha_0.isfinite(), value, -torch.inf)


HALF = (torch.float16, torch.bfloat16)


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor, in float32 if it is in half precision."""
    return x.float() if x.dtype in HALF else x


def point_moments(logs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The moments that :class:`SimplexMeasures` takes, of equally likely points ``(P, n, C)``."""
    points = logs.exp()
    return (
        logs.logsumexp(0) - math.log(len(logs)),
        -(points * logs).sum(-1).mean(0),
        points.var(0, correction=0).sum(-1),
        logs.mean(0),
    )


def in_float64(log_mean: Tensor, log_concentration: Tensor) -> torch.distributions.Dirichlet:
    """The ordinary Dirichlet of these logarithms; a component that underflows is raised."""
    log_alpha = log_mean.double() + log_concentration.double().unsqueeze(-1)
    alpha = log_alpha.exp().clamp(min=torch.finfo(torch.float64).tiny)
    return torch.distributions.Dirichlet(alpha, validate_args=False)


_LOG_SERIES_FROM = 3.5  # a = 33


def _digamma_gap(log_a: Tensor) -> Tensor:
    """``digamma(a + 1) - log(a)``, positive, without the cancellation at large ``a``."""
    inverse = (-log_a).clamp(max=-_LOG_SERIES_FROM).exp()
    square = inverse * inverse
    # The next term, 1 / (132 a^10), is below 1e-17 here.
    series = inverse / 2 - square * (
        1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240))
    )
    direct = torch.digamma(log_a.clamp(max=_LOG_SERIES_FROM).exp() + 1.0) - log_a
    return torch.where(log_a > _LOG_SERIES_FROM, series, direct)


#: Cubics of the table of the gap per unit of log a, and from where to where.
_PER_UNIT, _FROM, _TO = 32, -20, 44


def _tabulated_gap(log_a: Tensor) -> Tensor:
    """:func:`_digamma_gap` by one look-up, float64: relatively off by at most 3e-9."""
    cubics = _cubics(log_a.device)
    place = (log_a - _FROM) * _PER_UNIT
    cell = place.long().clamp(0, len(cubics) - 1)
    start, slope, bend, twist = torch.embedding(cubics, cell).unbind(-1)
    t = place - cell
    return torch.addcmul(start, t, torch.addcmul(slope, t, torch.addcmul(bend, t, twist)))


@cache
@torch.inference_mode(mode=False)
def _cubics(device: torch.device) -> Tensor:
    """Coefficients ``(cells, 4)`` by values and slopes at the ends of a cell, float64.

    Below the first the gap is minus log a but for a constant, and beyond the last it is none.
    """
    cells = (_TO - _FROM) * _PER_UNIT
    nodes = torch.arange(-3, cells + 4, dtype=torch.float64) / _PER_UNIT + _FROM
    at = _digamma_gap(nodes).unfold(0, cells + 1, 1)
    slope = (45 * (at[4] - at[2]) - 9 * (at[5] - at[1]) + at[6] - at[0]) / 60  # to the sixth order
    value, up = at[3], at[3].diff()
    bend, twist = 3 * up - 2 * slope[:-1] - slope[1:], slope[:-1] + slope[1:] - 2 * up
    found = torch.stack([value[:-1], slope[:-1], bend, twist], -1)
    found[0, 1:] = found.new_tensor([-1.0 / _PER_UNIT, 0.0, 0.0])
    found[-1, 1:] = 0.0
    return found.to(device)


def _check_draws(draws: Tensor) -> None:
    check_tensor("source", draws, "(S, N, C)")
    if not draws.is_floating_point() or draws.dim() != 3 or draws.shape[-1] < 2 or not len(draws):
        raise ArgumentError(
            "`source` must be draws (S, N, C) on the simplex, C >= 2; got shape "
            f"{tuple(draws.shape)}, {draws.dtype}. Add the missing axis with unsqueeze, or pass "
            "return_sites=('probs',) to Predictive."
        )
    if draws.numel():
        check_probs("source", draws, "(S, N, C)")
