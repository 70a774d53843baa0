"""How novel an input is to a student, beside its answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from pyro_opu.checks import ArgumentError
from pyro_opu.distributions import Answer, as_answer
from pyro_opu.guides.novelty import Novelty, answer_and_features, fit_novelty
from pyro_opu.inputs import InputLike
from pyro_opu.metrics.uncertainty import uncertainty
from pyro_opu.rng import full_precision


class WithNovelty(nn.Module):
    """A student that says how far an input lies outside what it was taught."""

    guide: nn.Module
    detector: Novelty | None

    def novelty(self, x: InputLike) -> Tensor:
        """How far inputs lie outside what the student was taught, from the features of one pass.

        It is about the inputs alone: 0.5 at the median row of ``distill``'s ``x``, above ``1 - a``
        at a share a of new rows like them, towards 1 outside. The posterior's own uncertainty, of
        which a student's is a copy, is ``uncertainty(x).epistemic``; it may be small
        where the student is far outside, and its answer worth nothing. See
        :mod:`pyro_opu.guides.novelty`.

        Args:
            x: See :meth:`.OnePassPredictive.distribution`.

        Returns:
            ``(N,)``, between 0 and 1.

        Raises:
            ValueError: a student without it, such as one of an older file.

        Example:
            >>> import torch, pyro_opu
            >>> w = torch.randn(20, 2, 3)
            >>> teacher = lambda x: torch.softmax(x @ w, -1)
            >>> x = torch.randn(500, 2)
            >>> fast = pyro_opu.distill(teacher, x, num_steps=100, seed=0, progress=False)
            >>> fast.novelty(torch.tensor([[0.0, 0.5], [9.0, -9.0]])) > 0.99
            tensor([False,  True])
        """
        if self.detector is None:
            raise ArgumentError(
                "`novelty` needs the rows that the student was taught at, which this one was made "
                "without, as those of older files and of OnePassPredictive(guide, ...) are. Distil "
                "it again, or set fast.detector = pyro_opu.guides.novelty.fit_novelty(fast.guide, "
                "x) with rows like those that it was taught at."
            )
        return self._answer_and_novelty(x)[1]

    @full_precision()
    def _answer_and_novelty(self, x: InputLike) -> tuple[Any, Any]:
        """Both at inputs as a user gives them, of one pass; ``None`` where it has no novelty."""
        x = self._checked(x)
        if self.detector is None:
            return self._of_outcome(as_answer(self.guide(x))), None
        answer, features = answer_and_features(self.guide, x)
        return self._of_outcome(answer), self.detector(x, features)

    @full_precision()
    def _uncertainty(self, answer: Any, novelty: Tensor | None) -> Any:
        """The table of an answer, with the novelty of its inputs."""
        return replace(uncertainty(answer), novelty=novelty)

    def _checked(self, x: InputLike) -> Tensor:
        """Inputs as the guide takes them."""
        raise NotImplementedError

    def _of_outcome(self, answer: Answer) -> Any:
        """The answer, refused where it is one to something else."""
        raise NotImplementedError


def with_novelty(student: Any, x: Tensor) -> Any:
    """A student that tells inputs which are unlike the rows of ``x``, its inputs packed."""
    student.detector = fit_novelty(student.guide, x, student.form.index_columns)
    return student
