"""Ensemble distribution distillation, by the likelihood of the draws and by proxy targets."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_opu.distillation import distill
from pyro_opu.distributions import PredictiveDirichlet
from pyro_opu.guides import SingleHeadGuide
from pyro_opu.objectives import EnsembleDistribution, ProxyDirichlet
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.rng import seeded
from pyro_opu.teachers import Source, as_teacher
from pyro_opu.training import Training

__all__ = ["endd", "proxy_dirichlet"]


def endd(
    source: Source,
    x: Tensor,
    *,
    temperature: float = 10.0,
    smoothing: float = 1e-4,
    seed: int | None = None,
    **settings: Any,
) -> OnePassPredictive:
    r"""Ensemble distribution distillation (EnD²) of a teacher, in the paper's way.

    .. math:: \max_\phi\; \mathbb{E}_x \tfrac1S \sum_s \log \mathrm{Dir}(\pi_s \mid \alpha(x; \phi))

    :func:`~pyro_opu.distill` with :math:`\alpha = e^{z(x)}` from one head, no warm start and no
    recalibration, the draws and the student heated at first
    (:class:`~pyro_opu.objectives.EnsembleDistribution`). The student has the exponential average of
    the last weights, or fresh ones if those are nearer to the teacher.

    Args:
        temperature: At the start; it falls to 1 over the second third of the steps.
        smoothing: How far draws are moved towards the uniform vector.
        **settings: Arguments of :func:`~pyro_opu.distill`, with 3000 steps by default;
            ``batch_size``, ``num_draws`` and ``learning_rate``, by default 4e-3; and ``transfer``:
            ``HeldOut()`` takes the rows of ``x`` alone, as the paper does without auxiliary data.

    References:
        Malinin, Mlodozeniec and Gales (2020), Ensemble Distribution Distillation.
    """
    objective = EnsembleDistribution(temperature, smoothing)
    with seeded(seed):
        teacher = as_teacher(source)
        teacher.probs(teacher.packed(x)[:1])  # now it knows its number of classes
        guide = _Unbent.for_inputs(x, teacher.num_classes)
    return _distill_alone(teacher, x, objective, guide=guide, seed=seed, **settings)


def proxy_dirichlet(source: Source, x: Tensor, **settings: Any) -> OnePassPredictive:
    r"""Ensemble distribution distillation with proxy targets, for many classes.

    .. math::
        \min_\phi\; \mathbb{E}_x\, \tfrac{1}{\tilde\beta_0}
        \mathrm{KL}\big(\mathrm{Dir}(\alpha(x; \phi) + 1) \,\|\,
        \mathrm{Dir}(\tilde\beta_0 \bar\pi(x) + 1)\big)

    where :math:`\bar\pi` is the mean of the draws and :math:`\tilde\beta_0` a precision made from
    them (:class:`~pyro_opu.objectives.ProxyDirichlet`, which says what is biased in it). Arguments
    and result are those of :func:`endd`.

    References:
        Ryabinin, Malinin and Gales (2021), Scaling Ensemble Distribution Distillation to Many
        Classes with Proxy Targets.
    """
    return _distill_alone(source, x, ProxyDirichlet(), guide="single_head", **settings)


class _Unbent(SingleHeadGuide):
    """A single-head guide that is held in its range only when it is not being trained.

    The parameter of a heated student is the T-th power of what fits heated draws, which lie close
    together: at T = 10 and ten classes log alpha_0 is about 50. Bent into the range of a cold
    student, its gradient would vanish for the first half of the training.
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
    *,
    num_steps: int = 3000,
    batch_size: int | None = None,
    num_draws: int | None = None,
    learning_rate: float = 4e-3,
    **settings: Any,
) -> OnePassPredictive:
    """Distil by this objective alone, from fresh weights to the last."""
    return distill(
        source,
        x,
        loss=objective,
        training=Training(
            num_steps=num_steps,
            batch_size=batch_size,
            num_draws=num_draws,
            learning_rate=learning_rate,
            warm_start=False,
            recalibrate=False,
            evaluate_every=num_steps,
        ),
        **settings,
    )
