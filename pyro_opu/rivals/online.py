"""Distilled SGLD, truly online: sampler and student step in turn and nothing is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from itertools import chain
from typing import Any

from pyro.infer import Predictive
from torch import Tensor

from pyro_opu.checks import check_inputs, instance_of, positive_int
from pyro_opu.predictive import OnePassPredictive, student_of
from pyro_opu.rivals.bayesian_dark_knowledge import Form, Learner
from pyro_opu.rng import seeded
from pyro_opu.samplers import SGLD
from pyro_opu.teachers import as_teacher, held_from

__all__ = ["online_dark_knowledge"]

#: Settings of the student's half.
LEARNING = {field.name for field in fields(Learner)} - {"form"}


def online_dark_knowledge(
    kernel: SGLD,
    data: Sequence[Any],
    x: Tensor,
    *,
    form: Form = "point",
    num_draws: int = 20_000,
    warmup_steps: int = 1000,
    num_samples: int = 500,
    seed: int | None = None,
    **settings: Any,
) -> OnePassPredictive:
    r"""Distilled SGLD, online: sampler and student step in turn, and no draw is kept.

    .. math::
        \theta_{t+1} &= \theta_t + \tfrac{\eta_t}{2} \Big( \nabla \log p(\theta \mid \lambda) +
        \tfrac NM \sum_{i \in B} \nabla \log p(y_i \mid x_i, \theta) \Big) + z_t, \quad
        z_t \sim N(0, \eta_t I) \\
        w_{t+1} &= w_t - \rho_t \Big( \tfrac1M \sum_{x' \in D'}
        \nabla_w \hat L(w, \theta_{t+1} \mid x') + \gamma w_t \Big)

    Every draw of the kernel, ``kernel.thinning`` steps, teaches one step of the student as in
    :func:`dark_knowledge`, which runs the model once at the M inputs of D'; the burn-in teaches
    nothing. It returns the drop-in for ``Predictive(kernel.model, draws)``.

    Args:
        kernel: The sampler.
        data: The model's arguments, the whole training data, such as ``(x_train, y_train)``.
        x: Transfer inputs ``(N, *input_shape)``, from which D' is made.
        num_draws: Draws after the burn-in, each a step of the student.
        warmup_steps: Draws of the burn-in.
        **settings: Any others of :func:`dark_knowledge`, where ``batch_size`` is M of the student;
            and those of :func:`~pyro_opu.as_teacher`, such as ``inputs=lambda n, x: x``.

    Example:
        >>> import torch
        >>> from pyro_opu.models.logistic_regression import logistic_regression
        >>> data = torch.randn(30, 2), torch.arange(30) % 3
        >>> kernel = SGLD(logistic_regression(3), step_size=1e-2)
        >>> fast = online_dark_knowledge(kernel, data, data[0], num_draws=5, progress=False)
        >>> fast(torch.randn(4, 2))["obs"].shape
        torch.Size([500, 4])

    References:
        Korattikara, Rathod, Murphy and Welling (2015), Bayesian Dark Knowledge, Algorithm 1.
    """
    x = check_inputs(x).detach()
    num_draws = positive_int("num_draws", num_draws)
    warmup_steps = positive_int("warmup_steps", warmup_steps, 0)
    num_samples = positive_int("num_samples", num_samples)
    learner = Learner(form, **{k: settings.pop(k) for k in LEARNING & settings.keys()})
    expected = "a tuple, the model's arguments"
    instance_of("data", data, (tuple, list), expected, "Write (x_train, y_train).")
    advice = "For existing draws use dark_knowledge(Predictive(model, samples), x)."
    instance_of("kernel", kernel, SGLD, "an SGLD", advice)
    with seeded(seed):
        draws = kernel.stream(*data, num_samples=num_draws, warmup_steps=warmup_steps)
        first = next(draws)
        one = Predictive(kernel.model, {name: value[None] for name, value in first.items()})
        teacher = as_teacher(one, num_samples=num_samples, **settings)
        asked = (partial(_under, teacher, draw) for draw in chain([first], draws))
        student, loss = learner.teach(teacher, x, asked, num_draws)
        next(draws, None)  # the sampler cleans up after its last draw
    report = {"seed": seed, "form": form, "online": True, "num_steps": num_draws, "loss": loss}
    return student_of(student, teacher, x, report=report)


def _under(teacher: Any, draw: dict[str, Tensor], x: Tensor) -> Tensor:
    """What the model says of ``x`` under one draw ``(1, N, ...)``."""
    held = held_from(teacher, {name: value[None] for name, value in draw.items()})
    answer: Tensor = held.draws(x)
    return answer
