"""Class probabilities by breaking sticks with normal logits, the likeliest class first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property
from torch.nn.functional import logsigmoid, pad, softplus

from pyro_opu.checks import ArgumentError, check_tensor
from pyro_opu.distributions.dirichlet import PredictiveDirichlet, SimplexDistribution, check_point
from pyro_opu.distributions.measures import HALF, DirichletMeasures, at_least_float32
from pyro_opu.distributions.normal_logits import (
    MOST_DEVIATION,
    NormalLogits,
    TabulatedLogit,
    tabulated_logit,
)
from pyro_opu.rng import drawing

__all__ = ["NormalSticks"]

#: Least logarithm of a probability that is told from smaller ones.
LEAST_LOG = -300.0
#: How often log alpha_0 of the first stick is corrected by that of all, which is then right within
#: 0.003 of three classes, 0.02 of ten and 0.08 of 64.
SEARCHES = 1
#: Of an interval of logits, in the search for a mode.
HALVINGS = 60


class NormalSticks(SimplexDistribution):
    r"""Sticks with normal logits: the mean and the summed variance of a Dirichlet, another shape.

    Classes in the order of their mean, :math:`h_1 \ge h_2 \ge \dots`, each take a share v of what
    those before have left:

    .. math::
        \pi_k = v_k \prod_{j<k} (1 - v_j), \qquad \mathrm{logit}\, v_k \sim N(m_k, s_k^2), \quad
        \mathbb{E}\, v_k = \frac{h_k}{\sum_{j \ge k} h_j}, \quad
        s_k^2 = \sigma^2 \Big(1 + \sum_{j>k} w_{kj}^2\Big), \quad
        w_{kj} = \frac{h_j}{\sum_{i>k} h_i}

    so that :math:`\mathbb{E}\,\pi = h`, to first order as if every logit of a softmax had the one
    variance :math:`\sigma^2`; and this is the one that makes :math:`\sum_k \operatorname{Var} \pi_k
    = (1 - \sum_k h_k^2) / (\alpha_0 + 1)`. Draws of networks, regressions and Gaussian processes
    are like this; a Dirichlet that is sure of a class has most of its draws far nearer to the
    corner than theirs are.

    Sticks are independent, so all measures are sums over them, by a table of one normal logit
    (:func:`~pyro_opu.distributions.normal_logits.tabulated_logit`), and ``log_prob`` is exact.
    Deviations are at most 8, and what asks for more has less variance than it says.

    Args:
        log_mean: :math:`\log h`, normalised and finite, ``(N, C)``.
        log_concentration: :math:`\log \alpha_0`, ``(N,)``.

    References:
        Aitchison and Shen (1980), Logistic-normal distributions: some properties and uses.
        Linderman, Johnson and Adams (2015), Dependent multinomial models made easy: stick breaking
        with the Polya-gamma augmentation, section 3.

    Example:
        >>> sure = NormalSticks(torch.tensor([[0.98, 0.01, 0.01]]).log(), torch.tensor([3.0]))
        >>> sure.matched().concentration.sum(-1).log()
        tensor([3.])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # type: ignore[misc]
        "log_mean": constraints.real_vector,
        "log_concentration": constraints.real,
    }
    closed_form = True
    # Given, where other families compute them.
    log_mean: Tensor = None  # type: ignore[assignment]
    log_concentration: Tensor = None  # type: ignore[assignment]

    def __init__(self, log_mean: Tensor, log_concentration: Tensor) -> None:
        shape = check_tensor("log_mean", log_mean, "(N, C)", meta=True).shape
        check_tensor("log_concentration", log_concentration, "(N,)", meta=True)
        if len(shape) != 2 or shape[:1] != log_concentration.shape:
            raise ArgumentError(
                "`log_mean` must have shape (N, C) and `log_concentration` shape (N,); got "
                f"{tuple(shape)} and {tuple(log_concentration.shape)}. One concentration belongs "
                "to each row: squeeze or expand `log_concentration`."
            )
        super().__init__(*shape)
        # In half precision a row is off by a percent: normalise what is computed with.
        half = log_mean.dtype in HALF
        self.log_mean = log_mean.float().log_softmax(-1) if half else log_mean
        self.log_concentration = at_least_float32(log_concentration)

    @lazy_property
    def sticks(self) -> Sticks:
        """The sticks that have this mean and variance."""
        return Sticks(self.log_mean, self.log_concentration)

    @property
    def variance(self) -> Tensor:
        """The measure of every class, ``(N, C)``, by the table."""
        sticks = self.sticks
        variance = sticks.variances(sticks.deviation)
        return variance.gather(-1, sticks.order.argsort(-1)).to(self.log_mean.dtype)

    def log_rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        sticks, dtype = self.sticks, self.log_mean.dtype
        mean, deviation = (each.to(dtype) for each in (sticks.of.mean, sticks.deviation))
        noise = mean.new_empty(*sample_shape, *mean.shape)
        with drawing(noise.device) as generator:
            noise.normal_(generator=generator)
        return sticks.log_probs(mean + deviation * noise)

    @property
    def mode(self) -> Tensor:
        r"""Where the density is largest, ``(N, C)``.

        The density is a product over sticks, of which the k-th has the factor

        .. math:: N(z_k \mid m_k, s_k^2)\, v_k^{-1} (1 - v_k)^{-c}, \qquad c = C - k

        Its logarithm bends upwards only where :math:`v (1 - v) > 1 / ((c + 1) s^2)`, so that it has
        at most one maximum on either side of there, and bisection finds both.
        """
        sticks = self.sticks
        m, s2 = sticks.of.mean, sticks.deviation.square()
        c = torch.arange(m.shape[-1], 0, -1, dtype=m.dtype, device=m.device)
        edge = 2 * (1 - 4 / ((c + 1) * s2)).clamp(0.0, 1 - 1e-15).sqrt().atanh()
        left = _falling_root(m, s2, c, (m - s2).minimum(-edge), -edge)
        right = _falling_root(m, s2, c, edge, (m + c * s2).maximum(edge))
        height = [
            -0.5 * (z - m).square() / s2 + softplus(-z) + c * softplus(z) for z in (left, right)
        ]
        best = torch.where(height[0] > height[1], left, right)
        return sticks.log_probs(best).exp().to(self.log_mean.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Log density at points ``(..., N, C)``, in nats, computed in float64.

        .. math::
            \sum_{k<C} \log N(\mathrm{logit}\, v_k \mid m_k, s_k^2) - \log v_k (1 - v_k) - \log r_k,
            \qquad r_k = \sum_{j \ge k} \pi_j, \quad v_k = \pi_k / r_k

        Zeros are raised to the smallest normal number.
        """
        check_point(value)
        sticks = self.sticks
        logs = value.double().clamp_min(torch.finfo(torch.float64).tiny).log()
        logs = logs.expand(torch.broadcast_shapes(logs.shape, self.batch_shape + self.event_shape))
        logs = logs.gather(-1, sticks.order.expand_as(logs))
        left = logs.flip(-1).logcumsumexp(-1).flip(-1)
        z = (logs[..., :-1] - left[..., 1:] - sticks.of.mean) / sticks.deviation
        normal = -0.5 * (z.square() + math.log(2 * math.pi)) - sticks.log_deviation
        # v (1 - v) r = pi_k (1 - v), and 1 - v = r_{k+1} / r_k
        jacobian = logs[..., :-1] + left[..., 1:] - left[..., :-1]
        density = (normal - jacobian).sum(-1)
        return density.to(torch.promote_types(value.dtype, self.log_mean.dtype))

    def measures(self) -> StickMeasures:
        """By the table."""
        return StickMeasures(self.log_mean, self.log_concentration)

    def matched(self) -> PredictiveDirichlet:
        """The Dirichlet with the same mean and summed variance, at no cost."""
        return PredictiveDirichlet(self.log_mean, self.log_concentration, validate_args=False)

    def as_tensors(self) -> dict[str, Tensor]:
        return {"log_mean": self.log_mean, "log_concentration": self.log_concentration}


class Sticks:
    """C - 1 sticks of every input, float64.

    Attributes:
        order: Classes, the likeliest first, ``(N, C)``.
        logit: The logit of the mean share, ``(N, C - 1)``.
        left: The mean of what is left before each, ``(N, C - 1)``.
        deviation: s, ``(N, C - 1)``.

    Args:
        log_mean: ``(N, C)``.
        log_concentration: log alpha_0, ``(N,)``.
    """

    def __init__(self, log_mean: Tensor, log_concentration: Tensor) -> None:
        logs = log_mean.log_softmax(-1, dtype=torch.float64).clamp_min(LEAST_LOG)
        logs, self.order = logs.sort(-1, descending=True)
        self._h = logs.exp()
        whole, squares = (each.flip(-1).cumsum(-1).flip(-1) for each in (self._h, self._h.square()))
        self.left, rest = whole[:, :-1], whole[:, 1:]
        self._odds = self._h[:, :-1] / rest
        self.logit = self._odds.log()
        self._logits = NormalLogits(self.logit)
        scale = (squares[:, 1:] / rest.square() + 1.0).sqrt()
        scale = scale / scale[:, :1]
        wanted = own = log_concentration.double()  # of the first stick, near that of all
        for search in range(SEARCHES + 1):
            deviation = (self._logits.first_deviation(own) * scale).clamp_max(MOST_DEVIATION)
            if search < SEARCHES:
                own = own + wanted - self._log_concentration(deviation, rest)
        self.deviation = deviation

    def _log_concentration(self, deviation: Tensor, rest: Tensor) -> Tensor:
        """Log alpha_0 of all classes, ``(N,)``."""
        h, tiny = self._h, torch.finfo(torch.float64).tiny
        gini = h[:, 0] * rest[:, 0] + (h[:, 1:] * (1.0 - h[:, 1:])).sum(-1)
        variance = self.variances(deviation).sum(-1)
        return ((gini - variance).clamp_min(tiny) / variance.clamp_min(tiny)).log()

    def variances(self, deviation: Tensor) -> Tensor:
        """Values of every class ``(N, C)``, in the order of the sticks."""
        square = deviation.square()
        share = square / (square + self._logits.concentration(deviation))
        # E v^2 / (E v)^2 - 1, and of 1 - v: factors of E pi_k^2 / h_k^2, sticks being independent
        taken, passed = pad(share / self._odds, (0, 1)), pad(share * self._odds, (1, 0))
        before = passed.log1p().cumsum(-1)  # a product in logarithms, as ONNX has no other
        return self._h.square() * (before.expm1() + before.exp() * taken)

    def log_probs(self, z: Tensor) -> Tensor:
        """Logarithms of class probabilities ``(..., N, C)`` at logits ``(..., N, C - 1)``."""
        left = pad(logsigmoid(-z).cumsum(-1), (1, 0))
        logs = pad(logsigmoid(z), (0, 1)) + left
        return logs.gather(-1, self.order.argsort(-1).expand_as(logs))

    def epistemic(self) -> Tensor:
        """Mutual information, ``(N,)``."""
        information = self._logits.information(self.deviation)
        return (self.left * self.deviation.square() * information).sum(-1)

    @lazy_property
    def log_left(self) -> Tensor:
        """Logarithm of ``left``."""
        return self.left.log()

    @lazy_property
    def log_deviation(self) -> Tensor:
        """Logarithm of ``deviation``."""
        return self.deviation.log()

    @lazy_property
    def of(self) -> TabulatedLogit:
        """What each logit says of its share."""
        return tabulated_logit(self.logit, self.log_deviation)


def _falling_root(m: Tensor, s2: Tensor, c: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Where the slope of the log density of a logit is 0, between ends where it falls."""
    for _ in range(HALVINGS):
        z = 0.5 * (low + high)
        rises = (c + 1) * z.sigmoid() - 1 > (z - m) / s2
        low, high = torch.where(rises, z, low), torch.where(rises, high, z)
    return low


class StickMeasures(DirichletMeasures):
    r"""Sums over sticks, beside what two moments say; every property is float64 and of shape (N,).

    By the chain rule of entropy, with :math:`\bar r_k` the mean of what is left before stick k:

    .. math::
        H[h] - \mathbb{E}\, H[\pi] = \sum_k \bar r_k\, I_k, \qquad
        \mathbb{E}\, KL(\pi\,\|\,\pi') = \sum_k \bar r_k\, s_k^2\, \mathbb{E}\, v_k (1 - v_k)

    with I the mutual information of one share, and the covariance of a share and its logit by
    Stein's lemma.

    References:
        Stein (1981), Estimation of the mean of a multivariate normal distribution, lemma 1.
    """

    @cached_property
    def _sticks(self) -> Sticks:
        return Sticks(*self._given)

    @cached_property
    def epistemic(self) -> Tensor:
        return self._sticks.epistemic()

    @property
    def aleatoric(self) -> Tensor:
        return (self.total - self.epistemic).clamp(min=0.0)

    @property
    def expected_pairwise_kl(self) -> Tensor:
        sticks = self._sticks
        # Of mean v (1 - v): alpha_0 / (alpha_0 + 1) of the mean share's.
        within = logsigmoid(sticks.logit) + logsigmoid(-sticks.logit)
        within = within + logsigmoid(sticks.of.log_concentration)
        return (sticks.log_left + 2 * sticks.log_deviation + within).exp().sum(-1)

    @property
    def differential_entropy(self) -> Tensor:
        sticks = self._sticks
        normal = 0.5 + 0.5 * math.log(2 * math.pi) + sticks.log_deviation
        left = pad(sticks.of.log_absent.cumsum(-1), (1, -1))
        return (normal + sticks.of.log_present + sticks.of.log_absent + left).sum(-1)
