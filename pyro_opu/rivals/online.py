"""Distilled SGLD, truly online: sampler and student step in turn and nothing is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import pyro
import torch
from pyro.infer import Predictive
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_opu.checks import check_inputs, instance_of, positive_int
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.regression import RegressionTeacher
from pyro_opu.rivals.bayesian_dark_knowledge import (
    Form,
    Rate,
    check_counts,
    check_form,
    check_learning,
    learn,
    replacement,
    student_of,
)
from pyro_opu.rng import seeded
from pyro_opu.samplers import SGLD
from pyro_opu.teachers import PredictiveTeacher
from pyro_opu.teachers.calling import Model, bound, call_of, first_argument
from pyro_opu.teachers.real import normal_parameters
from pyro_opu.teachers.sites import class_log_probs
from pyro_opu.transfer import TransferPolicy, default_transfer

__all__ = ["online_dark_knowledge"]


def online_dark_knowledge(
    kernel: SGLD,
    data: Sequence[Any],
    x: Tensor,
    *,
    form: Form = "point",
    guide: nn.Module | str | None = None,
    transfer: TransferPolicy | None = None,
    num_draws: int = 20_000,
    warmup_steps: int = 1000,
    batch_size: int = 100,
    learning_rate: Rate = 4e-3,
    prior_precision: float = 0.0,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    site: str | None = None,
    inputs: Callable[..., Tensor] | None = None,
    return_sites: Sequence[str] | None = None,
    num_samples: int = 500,
    seed: int | None = None,
    progress: bool = True,
) -> OnePassPredictive:
    r"""Distilled SGLD, online: sampler and student step in turn, and no draw is kept.

    .. math::
        \theta_{t+1} &= \theta_t + \tfrac{\eta_t}{2} \Big( \nabla \log p(\theta \mid \lambda) +
        \tfrac NM \sum_{i \in B} \nabla \log p(y_i \mid x_i, \theta) \Big) + z_t, \quad
        z_t \sim N(0, \eta_t I) \\
        w_{t+1} &= w_t - \rho_t \Big( \tfrac1M \sum_{x' \in D'}
        \nabla_w \hat L(w, \theta_{t+1} \mid x') + \gamma w_t \Big)

    The first line is the kernel, with its own schedule, minibatches and, in the model,
    :math:`\lambda`. Every draw, ``kernel.thinning`` steps, teaches one step of the student as in
    :func:`dark_knowledge`, whose other arguments and differences from the paper apply here too; the
    burn-in teaches nothing. Memory does not grow with the number of draws. A step of the student
    asks the model once at the M inputs of D', which costs a forward pass and about 0.1 ms.

    Args:
        kernel: The sampler, :class:`~pyro_opu.SGLD`.
        data: The model's arguments, the whole training data, such as ``(x_train, y_train)``.
        x: Transfer inputs ``(N, *input_shape)``, from which D' is made.
        form: "point", "dirichlet", or "normal" for a regression.
        guide: The student, by name or a module; by default by the form.
        transfer: The student data generator D'.
        num_draws: Draws after the burn-in, each a step of the student.
        warmup_steps: Draws of the burn-in, ``kernel.thinning`` steps each.
        batch_size: M of the student; the teacher's is the kernel's.
        learning_rate: :math:`\rho_t`.
        prior_precision: :math:`\gamma`.
        optimizer: Called with the parameters, ``lr`` and ``weight_decay``.
        site: The observed site, when the model has several.
        inputs: Picks the input from the arguments of the model, such as ``lambda n, x, y: x``, for
            models not called ``model(x, ...)``.
        return_sites: Sites that come back; by default the observed one.
        num_samples: S of the answers.
        seed: Fixes everything random; torch's generator is left as it was.
        progress: Show a bar.

    Returns:
        The drop-in for ``Predictive(kernel.model, draws)``.

    Raises:
        TypeError: ``kernel``, ``x`` or ``guide`` of a wrong type.
        ValueError: bad values of any argument; no observed site that suits the form, or several.
        DistillationError: the loss stopped being finite.

    Example:
        >>> import torch, pyro, pyro.distributions as dist
        >>> from pyro_opu.samplers import SGLD
        >>> def model(x, y=None):
        ...     weight = pyro.sample("weight", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
        ...     with pyro.plate("data", len(x)):
        ...         return pyro.sample("obs", dist.Categorical(logits=x @ weight), obs=y)
        >>> data = torch.randn(30, 2), torch.arange(30) % 3
        >>> fast = online_dark_knowledge(
        ...     SGLD(model, step_size=1e-2), data, data[0], num_draws=5, seed=0, progress=False)
        >>> fast(torch.randn(4, 2))["obs"].shape
        torch.Size([500, 4])

    References:
        Korattikara, Rathod, Murphy and Welling (2015), Bayesian Dark Knowledge, Algorithm 1,
        eq. 4-6.
    """
    check_inputs(x)
    check_counts(num_draws=num_draws, batch_size=batch_size)
    positive_int("warmup_steps", warmup_steps, 0)
    check_form(form)
    check_learning(transfer, learning_rate, prior_precision, optimizer, progress)
    expected = "a tuple, the model's arguments"
    instance_of("data", data, (tuple, list), expected, "Write (x_train, y_train).")
    advice = "For existing draws use dark_knowledge(Predictive(model, samples), x)."
    instance_of("kernel", kernel, SGLD, "an SGLD", advice)
    call = first_argument if inputs is None else call_of(inputs, kernel.model) or first_argument
    model = bound(kernel.model, call)
    read, kind = (_normal, RegressionTeacher) if form == "normal" else (_probs, PredictiveTeacher)
    with seeded(seed):
        draws = kernel.stream(*data, num_samples=num_draws, warmup_steps=warmup_steps)
        first = next(draws)
        samples = {name: value[None] for name, value in first.items()}
        teacher = kind(Predictive(kernel.model, samples), site, call)  # of this one draw
        student = student_of(form, guide, teacher, x)
        policy = (default_transfer(x) if transfer is None else transfer).fit(x)
        batches = ((draw, policy.sample(batch_size)) for draw in chain([first], draws))
        labels = ((batch, read(model, teacher.site, draw, batch)) for draw, batch in batches)
        loss = learn(
            student, form, labels, num_draws, learning_rate, prior_precision, optimizer, progress
        )
        next(draws, None)  # the sampler cleans up after its last draw
    return replacement(
        student,
        teacher,
        x,
        return_sites=return_sites,
        num_samples=num_samples,
        inputs=inputs,
        report={"seed": seed, "form": form, "online": True, "num_steps": num_draws, "loss": loss},
    )


def _probs(model: Model, site: str, draw: dict[str, Tensor], x: Tensor) -> Tensor:
    """Class probabilities ``(1, N, C)`` of the observed site."""
    return class_log_probs(_observed(model, site, draw, x), len(x), site).exp()[None]


def _normal(model: Model, site: str, draw: dict[str, Tensor], x: Tensor) -> Tensor:
    """Mean and logarithm of the scale ``(1, N, 2)`` of the observed site."""
    return normal_parameters(_observed(model, site, draw, x), len(x), site)[None]


def _observed(model: Model, site: str, draw: dict[str, Tensor], x: Tensor) -> Any:
    """The observed site's distribution at ``x``, by one run of the model."""
    with torch.no_grad(), pyro.validation_enabled(False), _UnderDraw(site, draw) as seen:
        model(x)
    return seen.fn


class _UnderDraw(Messenger):
    """Fixes the latents at a draw, and keeps the distribution of a site."""

    def __init__(self, site: str, draw: dict[str, Tensor]) -> None:
        super().__init__()
        self.site, self.draw = site, draw
        self.fn: Any = None

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.draw:
            msg["value"] = self.draw[msg["name"]]
        elif msg["name"] == self.site:
            self.fn = msg["fn"]
