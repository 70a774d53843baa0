"""Asking students and teachers: which call gives the answer."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_opu.distributions import Answer, as_answer, is_answer
from pyro_opu.rng import evaluating, seeded

if TYPE_CHECKING:
    from pyro_opu.teachers import BaseTeacher

__all__ = ["is_student", "ready_teacher", "student_answer"]


def student_answer(student: Any, x: Tensor) -> Answer:
    r"""The student's answer :math:`q(\pi|x)`, mostly :math:`\mathrm{Dir}(\alpha(x))`, no gradient.

    Modules are put in evaluation mode for the call, and back in the mode of each part after it.

    Args:
        student: An object with a method ``distribution(x)``, such as a ``OnePassPredictive``, or
            ``dirichlet(x)``, or a callable ``x -> Dirichlet``, such as a guide.
        x: Inputs, shape ``(N, ...)``.

    Returns:
        A Dirichlet or a :class:`~pyro_opu.distributions.SimplexDistribution`, batch shape ``(N,)``.

    Raises:
        TypeError: When the student is not callable, or does not return one of these.
        ValueError: When the distribution has another batch shape.

    Example:
        >>> guide = lambda x: torch.distributions.Dirichlet(torch.ones(len(x), 3))
        >>> student_answer(guide, torch.zeros(5, 2)).batch_shape
        torch.Size([5])
    """
    call = getattr(student, "distribution", None) or getattr(student, "dirichlet", student)
    if not callable(call):
        raise TypeError(
            "`student` must have a method `dirichlet(x)` or be a callable x -> Dirichlet; got "
            f"{type(student).__name__}. Pass the result of `distill`, or its `.guide`."
        )
    with torch.no_grad(), evaluating(student):
        answer = call(x)
    if not is_answer(answer):
        raise TypeError(
            "`student` must answer an input with a Dirichlet; "
            f"{type(student).__name__} returned {type(answer).__name__}. Give it a method "
            "`dirichlet(x)`, or return `torch.distributions.Dirichlet(alpha)`."
        )
    if answer.batch_shape != x.shape[:1]:
        raise ValueError(
            f"`student` must return a Dirichlet with batch shape (N,) = ({x.shape[0]},); got "
            f"{tuple(answer.batch_shape)} for inputs of shape {tuple(x.shape)}."
        )
    return as_answer(answer)


def is_student(source: Any, x: Tensor) -> bool:
    """Whether the source answers with Dirichlets (a student) and not with draws (a teacher).

    A student has a method ``distribution`` or ``dirichlet``, or returns one when called; that is
    tried at one input where the type alone does not tell, and the random generators are left as
    they were.
    """
    if hasattr(source, "distribution") or hasattr(source, "dirichlet"):
        return True
    if isinstance(source, (Predictive, list, tuple, nn.ModuleList)) or hasattr(source, "probs"):
        return False
    if not callable(source) or not _takes_inputs_alone(source, x):
        return False
    with torch.no_grad(), evaluating(source), seeded(0):
        return is_answer(source(x[:1]))


def _takes_inputs_alone(source: Any, x: Tensor) -> bool:
    """False for a teacher's function ``(x, num_draws)``."""
    try:
        inspect.signature(source).bind(x)
    except TypeError:
        return False
    except ValueError:  # builtins have no signature
        pass
    return True


def ready_teacher(source: Any, x: Tensor) -> BaseTeacher:
    """The teacher of a source, shown one input so that its classes and draws are known."""
    from pyro_opu.teachers import as_teacher

    teacher = as_teacher(source)
    teacher.probs(x[:1], 1)
    return teacher
