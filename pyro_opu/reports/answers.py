"""Asking students and teachers, and looking at the inputs they are asked at."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_mapping, check_row_shape, lent
from pyro_opu.distributions import Answer, RealAnswer, SimplexDistribution
from pyro_opu.distributions.dirichlet import known_form
from pyro_opu.guides import of_form
from pyro_opu.inputs import PLAIN, Form, InputLike, Inputs, inputs_of
from pyro_opu.parts import TableAnswer
from pyro_opu.rng import evaluating, seeded
from pyro_opu.teachers import BaseTeacher, as_teacher
from pyro_opu.teachers.finished import teacher_of
from pyro_opu.teachers.function import unpacked_function

__all__ = ["is_student", "named_inputs", "ready_teacher", "student_answer", "teacher_of"]


class Answering(Protocol):
    """What answers with a Dirichlet by a method of its own."""

    def dirichlet(self, x: InputLike) -> object: ...


#: A student or a guide.
Student = Callable[..., object] | Answering
#: Answers in words, and what to do where a student gives another.
_WORDS: dict[type[Answer], tuple[str, str]] = {
    SimplexDistribution: (
        "a Dirichlet",
        "Give it a method `dirichlet(x)`, or return `torch.distributions.Dirichlet(alpha)`.",
    ),
    RealAnswer: (
        "a PredictiveNormal or a mixture of them",
        "Pass the result of `distill`, or its `.guide`.",
    ),
    TableAnswer: (
        "a TableAnswer, as the teacher observes several numbers of every row",
        "Pass the result of `distill`.",
    ),
}


def student_answer(student: object, x: Tensor, kind: type[Answer] = SimplexDistribution) -> Any:
    r"""The student's answer at ``x``, mostly :math:`\mathrm{Dir}(\alpha(x))`, without gradient.

    Modules are put in evaluation mode for the call, and each part back in its mode after it.

    The student has a method ``distribution(x)``, such as a ``OnePassPredictive``, or
    ``dirichlet(x)``, or is a callable, such as a guide; ``kind`` is what it must answer with.
    """
    names = ("answer",) if kind is TableAnswer else ("distribution", "dirichlet")
    call = next((getattr(student, name) for name in names if hasattr(student, name)), student)
    if not callable(call):
        raise ArgumentTypeError(
            "`student` must have a method `dirichlet(x)` or be a callable x -> Dirichlet; got "
            f"{type(student).__name__}. Pass the result of `distill`, or its `.guide`."
        )
    with torch.no_grad(), evaluating(student), lent(x, "student") as own:
        answer = known_form(call(own))
    if not isinstance(answer, kind):
        wanted, advice = _WORDS[kind]
        raise ArgumentTypeError(
            f"`student` must answer an input with {wanted}; {type(student).__name__} returned "
            f"{type(answer).__name__}. {advice}"
        )
    if answer.batch_shape != (len(x),):
        raise ArgumentError(
            f"`student` must answer with batch shape (N,) = ({len(x)},); got "
            f"{tuple(answer.batch_shape)} for inputs of shape {tuple(x.shape)}."
        )
    return answer


def check_numbers(*parts: Tensor) -> None:
    """Refuse a student whose answer, in parts ``(N, ...)``, holds NaN."""
    undefined = torch.stack([p.isnan().reshape(len(p), -1).any(-1) for p in parts]).any(0)
    if undefined.any():
        raise ArgumentError(
            f"`student` must answer with numbers; got NaN at {int(undefined.sum())} of "
            f"{len(undefined)} inputs. Check its weights (torch.isfinite), or distil it again."
        )


def is_student(source: object, x: Tensor) -> bool:
    """Whether the source answers with distributions (a student) and not with draws (a teacher).

    Where the type does not tell, one input does; torch's generators are left as they were.
    """
    if hasattr(source, "distribution") or hasattr(source, "dirichlet"):
        return True
    if isinstance(source, (Predictive, list, tuple, nn.ModuleList)) or hasattr(source, "probs"):
        return False
    if not callable(source) or not _takes_inputs_alone(source, x):
        return False
    try:
        with torch.no_grad(), evaluating(source), seeded(0):
            return isinstance(known_form(source(x[:1].clone())), Answer)
    except Exception:  # noqa: BLE001 - a function of arrays; or the teacher says what is wrong
        return False


def _takes_inputs_alone(source: Any, x: Tensor) -> bool:
    """False for a teacher's function ``(x, num_draws)``."""
    try:
        inspect.signature(source).bind(x)
    except TypeError:
        return False
    except ValueError:  # builtins have no signature
        pass
    return True


def at_border(x: Any, *sources: object, name: str = "x") -> tuple[Form, Tensor, *tuple[Any, ...]]:
    """The form of inputs as a user gives them; these, and students or teachers of one tensor."""
    inputs = inputs_of(x, *sources, name=name)
    asked = (_of_one_tensor(each, inputs) for each in sources)
    return inputs.form, inputs.tensor, *asked


def _of_one_tensor(source: Any, inputs: Inputs) -> Any:
    """A student or a teacher that takes inputs in one tensor."""
    x, form = inputs.tensor, inputs.form
    if isinstance(source, BaseTeacher):
        source.unpack_by(form)
    if form == PLAIN or isinstance(getattr(source, "form", None), Form):
        return source
    draws = isinstance(source, Predictive) or hasattr(source, "probs")
    if callable(source) and not draws:
        module = isinstance(source, nn.Module)
        called = of_form(source, form) if module else unpacked_function(source, form)[0]
        if is_student(called, x):
            return called
    return teacher_of(source, x, form=form)


def ready_teacher(source: Any, x: Tensor) -> BaseTeacher:
    """The teacher of a classifier, shown one input so that its classes and draws are known."""
    teacher = as_teacher(source)
    teacher.probs(x[:1], 1)
    return teacher


def named_inputs(
    x: tuple[str, Tensor], form: Form, argument: str, others: object, taken: str
) -> dict[str, Tensor]:
    """Further sets of inputs by name, one tensor each, checked and of the shape of the main ones.

    ``x`` are the name and value of the main argument, ``argument`` is the name of the others'.
    """
    advice = f'Give them a name: {argument}={{"far": x_far}}.'
    others = dict(check_mapping(argument, others, "name -> inputs", advice))
    if taken in others:
        raise ArgumentError(
            f"`{argument}` must not use the name {taken!r}, which is taken. Choose another."
        )
    for key, inputs in others.items():
        others[key] = check_alike(x, form, (f"{argument}[{key!r}]", inputs))
    return others


def check_alike(first: tuple[str, Tensor], form: Form, second: tuple[str, Any]) -> Tensor:
    """Inputs in one tensor, of the shape of the first; names and values of two arguments."""
    (main, x), (name, inputs) = first, second
    advice = f"Bring it into the form of `{main}`, which the classifier takes."
    return check_row_shape(name, form.pack(inputs, name), x.shape[1:], advice)
