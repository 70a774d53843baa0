"""What a student answers with where counts are observed, with or without a number of trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from pyro.distributions import BetaBinomial, TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyro_opu.checks import ArgumentError, ArgumentTypeError
from pyro_opu.distributions.base import Answer
from pyro_opu.distributions.dirichlet import PredictiveDirichlet, as_predictive
from pyro_opu.distributions.measures import NormalMeasures
from pyro_opu.distributions.normal import Components, PredictiveNormal, RealAnswer
from pyro_opu.rng import drawing

__all__ = ["PredictiveCount", "PredictiveTrials"]

#: Shapes of gamma variates between which they are drawn; above, they are their mean to float32.
SHAPES = (1e-6, 1e12)
#: Shape from which on gamma functions are taken by Stirling's series, of which no more is needed.
STIRLING = 1e4
#: Of the integral: halvings in the search for the mode, and steps and reach of the grid in standard
#: deviations there, or in units of u where these are larger.
BISECTIONS, STEPS, REACH = 60, 6, 25
#: Integrals that are evaluated at once, 10 MB.
BLOCK = 4096
_LOGS = ("log_mean", "log_aleatoric", "log_epistemic")


class PredictiveCount(RealAnswer, TorchDistribution):
    r"""A count y whose variance is the sum of an aleatoric and an epistemic one.

    .. math::
        m \sim \mathrm{Gamma}(\mathrm{mean}\ \mu, \mathrm{variance}\ e), \qquad
        y \mid m \sim \mathrm{NegativeBinomial}(\mathrm{mean}\ m,
        \mathrm{variance}\ m + r m^2), \qquad
        r = \max\left(0, \frac{a - \mu}{\mu^2 + e}\right)

    so that :math:`a = \mathbb{E} \operatorname{Var}(y \mid m)` and :math:`e =
    \operatorname{Var} m` wherever :math:`a \ge \mu`; at :math:`a = \mu` y is Poisson given m. With
    Gamma draws of a Poisson rate it is exact, a negative binomial.

    Args:
        log_mean: :math:`\log\mu`, any batch shape.
        log_aleatoric: :math:`\log a`, of units of y squared.
        log_epistemic: :math:`\log e`, likewise.

    Raises:
        TypeError: a part that is no floating tensor.
        ValueError: parts of several shapes.

    Example:
        >>> y = PredictiveCount(*torch.tensor([4.0, 4.0, 2.0]).log())
        >>> y.mean, y.variance
        (tensor(4.), tensor(6.))

    References:
        Greenwood and Yule (1920), An inquiry into the nature of frequency distributions; the
        division of the variance is the law of total variance.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # type: ignore[misc]
        name: constraints.real for name in _LOGS
    }
    support = constraints.nonnegative_integer

    def __init__(self, log_mean: Tensor, log_aleatoric: Tensor, log_epistemic: Tensor) -> None:
        for name, value in zip(_LOGS, (log_mean, log_aleatoric, log_epistemic), strict=True):
            if not isinstance(value, Tensor) or not value.is_floating_point():
                raise ArgumentTypeError(f"`{name}` must be a floating tensor; got {value!r:.60}.")
            if value.shape != log_mean.shape:
                raise ArgumentError(
                    f"`{name}` must have the shape of `log_mean`, {tuple(log_mean.shape)}; got "
                    f"{tuple(value.shape)}. Expand it."
                )
        self.log_mean = log_mean
        self.log_aleatoric, self.log_epistemic = log_aleatoric, log_epistemic
        super().__init__(log_mean.shape, validate_args=False)

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return self.log_mean.exp()

    @property
    def log_variance(self) -> Tensor:
        """Logarithm of the variance of y."""
        return torch.logaddexp(self.log_aleatoric, self.log_epistemic)

    @property
    def variance(self) -> Tensor:
        """Variance of y, aleatoric plus epistemic."""
        return self.log_variance.exp()

    @property
    def stddev(self) -> Tensor:
        """Standard deviation of y."""
        return (0.5 * self.log_variance).exp()

    def normal(self) -> PredictiveNormal:
        variances = self.log_aleatoric, self.log_epistemic
        return PredictiveNormal(self.mean, *variances, validate_args=False)

    def components(self) -> Components:
        return self.normal().components()

    def matched(self) -> PredictiveCount:  # type: ignore[override]
        return self

    def predict(self, count: int, parameters: bool = True) -> tuple[Tensor, Tensor]:
        """Draws of y, whole, and of its mean m, ``(S, *batch)`` each."""
        mean, epistemic = self.mean.expand(count, *self.batch_shape), self.log_epistemic.exp()
        over = (self.log_aleatoric.exp() - mean) / (mean.square() + epistemic)
        with drawing(mean.device) as generator:
            f = mean * _relative_gamma(2 * self.log_mean - self.log_epistemic, mean, generator)
            rate = f * _relative_gamma(-over.clamp_min(1 / SHAPES[1]).log(), f, generator)
            y = torch.poisson(rate, generator)
        return y, f

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of y, ``(*sample_shape, *batch)``."""
        shape = torch.Size(sample_shape)
        return self.predict(shape.numel())[0].reshape(*shape, *self.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Log probability of whole numbers y >= 0, ``(..., *batch)``, in nats.

        .. math::
            \log \int \mathrm{NegativeBinomial}(y; \mu e^u, b)\, \mathrm{Gamma}(e^u; a, a)\,
            e^u\, du, \qquad \{a, b\} = \{\mu^2 / e,\, 1 / r\}, \quad a \ge b

        with b the number of failures, by the trapezoidal rule, in float64 and to 1e-6.

        References:
            Trefethen and Weideman (2014), The exponentially convergent trapezoidal rule.
        """
        if Distribution._validate_args:  # the switch of the process
            self._validate_sample(value)
        log_mean, log_e = self.log_mean.double(), self.log_epistemic.double()
        mean, over = log_mean.exp(), self.log_aleatoric.double().exp() - log_mean.exp()
        one = (2 * log_mean - log_e).clamp(*map(math.log, SHAPES)).exp()
        second = mean.square() + log_e.exp()
        other = (second / over.maximum(second / SHAPES[1])).clamp_min(SHAPES[0])
        given = value.double(), mean, torch.maximum(one, other), torch.minimum(one, other)
        y, *parameters = torch.broadcast_tensors(*given)
        blocks = zip(*(each.flatten().split(BLOCK) for each in (y, *parameters)), strict=True)
        found = torch.cat([_log_integral(*block) for block in blocks]).reshape(y.shape)
        return found.to(torch.promote_types(value.dtype, self.log_mean.dtype))

    def as_tensors(self) -> dict[str, Tensor]:
        return {
            "log_mean": self.log_mean,
            "log_aleatoric": self.log_aleatoric,
            "log_epistemic": self.log_epistemic,
        }

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> PredictiveCount:
        """The same count over a larger batch."""
        return type(self)(*(part.expand(*batch_shape) for part in self.as_tensors().values()))

    def __repr__(self) -> str:
        return f"PredictiveCount(shape {tuple(self.batch_shape)})"


