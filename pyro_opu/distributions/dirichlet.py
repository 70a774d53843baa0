"""Distributions of class probabilities, and the Dirichlet, held and sampled in log space.

A confident class has a probability whose complement float32 cannot see, and an uncertain input
has components of ``alpha`` so small that ordinary samplers return the uniform vector. Both are
ordinary numbers as logarithms, so logarithms are what is kept here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_opu.checks import check_tensor
from pyro_opu.distributions.base import Answer
from pyro_opu.distributions.log_sampling import HALF, at_least_float32, log_dirichlet_rsample
from pyro_opu.distributions.measures import ClassMeasures, DirichletMeasures, in_float64
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
#: Range of the logarithm of a concentration made from moments; a point would ask for infinity.
LOG_CONCENTRATIONS = (-8.0, 16.0)


class SimplexDistribution(Answer, TorchDistribution):
    r"""A distribution of class probabilities :math:`\pi`, one per input.

    A family defines :attr:`log_mean`, :meth:`log_rsample`, :meth:`measures`, ``as_tensors``,
    and ``log_prob`` where it has a density.

    Args:
        num_inputs: N, the batch shape.
        num_classes: C, the event shape.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # type: ignore[misc]
    support = constraints.simplex
    has_rsample = True

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__(torch.Size([num_inputs]), torch.Size([num_classes]), validate_args=False)

    @property
    def log_mean(self) -> Tensor:
        """Logarithm of the mean, normalised and finite, ``(N, C)``."""
        raise NotImplementedError

    def log_rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Logarithms of draws, ``(*sample_shape, N, C)``, with pathwise gradients."""
        raise NotImplementedError

    def measures(self) -> ClassMeasures:
        """All measures of uncertainty, float64; the family says which are exact."""
        raise NotImplementedError

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, ``(*sample_shape, N, C)``, with pathwise gradients; components may be zero."""
        return self.log_rsample(sample_shape).exp()

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
        """That of the Dirichlet with this mean and summed variance, ``(N,)``, within its range."""
        value = self.measures().concentration.log().clamp(*LOG_CONCENTRATIONS)
        return value.to(self.log_mean.dtype)

    def matched(self) -> PredictiveDirichlet:
        """The Dirichlet with the same mean and the same variance summed over classes."""
        return PredictiveDirichlet(self.log_mean, self.log_concentration, validate_args=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(N: {self.batch_shape[0]}, C: {self.event_shape[0]})"


class PredictiveDirichlet(SimplexDistribution, dist.Dirichlet):
    r"""Dirichlet given by the logarithms of its mean and of its concentration.

    .. math:: \pi \sim \mathrm{Dir}(\alpha), \qquad \log\alpha_k = \log m_k + \log\alpha_0

    A Pyro (and torch) Dirichlet whose parameters stay in log space: draws are made there, and
    ``log_prob`` and ``entropy`` are evaluated in float64 (at :math:`\alpha_0 = 10^8` float32 would
    lose a hundred nats) and rounded to the parameters' dtype. Half precision becomes float32, and
    the mean is normalised again.

    Args:
        log_mean: Normalised log-probabilities :math:`\log m`, ``(*B, C)``, finite.
        log_concentration: :math:`\log\alpha_0`, ``(*B)``.
        validate_args: Check the values. ``None``: torch's (Pyro's) current default.

    Raises:
        ValueError: the two shapes do not belong together, or (when validating) a parameter is not
            finite or ``log_mean`` is not normalised.

    Example:
        >>> d = PredictiveDirichlet(torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor(20.0).log())
        >>> d
        PredictiveDirichlet(log_mean: torch.Size([3]), log_concentration: 2.995732307434082)
        >>> d.concentration
        tensor([14.0000,  4.0000,  2.0000])
        >>> d.variance
        tensor([0.0100, 0.0076, 0.0043])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # type: ignore[misc]
        "log_mean": constraints.real_vector,
        "log_concentration": constraints.real,
    }
    # Given, where other families compute them.
    log_mean: Tensor = None  # type: ignore[assignment]
    log_concentration: Tensor = None  # type: ignore[assignment]

    __repr__ = torch.distributions.Distribution.__repr__

    def __init__(
        self, log_mean: Tensor, log_concentration: Tensor, validate_args: bool | None = None
    ) -> None:
        shape = check_tensor("log_mean", log_mean, "(*B, C)").shape
        check_tensor("log_concentration", log_concentration, "(*B)")
        if not shape or shape[:-1] != log_concentration.shape:
            raise ValueError(
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
            raise ValueError(
                "`log_mean` and `log_concentration` must be finite; got an infinite value. Clamp "
                "probabilities away from zero before taking their logarithm."
            )
        error = (log_mean.detach().float().exp().sum(-1) - 1.0).abs()
        if error.numel() and error.max() > max(1e-3, 8 * torch.finfo(log_mean.dtype).eps):
            raise ValueError(
                "`log_mean` must be normalised log-probabilities (exp of a row sums to 1); got a "
                f"row that is off by {error.max().item():.3g}. Apply log_softmax to logits first."
            )

    @classmethod
    def from_alpha(cls, alpha: Tensor, validate_args: bool | None = None) -> PredictiveDirichlet:
        """Build the same Dirichlet from its ordinary parameter ``(*B, C)``, positive.

        Args:
            alpha: ``(*B, C)``.
            validate_args: As in the constructor.

        Raises:
            ValueError: (when validating) a component is not positive and finite.

        Example:
            >>> PredictiveDirichlet.from_alpha(torch.tensor([3.0, 1.0])).mean
            tensor([0.7500, 0.2500])
        """
        log_alpha = at_least_float32(check_tensor("alpha", alpha, "(*B, C)")).log()
        if (cls._validate_args if validate_args is None else validate_args) and not (
            log_alpha.isfinite().all()
        ):
            raise ValueError(
                f"`alpha` must be positive and finite, of shape (*B, C); got {alpha}. "
                "Clamp it above zero, or give log_mean and log_concentration."
            )
        return cls(log_alpha.log_softmax(-1), log_alpha.logsumexp(-1), validate_args)

    def _like_self(self, log_mean: Tensor, log_concentration: Tensor) -> PredictiveDirichlet:
        new = PredictiveDirichlet(log_mean, log_concentration, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def detach_mean(self) -> PredictiveDirichlet:
        """The same distribution, whose gradient reaches the concentration only."""
        return self._like_self(self.log_mean.detach(), self.log_concentration)

    def detach_concentration(self) -> PredictiveDirichlet:
        """The same distribution, whose gradient reaches the mean only."""
        return self._like_self(self.log_mean, self.log_concentration.detach())

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> PredictiveDirichlet:
        """The same distribution with the batch shape broadcast to ``batch_shape``."""
        new = self._get_checked_instance(PredictiveDirichlet, _instance)
        batch_shape = torch.Size(batch_shape)
        new.log_mean = self.log_mean.expand(batch_shape + self.event_shape)
        new.log_concentration = self.log_concentration.expand(batch_shape)
        torch.distributions.Distribution.__init__(
            new, batch_shape, self.event_shape, validate_args=False
        )
        new._validate_args = self._validate_args
        return new

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        log_mean: torch.Size, log_concentration: torch.Size
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the parameters' shapes, for Pyro."""
        return log_mean[:-1], log_mean[-1:]

    # lazy_property, and not functools.cached_property, because it computes under enable_grad: a
    # value first read inside no_grad would otherwise be kept without its graph.

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
        """Draws the logarithm, ``(*sample_shape, *B, C)``; see :func:`.log_dirichlet_rsample`."""
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
        """Build the Dirichlet from ``as_tensors``."""
        return cls(**tensors, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at points of the simplex ``(..., *B, C)``, in nats."""
        if self._validate_args:
            self._validate_sample(value)
        dtype = torch.promote_types(value.dtype, self.log_mean.dtype)
        return self._float64.log_prob(value.double()).to(dtype)

    def entropy(self) -> Tensor:
        """Differential entropy on the simplex, ``(*B)``, in nats."""
        return self._float64.entropy().to(self.log_mean.dtype)


def as_predictive(dirichlet: torch.distributions.Dirichlet) -> PredictiveDirichlet:
    """Convert any torch or Pyro Dirichlet to a :class:`PredictiveDirichlet`.

    Raises:
        TypeError: it is no Dirichlet.

    Example:
        >>> as_predictive(dist.Dirichlet(torch.tensor([2.0, 2.0]))).log_concentration.exp()
        tensor(4.)
    """
    if isinstance(dirichlet, PredictiveDirichlet):
        return dirichlet
    if not isinstance(dirichlet, torch.distributions.Dirichlet):
        raise TypeError(
            "`dirichlet` must be a torch or Pyro Dirichlet; got "
            f"{type(dirichlet).__name__}. Unwrap Independent or masked distributions first."
        )
    return PredictiveDirichlet.from_alpha(dirichlet.concentration, dirichlet._validate_args)


def known_form(value: Any) -> Any:
    """Convert a torch or Pyro Dirichlet to a :class:`PredictiveDirichlet`; pass on all else."""
    return as_predictive(value) if isinstance(value, torch.distributions.Dirichlet) else value


def as_answer(value: Any) -> Any:
    """Convert what a guide returned to an :class:`Answer`.

    Raises:
        TypeError: neither an answer nor a Dirichlet.
    """
    return value if isinstance(value, Answer) else as_predictive(value)


def check_dirichlet(name: str, dirichlet: Any) -> PredictiveDirichlet:
    """Convert a Dirichlet to a :class:`PredictiveDirichlet` and check that it holds no NaN.

    Raises:
        TypeError: it is no Dirichlet.
        ValueError: NaN, as a negative ``alpha`` gives in log space.
    """
    found = as_predictive(dirichlet)
    rows = found.log_mean.detach().sum(-1) + found.log_concentration.detach()
    if rows.isnan().any():
        raise ValueError(
            f"`{name}` must have positive parameters; got NaN or a negative one in "
            f"{int(rows.isnan().sum())} of {rows.numel()} rows. Look at what gave them."
        )
    return found


def moment_matched(mean: Tensor, concentration: Tensor) -> PredictiveDirichlet:
    """The Dirichlet with a mean and a concentration that were measured on draws."""
    log_mean = mean.clamp_min(torch.finfo(mean.dtype).tiny).log().log_softmax(-1)
    return PredictiveDirichlet(log_mean, concentration.clamp(*MEASURED_CONCENTRATIONS).log())
