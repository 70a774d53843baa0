"""A function that returns draws on the simplex as a teacher."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from torch import Tensor

from pyro_opu.checks import ArgumentError, lent
from pyro_opu.inputs import Form
from pyro_opu.parts.values import check_simplex
from pyro_opu.programs.samples import choose
from pyro_opu.rng import full_precision
from pyro_opu.teachers.arrays import AnyFunction
from pyro_opu.teachers.base import BaseTeacher, Teacher
from pyro_opu.utils.printing import name_of


class FunctionTeacher(BaseTeacher[Tensor]):
    """A callable ``x -> draws``, or ``(x, num_draws) -> draws``, called once with all rows.

    Draws are class probabilities ``(S, N, C)``; or of a real y a pair (loc, scale), its means and
    the noise's standard deviations, ``(S, N)`` each, or for the second anything that broadcasts to
    it.

    Without a parameter for the number of draws its S is the size of the posterior, and fewer draws
    are a random subset. It may be one of NumPy arrays (``teachers.arrays.AnyFunction``).
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.function: Callable[..., Any] = AnyFunction(function)
        self._keyword = draws_parameter(function)

    def _unpack_by(self, form: Form) -> None:
        self.function, self._keyword = unpacked_function(self.function, form)

    def _source_text(self) -> str:
        return name_of(inspect.unwrap(self.function))

    @property
    def uncounted(self) -> bool:  # type: ignore[override]
        """Whether its draws are as many as it returns, and it has not been asked yet."""
        return self._keyword is None and self.max_draws is None

    def _draws_text(self) -> str:
        return "draws not counted yet" if self.uncounted else super()._draws_text()

    def operations(self, x: Tensor) -> int | None:
        """``None``: what happens inside is not known."""
        return None

    def _blocks(self, x: Tensor, num_draws: int | None) -> Iterator[Tensor]:
        count = self._checked(num_draws)
        options = {} if self._keyword is None else {self._keyword: count}
        with full_precision(), lent(x) as own:
            draws = self._read(self.function(own, **options), len(x))
        self.queries += len(x) * len(draws)
        if self._keyword is None:
            if self.max_draws not in (None, len(draws)):
                raise ArgumentError(
                    "`source` must return the same number of draws at every call; got "
                    f"{self.max_draws} before and {len(draws)} now. For draws made afresh give it "
                    "a parameter `num_draws`."
                )
            self.max_draws = len(draws)
            count = self._checked(num_draws)
            if count < len(draws):
                draws = draws[choose(len(draws), count).to(draws.device)]
        if len(draws) != count:
            raise ArgumentError(
                f"`source` must return as many draws as asked for, {count}; got {len(draws)}. "
                "Draws come first: return (num_draws, N, ...)."
            )
        yield self._check_output(draws, len(x))


class MembersTeacher(FunctionTeacher):
    """A user's own object with the members of :class:`Teacher`, checked like all."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__(teacher.log_probs)
        self.function = lambda x, num_draws: teacher.log_probs(x, num_draws)
        self._keyword = "num_draws"
        self.teacher = teacher
        self.max_draws = getattr(teacher, "max_draws", None)

    def _unpack_by(self, form: Form) -> None:
        teacher = self.teacher
        self.function = lambda x, num_draws: teacher.log_probs(form.unpack(x), num_draws)

    def _source_text(self) -> str:
        return type(self.teacher).__name__

    def _read(self, values: Any, rows: int) -> Tensor:
        floating = isinstance(values, Tensor) and values.is_floating_point()
        check_simplex(values.exp() if floating else values, rows)
        return values


def unpacked_function(
    function: Callable[..., object], form: Form
) -> tuple[Callable[..., Any], str | None]:
    """A function of several inputs as one of packed ones; its parameter for the draws, by name."""

    def unpacked(x: Tensor, **options: object) -> Any:
        args, kwargs = form.call(x)
        return function(*args, **kwargs, **options)

    named = draws_parameter(function) == "num_draws"
    return wraps(function)(unpacked), "num_draws" if named else None


def draws_parameter(function: Callable[..., object]) -> str | None:
    """Parameter for the number of draws: `num_draws`, or a second one without a default."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins have no signature
        return None
    if "num_draws" in parameters:
        return "num_draws"
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and parameter.default is parameter.empty
    ]
    return needed[1] if len(needed) == 2 else None