def _relative_gamma(log_shape: Tensor, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gamma variates of mean 1 and of this shape, in float64 and then like another tensor."""
    shape = log_shape.double().exp().clamp(*SHAPES).expand_as(like).contiguous()
    # A variate of shape a + 1 times U^(1 / a) has shape a: small shapes do not underflow.
    uniform = torch.rand(shape.shape, generator=generator, device=shape.device, dtype=shape.dtype)
    log_draws = torch._standard_gamma(shape + 1, generator).log() + uniform.log() / shape
    return (log_draws - shape.log()).exp().to(like.dtype)


def _log_integral(y: Tensor, mean: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Logarithm of the integral of :meth:`PredictiveCount.log_prob`, for a >= b, float64."""
    odds = mean / b

    def log_integrand(u: Tensor) -> Tensor:
        return y * u - a * (u.expm1() - u) - (y + b) * (odds * u.exp()).log1p()

    def slope(u: Tensor) -> Tensor:
        return a + y - a * u.exp() - (y + b) * (u + odds.log()).sigmoid()

    # The slope falls. Beyond these u it is negative, and positive.
    high = (y / a).log1p()
    low = -((y + b) * odds / (a + y)).log1p() - 1.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        rises = slope(middle) > 0
        low, high = torch.where(rises, middle, low), torch.where(rises, high, middle)
    share = (low + odds.log()).sigmoid()
    curvature = a * low.exp() + (y + b) * share * (1 - share)
    step = curvature.rsqrt().clamp_max(1.0) / STEPS
    grid = torch.arange(-REACH * STEPS, REACH * STEPS + 1, dtype=y.dtype, device=y.device)
    logs = log_integrand(low + step * grid[:, None])
    # To the left the integrand is e^((a + y) u), whose sum is a geometric series.
    left = logs[0] - ((a + y) * step).clamp_max(700.0).expm1().log()
    log_sum = torch.logaddexp(logs.logsumexp(0), left) + step.log()
    log_choices = _log_rising(y, b) + y * mean.log() - torch.lgamma(y + 1)
    return log_sum + log_choices + _log_peak(a)


def _log_rising(y: Tensor, b: Tensor) -> Tensor:
    """Logarithm of Gamma(b + y) / (Gamma(b) b^y), which is near 0 where b is large."""
    near = (b + y - 0.5) * (y / b).log1p() - y + (1 / (b + y) - 1 / b) / 12
    return torch.where(b > STIRLING, near, torch.lgamma(b + y) - torch.lgamma(b) - y * b.log())


def _log_peak(a: Tensor) -> Tensor:
    """Logarithm of a^a e^-a / Gamma(a)."""
    near = 0.5 * (a / (2 * math.pi)).log() - 1 / (12 * a)
    return torch.where(a > STIRLING, near, a * a.log() - a - torch.lgamma(a))


class PredictiveTrials(Answer, TorchDistribution):
    r"""Successes y of n trials, whose probability has two classes' Dirichlet, a Beta.

    .. math:: p \sim \mathrm{Beta}(\alpha), \quad y \mid p \sim \mathrm{Binomial}(n, p), \quad
        a = n\,\mathbb{E}[p (1 - p)], \quad e = n^2 \operatorname{Var} p

    Args:
        dirichlet: A Dirichlet of failure and success, any batch shape.
        trials: n, of that shape.

    Raises:
        TypeError: ``dirichlet`` is none.
        ValueError: it has other than two classes, or ``trials`` another shape.

    References:
        Skellam (1948), A probability distribution derived from the binomial distribution.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # type: ignore[misc]
        "trials": constraints.nonnegative_integer
    }

    def __init__(self, dirichlet: PredictiveDirichlet, trials: Tensor) -> None:
        self.dirichlet, self.trials = as_predictive(dirichlet), trials
        if dirichlet.event_shape != (2,) or trials.shape != dirichlet.batch_shape:
            raise ArgumentError(
                "`dirichlet` must have two classes, and `trials` its batch shape; got event shape "
                f"{tuple(dirichlet.event_shape)}, batch shape {tuple(dirichlet.batch_shape)} and "
                f"{tuple(trials.shape)}."
            )
        super().__init__(dirichlet.batch_shape, validate_args=False)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        """Whole numbers from 0 to n."""
        return constraints.integer_interval(0, self.trials)

    @property
    def mean(self) -> Tensor:
        """Expected successes."""
        return self.trials * self.dirichlet.mean[..., 1]

    @property
    def variance(self) -> Tensor:
        """Variance of y, aleatoric plus epistemic."""
        return self.measures().total

    @property
    def stddev(self) -> Tensor:
        """Standard deviation of y."""
        return self.variance.sqrt()

    def measures(self) -> NormalMeasures:
        """Mean and variances of y, exact."""
        log_mean, log_alpha_0 = self.dirichlet.log_mean, self.dirichlet.log_concentration
        # p (1 - p) / (alpha_0 + 1) and its complement, without a difference of two near ones.
        both, n = log_mean.sum(-1), self.trials
        epistemic = n.square() * (both + torch.nn.functional.logsigmoid(-log_alpha_0)).exp()
        aleatoric = n * (both + torch.nn.functional.logsigmoid(log_alpha_0)).exp()
        return NormalMeasures(self.mean, aleatoric, epistemic)

    def matched(self) -> PredictiveTrials:
        return self

    def predict(self, count: int, parameters: bool = True) -> tuple[Tensor, Tensor]:
        """Draws of y, whole, and of p, ``(S, *batch)`` each."""
        p = self.dirichlet.sample((count,))[..., 1]
        with drawing(p.device) as generator:
            return torch.binomial(self.trials.expand_as(p).contiguous(), p, generator), p

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of y, ``(*sample_shape, *batch)``."""
        shape = torch.Size(sample_shape)
        return self.predict(shape.numel())[0].reshape(*shape, *self.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log probability of whole numbers from 0 to n, ``(..., *batch)``, in nats."""
        if Distribution._validate_args:  # the switch of the process
            self._validate_sample(value)
        alpha = self.dirichlet.concentration.double().unbind(-1)
        law = BetaBinomial(alpha[1], alpha[0], self.trials.double(), validate_args=False)
        found: Tensor = law.log_prob(value.double())
        return found.to(torch.promote_types(value.dtype, self.dirichlet.log_mean.dtype))

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> PredictiveTrials:
        """The same answer over a larger batch."""
        shape = torch.Size(batch_shape)
        return type(self)(self.dirichlet.expand(shape), self.trials.expand(shape))

    def as_tensors(self) -> dict[str, Tensor]:
        return {**self.dirichlet.as_tensors(), "trials": self.trials}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> PredictiveTrials:
        trials = tensors["trials"]
        rest = {name: value for name, value in tensors.items() if name != "trials"}
        return cls(PredictiveDirichlet.from_tensors(rest), trials)

    def __repr__(self) -> str:
        return f"PredictiveTrials(shape {tuple(self.batch_shape)})"
