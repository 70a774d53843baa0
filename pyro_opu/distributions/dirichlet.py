"""Distributions of class probabilities, and the Dirichlet, held and sampled in log space.

A confident class has a probability whose complement float32 cannot see, and components of a small
``alpha`` make ordinary samplers return the uniform vector. Logarithms represent both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_opu.checks import (
    ArgumentError,
    ArgumentTypeError,
    check_log_probs,
    check_probs,
    check_tensor,
    numbers_of,
)
from pyro_opu.distributions.base import Answer
from pyro_opu.distributions.measures import (
    HALF,
    ClassMeasures,
    DirichletMeasures,
    at_least_float32,
    in_float64,
)
from pyro_opu.rng import drawing

__all__ = [
    "PredictiveDirichlet",
    "SimplexDistribution",
    "as_answer",
    "as_predictive",
    "check_dirichlet",
    "known_form",
    "log_dirichlet_rsample",
    "moment_matched",
]

#: The range of a concentration measured on draws: those that all agree ask for infinity.
MEASURED_CONCENTRATIONS = (1e-6, 1e8)
#: Range of log alpha_0; beyond it a Dirichlet is a set of corners, or a point, in float32.
LOG_CONCENTRATION_RANGE = (-8.0, 16.0)


class SimplexDistribution(Answer, TorchDistribution):
    r"""A distribution of class probabilities :math:`\pi`, one per input.

    A family defines :attr:`log_mean`, ``variance`` ``(N, C)``, :meth:`log_rsample`,
    :meth:`measures`, ``as_tensors``, and ``log_prob`` where it has a density. Its batch shape is
    ``(num_inputs,)``, its event shape ``(num_classes,)``.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # type: ignore[misc]
    support = constraints.simplex
    has_rsample = True

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__(torch.Size([num_inputs]), torch.Size([num_classes]), validate_args=False)

    @property
    def num_classes(self) -> int:
        """C."""
        return self.event_shape[0]

    @property
    def log_mean(self) -> Tensor:
        """Logarithm of the mean, normalised and finite, ``(N, C)``."""
        raise NotImplementedError

    def log_rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Logarithms of draws, ``(*sample_shape, N, C)``, with pathwise gradients."""
        raise NotImplementedError

    def measures(self) -> ClassMeasures:
        raise NotImplementedError

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, ``(*sample_shape, N, C)``; components may be zero."""
        return self.log_rsample(sample_shape).exp()

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density, in nats, at points of the simplex ``(..., N, C)``."""
        raise NotImplementedError(
            f"`log_prob` needs a density, and {type(self).__name__} has none. Call .matched() for "
            "the Dirichlet with its moments."
        )

    def mean_log_prob(self, draws: Tensor) -> Tensor:
        """Log density averaged over draws ``(S, N, C)`` and inputs, a scalar in nats."""
        return self.log_prob(draws).mean()

    def predict(self, count: int, parameters: bool = True) -> tuple[Tensor, Tensor | None]:
        """Labels ``(S, N)`` and the class probabilities ``(S, N, C)`` that they were drawn with.

        Without ``parameters`` labels are drawn from the mean, which has the same distribution.
        """
        probs = self.sample((count,)) if parameters else None
        weights = self.mean if probs is None else probs.flatten(0, 1)
        with drawing(weights.device) as generator:
            if probs is None:
                return torch.multinomial(weights, count, True, generator=generator).T, None
            return torch.multinomial(weights, 1, generator=generator).reshape(count, -1), probs

    @property
    def mean(self) -> Tensor:
        """Class probabilities, ``(N, C)``."""
        return self.log_mean.exp()

    @property
    def log_concentration(self) -> Tensor:
        """Logarithm of the concentration that :meth:`matched` has, ``(N,)``, within its range."""
        value = self.measures().concentration.log().clamp(*LOG_CONCENTRATION_RANGE)
        return value.to(self.log_mean.dtype)

    def entropy(self) -> Tensor:
        """Differential entropy on the simplex, in nats, as :meth:`measures` has it, ``(N,)``."""
        return self.measures().differential_entropy.to(self.log_mean.dtype)

    def matched(self) -> PredictiveDirichlet:
        """The Dirichlet with the same mean and the same variance summed over classes."""
        return PredictiveDirichlet(self.log_mean, self.log_concentration, validate_args=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(N: {self.batch_shape[0]}, C: {self.event_shape[0]})"


class PredictiveDirichlet(SimplexDistribution, dist.Dirichlet):
    r"""Dirichlet given by the logarithms of its mean and of its concentration.

    .. math:: \pi \sim \mathrm{Dir}(\alpha), \qquad \log\alpha_k = \log m_k + \log\alpha_0

    A Pyro (and torch) Dirichlet whose draws are made in log space, and whose ``log_prob`` and
    ``entropy`` are evaluated in float64: at :math:`\alpha_0 = 10^8` float32 would lose a hundred
    nats. Half precision becomes float32.

    Args:
        log_mean: Normalised log-probabilities :math:`\log m`, ``(*B, C)``, finite.
        log_concentration: :math:`\log\alpha_0`, ``(*B)``.
        validate_args: Check the values. ``None``: torch's (Pyro's) current default.

    Raises:
        ValueError: the two shapes do not belong together, or (when validating) a parameter is not
            finite or ``log_mean`` is not normalised.

    Example:
        >>> d = PredictiveDirichlet(torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor(20.0).log())
        >>> d.concentration
        tensor([14.0000,  4.0000,  2.0000])
        >>> d.variance
        tensor([0.0100, 0.0076, 0.0043])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # type: ignore[misc]
        "log_mean": constraints.real_vector,
        "log_concentration": constraints.real,
    }
    closed_form = True
    # Given, where other families compute them.
    log_mean: Tensor = None  # type: ignore[assignment]
    log_concentration: Tensor = None  # type: ignore[assignment]

    __repr__ = torch.distributions.Distribution.__repr__

    def __init__(
        self, log_mean: Tensor, log_concentration: Tensor, validate_args: bool | None = None
    ) -> None:
        shape = check_tensor("log_mean", log_mean, "(*B, C)", meta=True).shape
        check_tensor("log_concentration", log_concentration, "(*B)", meta=True)
        if not shape or shape[:-1] != log_concentration.shape:
            raise ArgumentError(
                "`log_mean` must have shape (*B, C) and `log_concentration` shape (*B); got "
                f"{tuple(shape)} and {tuple(log_concentration.shape)}. One concentration belongs "
                "to each row: squeeze or expand `log_concentration` to the batch shape."
            )
        # In half precision a row is off by a percent: normalise what is computed with.
        half = log_mean.dtype in HALF
        self.log_mean = log_mean.float().log_softmax(-1) if half else log_mean
        self.log_concentration = at_least_float32(log_concentration)
        if self._validate_args if validate_args is None else validate_args:
            self._check_values(log_mean)
        # Past torch's Dirichlet.__init__, which would compute the concentration now.
        torch.distributions.Distribution.__init__(
            self, shape[:-1], shape[-1:], validate_args=validate_args
        )

    def _check_values(self, log_mean: Tensor) -> None:
        if not (log_mean.isfinite().all() and self.log_concentration.isfinite().all()):
            raise ArgumentError(
                "`log_mean` and `log_concentration` must be finite; got an infinite value. Clamp "
                "probabilities away from zero before taking their logarithm."
            )
        if log_mean.numel():
            check_log_probs("log_mean", log_mean, "(*B, C)")

    @classmethod
    def from_alpha(cls, alpha: Tensor, validate_args: bool | None = None) -> PredictiveDirichlet:
        """Build the same Dirichlet from its ordinary parameter ``(*B, C)``, positive."""
        real = not check_tensor("alpha", alpha, "(*B, C)").is_complex()
        log_alpha = at_least_float32(alpha if real else alpha.real).log()
        checked = cls._validate_args if validate_args is None else validate_args
        if not real or (checked and not (alpha.numel() and log_alpha.isfinite().all())):
            raise ArgumentError(
                f"`alpha` must be positive and finite, of shape (*B, C); got {alpha}. "
                "Clamp it above zero, or give log_mean and log_concentration."
            )
        return cls(log_alpha.log_softmax(-1), log_alpha.logsumexp(-1), validate_args)

    def _like_self(self, log_mean: Tensor, log_concentration: Tensor) -> PredictiveDirichlet:
        new = PredictiveDirichlet(log_mean, log_concentration, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> PredictiveDirichlet:
        """The same distribution with the batch shape broadcast to ``batch_shape``."""
        batch_shape = torch.Size(batch_shape)
        log_mean = self.log_mean.expand(batch_shape + self.event_shape)
        return self._like_self(log_mean, self.log_concentration.expand(batch_shape))

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        log_mean: torch.Size, log_concentration: torch.Size
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the parameters' shapes, for Pyro."""
        return log_mean[:-1], log_mean[-1:]

    # lazy_property computes under enable_grad; cached_property would keep what no_grad reads first.

    @lazy_property
    def log_alpha(self) -> Tensor:
        """Logarithm of the Dirichlet parameter, ``(*B, C)``."""
        return self.log_mean + self.log_concentration.unsqueeze(-1)

    @lazy_property
    def concentration(self) -> Tensor:
        """The Dirichlet parameter, ``(*B, C)``, raised to the smallest normal number."""
        return self.log_alpha.exp().clamp(min=torch.finfo(self.log_alpha.dtype).tiny)

    @lazy_property
    def _float64(self) -> torch.distributions.Dirichlet:
        return in_float64(self.log_mean, self.log_concentration)

    @property
    def variance(self) -> Tensor:
        """:math:`m_k (1 - m_k) / (\\alpha_0 + 1)`, ``(*B, C)``."""
        alpha_0 = self.log_concentration.exp().unsqueeze(-1)
        return -self.log_mean.exp() * self.log_mean.expm1() / (alpha_0 + 1.0)

    def log_rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Logarithms of draws, ``(*sample_shape, *B, C)``; see :func:`.log_dirichlet_rsample`."""
        return log_dirichlet_rsample(self.log_alpha, sample_shape)

    def measures(self) -> DirichletMeasures:
        """All in closed form."""
        return DirichletMeasures(self.log_mean, self.log_concentration)

    def matched(self) -> PredictiveDirichlet:
        """Itself."""
        return self

    def as_tensors(self) -> dict[str, Tensor]:
        """``log_mean`` and ``log_concentration``."""
        return {"log_mean": self.log_mean, "log_concentration": self.log_concentration}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> PredictiveDirichlet:
        return cls(**tensors, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density, in nats, at points of the simplex ``(..., *B, C)``; others are refused."""
        check_point(value)
        dtype = torch.promote_types(value.dtype, self.log_mean.dtype)
        return self._float64.log_prob(value.double()).to(dtype)

    def mean_log_prob(self, draws: Tensor) -> Tensor:
        """By the mean logarithms of positive draws in float64, which are all that it needs."""
        # float64: at alpha_0 = 1e6 the gammas are 1e7 each, and float32 would leave only rounding.
        log_alpha = self.log_alpha.double()
        alpha = log_alpha.exp()
        # log Gamma(a) = log Gamma(a + 1) - log a stays finite as a -> 0.
        log_norm = torch.lgamma(alpha.sum(-1)) - (torch.lgamma(alpha + 1) - log_alpha).sum(-1)
        return (log_norm + ((alpha - 1) * draws.log().mean(0)).sum(-1)).mean()


def check_point(value: Tensor) -> None:
    """Refuse what does not lie on the simplex, where torch validates what it is asked."""
    if torch.distributions.Distribution._validate_args:  # the switch of the process
        check_probs("value", value)


def as_predictive(dirichlet: torch.distributions.Dirichlet) -> PredictiveDirichlet:
    """Convert any torch or Pyro Dirichlet; anything else is a TypeError."""
    if isinstance(dirichlet, PredictiveDirichlet):
        return dirichlet
    if not isinstance(dirichlet, torch.distributions.Dirichlet):
        raise ArgumentTypeError(
            "`dirichlet` must be a torch or Pyro Dirichlet; got "
            f"{type(dirichlet).__name__}. Unwrap Independent or masked distributions first."
        )
    return PredictiveDirichlet.from_alpha(dirichlet.concentration, dirichlet._validate_args)


def known_form(value: object) -> Any:
    """Convert a torch or Pyro Dirichlet to a :class:`PredictiveDirichlet`; pass on all else."""
    return as_predictive(value) if isinstance(value, torch.distributions.Dirichlet) else value


def as_answer(value: Any) -> Any:
    """Convert what a guide returned, an :class:`Answer` or a Dirichlet; else TypeError."""
    return value if isinstance(value, Answer) else as_predictive(value)


def check_dirichlet(name: str, dirichlet: Any) -> PredictiveDirichlet:
    """Convert a Dirichlet and check that it holds no NaN, as a negative ``alpha`` gives."""
    found = as_predictive(dirichlet)
    rows = numbers_of(found.log_mean.sum(-1) + found.log_concentration)
    if rows.isnan().any():
        raise ArgumentError(
            f"`{name}` must have positive parameters; got NaN or a negative one in "
            f"{int(rows.isnan().sum())} of {rows.numel()} rows. Look at what gave them."
        )
    return found


def moment_matched(mean: Tensor, concentration: Tensor) -> PredictiveDirichlet:
    """The Dirichlet with a mean and a concentration that were measured on draws."""
    log_mean = mean.clamp_min(torch.finfo(mean.dtype).tiny).log().log_softmax(-1)
    return PredictiveDirichlet(log_mean, concentration.clamp(*MEASURED_CONCENTRATIONS).log())


def log_dirichlet_rsample(log_alpha: Tensor, sample_shape: Sequence[int] = ()) -> Tensor:
    r"""Logarithms of Dirichlet vectors, ``(*sample_shape, *B, C)``, with pathwise gradients.

    .. math:: \log\pi = \mathrm{log\_softmax}(z), \qquad
              z_k = \log G_k + \tfrac{1}{\alpha_k}\log U_k, \qquad
              G_k \sim \mathrm{Gamma}(\alpha_k + 1),\; U_k \sim \mathrm{Uniform}(0, 1)

    so that :math:`e^{z_k} \sim \mathrm{Gamma}(\alpha_k)` without leaving log space: for
    :math:`\alpha_k = 10^{-6}` a typical :math:`z_k` is :math:`-10^6`. In float32 the draws are
    right from ``alpha`` = 1e-6 to 1e8. Gradients are of first order only, with a variance that
    grows as 1 / alpha. ``log_alpha`` is ``(*B, C)``; half precision becomes float32.

    References:
        Marsaglia, Tsang: A simple method for generating gamma variables (2000), section 6.
        Figurnov, Mohamed, Mnih: Implicit reparameterization gradients (2018).
    """
    log_alpha = at_least_float32(log_alpha)
    dtype, shape = log_alpha.dtype, torch.Size(sample_shape) + log_alpha.shape
    # Room for -log U (at most 37 in float64) on top of 1 / alpha, below the overflow threshold.
    log_alpha = log_alpha.clamp(min=math.log(torch.finfo(dtype).tiny) + 8.0)
    with drawing(log_alpha.device) as generator:
        gamma = torch._standard_gamma((log_alpha.exp() + 1.0).expand(shape), generator)
        # -log U is an exponential variate, never infinite. In float32 it may be coarse near zero
        # (steps of 6e-8), which would now and then hand a corner to a class of probability 1e-20.
        exponential = log_alpha.new_empty(shape, dtype=torch.float64)
        exponential = exponential.exponential_(generator=generator).to(dtype)
    # Not a division by alpha: its gradient has alpha squared, which underflows.
    raised = torch.addcmul(gamma.log(), exponential, (-log_alpha).exp(), value=-1)
    del gamma, exponential  # as many numbers as the draws, each
    return torch.log_softmax(raised, dim=-1)
