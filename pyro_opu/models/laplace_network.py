"""A Laplace approximation made by laplace-torch, as a teacher whose draws are joint over inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_inputs, positive_int
from pyro_opu.rng import evaluating

#: Numbers in the Jacobians of one block of inputs, 16 MB in float32.
_NUMBERS_AT_ONCE = 2**22


class NetworkLaplace:
    r"""A classifier of laplace-torch, linear in its normal weights around the trained ones.

    .. math:: z(x) \mid \theta = f(x; \theta^*) + J(x) (\theta - \theta^*), \quad
              \theta \sim N(\theta^*, \Sigma), \qquad
              z(x) \sim N\bigl(f(x; \theta^*),\; J(x) \Sigma J(x)^\top\bigr)

    with J the Jacobian of the logits in the weights: exact for the last layer, for all weights the
    linearised Laplace approximation. :func:`pyro_opu.distill` takes it as a source, and
    :func:`~pyro_opu.rivals.laplace_bridge_predictive` reads its :meth:`logits`.

    Args:
        fit: A fitted ``laplace.Laplace(network, "classification", ...)``, of the last layer or of
            all weights. With P normal weights, an input's Jacobian has P C numbers.

    Raises:
        TypeError: ``fit`` is none.
        ValueError: ``fit`` is of a regressor, or not fitted yet.

    References:
        Daxberger et al.: Laplace redux (2021). Immer, Korzepa, Bauer: Improving predictions of
        Bayesian neural nets via local linearization (2021).
    """

    def __init__(self, fit: Any) -> None:
        if not all(hasattr(fit, name) for name in ("functional_variance", "sample", "likelihood")):
            raise ArgumentTypeError(
                f"`fit` must be a Laplace of laplace-torch; got {type(fit).__name__}. Write "
                'la = Laplace(network, "classification"); la.fit(loader); NetworkLaplace(la).'
            )
        if fit.likelihood != "classification" or not getattr(fit, "n_outputs", 0):
            raise ArgumentError(
                f"`fit` must be a fitted classifier; its likelihood is {fit.likelihood!r}. Call "
                "la.fit(loader) first; a regressor is a function x -> (loc, scale) of draws."
            )
        self.fit = fit
        self.num_classes = int(fit.n_outputs)

    def __repr__(self) -> str:
        return f"NetworkLaplace({type(self.fit).__name__}, C: {self.num_classes})"

    @torch.no_grad()
    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``(N, C)`` and covariance ``(N, C, C)`` of the linearised logits."""
        found = [(mean, self.fit.functional_variance(part)) for mean, part in self._blocks(x)]
        means, covariances = zip(*found, strict=True)
        return torch.cat(means), torch.cat(covariances)

    @torch.no_grad()
    def log_probs(self, x: Tensor, num_draws: int | None = 500) -> Tensor:
        """Log-probabilities ``(S, N, C)`` of draws; one draw of the weights serves all inputs."""
        count = 500 if num_draws is None else positive_int("num_draws", num_draws)
        apart = self.fit.sample(count) - self.fit.mean
        draws = [mean + torch.einsum("sp,ncp->snc", apart, part) for mean, part in self._blocks(x)]
        return torch.cat(draws, 1).log_softmax(-1)

    def probs(self, x: Tensor, num_draws: int | None = 500) -> Tensor:
        """The exponential of :meth:`log_probs`."""
        return self.log_probs(x, num_draws).exp()

    def _blocks(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield means ``(n, C)`` and Jacobians ``(n, C, P)`` for a few inputs at a time."""
        backend = self.fit.backend
        last = hasattr(self.fit.model, "last_layer")
        jacobians = backend.last_layer_jacobians if last else backend.jacobians
        size = max(1, _NUMBERS_AT_ONCE // (self.num_classes * self.fit.n_params))
        with evaluating(self.fit.model):
            for block in check_inputs(x).split(size):
                jacobian, mean = jacobians(block)
                yield mean.detach(), jacobian.detach()
