"""What the numbers of a row are: one interface, any kind, below teachers and students."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_opu.distributions.implicit import FromNoise

__all__ = ["Part", "by_part", "map_parts"]


class Words(NamedTuple):
    """What an outcome is called."""

    quantity: str  #: What the draws are.
    answer: str  #: What a guide must answer with.
    learned: str  #: What the student learns the distribution of.
    held: str  #: What a deterministic site must hold to be given back.


@dataclass(frozen=True)
class Part(ABC):
    """One observed site: one number, or several alike, of every row.

    What a number is, a subclass says: how it is read off a distribution, what draws of it mean, and
    what a student answers with. A further kind is a file beside ``classes.py``.

    In what follows draws are ``(..., width)``, as a teacher's ``stream`` gives them, of n numbers;
    of a part of L numbers per row n is N L.

    Attributes:
        site: Its name; "" of the only number of a row, whose answer stands by itself.
        shape: The shape of what it observes of one row; ``()`` of one number.
    """

    #: Its name, in files too.
    kind: ClassVar[str]
    #: Whether a draw says probabilities, and not a mean and a deviation.
    on_simplex: ClassVar[bool]
    #: What a student answers with, and what answers each number of a table.
    answers: ClassVar[type[Any]]
    family: ClassVar[type[Any]]
    #: What it is called where it is the only one, and one of its numbers.
    words: ClassVar[Words]
    noun: ClassVar[str]
    #: Kinds of the sites that a student gives back, what is observed first.
    site_kinds: ClassVar[tuple[str, ...]]
    #: dtype of the observed site of a teacher that is not a Pyro model; "" is that of the inputs.
    dtype: ClassVar[str] = ""
    #: Name and kind of a site of what is held, for models without one.
    extra: ClassVar[str]
    #: Absolute error of such a site, besides the relative one.
    held_within: ClassVar[float]
    #: Whether the network of a table works in units of a part's own.
    has_units: ClassVar[bool] = False

    site: str = ""
    shape: tuple[int, ...] = ()

    @property
    def config(self) -> dict[str, Any]:
        """Plain values for a file; ``part_from`` is the inverse."""
        return {"kind": self.kind, **asdict(self)}

    @property
    def described(self) -> str:
        """Its kind and shape, in words."""
        return f"{self.kind} {self.shape}" if self.shape else self.kind

    @property
    def columns(self) -> int:
        """Numbers L that it observes of one row."""
        return math.prod(self.shape)

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers that a draw says of each, C class probabilities, or mean and log deviation."""

    @property
    @abstractmethod
    def event_shape(self) -> tuple[int, ...]:
        """Event shape of the answer of one number, ``(C,)``, or ``()``."""

    # What a distribution and draws say

    @classmethod
    @abstractmethod
    def takes(cls, fn: Distribution) -> bool:
        """Whether a site of this distribution is of this kind, and of none before it."""

    @staticmethod
    @abstractmethod
    def said(fn: Distribution) -> Tensor:
        """What a distribution says of each of its numbers, ``(*shape, width)``."""

    def read(self, fn: Distribution) -> Tensor:
        """``said``, of a site that has been found to be this part; refused where it is not."""
        return self.said(fn)

    @abstractmethod
    def checked(self, draws: Tensor, sums: bool) -> Tensor:
        """Refuse what cannot be draws ``(S, n, width)``; ``sums`` adds some probabilities up."""

    @property
    def at_site(self) -> str:
        """Where its numbers are, for errors."""
        return f" at site '{self.site}'" if self.site else ""

    def plain(self, draws: Tensor) -> Tensor:
        """Draws as a teacher's ``draws`` gives them."""
        return draws

    @abstractmethod
    def mixed(self, log_weights: Tensor, draws: Tensor) -> Tensor:
        """What a mixture says ``(n, width)``, of V in it ``(V, n, width)``, weights ``(V, n)``."""

    @abstractmethod
    def apart(self, one: Tensor, two: Tensor) -> float:
        """The largest difference of what two mixtures say."""

    def chain(self, draws: Tensor) -> Tensor:
        """Draws ``(S, n, width)`` in units in which a movement of 1e-6 is none, for R-hat."""
        return draws

    def means(self, draws: Tensor) -> Tensor:
        """What of the draws a posterior's epistemic part is the spread of."""
        return draws

    # Sites

    def kind_at(self, fn: Distribution) -> str:
        """The kind of the observed site."""
        return self.site_kinds[0]

    @abstractmethod
    def shown(self, draws: Tensor) -> dict[str, Tensor]:
        """What a deterministic site may hold, by its kind."""

    @abstractmethod
    def values(self, kind: str, drawn: Tensor, parameters: Tensor) -> Tensor:
        """What a site of this kind shows of draws, and of the parameters they were drawn with."""

    # Answers

    def trials_at(self, x: Tensor) -> Tensor | None:
        """How many trials ``(N L,)`` at these rows, where there are any."""
        return None

    def whole(self, answer: Any, trials: Tensor | None) -> Any:
        """The answer of what is observed, of an answer of ``family``."""
        return answer

    @abstractmethod
    def draws_of(self, answer: Any, count: int) -> Tensor:
        """Draws ``(S, n, width)`` of an answer."""

    @abstractmethod
    def marginal(self, draws: Tensor, source: FromNoise) -> Any:
        """The distribution of draws made of noise, by those at fixed noise ``(P, n, width)``."""

    @abstractmethod
    def observed(self, draws: Tensor, trials: Tensor | None) -> tuple[Tensor, Tensor]:
        """What is observed ``(S, n)`` under draws ``(S, n, width)``, and its parameters."""

    # Heads: a table's network has so many outputs for each number

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Outputs of the head that stand for an answer of ``family``."""

    def units(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation ``(L,)`` of draws ``(S, N, L, width)``, by which they are compared."""
        none = draws.new_zeros(self.columns)
        return none, none + 1

    @abstractmethod
    def start(self, draws: Tensor, units: tuple[Tensor, Tensor]) -> Tensor:
        """Outputs ``(L, num_outputs)`` of the mean answer of all rows, by such draws."""

    @abstractmethod
    def answer(self, outputs: Tensor, *units: Tensor) -> Any:
        """The answer that outputs ``(n, num_outputs)`` stand for, in units ``(n,)`` if any."""

    @abstractmethod
    def made(self, outputs: Tensor, *units: Tensor) -> Tensor:
        """The draws that the first outputs ``(S, n, width)`` stand for."""


def by_part(values: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """Draws ``(S, N, K)`` as ``(S, N L, width)`` of each part, whose numbers become rows."""
    if len(parts) == 1 and parts[0].columns == 1:
        return [values]
    split = values.split([part.columns * part.width for part in parts], -1)
    pairs = zip(split, parts, strict=True)
    return [each.reshape(len(values), -1, part.width) for each, part in pairs]


def map_parts(
    function: Callable[[Part, Tensor], Tensor], draws: Tensor, parts: Sequence[Part]
) -> Tensor:
    """What a function makes of each part and its draws, side by side; ``(S, N, K)`` of these."""
    pairs = zip(parts, by_part(draws, parts), strict=True)
    found = [function(part, own).reshape(*draws.shape[:2], -1) for part, own in pairs]
    return found[0] if len(found) == 1 else torch.cat(found, -1)
