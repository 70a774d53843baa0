r"""Real numbers and counts: draws are their mean :math:`f_s(x)` and :math:`\log\sigma_s(x)`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_opu.checks import ArgumentError
from pyro_opu.distributions import (
    PredictiveCount,
    PredictiveNormal,
    PredictiveNormalMixture,
    RealAnswer,
)
from pyro_opu.distributions.base import soft_clamp
from pyro_opu.distributions.implicit import NO_VARIANCE, FromNoise
from pyro_opu.distributions.normal import LOG_VARIANCES, Components
from pyro_opu.metrics.normals import teacher_moments
from pyro_opu.parts.base import Part, Words
from pyro_opu.parts.laws import NORMAL, has_moments, moments, of_counts
from pyro_opu.programs.sites import unwrap
from pyro_opu.rng import drawing
from pyro_opu.utils.laws import is_known

__all__ = ["CountPart", "MomentPart", "RealPart"]

#: Range of the logarithm of a count's mean.
LOG_MEANS = (-20.0, 20.0)


class MomentPart(Part):
    """Numbers whose draws are a mean and a deviation."""

    on_simplex = False
    answers = RealAnswer
    words = Words("means and scales", "a PredictiveNormal", "y", "the mean of y")
    noun = "number"
    site_kinds = ("value", "mean")
    extra = "mean"
    held_within = 0.0

    @property
    def width(self) -> int:
        return 2

    @property
    def event_shape(self) -> tuple[int, ...]:
        return ()

    @staticmethod
    def said(fn: Distribution) -> Tensor:
        mean, variance = moments(fn)
        return torch.stack([mean, variance.log() / 2], -1)

    def checked(self, draws: Tensor, sums: bool) -> Tensor:
        if not torch.isfinite(draws.sum()):
            raise ArgumentError(
                f"`source`'s means{self.at_site} must be finite and its scales positive; got NaN, "
                "infinity or a scale of 0 or below. Check the posterior draws (torch.isfinite) and "
                "the model at these inputs."
            )
        return draws

    def mixed(self, log_weights: Tensor, draws: Tensor) -> Tensor:
        weights, (mean, log_scale) = log_weights.exp(), draws.unbind(-1)
        middle = (weights * mean).sum(0)
        variance = (weights * ((2 * log_scale).exp() + (mean - middle) ** 2)).sum(0)
        return torch.stack([middle, variance.log() / 2], -1)

    def apart(self, one: Tensor, two: Tensor) -> float:
        """See its base; of means and of deviations, in deviations."""
        (mean, log_scale), (other, other_log_scale) = one.unbind(-1), two.unbind(-1)
        means = (mean - other).abs() / other_log_scale.exp()
        return float(torch.maximum(means, (log_scale - other_log_scale).expm1().abs()).max())

    def chain(self, draws: Tensor) -> Tensor:
        """Means in deviations of y, and logarithms of scales."""
        units = torch.ones_like(draws)
        units[..., 0] = teacher_moments(draws).scale
        return draws / units

    def means(self, draws: Tensor) -> Tensor:
        return draws[..., :1]

    def shown(self, draws: Tensor) -> dict[str, Tensor]:
        return {"mean": draws[..., 0]}

    def values(self, kind: str, drawn: Tensor, parameters: Tensor) -> Tensor:
        return drawn if kind == "value" else parameters

    def draws_of(self, answer: Any, count: int) -> Tensor:
        """Means, and the noise's log deviation of the component that each was drawn from."""
        f, _, log_aleatoric = answer.components().drawn(count)
        return torch.stack([f, log_aleatoric / 2], -1)

    @property
    def num_outputs(self) -> int:
        return 3

    def units(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        f, noise = draws[..., 0], (2 * draws[..., 1]).exp()
        return f.mean((0, 1)), (f.var((0, 1)) + noise.mean((0, 1))).sqrt()


@dataclass(frozen=True)
class RealPart(MomentPart):
    """A real number at every input, or several, normal under each draw.

    A head's outputs are the mean and the logarithms of the two variances, in units of their own.
    """

    kind = "real"
    family = PredictiveNormal
    has_units = True

    def __str__(self) -> str:
        return "a real y"

    @classmethod
    def takes(cls, fn: Distribution) -> bool:
        """A normal, or another distribution of numbers that has a mean and a variance."""
        return is_known(unwrap(fn), NORMAL) or (has_moments(fn) and not of_counts(fn))

    def marginal(self, draws: Tensor, source: FromNoise) -> PredictiveNormalMixture:
        mean, log_variance = draws[..., 0].T, 2 * draws[..., 1].T
        weights = torch.full_like(mean, -math.log(len(draws)))
        none = torch.full_like(mean, NO_VARIANCE)
        mixture = Components(weights, mean, log_variance, none)
        return PredictiveNormalMixture(mixture, validate_args=False)

    def observed(self, draws: Tensor, trials: Tensor | None) -> tuple[Tensor, Tensor]:
        mean, log_scale = draws.unbind(-1)
        with drawing(draws.device) as generator:
            noise = torch.empty_like(mean).normal_(generator=generator)
        return mean + log_scale.exp() * noise, mean

    def start(self, draws: Tensor, units: tuple[Tensor, Tensor]) -> Tensor:
        f, noise, variance = draws[..., 0], (2 * draws[..., 1]).exp(), units[1].square()
        aleatoric = noise.mean((0, 1)) / variance
        epistemic = (f.var(0).mean(0) / variance).clamp_min(1e-8)
        return torch.stack([torch.zeros_like(aleatoric), aleatoric.log(), epistemic.log()], -1)

    def answer(self, outputs: Tensor, *units: Tensor) -> PredictiveNormal:
        mean, aleatoric, epistemic = outputs.unbind(-1)
        aleatoric, epistemic = (soft_clamp(each, *LOG_VARIANCES) for each in (aleatoric, epistemic))
        shift, scale = units
        mean, log_units = shift + scale * mean, 2 * scale.log()
        return PredictiveNormal(
            mean, log_units + aleatoric, log_units + epistemic, validate_args=False
        )

    def made(self, outputs: Tensor, *units: Tensor) -> Tensor:
        (mean, log_variance), (shift, scale) = outputs.unbind(-1), units
        log_scale = scale.log() + soft_clamp(log_variance, *LOG_VARIANCES) / 2
        return torch.stack([shift + scale * mean, log_scale], -1)


@dataclass(frozen=True)
class CountPart(MomentPart):
    """A count at every input, or several, of any distribution with a mean and a variance.

    A head's outputs are the logarithms of the mean, of the aleatoric variance over the mean, and of
    the epistemic variance over the mean squared.
    """

    kind = "counts"
    family = PredictiveCount

    @classmethod
    def takes(cls, fn: Distribution) -> bool:
        return has_moments(fn) and of_counts(fn)

    def marginal(self, draws: Tensor, source: FromNoise) -> PredictiveCount:
        mean, log_variance = draws[..., 0], 2 * draws[..., 1]
        aleatoric = log_variance.logsumexp(0) - math.log(len(draws))
        epistemic = mean.var(0, correction=0).clamp_min(math.exp(NO_VARIANCE))
        return PredictiveCount(mean.mean(0).log(), aleatoric, epistemic.log())

    def observed(self, draws: Tensor, trials: Tensor | None) -> tuple[Tensor, Tensor]:
        mean, log_scale = draws.unbind(-1)
        none = torch.full_like(mean, NO_VARIANCE)
        return PredictiveCount(mean.log(), 2 * log_scale, none).predict(1)[0][0], mean

    def start(self, draws: Tensor, units: tuple[Tensor, Tensor]) -> Tensor:
        f, noise = draws[..., 0], (2 * draws[..., 1]).exp()
        means = f.mean(0).clamp_min(1e-8)
        aleatoric = (noise.mean(0) / means).log().mean(0)
        epistemic = (f.var(0) / means.square()).clamp_min(1e-8).log().mean(0)
        return torch.stack([means.mean(0).log(), aleatoric, epistemic], -1)

    def answer(self, outputs: Tensor, *units: Tensor) -> PredictiveCount:
        mean, aleatoric, epistemic = outputs.unbind(-1)
        aleatoric, epistemic = (soft_clamp(each, *LOG_VARIANCES) for each in (aleatoric, epistemic))
        log_mean = soft_clamp(mean, *LOG_MEANS)
        return PredictiveCount(log_mean, log_mean + aleatoric, 2 * log_mean + epistemic)

    def made(self, outputs: Tensor, *units: Tensor) -> Tensor:
        log_mean = soft_clamp(outputs[..., 0], *LOG_MEANS)
        log_variance = log_mean + soft_clamp(outputs[..., 1], *LOG_VARIANCES)
        return torch.stack([log_mean.exp(), log_variance / 2], -1)
