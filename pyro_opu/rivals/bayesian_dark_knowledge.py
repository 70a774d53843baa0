"""Bayesian Dark Knowledge: one draw of the teacher teaches one step of the student."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pyro_opu.checks import (
    check_bool,
    check_callable,
    check_inputs,
    in_range,
    instance_of,
    one_of,
    positive_float,
    positive_int,
)
from pyro_opu.distributions import is_answer
from pyro_opu.distributions.normal_mixture import is_real_answer
from pyro_opu.guides import named_guide
from pyro_opu.guides.base import student_at
from pyro_opu.guides.normal import named_regression_guide
from pyro_opu.objectives import CrossEntropy, DirichletLikelihood, Objective
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.predictive.drop_in import drop_in
from pyro_opu.regression import (
    NormalMoments,
    RealTeacher,
    as_regression_teacher,
    regression_drop_in,
)
from pyro_opu.rng import seeded
from pyro_opu.teachers import Source, as_teacher
from pyro_opu.teachers.base import JointDraws
from pyro_opu.training.fit import Descent, KeepLast, Phase, cosine, fit
from pyro_opu.transfer import TransferPolicy, default_transfer

__all__ = ["dark_knowledge"]

Form = Literal["point", "dirichlet", "normal"]
Rate = float | Callable[[int], float]

#: Form -> family of the student, and its loss.
FORMS: dict[str, tuple[str, type[Objective]]] = {
    "point": ("point", CrossEntropy),
    "dirichlet": ("single_head", DirichletLikelihood),
    "normal": ("gaussian", NormalMoments),
}
#: Inputs that give a regression student its units of y.
UNIT_INPUTS = 500


def dark_knowledge(
    source: Source,
    x: Tensor,
    *,
    form: Form = "point",
    guide: nn.Module | str | None = None,
    transfer: TransferPolicy | None = None,
    num_steps: int = 20_000,
    batch_size: int = 100,
    learning_rate: Rate = 4e-3,
    prior_precision: float = 0.0,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    site: str | None = None,
    inputs: Callable[..., Tensor] | None = None,
    return_sites: Sequence[str] | None = None,
    num_samples: int | None = None,
    seed: int | None = None,
    progress: bool = True,
) -> OnePassPredictive:
    r"""Bayesian Dark Knowledge from any teacher: every step learns from one of its draws.

    .. math::
        w \leftarrow w - \rho_t \Big( \tfrac1M \sum_{x' \in D'}
        \nabla_w \hat L(w, \theta_t \mid x') + \gamma w \Big), \qquad
        \hat L = - \sum_k p(y = k \mid x', \theta_t) \log S(y = k \mid x', w)

    with :math:`\theta_t` a draw at random and D' made afresh by the transfer policy. With
    ``form="dirichlet"`` (BDK-Dir of Cui et al.) the student is a single-head Dirichlet and
    :math:`\hat L` the negative log-likelihood of that one draw,
    :class:`~pyro_opu.DirichletLikelihood`. With ``form="normal"`` the teacher is a
    regressor, the student a normal, and :math:`\hat L` that of
    :class:`~pyro_opu.regression.NormalMoments`: eq. 5 for the mean, and eq. 6 for the variance of
    the noise and that of the mean between draws, each by itself, so that their sum is the
    paper's one variance. :func:`~pyro_opu.rivals.online_dark_knowledge` is the same without a
    posterior in store.

    The last iterate is what comes back: nothing is held out, selected or recalibrated. What differs
    from the paper unless asked for: Adam in the place of plain gradient steps, a cosine for
    :math:`\rho_t`, and no prior on the student; ``optimizer=torch.optim.SGD`` with a schedule for
    ``learning_rate`` and a ``prior_precision`` is Algorithm 1 to the letter.

    Args:
        source: Whatever :func:`~pyro_opu.as_teacher` takes.
        x: Transfer inputs ``(N, *input_shape)``, from which D' is made.
        form: "point", class probabilities alone; "dirichlet"; or "normal" for a regressor.
        guide: The student, a family by name (sized to the input) or a module; by default "point",
            "single_head" or "gaussian", by the form. A module is trained in place.
        transfer: The student data generator D'; by default as for :func:`~pyro_opu.distill`.
            ``Jitter(scale=s, min_scale=s)`` perturbs the rows of ``x`` by s standard deviations;
            ``Box(expand=0.0)`` with two opposite corners for ``x`` is uniform in that box.
        num_steps: Steps of the student.
        batch_size: M, inputs per step.
        learning_rate: :math:`\rho_t`, a schedule ``t -> rate`` such as
            :class:`~pyro_opu.samplers.Halving`; or a number, the top of a short rise and a cosine
            fall.
        prior_precision: :math:`\gamma` of the student, 0 for none. The teacher's :math:`\lambda` is
            in its model.
        optimizer: Called with the parameters, ``lr`` and ``weight_decay``.
        site: The observed site, when the model has several.
        inputs: Picks the input from a call's arguments.
        return_sites: Sites that come back; by default those of the ``Predictive``.
        num_samples: S of the answers; by default the ``Predictive``'s.
        seed: Fixes everything random; torch's generator is left as it was.
        progress: Show a bar.

    Returns:
        The drop-in for ``source``. With "point" its draws of class probabilities are all alike, and
        its epistemic uncertainty is 0. With "normal" it is a
        :class:`~pyro_opu.OnePassRegression`.

    Raises:
        TypeError: ``x``, ``source`` or ``guide`` of a wrong type.
        ValueError: bad values of any argument.
        DistillationError: the loss stopped being finite.

    Example:
        >>> import torch
        >>> teacher = lambda x: torch.softmax(x @ torch.ones(2, 3) * torch.randn(20, 1, 1), -1)
        >>> fast = dark_knowledge(teacher, torch.randn(50, 2), num_steps=5, seed=0, progress=False)
        >>> fast(torch.randn(4, 2))["obs"].shape
        torch.Size([20, 4])

    References:
        Korattikara, Rathod, Murphy and Welling (2015), Bayesian Dark Knowledge, eq. 4-6,
        Algorithm 1. Cui, Yao, Li, Chan and Xue (2019), section 4 (BDK-Dir).
    """
    check_inputs(x)
    check_counts(num_steps=num_steps, batch_size=batch_size)
    check_form(form)
    check_learning(transfer, learning_rate, prior_precision, optimizer, progress)
    with seeded(seed):
        as_kind = as_regression_teacher if form == "normal" else as_teacher
        teacher = as_kind(source, site, inputs=inputs)
        student = student_of(form, guide, teacher, x)
        policy = (default_transfer(x) if transfer is None else transfer).fit(x)
        batches = (policy.sample(batch_size) for _ in range(num_steps))
        labels = ((batch, one_draw(teacher, batch)) for batch in batches)
        loss = learn(
            student, form, labels, num_steps, learning_rate, prior_precision, optimizer, progress
        )
    return replacement(
        student,
        teacher,
        x,
        return_sites=return_sites,
        num_samples=num_samples,
        inputs=inputs,
        report={"seed": seed, "form": form, "online": False, "num_steps": num_steps, "loss": loss},
    )


def learn(
    guide: nn.Module,
    form: str,
    labels: Iterator[tuple[Tensor, Tensor]],
    num_steps: int,
    learning_rate: Rate,
    prior_precision: float,
    optimizer: Callable[..., torch.optim.Optimizer],
    progress: bool,
) -> float:
    """The student's half of Algorithm 1; returns a running mean of the loss.

    Args:
        guide: The student, stepped in place.
        form: One of :data:`FORMS`, which says what is made small.
        labels: Batches of inputs and what the teacher's one draw says there, one per step.
        num_steps: How many there are.
        learning_rate: As for :func:`dark_knowledge`, and so are the others.
    """
    objective, selection = FORMS[form][1](), KeepLast()

    def losses() -> tuple[dict[str, Tensor], Any]:
        x, draw = next(labels)
        student = student_at(guide, x)
        return objective.parts(student, draw, x), student

    rate = learning_rate if callable(learning_rate) else cosine(learning_rate, num_steps)
    steps = optimizer(guide.parameters(), lr=1.0, weight_decay=prior_precision)
    descent = Descent(losses, steps, rate, clip=math.inf)
    fit([Phase("dark knowledge", num_steps, [descent])], selection, progress=progress)
    return selection.loss


def student_of(
    form: str, guide: nn.Module | str | None, teacher: JointDraws, x: Tensor
) -> nn.Module:
    """The guide, made where it is only named, checked, and ready to be taught."""
    draw = one_draw(teacher, x[:UNIT_INPUTS])
    name = FORMS[form][0] if guide is None else guide
    if isinstance(teacher, RealTeacher):
        y = draw[..., 0] + draw[..., 1].exp() * torch.randn_like(draw[..., 0])
        student = named_regression_guide(name, x, y) if isinstance(name, str) else name
        what, fits = "a PredictiveNormal", is_real_answer
    else:
        classes = teacher.num_outputs
        student = named_guide(name, x, classes) if isinstance(name, str) else name
        what, fits = f"a distribution of {classes} class probabilities", partial(_is_over, classes)
    advice = "Leave it out, or pass a guide of pyro_opu.guides or pyro_opu.regression."
    instance_of("guide", student, nn.Module, "a name or a module", advice)
    with torch.no_grad():
        answer = student_at(student, x[:2])
    if not fits(answer):
        raise TypeError(f"`guide` must return {what}; got {answer!r}. {advice}")
    return student.train().requires_grad_(True)


def one_draw(teacher: JointDraws, x: Tensor) -> Tensor:
    """A draw at random, ``(1, N, C)``, or ``(1, N, 2)`` of a regressor."""
    return teacher.draws(x, 1)


def replacement(
    guide: nn.Module, teacher: JointDraws, x: Tensor, **options: Any
) -> OnePassPredictive:
    """The drop-in, with the options of :func:`~pyro_opu.predictive.drop_in.drop_in`."""
    if isinstance(teacher, RealTeacher):
        return regression_drop_in(guide, teacher, x, **options)
    return drop_in(guide, teacher, x, **options)


def check_form(form: str) -> None:
    """Raise unless the form is one of :data:`FORMS`."""
    one_of("form", form, FORMS)


def check_learning(
    transfer: Any, learning_rate: Any, prior_precision: Any, optimizer: Any, progress: Any
) -> None:
    """Raise unless the settings of the student's half are as :func:`dark_knowledge` has them."""
    kinds = (TransferPolicy, type(None))
    instance_of("transfer", transfer, kinds, "a TransferPolicy or None", "Pass such as Jitter().")
    if not callable(learning_rate):
        positive_float("learning_rate", learning_rate, "Or pass a schedule step -> rate.")
    in_range("prior_precision", prior_precision, 0)
    check_callable("optimizer", optimizer, "(parameters, lr, weight_decay) -> Optimizer")
    check_bool("progress", progress)


def check_counts(**counts: Any) -> None:
    """Raise unless all are positive integers; errors name the argument."""
    for name, count in counts.items():
        positive_int(name, count)


def _is_over(num_classes: int, answer: Any) -> bool:
    return is_answer(answer) and answer.event_shape == (num_classes,)
