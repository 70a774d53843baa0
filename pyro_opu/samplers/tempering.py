"""Weights of likelihood and prior of a Pyro model, for minibatches and tempered posteriors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyro.poutine.messenger import Messenger

from pyro_opu.checks import check_callable, positive_float
from pyro_opu.utils import Node, is_subsample


class Tempered(Messenger):
    """The handler of :func:`tempered`."""

    def __init__(self, likelihood: float = 1.0, prior: float = 1.0) -> None:
        super().__init__()
        for name, value in (("likelihood", likelihood), ("prior", prior)):
            positive_float(name, value, "It is a factor on log-densities; leave it out for 1.")
        self.likelihood, self.prior = likelihood, prior

    def __repr__(self) -> str:
        return f"Tempered(likelihood={self.likelihood!r}, prior={self.prior!r})"

    def _pyro_sample(self, msg: Node) -> None:
        if not is_subsample(msg):
            msg["scale"] = msg["scale"] * (self.likelihood if msg["is_observed"] else self.prior)


def tempered(
    fn: Callable[..., object], *, likelihood: float = 1.0, prior: float = 1.0
) -> Callable[..., Any]:
    r"""Scale the log-densities of a model's observed and latent sites.

    .. math:: \ell \log p(y \mid x, \theta) + \beta \log p(\theta)

    With :math:`\ell = N / M` at a minibatch of M of N rows this is an unbiased estimate of the
    log-joint of all data. With the same :math:`\beta` around model and guide an ELBO is tempered,
    :math:`\mathbb{E}_q \log p(D|\theta) - \beta\, \mathrm{KL}(q \| p)`. A latent site fixed by
    ``poutine.condition`` counts as latent in ``condition(tempered(model), data)``, as observed
    where ``condition`` is inside.

    Args:
        fn: A model or a guide; the result takes the same arguments.
        likelihood: :math:`\ell > 0`, the factor of observed sites (and of ``pyro.factor``).
        prior: :math:`\beta > 0`, the factor of latent sites.

    Example:
        >>> import pyro, pyro.distributions as dist, torch
        >>> def model(y):
        ...     mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("data", len(y)):
        ...         pyro.sample("obs", dist.Normal(mean, 1.0), obs=y)
        >>> def log_joint(fn):
        ...     fixed = pyro.poutine.condition(fn, {"mean": torch.zeros(())})
        ...     return float(pyro.poutine.trace(fixed).get_trace(torch.zeros(3)).log_prob_sum())
        >>> round(log_joint(tempered(model, likelihood=10.0)) / log_joint(model), 3)  # 31 / 4
        7.75

    References:
        Li (2022), lecture notes on Bayesian neural networks, eq. 11 (ELBO), 18 and 19.
    """
    return Tempered(likelihood, prior)(check_callable("fn", fn, "(...), a model or a guide"))
