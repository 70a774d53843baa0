"""What a model observes, and what follows from it for a student: one interface, any outcome."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pyro_opu.guides.base import student_at
from pyro_opu.guides.beginning import SCRATCH, Start
from pyro_opu.inputs import PLAIN, Form
from pyro_opu.objectives import Objective
from pyro_opu.outcomes.sites import SiteLayout, SiteReader, read_sites
from pyro_opu.programs.plug_in import PlugIn
from pyro_opu.teachers.base import JointDraws

__all__ = ["Outcome"]

#: Guide's name that asks for a network of this package where the teacher has one of its own.
NETWORK = "network"


class Outcome(SiteReader):
    """What a model observes: the sites, guides, losses and scores that go with it.

    A teacher's ``kind`` names it. ``distill``, fidelity, mixing, files and rivals ask the outcome,
    so that a further kind is a file beside ``classes.py`` and ``real.py``.
    """

    #: What the draws are, in words.
    quantity: ClassVar[str]
    #: What a guide must answer with, in words.
    answer_text: ClassVar[str]
    #: Kinds of the sites that a student gives back.
    site_kinds: ClassVar[tuple[str, ...]]
    #: Guides by name, for ``distill(guide=name)`` and saved files.
    guides: ClassVar[dict[str, Any]]

    @classmethod
    @abstractmethod
    def of(cls, teacher: JointDraws) -> Outcome:
        """The outcome of a teacher that has seen an input."""

    def layouts(
        self, teacher: JointDraws, x: Tensor, return_sites: Collection[str] | None = None
    ) -> tuple[SiteLayout, ...]:
        """The sites that a student of this teacher gives back, as the ``Predictive`` does."""
        return read_sites(self, teacher, x, return_sites)

    @abstractmethod
    def sample(self, answer: Any, sites: Collection[SiteLayout], count: int) -> dict[str, Tensor]:
        """``count`` draws of the sites from a student's answer, laid out."""

    def draws_of(self, answer: Any, count: int) -> Tensor:
        """Draws ``(S, N, K)`` of a student's answer, as a teacher gives them, in logarithms."""
        raise TypeError(
            f"draws of {self.quantity} are not told apart from what is observed. Call fast(x)."
        )

    @abstractmethod
    def is_answer(self, value: Any) -> bool:
        """Whether a guide may answer with this."""

    def beginning(
        self, x: Tensor, held_out: Any, plug_ins: list[PlugIn], form: Form = PLAIN
    ) -> Start:
        """Where a student of these networks begins; arguments as of :meth:`guide`."""
        return Start(None, f"students of {self.quantity} begin at no network")

    @abstractmethod
    def guide(
        self,
        name: str | None,
        x: Tensor,
        held_out: Any,
        found: dict[str, Any],
        start: Start = SCRATCH,
        form: Form = PLAIN,
    ) -> nn.Module:
        """A guide of this name, or one that suits the teacher, sized to the inputs.

        Args:
            name: A key of :attr:`guides`, or ``None``.
            x: Inputs ``(N, *input_shape)``.
            held_out: From :meth:`judge`.
            found: From :meth:`describe`.
            start: From :meth:`beginning`.
            form: The form of several inputs, which ``x`` holds as one tensor.
        """

    @abstractmethod
    def objectives(
        self, guide: nn.Module, x: Tensor, loss: str | Objective | None
    ) -> tuple[Objective, Objective]:
        """The objective of the warm start, by what the guide answers, and of the refinement."""

    def answer_of(self, guide: nn.Module, x: Tensor) -> Any:
        """What a guide answers at ``x``, checked."""
        try:
            answer = student_at(guide, x)
        except Exception as error:
            raise ValueError(
                f"`guide` must answer inputs of shape {tuple(x.shape)} with {self.answer_text}; it "
                f"raised {type(error).__name__}: {str(error)[:300]}. Try guide(x[:2]) by itself."
            ) from error
        if not self.is_answer(answer):
            raise TypeError(
                f"`guide` must return {self.answer_text} for x; got {type(answer).__name__}. The "
                f"teacher's draws are {self.quantity}: leave `guide` out, or pass one of "
                f"{sorted(self.guides)}."
            )
        shape = (tuple(answer.batch_shape), tuple(answer.event_shape))
        if shape != (tuple(x.shape[:1]), self.event_shape):
            raise ValueError(
                f"`guide` must return {self.answer_text} with batch shape ({len(x)},) and event "
                f"shape {self.event_shape} for N = {len(x)}; got {shape[0]} and {shape[1]}. Check "
                "its last layer."
            )
        if not answer.mean.requires_grad or not torch.isfinite(answer.mean).all():
            fault = "NaN or infinity" if answer.mean.requires_grad else "one without gradient"
            raise ValueError(
                f"`guide` must return {self.answer_text} with a finite mean that depends on its "
                f"weights; got {fault}. Check its forward for NaN, torch.no_grad and .detach()."
            )
        return answer

    @abstractmethod
    def judge(self, x: Tensor, draws: Tensor, held: int | None) -> Any:
        """Judges answers at x by the teacher's draws there ``(S, N, K)``, of ``held`` in all."""

    @abstractmethod
    def chain(self, draws: Tensor) -> Tensor:
        """Draws ``(S, N, K)`` in units in which a movement of 1e-6 is none, for R-hat."""

    def describe(self, held_out: Any) -> dict[str, Any]:
        """What a report says of the teacher's draws, by name."""
        return {}

    def about(self, guide: nn.Module, found: dict[str, Any]) -> dict[str, Any]:
        """What a report says of the guide, and of the draws as :meth:`describe` ``found`` them."""
        return {"guide": type(guide).__name__, **found}

    def teach_as(self, guide: nn.Module, held_out: Any) -> None:
        """Let a guide that may choose answer with the law of the draws while a critic teaches it.

        A closed form teaches moments, which all laws share; a critic looks at the shape.
        """

    def recalibrates(self, guide: nn.Module) -> bool:
        """Whether :meth:`calibration` applies to this guide."""
        return False

    def calibration(self, guide: nn.Module, inputs: Any, law_is_open: bool) -> dict[str, Any]:
        """What to add to the guide's log concentration, as "shift", and how it was found.

        Where the law of the answers is open, also the "law" that is nearest with its moments.
        """
        return {"shift": 0.0}

    def recalibrate(self, guide: Any, found: dict[str, Any]) -> None:  # noqa: B027 - not without concentration
        """Add the shift to the guide's log concentration, and let it answer with the law."""
