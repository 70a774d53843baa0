"""What a student may answer with: a distribution of class probabilities at every input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyro_opu.distributions.dirichlet import PredictiveDirichlet, as_predictive
from pyro_opu.distributions.simplex_measures import SimplexMeasures

__all__ = ["Answer", "SimplexDistribution", "as_answer", "is_answer", "stratified_draws"]

#: Range of the logarithm of a concentration made from moments; a point would ask for infinity.
LOG_CONCENTRATIONS = (-8.0, 16.0)


class SimplexDistribution(TorchDistribution):
    r"""A distribution of class probabilities :math:`\pi` that is no Dirichlet, one per input.

    A family gives :attr:`log_mean`, :meth:`log_rsample` and :meth:`measures`, and where it has a
    density ``log_prob``; all else follows from these.

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

    def measures(self) -> SimplexMeasures:
        """All measures of uncertainty, float64; what is exact and what is not is the family's."""
        raise NotImplementedError

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, ``(*sample_shape, N, C)``, with pathwise gradients."""
        return self.log_rsample(sample_shape).exp()

    def stratified_rsample(self, count: int) -> tuple[Tensor, Tensor | None]:
        """About ``count`` draws ``(S, N, C)`` in K strata, and the strata's weights ``(K, N)``.

        Each stratum holds S / K draws, one stratum after the other. Weights reach what draws alone
        cannot: the gradient of the choice between the parts of a mixture. ``None`` is one stratum.
        """
        return self.rsample((count,)), None

    @property
    def mean(self) -> Tensor:
        """Class probabilities ``(N, C)``."""
        return self.log_mean.exp()

    @property
    def log_concentration(self) -> Tensor:
        """That of the Dirichlet with this mean and summed variance, ``(N,)``, within its range."""
        value = self.measures().concentration.log().clamp(*LOG_CONCENTRATIONS)
        return value.to(self.log_mean.dtype)

    def matched_dirichlet(self) -> PredictiveDirichlet:
        """The Dirichlet with the same mean and the same variance summed over classes."""
        return PredictiveDirichlet(self.log_mean, self.log_concentration, validate_args=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(N: {self.batch_shape[0]}, C: {self.event_shape[0]})"


#: What a guide may return, once :func:`.as_answer` has seen it.
Answer = PredictiveDirichlet | SimplexDistribution


def is_answer(value: Any) -> bool:
    """Whether a guide may answer with this.

    Args:
        value: Anything.

    Returns:
        True for a Dirichlet of torch or Pyro and for a :class:`SimplexDistribution`.
    """
    return isinstance(value, (torch.distributions.Dirichlet, SimplexDistribution))


def as_answer(value: Any) -> Answer:
    """A Dirichlet in the form of this package, or the other distribution as it is.

    Args:
        value: What a guide returned.

    Returns:
        A distribution of batch shape ``(N,)`` and event shape ``(C,)``.

    Raises:
        TypeError: neither.
    """
    return value if isinstance(value, SimplexDistribution) else as_predictive(value)


def stratified_draws(student: Answer, count: int) -> tuple[Tensor, Tensor | None]:
    """:meth:`SimplexDistribution.stratified_rsample` of any answer.

    Args:
        student: The answer, batch shape ``(N,)``.
        count: About how many draws.

    Returns:
        Draws ``(S, N, C)`` with pathwise gradients, and the strata's weights ``(K, N)``; ``None``
        of a Dirichlet, whose draws are one stratum.
    """
    if isinstance(student, SimplexDistribution):
        return student.stratified_rsample(count)
    return as_predictive(student).rsample((count,)), None
