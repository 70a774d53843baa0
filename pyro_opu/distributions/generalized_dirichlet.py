"""The Dirichlet of Connor and Mosimann: a stick broken in Beta shares."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_opu.distributions.base import SimplexDistribution
from pyro_opu.distributions.dirichlet import log_dirichlet_rsample
from pyro_opu.distributions.simplex_measures import SimplexMeasures

__all__ = ["GeneralizedDirichlet"]


class GeneralizedDirichlet(SimplexDistribution):
    r"""Each class takes a Beta share of what the classes before it have left.

    .. math::
        \pi_j = v_j \prod_{i<j} (1 - v_i), \quad v_j \sim \mathrm{Beta}(a_j, b_j), \qquad
        \pi_C = \prod_i (1 - v_i)

    It has 2 (C - 1) numbers where a Dirichlet has C, so that classes may spread unequally; with
    :math:`b_j = a_{j+1} + b_{j+1}` it is one. All measures are exact and differentiable. **It
    depends on the order of the classes**: relabelled classes are another family, and a class late
    in the order depends on all before it.

    Args:
        log_a: :math:`\log a`, ``(N, C - 1)``, finite.
        log_b: :math:`\log b`, ``(N, C - 1)``, finite. Half precision is computed, and answered, in
            float32.

    Raises:
        ValueError: shapes that do not belong together.

    Example:
        >>> import torch
        >>> a, b = torch.tensor([[2.0, 1.0]]), torch.tensor([[4.0, 3.0]])  # 4 = 1 + 3: a Dirichlet
        >>> stick = GeneralizedDirichlet(a.log(), b.log())
        >>> stick.mean
        tensor([[0.3333, 0.1667, 0.5000]])
        >>> stick.measures().variance
        tensor([0.0873], dtype=torch.float64)

    References:
        Connor and Mosimann (1969), Concepts of independence for proportions with a generalization
        of the Dirichlet distribution; Wong (1998), Generalized Dirichlet distribution in Bayesian
        analysis, for the moments.
    """

    def __init__(self, log_a: Tensor, log_b: Tensor) -> None:
        if log_a.dim() != 2 or log_a.shape != log_b.shape or not log_a.shape[-1]:
            raise ValueError(
                "`log_a` and `log_b` must both have shape (N, C - 1) with C >= 2; got "
                f"{tuple(log_a.shape)} and {tuple(log_b.shape)}. The last class takes what is left."
            )
        super().__init__(len(log_a), log_a.shape[-1] + 1)
        dtype = torch.promote_types(log_a.dtype, torch.float32)
        self.log_a, self.log_b = log_a.to(dtype), log_b.to(dtype)

    @property
    def log_mean(self) -> Tensor:
        """Exact, ``(N, C)``."""
        total = torch.logaddexp(self.log_a, self.log_b)
        return _of_the_stick(self.log_a - total, self.log_b - total)

    def log_rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Logarithms of draws, ``(*sample_shape, N, C)``, with pathwise gradients."""
        pairs = log_dirichlet_rsample(torch.stack([self.log_a, self.log_b], -1), sample_shape)
        return _of_the_stick(*pairs.unbind(-1))

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Log density at points ``(..., N, C)``, in nats; computed in float64.

        .. math:: \sum_{j<C} \log \mathrm{Beta}(v_j \mid a_j, b_j) - \log r_j, \qquad
                  v_j = \pi_j / r_j, \quad r_j = \sum_{i \ge j} \pi_i

        A probability of zero is raised to the smallest normal number of float64.
        """
        logs = value.double().clamp_min(torch.finfo(torch.float64).tiny).log()
        left = logs.flip(-1).logcumsumexp(-1).flip(-1)  # log r
        a, b = self._float64()
        density = (a - 1) * (logs - left)[..., :-1] + (b - 1) * left.diff(dim=-1)
        density = (density - _log_beta(a, b) - left[..., :-1]).sum(-1)
        return density.to(torch.promote_types(value.dtype, self.log_a.dtype))

    def measures(self) -> SimplexMeasures:
        """All exact."""
        a, b = self._float64()
        total = a + b
        log_mean = _of_the_stick((a / total).log(), (b / total).log())
        # E pi^2 / (E pi)^2, share by share; E pi^2 is at most one, the ratio may be huge.
        log_ratio = _of_the_stick((b / (a * (total + 1))).log1p(), (a / (b * (total + 1))).log1p())
        variance = -(2 * log_mean + log_ratio).exp() * (-log_ratio).expm1()
        # Weighted by pi_j a share is Beta(a_j + 1, b_j), and those before it Beta(a_i, b_i + 1).
        weighted_log = _of_the_stick(
            (a + 1).digamma() - (total + 1).digamma(), (b + 1).digamma() - (total + 1).digamma()
        )
        log_share, log_rest = (each.digamma() - total.digamma() for each in (a, b))
        return SimplexMeasures(
            self.log_a.dtype,
            log_mean,
            -(log_mean.exp() * weighted_log).sum(-1),
            variance.sum(-1),
            _of_the_stick(log_share, log_rest),
            lambda: _entropy(a, b, log_share, log_rest),
        )

    def _float64(self) -> tuple[Tensor, Tensor]:
        """a and b, ``(N, C - 1)`` each."""
        tiny = torch.finfo(torch.float64).tiny
        return (
            self.log_a.double().exp().clamp_min(tiny),
            self.log_b.double().exp().clamp_min(tiny),
        )


def _of_the_stick(log_share: Tensor, log_rest: Tensor) -> Tensor:
    """Sums over a share and the rests before it, ``(..., C)`` from ``(..., C - 1)`` each."""
    before = torch.nn.functional.pad(log_rest.cumsum(-1), (1, 0))
    return before + torch.nn.functional.pad(log_share, (0, 1))


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


def _entropy(a: Tensor, b: Tensor, log_share: Tensor, log_rest: Tensor) -> Tensor:
    """Of the Beta shares, and of the change of variables: share i shrinks all sticks after it."""
    own = _log_beta(a, b) - (a - 1) * log_share - (b - 1) * log_rest
    after = torch.arange(a.shape[-1] - 1, -1, -1, dtype=a.dtype, device=a.device)
    return (own + after * log_rest).sum(-1)
