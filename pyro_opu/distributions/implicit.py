"""Laws without a density: their draws are what a network makes of noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_opu.distributions.counts import PredictiveCount
from pyro_opu.distributions.dirichlet import SimplexDistribution
from pyro_opu.distributions.empirical import Empirical
from pyro_opu.distributions.measures import SimplexMeasures, in_float64, point_moments
from pyro_opu.distributions.normal import Components, PredictiveNormalMixture
from pyro_opu.distributions.table import Part, TableAnswer, by_part
from pyro_opu.rng import drawing

__all__ = ["FromNoise", "Implicit", "ImplicitTable"]

#: What a law without a density is asked for in vain, and what has one.
NO_DENSITY = (
    "a guide from noise gives draws and their moments, and no density. Call .matched() for the "
    'Dirichlet with its moments, or distil guide="mixture" or guide="logistic_normal".'
)
#: Logarithm of a variance that is none.
NO_VARIANCE = -60.0


class FromNoise:
    """What a network makes of standard normal noise at N rows.

    Args:
        make: Noise ``(S, N, D)``, or ``(S, 1, D)`` for all rows alike, -> values ``(S, N, ...)``,
            or a list of them.
        points: The fixed noise ``(P, D)`` that moments are averages over.
        rows: N.
    """

    def __init__(self, make: Callable[[Tensor], Any], points: Tensor, rows: int) -> None:
        self.make, self.points, self.rows = make, points, rows

    def fixed(self) -> Any:
        """Values ``(P, N, ...)`` at the fixed noise, the same at every call."""
        return self.make(self.points[:, None])

    def fresh(self, count: int) -> Any:
        """Values ``(S, N, ...)`` at new noise, of every row by itself."""
        noise = self.points.new_empty(self.rows, self.points.shape[1], count)
        with drawing(noise.device) as generator:
            noise.normal_(generator=generator)
        return self.make(noise.permute(2, 0, 1))


class PointMeasures(SimplexMeasures):
    """Measures of points that stand for a law whose density is unknown."""

    @property
    def differential_entropy(self) -> Tensor:
        """Entropy of the Dirichlet with the same moments."""
        value = in_float64(self.log_mean, self.concentration.log()).entropy()
        return torch.where(self.concentration.isfinite(), value, -torch.inf)


class Implicit(Empirical):
    r"""What a network makes of noise: any law of class probabilities that can be drawn from.

    .. math:: \pi = G(x, \epsilon), \qquad \epsilon \sim N(0, I_D)

    Draws are from new noise. Moments and :meth:`measures` are averages over P fixed points of
    noise, so that the same input has the same answer: they are off by what P quasi-random points
    leave. There is no density.

    Args:
        source: What gives normalised log-probabilities ``(S, N, C)``.
        num_inputs: N.
        num_classes: C.

    References:
        Mohamed and Lakshminarayanan (2016), Learning in implicit generative models.
    """

    def __init__(self, source: FromNoise, num_inputs: int, num_classes: int) -> None:
        SimplexDistribution.__init__(self, num_inputs, num_classes)
        self.source: FromNoise | None = source

    @lazy_property
    def log_points(self) -> Tensor:  # type: ignore[override]
        """Log-probabilities at the fixed noise, ``(P, N, C)``."""
        assert self.source is not None
        return self.source.fixed()

    def log_rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Logarithms of draws, ``(*sample_shape, N, C)``, with pathwise gradients."""
        if self.source is None:
            return super().log_rsample(sample_shape)
        shape = torch.Size(sample_shape)
        draws = self.source.fresh(shape.numel())
        return draws.reshape(*shape, *self.batch_shape, *self.event_shape)

    def measures(self) -> SimplexMeasures:
        """Averages over the fixed points; the entropy of a density is that of ``matched``."""
        return PointMeasures(self.log_points.dtype, *point_moments(self.log_points.double()))

    def log_prob(self, value: Tensor) -> Tensor:
        """Refused: there is no density."""
        raise NotImplementedError(f"`log_prob` needs a density: {NO_DENSITY}")

    def unflatten(self, shape: Sequence[int]) -> Implicit:
        return self.from_tensors({"log_points": self.log_points.unflatten(1, shape)})

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Any:
        """The law that the fixed points alone make: its draws are chosen from them at random."""
        found, points = cls.__new__(cls), tensors["log_points"]
        TorchDistribution.__init__(found, points.shape[1:-1], points.shape[-1:], False)
        found.source, found.log_points = None, points
        return found


