"""Ensemble distribution distillation, by the likelihood of the draws and by proxy targets."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_opu.checks import check_inputs
from pyro_opu.distillation import distill
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.guides import SingleHeadGuide
from pyro_opu.objectives.ensemble_distribution import EnsembleDistribution
from pyro_opu.objectives.proxy import ProxyDirichlet
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.rng import seeded
from pyro_opu.teachers import Source, as_teacher

__all__ = ["endd", "proxy_dirichlet"]


def endd(
    source: Source,
    x: Tensor,
    *,
    temperature: float = 10.0,
    smoothing: float = 1e-4,
    num_steps: int = 3000,
    learning_rate: float = 4e-3,
    seed: int | None = None,
    **settings: Any,
) -> OnePassPredictive:
    r"""Ensemble distribution distillation (EnD²) of a teacher, in the paper's way.

    .. math:: \max_\phi\; \mathbb{E}_x \tfrac1S \sum_s \log \mathrm{Dir}(\pi_s \mid \alpha(x; \phi))

    with :math:`\alpha = e^{z(x)}` from one head, no warm start and no recalibration, the draws and
    the student heated at first (:class:`~pyro_opu.objectives.EnsembleDistribution`). It is
    :func:`~pyro_opu.distill` with these settings and that loss, at the same transfer inputs.

    Args:
        source: Whatever :func:`~pyro_opu.as_teacher` takes.
        x: Transfer inputs ``(N, *input_shape)``.
        temperature: At the start; it falls to 1 over the second third of the steps.
        smoothing: How far draws are moved towards the uniform vector.
        num_steps: Steps in all.
        learning_rate: Adam's at the top of a rise and a cosine fall.
        seed: Fixes everything random.
        **settings: Any others of :func:`~pyro_opu.distill`, such as ``transfer=HeldOut()`` for the
            rows of ``x`` alone, as the paper has it without auxiliary data.

    Returns:
        The drop-in for ``source``, with the exponential average of the last weights; what is best
        while heated is not. (It has the fresh weights, if those should be nearer to the teacher.)

    Example:
        >>> import torch
        >>> teacher = lambda x: torch.softmax(x @ torch.ones(2, 3) * torch.randn(20, 1, 1), -1)
        >>> fast = endd(teacher, torch.randn(50, 2), num_steps=5, seed=0, progress=False)
        >>> fast.dirichlet(torch.zeros(4, 2)).event_shape
        torch.Size([3])

    References:
        Malinin, Mlodozeniec and Gales (2020), Ensemble Distribution Distillation.
    """
    check_inputs(x)
    objective = EnsembleDistribution(temperature, smoothing)
    with seeded(seed):
        teacher = as_teacher(source, settings.pop("site", None), inputs=settings.get("inputs"))
        teacher.probs(x[:1])  # now it knows its number of classes
        guide = _Unbent.for_inputs(x, teacher.num_classes)
    return _distill_alone(
        teacher, x, objective, num_steps, learning_rate, guide=guide, seed=seed, **settings
    )


def proxy_dirichlet(
    source: Source,
    x: Tensor,
    *,
    num_steps: int = 3000,
    learning_rate: float = 4e-3,
    **settings: Any,
) -> OnePassPredictive:
    r"""Ensemble distribution distillation with proxy targets, for many classes.

    .. math::
        \min_\phi\; \mathbb{E}_x\, \tfrac{1}{\tilde\beta_0}
        \mathrm{KL}\big(\mathrm{Dir}(\alpha(x; \phi) + 1) \,\|\,
        \mathrm{Dir}(\tilde\beta_0 \bar\pi(x) + 1)\big)

    where :math:`\bar\pi` is the mean of the draws and :math:`\tilde\beta_0` a precision made from
    them (:class:`~pyro_opu.objectives.ProxyDirichlet`, which says what is biased in it); the rest
    is as in :func:`endd`.

    Args and returns as :func:`endd`.

    Example:
        >>> import torch
        >>> teacher = lambda x: torch.softmax(x @ torch.ones(2, 3) * torch.randn(20, 1, 1), -1)
        >>> fast = proxy_dirichlet(teacher, torch.randn(50, 2), num_steps=5, seed=0, progress=False)
        >>> fast.report["loss"]
        'ProxyDirichlet'

    References:
        Ryabinin, Malinin and Gales (2021), Scaling Ensemble Distribution Distillation to Many
        Classes with Proxy Targets.
    """
    return _distill_alone(
        source, x, ProxyDirichlet(), num_steps, learning_rate, guide="single_head", **settings
    )


class _Unbent(SingleHeadGuide):
    """A single-head guide that is held in its range only when it is not being trained.

    The parameter of a heated student is the T-th power of what fits heated draws, and these lie
    close together: at T = 10 and ten classes log alpha_0 is about 50. Were it bent into the range
    of a cold student, its gradient would vanish for the first half of the training.
    """

    def answer(self, outputs: Tensor) -> PredictiveDirichlet:
        """The Dirichlet with alpha = exp(outputs)."""
        if not self.training:
            return super().answer(outputs)
        log_concentration = outputs.logsumexp(-1)
        return PredictiveDirichlet(outputs.log_softmax(-1), log_concentration, validate_args=False)


def _distill_alone(
    source: Source,
    x: Tensor,
    objective: EnsembleDistribution | ProxyDirichlet,
    num_steps: int,
    learning_rate: float,
    **settings: Any,
) -> OnePassPredictive:
    """Distil by this objective alone, from fresh weights to the last."""
    objective.learning_rate = learning_rate  # of the phase after the warm start: here all of it
    return distill(
        source,
        x,
        loss=objective,
        warm_start=False,
        recalibrate=False,
        num_steps=num_steps,
        learning_rate=learning_rate,
        evaluate_every=num_steps,
        **settings,
    )
