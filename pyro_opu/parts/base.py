"""What the numbers of a row are: one interface, any outcome, below teachers and students."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_opu.checks import ArgumentTypeError
from pyro_opu.distributions import Answer
from pyro_opu.distributions.table import Part
from pyro_opu.utils.laws import Node

__all__ = ["Outcome", "SiteLayout"]


@dataclass(frozen=True)
class SiteLayout:
    """One site of the answer.

    Attributes:
        name: The site's name.
        kind: "label" (class indices), "onehot", "probs" (draws of class probabilities) or "prob1"
            (draws of the second class's probability).
        dtype: Name of the torch dtype, such as "int64".
        shape: Shape after the S axis, -1 where N stands.
        of: The observed site that it is, or whose parameters it shows, where there are several.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    of: str = ""

    @classmethod
    def from_config(
        cls, config: dict[str, Any], kinds: Collection[str], sizes_of: dict[str, tuple[int, int]]
    ) -> SiteLayout:
        """The layout that ``dataclasses.asdict`` gave.

        ``sizes_of`` has the classes of each observed site, and its numbers per row; "" is the only
        one.
        """
        layout = cls(**{**config, "shape": tuple(config["shape"])})
        texts = (layout.name, layout.kind, layout.dtype, layout.of)
        if not all(type(each) is str for each in texts):
            raise TypeError(f"a site is {config!r:.80}")
        num_classes, columns = sizes_of[layout.of]
        numbers = columns * (num_classes if layout.kind in ("onehot", "probs") else 1)
        sizes = all(type(size) is int and (size > 0 or size == -1) for size in layout.shape)
        if (
            layout.kind not in kinds
            or not isinstance(getattr(torch, layout.dtype, None), torch.dtype)
            or not sizes
            or (layout.shape.count(-1), math.prod(layout.shape)) != (1, -numbers)
        ):
            raise ValueError(f"a site is {config!r:.80}")
        return layout

    @property
    def shows_parameters(self) -> bool:
        """Whether the site shows the draws of class probabilities, or of means, themselves."""
        return self.kind in ("probs", "prob1", "mean")

    def fill(self, values: Tensor) -> Tensor:
        """Lay out draws ``(S, N)``, or ``(S, N, C)``, as this site."""
        rows = self.shape.index(-1)
        first = values.shape[:2] + self.shape[:rows] + self.shape[rows + 1 :]
        return values.to(getattr(torch, self.dtype)).reshape(first).movedim(1, 1 + rows)


class Outcome(ABC):
    """What a model observes of a row, and what its numbers mean.

    A teacher's draws ``(S, N, K)`` are read by it, a student's answers are drawn from by it, and
    sites of a ``Predictive`` are laid out by it. A further outcome is a file beside ``classes.py``.
    """

    #: Its name, in files too.
    kind: ClassVar[str]
    #: What model hubs call the task.
    task: ClassVar[str] = "regression"
    #: Observed sites, where there are several numbers of every row.
    parts: tuple[Part, ...] = ()
    #: Whether it is one number of every row.
    single: ClassVar[bool] = True
    #: What the draws are, and what a guide must answer with, in words.
    quantity: ClassVar[str]
    answer_text: ClassVar[str]
    #: Kinds of the sites that a student gives back.
    site_kinds: ClassVar[tuple[str, ...]]
    #: What the student learns the distribution of, and what a deterministic site must hold to be
    #: given back, in words.
    learned: ClassVar[str]
    held: ClassVar[str]
    #: Kind and dtype of the observed site of a teacher that is not a Pyro model.
    label: ClassVar[tuple[str, str]]
    #: Name and kind of a site of what is held, for models without one.
    extra: ClassVar[str]
    #: C of a class label; ``None`` of anything else.
    num_classes: int | None

    @property
    def config(self) -> dict[str, Any]:
        """Plain values for a file; the inverse is :func:`.outcome_from`."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]

    @classmethod
    def from_config(cls, **config: object) -> Any:
        """The outcome of ``config``, checked."""
        return cls(**config)

    def is_sized_as(self, guide: dict[str, Any]) -> bool:
        """Whether a guide that a file describes so answers this outcome."""
        return guide.get("num_classes") == self.num_classes

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Classes of each observed site, and its numbers per row; "" is the only one."""
        return {"": (self.num_classes or 1, 1)}

    def by_site(self, answer: Answer) -> dict[str, Any]:
        """A student's answer by the observed sites."""
        return {"": answer}

    def shown(self, by_site: Mapping[str, object]) -> Any:
        """What was found for each site, or for the only one."""
        return next(iter(by_site.values()))

    def plain(self, said: Tensor) -> Tensor:
        """Draws as a teacher's ``draws`` gives them, from those of its ``stream``."""
        return said

    def check_single(self) -> None:
        """Refuse several numbers of every row."""
        if not self.single:
            raise ArgumentTypeError(
                "`source` must be a posterior of one label or one real y per row; got one of "
                f"several numbers, {self}. Name one with as_teacher(source, site=...)."
            )

    def check_classes(self, source: str) -> None:
        """Refuse to give class probabilities where there is no single label."""
        one = "" if self.single else ", or name one site, as_teacher(source, site=...)"
        raise ArgumentTypeError(
            f"`probs` needs {source} of class labels, one per row; this one's outcome is {self}. "
            f"Call .draws(x){one}."
        )

    @property
    @abstractmethod
    def event_shape(self) -> tuple[int, ...]:
        """Event shape of a student's answer: ``(C,)``, or ``()`` for a real y."""

    @abstractmethod
    def kinds(self, nodes: Mapping[str, Node], site: str) -> dict[str, str]:
        """Kinds of the sites that one pass can give, of a run at two inputs with this site."""

    def layouts_of_obs(self, dtype: str) -> list[SiteLayout]:
        """The observed sites of a teacher that is not a Pyro model, at inputs of this dtype."""
        kind, own = self.label
        return [SiteLayout("obs", kind, own or dtype, (-1,))]

    def shown_by(self, nodes: Mapping[str, Node], name: str) -> str:
        """The observed site whose values or parameters a site shows; "" where there is one."""
        return ""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Numbers K that a draw says of a row."""

    @abstractmethod
    def checked(self, draws: Tensor, rows: int, sums: bool) -> Tensor:
        """Refuse what cannot be draws ``(S, rows, K)``.

        Args:
            draws: What a teacher says.
            rows: Inputs that it was asked at.
            sums: Whether to add some probabilities up.
        """

    @abstractmethod
    def read(self, fns: Mapping[str, Distribution], rows: int, axes: Mapping[str, int]) -> Tensor:
        """What the distributions of the observed sites say of each row, ``(rows, K)``.

        Args:
            fns: Distributions by site.
            rows: Inputs N.
            axes: By site, the axis of its numbers that holds the rows, from the end.
        """

    @abstractmethod
    def mixed(self, log_weights: Tensor, said: Tensor) -> Tensor:
        """What a mixture says ``(N, K)``, of V in it ``(V, N, K)`` with weights ``(V, N)``."""

    @abstractmethod
    def apart(self, one: Tensor, two: Tensor) -> float:
        """The largest difference of what two mixtures say ``(N, K)``."""

    @abstractmethod
    def sample(
        self, answer: Answer, sites: Collection[SiteLayout], count: int
    ) -> dict[str, Tensor]:
        """``count`` draws of the sites from a student's answer, laid out."""

    def draws_of(self, answer: Answer, count: int) -> Tensor:
        """Draws ``(S, N, K)`` of a student's answer, as a teacher gives them, in logarithms."""
        raise TypeError(
            f"draws of {self.quantity} are not kept apart from what is observed. Call fast(x)."
        )

    @abstractmethod
    def is_answer(self, value: object) -> bool:
        """Whether a guide may answer with this."""

    @abstractmethod
    def chain(self, draws: Tensor) -> Tensor:
        """Draws ``(S, N, K)`` in units in which a movement of 1e-6 is none, for R-hat."""

    def means(self, draws: Tensor) -> Tensor:
        """What of the draws ``(S, N, K)`` a posterior's epistemic part is the spread of."""
        return draws