class ImplicitTable(TableAnswer):
    """Several numbers of every row that depend on one another, from one noise for all of a row.

    A draw is what a posterior draw says of the row: probabilities of labels, mean and log deviation
    of the others. ``answers`` are the marginals, by the fixed points of noise.

    Args:
        parts: The observed sites.
        source: What gives a list of draws ``(S, N L, width)``, one for each part; of labels in
            logarithms.
        scale: Units of the K numbers, ``(K,)``, in which draws are compared.
        trials: How many, ``(N L,)``, of each part of that kind, ``None`` of the others.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        source: FromNoise,
        scale: Tensor,
        trials: Sequence[Tensor | None],
    ) -> None:
        self.parts, self.trials = tuple(parts), tuple(trials)
        self.source, self.scale = source, scale
        self.batch_shape = torch.Size([source.rows])
        self.event_shape = torch.Size([sum(part.columns for part in parts)])

    @lazy_property
    def answers(self) -> tuple[Any, ...]:  # type: ignore[override]
        """Marginals of each part, batch shape ``(N L,)``."""
        fixed = self.source.fixed()
        return tuple(self._marginal(number, values) for number, values in enumerate(fixed))

    def _marginal(self, number: int, values: Tensor) -> Any:
        """The law of a part, whose values at the fixed noise are ``(P, N L, width)``."""
        part, source = self.parts[number], self.source
        if part.on_simplex:
            own = FromNoise(lambda noise: source.make(noise)[number], source.points, source.rows)
            found = Implicit(own, values.shape[1], part.width)
            found.log_points = values
            return found
        mean, log_variance = values[..., 0].T, 2 * values[..., 1].T
        if part.kind == "real":
            weights = torch.full_like(mean, -math.log(len(values)))
            none = torch.full_like(mean, NO_VARIANCE)
            mixture = Components(weights, mean, log_variance, none)
            return PredictiveNormalMixture(mixture, validate_args=False)
        average = log_variance.logsumexp(-1) - math.log(len(values))
        epistemic = mean.var(-1, correction=0).clamp_min(math.exp(NO_VARIANCE))
        return PredictiveCount(mean.mean(-1).log(), average, epistemic.log())

    def said(self, count: int) -> Tensor:
        """Draws ``(S, N, K)`` in a teacher's form, with pathwise gradients."""
        pairs = zip(self.parts, self.source.fresh(count), strict=True)
        plain = [each.exp() if part.on_simplex else each for part, each in pairs]
        return torch.cat([each.reshape(count, self.source.rows, -1) for each in plain], -1)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws ``(*sample_shape, N, K)`` in the units in which they are compared."""
        shape = torch.Size(sample_shape)
        return self.comparable(self.said(shape.numel())).reshape(*shape, self.source.rows, -1)

    def comparable(self, draws: Tensor) -> Tensor:
        return draws / self.scale

    def matched(self) -> TableAnswer:
        """Families with the moments of every number, independent of one another."""
        return TableAnswer(self.parts, [each.matched() for each in self.answers], self.trials)

    def draw(self, count: int, parameters: bool) -> list[tuple[Tensor, Any]]:
        """See its base; one draw is all numbers of a row."""
        values = by_part(self.said(count), self.parts)
        each = zip(self.parts, values, self.trials, strict=True)
        return [_observed(part, of_part, trials) for part, of_part, trials in each]


def _observed(part: Part, values: Tensor, trials: Tensor | None) -> tuple[Tensor, Tensor]:
    """What is observed ``(S, N L)`` under draws ``(S, N L, width)``, and its parameters."""
    with drawing(values.device) as generator:
        if trials is not None:
            p = values[..., 1].contiguous()
            return torch.binomial(trials.expand_as(p).contiguous(), p, generator), p
        if part.on_simplex:
            labels = torch.multinomial(values.flatten(0, 1), 1, generator=generator)
            return labels.reshape(len(values), -1), values
        mean, log_scale = values.unbind(-1)
        if part.kind == "real":
            noise = torch.empty_like(mean).normal_(generator=generator)
            return mean + log_scale.exp() * noise, mean
    none = torch.full_like(mean, NO_VARIANCE)
    return PredictiveCount(mean.log(), 2 * log_scale, none).predict(1)[0][0], mean
