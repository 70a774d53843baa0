"""Which guide, which loss, which judge suits what is observed: one interface, any outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, ArgumentTypeError
from pyro_opu.guides import ClassGuideName
from pyro_opu.guides.base import student_at
from pyro_opu.guides.beginning import SCRATCH, Start
from pyro_opu.guides.normal import RealGuideName
from pyro_opu.inputs import PLAIN, Form
from pyro_opu.objectives import ClassLossName, Objective
from pyro_opu.objectives.normal import RealLossName
from pyro_opu.parts import Outcome
from pyro_opu.programs.plug_in import PlugIn

__all__ = ["NETWORK", "Choice", "GuideName", "LossName"]

#: Guide's name that asks for a network of this package where the teacher has one of its own.
NETWORK: Final = "network"
GuideName = Literal[ClassGuideName, RealGuideName, "table", "network", "joint"]
LossName = Literal[ClassLossName, RealLossName]


class Choice(ABC):
    """What suits a student of an outcome; ``distill``, files and rivals ask it.

    Attributes:
        outcome: What is observed.
    """

    #: Guides by name, for ``distill(guide=name)`` and saved files.
    guides: ClassVar[Mapping[Any, Any]]
    #: Whether students may begin at a teacher's own network.
    begins_at_networks: ClassVar[bool] = False

    def __init__(self, outcome: Outcome) -> None:
        self.outcome: Any = outcome

    def beginning(
        self, x: Tensor, held_out: Any, plug_ins: list[PlugIn], form: Form = PLAIN
    ) -> Start:
        """Where a student of these networks begins; arguments as of :meth:`guide`."""
        return Start(None)

    @abstractmethod
    def guide(
        self,
        name: GuideName | None,
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
            held_out: From :func:`.judge_of`.
            found: From :meth:`describe`.
            start: From :meth:`beginning`.
            form: The form of several inputs, which ``x`` holds as one tensor.
        """

    @abstractmethod
    def objectives(
        self, guide: nn.Module, x: Tensor, loss: LossName | Objective | None
    ) -> tuple[Objective, Objective]:
        """The objective of the warm start, by what the guide answers, and of the refinement."""

    def answer_of(self, guide: nn.Module, x: Tensor) -> Any:
        """What a guide answers at ``x``, checked."""
        text = self.outcome.words.answer
        try:
            answer = student_at(guide, x)
        except Exception as error:
            raise ArgumentError(
                f"`guide` must answer inputs of shape {tuple(x.shape)} with {text}; it raised "
                f"{type(error).__name__}: {str(error)[:300]}. Try guide(x[:2]) by itself."
            ) from error
        if not isinstance(answer, self.outcome.answers):
            raise ArgumentTypeError(
                f"`guide` must return {text} for x; got {type(answer).__name__}. The teacher's "
                f"draws are {self.outcome.words.quantity}: leave `guide` out, or pass one of "
                f"{sorted(self.guides)}."
            )
        event_shape = self.outcome.event_shape
        shape = (tuple(answer.batch_shape), tuple(answer.event_shape))
        if shape != (tuple(x.shape[:1]), event_shape):
            raise ArgumentError(
                f"`guide` must return {text} with batch shape ({len(x)},) and event shape "
                f"{event_shape} for N = {len(x)}; got {shape[0]} and {shape[1]}. Check its last "
                "layer."
            )
        if not answer.mean.requires_grad or not torch.isfinite(answer.mean).all():
            fault = "NaN or infinity" if answer.mean.requires_grad else "one without gradient"
            raise ArgumentError(
                f"`guide` must return {text} with a finite mean that depends on its weights; got "
                f"{fault}. Check its forward for NaN, torch.no_grad and .detach()."
            )
        return answer

    def describe(self, held_out: Any) -> dict[str, Any]:
        """What a report says of the teacher's draws, by name."""
        return {}

    def teach_as(  # noqa: B027 - most guides have one law
        self, guide: nn.Module, held_out: Any
    ) -> None:
        """Let a guide that may choose answer with the draws' family while a critic teaches it.

        A closed form teaches moments, which all distributions share; a critic looks at the shape.
        """

    def recalibrates(self, guide: nn.Module) -> bool:
        """Whether :meth:`calibration` applies to this guide."""
        return False

    def calibration(self, guide: nn.Module, inputs: Any, law_is_open: bool) -> dict[str, Any]:
        """What to add to the guide's log concentration, as "shift", and how it was found.

        Where the distribution of answers is open, also the "law" that is nearest with its moments.
        """
        return {"shift": 0.0}

    def recalibrate(self, guide: nn.Module, found: Mapping[str, object]) -> None:  # noqa: B027 - not without concentration
        """Add the shift to the guide's log concentration, and set how its moments are read."""
