"""What a regression student answers with: normals whose variance is aleatoric plus epistemic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_opu.distributions.base import Answer
from pyro_opu.distributions.measures import NormalMeasures
from pyro_opu.rng import drawing

__all__ = ["Components", "PredictiveNormal", "PredictiveNormalMixture", "RealAnswer"]

#: Range of the logarithm of a variance in standardised units.
LOG_VARIANCES = (-20.0, 20.0)


@dataclass(frozen=True, repr=False)
class Components:
    r"""The K weighted normals of an answer, each with two variances; ``(N, K)`` each.

    .. math:: f \sim \sum_k w_k N(\mu_k, e_k), \qquad y \mid f, k \sim N(f, a_k)

    Attributes:
        log_weights: :math:`\log w_k`, normalised.
        mean: :math:`\mu_k`, in units of y.
        log_aleatoric: :math:`\log a_k`, of the noise, in units of log y squared.
        log_epistemic: :math:`\log e_k`, of the mean f between draws, in units of log y squared.
    """

    log_weights: Tensor
    mean: Tensor
    log_aleatoric: Tensor
    log_epistemic: Tensor

    def __repr__(self) -> str:
        *batch, normals = self.mean.shape
        return f"Components(shape {tuple(batch)}, K: {normals})"

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Draws of the mean f and of y around it, ``(S, N)`` each, independent between inputs."""
        f, y, _ = self.drawn(count)
        return f, y

    def drawn(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """:meth:`draw`, and the log aleatoric variance of the normal that each came from."""
        values = (self.mean, self.log_aleatoric, self.log_epistemic)
        if self.mean.shape[-1] == 1:
            mean, aleatoric, epistemic = (value.T.expand(count, -1) for value in values)
        else:
            with drawing(self.mean.device) as generator:
                weights = self.log_weights.exp()
                k = torch.multinomial(weights, count, True, generator=generator)  # (N, S)
            mean, aleatoric, epistemic = (value.gather(-1, k).T for value in values)
        with drawing(mean.device) as generator:
            of_f, of_y = (torch.empty_like(mean).normal_(generator=generator) for _ in range(2))
        f = mean + (epistemic / 2).exp() * of_f
        return f, f + (aleatoric / 2).exp() * of_y, aleatoric


class RealAnswer(Answer):
    """A distribution of a real y, one per input, whose variance is aleatoric plus epistemic."""

    closed_form = True
    mean: Tensor
    log_aleatoric: Tensor
    log_epistemic: Tensor

    @property
    def aleatoric(self) -> Tensor:
        """Mean variance of the noise, ``(N,)``, in units of y squared."""
        return self.log_aleatoric.exp()

    @property
    def epistemic(self) -> Tensor:
        """Variance of the mean between draws, ``(N,)``, in units of y squared."""
        return self.log_epistemic.exp()

    def components(self) -> Components:
        """The weighted normals of which it is a mixture, ``(N, K)``."""
        raise NotImplementedError

    def normal(self) -> PredictiveNormal:
        """The normal with the same mean and the same two variances."""
        raise NotImplementedError

    def matched(self) -> PredictiveNormal:
        return self.normal()

    def measures(self) -> NormalMeasures:
        """Mean and variances of y, exact."""
        normal = self.normal()
        return NormalMeasures(normal.mean, normal.aleatoric, normal.epistemic)

    def predict(self, count: int, parameters: bool = True) -> tuple[Tensor, Tensor]:
        """Draws of y and of its mean f, ``(S, N)`` each."""
        f, y = self.components().draw(count)
        return y, f


class PredictiveNormal(RealAnswer, dist.Normal):
    r"""A normal of y whose variance is the sum of an aleatoric and an epistemic one.

    .. math:: N(y \mid \mu, a + e), \qquad \mu = \mathbb{E} f_\theta, \quad
              a = \mathbb{E}\,\sigma_\theta^2, \quad e = \operatorname{Var} f_\theta

    for a teacher :math:`y \mid \theta \sim N(f_\theta, \sigma_\theta^2)`: exact in the variance,
    and a normal where f is normal and the noise known. Any batch shape; ``mean`` is in units of y,
    ``log_aleatoric`` and ``log_epistemic`` are logarithms of units of y squared, ``validate_args``
    as in torch.

    Example:
        >>> from pyro_opu.distributions import PredictiveNormal
        >>> y = PredictiveNormal(torch.zeros(2), torch.zeros(2), torch.tensor([0.0, 3.0]).log())
        >>> y.variance, y.aleatoric, y.epistemic
        (tensor([1., 4.]), tensor([1., 1.]), tensor([0., 3.]))

    References:
        Depeweg et al. (2018), Decomposition of uncertainty in Bayesian deep learning.
    """

    def __init__(
        self,
        mean: Tensor,
        log_aleatoric: Tensor,
        log_epistemic: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        self.log_aleatoric, self.log_epistemic = log_aleatoric, log_epistemic
        self.log_variance = torch.logaddexp(log_aleatoric, log_epistemic)
        super().__init__(mean, (self.log_variance / 2).exp(), validate_args=validate_args)

    def components(self) -> Components:
        """This normal as a mixture of one, ``(N, 1)``."""
        mean, *variances = (value[..., None] for value in self.as_tensors().values())
        return Components(torch.zeros_like(mean), mean, *variances)

    def normal(self) -> PredictiveNormal:
        return self

    def as_tensors(self) -> dict[str, Tensor]:
        return {
            "mean": self.loc,
            "log_aleatoric": self.log_aleatoric,
            "log_epistemic": self.log_epistemic,
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> PredictiveNormal:
        return cls(**tensors, validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> PredictiveNormal:
        """The same normal over a larger batch."""
        shape = torch.Size(batch_shape)
        return self.from_tensors({k: part.expand(shape) for k, part in self.as_tensors().items()})


class PredictiveNormalMixture(RealAnswer, dist.MixtureSameFamily):
    r"""A mixture of K normals of y, each with an aleatoric and an epistemic variance.

    .. math::
        p(y) = \sum_k w_k N(y \mid \mu_k, a_k + e_k), \qquad
        a = \sum_k w_k a_k, \quad e = \sum_k w_k \left[e_k + (\mu_k - \mu)^2\right]

    with :math:`\mu = \sum_k w_k \mu_k`: what lies between the components is epistemic. The weights,
    means and variances are :class:`Components`, ``(N, K)`` each.
    """

    def __init__(self, components: Components, validate_args: bool | None = None) -> None:
        self._components = components
        log_variance = torch.logaddexp(components.log_aleatoric, components.log_epistemic)
        super().__init__(
            dist.Categorical(logits=components.log_weights, validate_args=validate_args),
            dist.Normal(components.mean, (log_variance / 2).exp(), validate_args=validate_args),
            validate_args=validate_args,
        )

    def __repr__(self) -> str:
        *batch, normals = self._components.mean.shape
        return f"PredictiveNormalMixture(shape {tuple(batch)}, K: {normals})"

    @property
    def log_aleatoric(self) -> Tensor:  # type: ignore[override]
        return (self._components.log_weights + self._components.log_aleatoric).logsumexp(-1)

    @property
    def log_epistemic(self) -> Tensor:  # type: ignore[override]
        parts = self._components
        between = (parts.mean - self.mean[..., None]).square()
        variance = parts.log_epistemic.exp() + between
        return (parts.log_weights.exp() * variance).sum(-1).log()

    def components(self) -> Components:
        return self._components

    def normal(self) -> PredictiveNormal:
        return PredictiveNormal(
            self.mean, self.log_aleatoric, self.log_epistemic, validate_args=False
        )

    def as_tensors(self) -> dict[str, Tensor]:
        return dict(vars(self._components))

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> PredictiveNormalMixture:
        return cls(Components(**tensors), validate_args=False)

    def expand(
        self, batch_shape: Sequence[int], _instance: object = None
    ) -> PredictiveNormalMixture:
        """The same mixture over a larger batch."""
        shape = (*batch_shape, self._components.mean.shape[-1])
        return self.from_tensors({k: part.expand(shape) for k, part in self.as_tensors().items()})
