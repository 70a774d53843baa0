"""Bayesian Dark Knowledge: one draw of the teacher teaches one step of the student."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pyro_opu.checks import (
    ArgumentError,
    check_bool,
    check_callable,
    in_range,
    instance_of,
    one_of,
    positive_float,
    positive_int,
)
from pyro_opu.choosing import GuideName, choice_of
from pyro_opu.guides import GUIDES, REGRESSION_GUIDES, family, of_form, student_at
from pyro_opu.inputs import Inputs
from pyro_opu.objectives import CrossEntropy, DirichletLikelihood, NormalMoments, Objective
from pyro_opu.predictive import OnePassPredictive, student_of
from pyro_opu.rng import seeded
from pyro_opu.teachers import BaseTeacher, Source, as_teacher
from pyro_opu.training import minimize
from pyro_opu.transfer import TransferPolicy, transfer_for

__all__ = ["Learner", "dark_knowledge"]

Form = Literal["point", "dirichlet", "normal"]
Rate = float | Callable[[int], float]
#: For every draw a function of inputs, what the draw says of them.
Draws = Iterator[Callable[[Tensor], Tensor]]

#: Form -> family of the student, and its loss.
FORMS: dict[Form, tuple[str, type[Objective]]] = {
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
    guide: nn.Module | GuideName | None = None,
    transfer: TransferPolicy | None = None,
    num_steps: int = 20_000,
    batch_size: int = 100,
    learning_rate: Rate = 4e-3,
    prior_precision: float = 0.0,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    seed: int | None = None,
    progress: bool = True,
) -> OnePassPredictive:
    r"""Bayesian Dark Knowledge from any teacher: every step learns from one of its draws.

    .. math::
        w \leftarrow w - \rho_t \Big( \tfrac1M \sum_{x' \in D'}
        \nabla_w \hat L(w, \theta_t \mid x') + \gamma w \Big), \qquad
        \hat L = - \sum_k p(y = k \mid x', \theta_t) \log S(y = k \mid x', w)

    with :math:`\theta_t` a draw at random and D' made afresh by the transfer policy. The last
    iterate is what comes back. Not in the paper: Adam, a cosine for :math:`\rho_t`, no prior on the
    student. With ``optimizer=torch.optim.SGD``, a schedule for ``learning_rate`` and a
    ``prior_precision`` it is Algorithm 1 to the letter.

    Args:
        form: "point", class probabilities alone, whose epistemic uncertainty is 0; "dirichlet", a
            single head taught by :class:`~pyro_opu.DirichletLikelihood` (BDK-Dir of Cui et al.); or
            "normal" for a regressor, taught by :class:`~.objectives.normal.NormalMoments`, eqs. 5
            and 6 with the variances of the noise and of the mean apart.
        guide: The student, a family by name or a module, which is trained in place.
        transfer: The student data generator D'; by default as for :func:`~pyro_opu.distill`.
            ``Jitter(scale=s, min_scale=s)`` perturbs the rows of ``x`` by s standard deviations;
            ``Box(expand=0.0)`` with two opposite corners for ``x`` is uniform in that box.
        batch_size: M, inputs per step.
        learning_rate: :math:`\rho_t`, a schedule ``t -> rate`` such as
            :class:`~pyro_opu.samplers.Halving`; or the top of a short rise and a cosine fall.
        prior_precision: :math:`\gamma` of the student; the teacher's is in its model.
        optimizer: Called with the parameters, ``lr`` and ``weight_decay``.

    Example:
        >>> teacher = lambda x: torch.softmax(x @ torch.ones(2, 3) * torch.randn(20, 1, 1), -1)
        >>> fast = dark_knowledge(teacher, torch.randn(50, 2), num_steps=5, seed=0, progress=False)
        >>> fast(torch.randn(4, 2))["obs"].shape
        torch.Size([20, 4])

    References:
        Korattikara, Rathod, Murphy and Welling (2015), Bayesian Dark Knowledge, eqs. 4-6.
        Cui, Yao, Li, Chan and Xue (2019), section 4 (BDK-Dir).
    """
    num_steps = positive_int("num_steps", num_steps)
    learner = Learner(
        form, guide, transfer, batch_size, learning_rate, prior_precision, optimizer, progress
    )
    with seeded(seed):
        teacher = as_teacher(source)
        x = teacher.packed(x)
        draws = repeat(lambda batch: teacher.draws(batch, 1))
        student, loss = learner.teach(teacher, x, draws, num_steps)
    report = {"seed": seed, "form": form, "online": False, "num_steps": num_steps, "loss": loss}
    return student_of(student, teacher, x, report=report)


@dataclass(frozen=True)
class Learner:
    """The student's half of Algorithm 1; the fields are arguments of :func:`dark_knowledge`."""

    form: Form
    guide: nn.Module | GuideName | None = None
    transfer: TransferPolicy | None = None
    batch_size: int = 100
    learning_rate: Rate = 4e-3
    prior_precision: float = 0.0
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam
    progress: bool = True

    def __post_init__(self) -> None:
        one_of("form", self.form, FORMS)
        positive_int("batch_size", self.batch_size)
        kinds, advice = (TransferPolicy, type(None)), "Pass such as Jitter()."
        instance_of("transfer", self.transfer, kinds, "a TransferPolicy or None", advice)
        if not callable(self.learning_rate):
            positive_float("learning_rate", self.learning_rate, "Or pass a schedule step -> rate.")
        in_range("prior_precision", self.prior_precision, 0)
        check_callable("optimizer", self.optimizer, "(parameters, lr, weight_decay) -> Optimizer")
        check_bool("progress", self.progress)

    def teach(
        self, teacher: BaseTeacher, x: Tensor, draws: Draws, num_steps: int
    ) -> tuple[nn.Module, float]:
        """Make the guide and teach it one draw a step; also returns a running mean of the loss."""
        guide = self._student(teacher, x)
        policy = transfer_for(x, self.transfer, teacher.form).fit(x)
        objective = FORMS[self.form][1]()

        def losses() -> tuple[dict[str, Tensor], Any]:
            draw, batch = next(draws), policy.sample(self.batch_size)
            target = draw(batch)
            student = student_at(guide, batch)
            return objective.parts(student, target, batch), student

        optimizer = self.optimizer(guide.parameters(), lr=1.0, weight_decay=self.prior_precision)
        settings = (self.learning_rate, num_steps)
        loss = minimize(
            "dark knowledge", losses, optimizer, *settings, clip=math.inf, progress=self.progress
        )
        return guide, loss

    def _student(self, teacher: BaseTeacher, x: Tensor) -> nn.Module:
        """The guide, made where it is only named, and checked."""
        draw = teacher.draws(x[:UNIT_INPUTS], 1)
        if teacher.outcome.kind != ("real" if self.form == "normal" else "classes"):
            raise ArgumentError(
                '`form` must be "normal" of a real y, and another of class labels; `source` '
                f"observes {teacher.outcome}, and `form` is {self.form!r}. Name another site with "
                "site=..., or take another form."
            )
        guide: Any = FORMS[self.form][0] if self.guide is None else self.guide
        if isinstance(guide, str):
            given = Inputs(x, teacher.form)
            if self.form == "normal":
                y = draw[..., 0] + draw[..., 1].exp() * torch.randn_like(draw[..., 0])
                guide = family(guide, REGRESSION_GUIDES, "PredictiveNormal").for_inputs(given, y)
            else:
                guide = family(guide, GUIDES, "Dirichlet").for_inputs(given, teacher.num_outputs)
        advice = "Leave it out, or pass a guide of pyro_opu.guides."
        student = instance_of("guide", guide, nn.Module, "a name or a module", advice)
        student = of_form(student, teacher.form)
        choice_of(teacher.outcome).answer_of(student.requires_grad_(True), x[:2])
        return student.train()
