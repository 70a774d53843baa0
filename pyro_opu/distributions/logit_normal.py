"""Each class probability by itself, with a normal logit."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_opu.checks import in_range, instance_of
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.distributions.normal_logits import normal_logit, normal_rule

__all__ = ["LogitNormal"]


class LogitNormal:
    r"""The law of each class probability by itself, with a normal logit.

    .. math::
        \mathrm{logit}\, \pi_k \sim N(m_k, s_k^2), \qquad \mathbb{E}\, \pi_k = h_k, \quad
        \operatorname{Var} \pi_k = \frac{h_k (1 - h_k)}{\alpha_0 + 1}

    Its mean and variance are those of the Dirichlet that it is made of, its shape that of
    posteriors over logits, as of networks, regressions and Gaussian processes: a Dirichlet that is
    sure of a class has most of its draws far nearer to the corner than theirs are.
    It says nothing of how classes vary together, which the Dirichlet's own draws do; two classes
    have one logit, and are described whole.

    Attributes:
        log_mean: :math:`\log h`, ``(N, C)``.
        logit: m, ``(N, C)``, float64.
        deviation: s, ``(N, C)``, float64; at most 8.

    References:
        Aitchison and Shen (1980), Logistic-normal distributions: some properties and uses.

    Example:
        >>> from pyro_opu import PredictiveDirichlet
        >>> sure = PredictiveDirichlet(torch.tensor([[0.99, 0.01]]).log(), torch.tensor([3.0]))
        >>> low, high = LogitNormal(sure).interval(0.9)
        >>> low.round(decimals=3), high.round(decimals=3)
        (tensor([[0.9610, 0.0000]]), tensor([[1.0000, 0.0390]]))
    """

    def __init__(self, dirichlet: PredictiveDirichlet) -> None:
        advice = "Pass fast.dirichlet(x)."
        instance_of("dirichlet", dirichlet, PredictiveDirichlet, "a PredictiveDirichlet", advice)
        self.log_mean, g = dirichlet.log_mean, dirichlet.log_concentration
        exact = self.log_mean.double()
        logit = exact - (-torch.expm1(exact)).clamp_min(torch.finfo(exact.dtype).tiny).log()
        self.logit, self.deviation = normal_logit(logit, g[..., None])

    def quantile(self, q: float) -> Tensor:
        """The probability of each class that a share q of the draws is below, ``(N, C)``.

        Raises:
            ValueError: q is not between 0 and 1.
        """
        in_range("q", q, 0, 1, "()")
        normal = torch.special.ndtri(torch.tensor(float(q), dtype=torch.float64))
        return torch.sigmoid(self.logit + float(normal) * self.deviation).to(self.log_mean.dtype)

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Ends of the central intervals that hold a share ``level`` of the draws, ``(N, C)`` each.

        Raises:
            ValueError: ``level`` is not between 0 and 1.
        """
        in_range("level", level, 0, 1, "()")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def cdf(self, value: Tensor) -> Tensor:
        """Share of the draws below probabilities ``(..., N, C)``, for each class."""
        z = (torch.special.logit(value.double()) - self.logit) / self.deviation
        return torch.special.ndtr(z).to(self.log_mean.dtype)

    @property
    def mutual_information(self) -> Tensor:
        r""":math:`\sum_k \mathbb{E}\, \pi_k \log \pi_k - h_k \log h_k`, ``(N,)``, in nats.

        What the draws say of a label: as the entropy is a sum over classes, their marginals decide.
        """
        nodes, weights = normal_rule(self.logit)
        z = self.logit[..., None] + self.deviation[..., None] * nodes
        aleatoric = torch.special.entr(z.sigmoid()) @ weights
        total = torch.special.entr(self.log_mean.double().exp())
        return (total - aleatoric).sum(-1).clamp_min(0.0).to(self.log_mean.dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(log_mean: {self.log_mean.shape})"
