"""The Laplace bridge as a student: Gaussian logits to a Dirichlet, closed form, nothing learned."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, check_bool, check_inputs, check_seed
from pyro_opu.distributions import PredictiveDirichlet, laplace_bridge
from pyro_opu.predictive import OnePassPredictive, student_of
from pyro_opu.rng import preserve_rng
from pyro_opu.teachers import BaseTeacher, Source, as_teacher

__all__ = ["GaussianLogits", "LaplaceBridgeGuide", "laplace_bridge_predictive"]

# Log-probabilities and variances of drawn logits are kept above these: a class that a draw rules
# out has a logit of minus infinity, and draws that all agree ask for an infinite concentration.
_SMALLEST_LOG_PROB, _SMALLEST_VARIANCE = -87.0, 1e-8


class GaussianLogits(Protocol):
    """Anything with a normal distribution of its logits, such as a Laplace approximation."""

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``(N, C)`` and covariance, ``(N, C, C)`` or its diagonal ``(N, C)``."""
        ...


class LaplaceBridgeGuide(nn.Module):
    r"""The Laplace bridge after Gaussian logits, :math:`x \mapsto \mathrm{Dir}(\alpha(x))`.

    Args:
        source: With a method ``logits(x)``. A module's parameters and buffers are the guide's.
        normalize: As in :func:`~pyro_opu.laplace_bridge`.
    """

    takes_one_tensor = True

    def __init__(self, source: GaussianLogits, *, normalize: bool = False) -> None:
        super().__init__()
        self.source = source
        self.normalize = normalize

    def forward(self, x: Tensor) -> PredictiveDirichlet:
        """The Dirichlet at ``x``: batch shape ``(N,)``, event shape ``(C,)``."""
        # Logits of draws sum to zero already, so there is nothing to project.
        project = not isinstance(self.source, DrawnLogits)
        logits = self.source.logits(x)
        alpha = laplace_bridge(*logits, project=project, normalize=self.normalize)
        return PredictiveDirichlet.from_alpha(alpha, validate_args=False)

    def extra_repr(self) -> str:
        return f"normalize={self.normalize}"


class DrawnLogits:
    """The centred log-probabilities of a teacher's draws, taken for normal: S evaluations.

    A teacher that draws afresh gives other draws at every call. ``num_draws`` is at least 2, by
    default the teacher's own.
    """

    def __init__(self, teacher: BaseTeacher, num_draws: int | None = None) -> None:
        self.teacher, self.num_draws = teacher, num_draws

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances ``(N, C)``."""
        means, variances = [], []
        for log_probs in self.teacher.stream(x, self.num_draws):
            if len(log_probs) < 2:
                raise ArgumentError(
                    f"`num_draws` must be at least 2 for a variance; got {len(log_probs)} of the "
                    "teacher. Ask for more."
                )
            z = log_probs.clamp_min(_SMALLEST_LOG_PROB)
            z = z - z.mean(-1, keepdim=True)
            means.append(z.mean(0))
            variances.append(z.var(0).clamp_min(_SMALLEST_VARIANCE))
        return torch.cat(means), torch.cat(variances)


def laplace_bridge_predictive(
    source: GaussianLogits | Source,
    x: Tensor,
    *,
    normalize: bool = False,
    num_draws: int | None = None,
    seed: int | None = None,
    progress: bool = True,
) -> OnePassPredictive:
    r"""A posterior's Dirichlet by the Laplace bridge, in closed form; nothing is learned.

    .. math:: \alpha_k(x) = \frac{1}{\Sigma_{kk}(x)}
              \Bigl(1 - \frac{2}{C} + \frac{e^{\mu_k(x)}}{C^2}\sum_l e^{-\mu_l(x)}\Bigr)

    A source with Gaussian logits takes one forward pass. For any other teacher, mean and
    variances of the logits are taken from its draws *at every call*: as slow as the teacher, and
    the best that the bridge could do if moments were free.

    Args:
        source: An object with a method ``logits(x) -> (mean, covariance)``, such as
            ``pyro_opu.models.laplace_network.NetworkLaplace`` (a module is copied); or
            whatever :func:`~pyro_opu.as_teacher` takes.
        normalize: The normalised bridge, as in :func:`~pyro_opu.laplace_bridge`.
        num_draws: S of a teacher without ``logits``, by default its own number; of a source that
            has them, S of the student's answers, by default 500.
        seed, progress: Not used; taken so that the call is that of ``distill``.

    Returns:
        The student. A source that is a module (and Gaussian) is saved with it, and loaded with
        ``OnePassPredictive.load(path, guide=LaplaceBridgeGuide(architecture))``. Any other source
        is not in the file: pass a guide made of it to ``load``.

    Example:
        >>> class Line:
        ...     def logits(self, x):
        ...         mean = torch.cat([x, -x], -1)
        ...         return mean, 0.1 + 0.1 * mean.square()
        >>> fast = laplace_bridge_predictive(Line(), torch.randn(20, 1))
        >>> fast.dirichlet(torch.tensor([[0.0], [2.0]])).mean
        tensor([[0.5000, 0.5000],
                [0.9820, 0.0180]])

    References:
        Hobbhahn, Kristiadi, Hennig: Fast predictive uncertainty for classification with Bayesian
        deep networks (2020), eq. 5.
    """
    check_bool("normalize", normalize)
    check_bool("progress", progress)
    check_seed(seed)
    logits = getattr(source, "logits", None)
    if callable(logits) and not isinstance(logits, nn.Module):
        check_inputs(x)
        own: Any = copy.deepcopy(source) if isinstance(source, nn.Module) else source
        guide = LaplaceBridgeGuide(own, normalize=normalize)
        teacher: BaseTeacher = as_teacher(
            lambda x, num_draws: guide(x).sample((num_draws,)), num_samples=num_draws
        )
    else:
        teacher = as_teacher(source)  # type: ignore[arg-type]
        x = teacher.packed(x)
        guide = LaplaceBridgeGuide(DrawnLogits(teacher, num_draws), normalize=normalize)
    with preserve_rng(), torch.no_grad():
        teacher.probs(x[:1], 1)
        guide(x[:2])  # what it refuses is refused now
    one_pass = not isinstance(guide.source, DrawnLogits)
    report = {"method": "Laplace bridge", "normalize": normalize, "one_pass": one_pass}
    return student_of(guide, teacher, x, report=report)
