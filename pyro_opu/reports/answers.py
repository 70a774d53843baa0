"""Asking students and teachers, and looking at the inputs they are asked at."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_opu.checks import check_inputs, check_mapping, check_row_shape
from pyro_opu.distributions import Answer, RealAnswer, SimplexDistribution
from pyro_opu.distributions.dirichlet import known_form
from pyro_opu.rng import evaluating, seeded
from pyro_opu.teachers import BaseTeacher, as_teacher

__all__ = ["is_student", "named_inputs", "ready_teacher", "real_answer", "student_answer"]


def student_answer(student: Any, x: Tensor) -> SimplexDistribution:
    r"""The student's answer :math:`q(\pi|x)`, mostly :math:`\mathrm{Dir}(\alpha(x))`, no gradient.

    Modules are put in evaluation mode for the call, and back in the mode of each part after it.

    Args:
        student: An object with a method ``distribution(x)``, such as a ``OnePassPredictive``, or
            ``dirichlet(x)``, or a callable ``x -> Dirichlet``, such as a guide.
        x: Inputs, shape ``(N, ...)``.

    Example:
        >>> guide = lambda x: torch.distributions.Dirichlet(torch.ones(len(x), 3))
        >>> student_answer(guide, torch.zeros(5, 2)).batch_shape
        torch.Size([5])
    """
    advice = "Give it a method `dirichlet(x)`, or return `torch.distributions.Dirichlet(alpha)`."
    return _answer(student, x, SimplexDistribution, "a Dirichlet", advice)


def real_answer(student: Any, x: Tensor) -> RealAnswer:
    """`student_answer` of a regressor's student: a normal or a mixture of normals."""
    advice = "Pass the result of `distill`, or its `.guide`."
    return _answer(student, x, RealAnswer, "a PredictiveNormal or a mixture of them", advice)


def _answer(student: Any, x: Tensor, kind: type[Answer], wanted: str, advice: str) -> Any:
    """The student's answer, of this kind and with a row for every input."""
    call = getattr(student, "distribution", None) or getattr(student, "dirichlet", student)
    if not callable(call):
        raise TypeError(
            "`student` must have a method `dirichlet(x)` or be a callable x -> Dirichlet; got "
            f"{type(student).__name__}. Pass the result of `distill`, or its `.guide`."
        )
    with torch.no_grad(), evaluating(student):
        answer = known_form(call(x))
    if not isinstance(answer, kind):
        raise TypeError(
            f"`student` must answer an input with {wanted}; {type(student).__name__} returned "
            f"{type(answer).__name__}. {advice}"
        )
    if answer.batch_shape != x.shape[:1]:
        raise ValueError(
            f"`student` must answer with batch shape (N,) = ({len(x)},); got "
            f"{tuple(answer.batch_shape)} for inputs of shape {tuple(x.shape)}."
        )
    return answer


def check_numbers(*parts: Tensor) -> None:
    """Refuse a student whose answer, in parts ``(N, ...)``, holds NaN."""
    undefined = torch.stack([p.isnan().reshape(len(p), -1).any(-1) for p in parts]).any(0)
    if undefined.any():
        raise ValueError(
            f"`student` must answer with numbers; got NaN at {int(undefined.sum())} of "
            f"{len(undefined)} inputs. Check its weights (torch.isfinite), or distil it again."
        )


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
        return isinstance(known_form(source(x[:1])), Answer)


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
    teacher = as_teacher(source)
    teacher.probs(x[:1], 1)
    return teacher


def named_inputs(
    first: tuple[str, Tensor], argument: str, others: Any, taken: str
) -> dict[str, Tensor]:
    """Further sets of inputs by name, checked and of the shape of the first.

    Args:
        first: Name of the argument that holds the main inputs, and these ``(N, ...)``.
        argument: Name of the argument that holds the others.
        others: Name -> inputs ``(M, ...)``, or ``None``.
        taken: The name that none may have.
    """
    name, x = first
    check_inputs(x, name)
    advice = f'Give them a name: {argument}={{"far": x_far}}.'
    others = dict(check_mapping(argument, others, "name -> inputs", advice))
    if taken in others:
        raise ValueError(
            f"`{argument}` must not use the name {taken!r}, which is taken. Choose another."
        )
    for key, inputs in others.items():
        check_alike(first, (f"{argument}[{key!r}]", inputs))
    return others


def check_alike(first: tuple[str, Tensor], second: tuple[str, Tensor]) -> None:
    """Refuse inputs of another shape than the first, which are known to be inputs."""
    (main, x), (name, inputs) = first, second
    advice = f"Bring it into the form of `{main}`, which the classifier takes."
    check_row_shape(name, check_inputs(inputs, name), x.shape[1:], advice)
