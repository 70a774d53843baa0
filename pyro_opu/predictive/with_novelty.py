"""How novel an input is to a student, beside its answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, is_traced
from pyro_opu.distributions import Answer
from pyro_opu.guides.novelty import Novelty, answer_and_features, fit_novelty
from pyro_opu.inputs import InputLike
from pyro_opu.metrics.uncertainty import Rows, rows_of, table_by_blocks
from pyro_opu.parts import Outcome
from pyro_opu.rng import full_precision
from pyro_opu.utils.chunks import joined, rows_at_once


class WithNovelty(nn.Module):
    """A student that says how far an input lies outside what it was taught."""

    guide: nn.Module
    outcome: Outcome
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
        return self._novelty(self._checked(x))

    @full_precision()
    def _answer_and_novelty(self, x: InputLike) -> tuple[Any, Any]:
        """Both at inputs as a user gives them, of one pass; ``None`` where it has no novelty."""
        return self._both(self._checked(x))

    def _both(self, x: Tensor) -> tuple[Any, Any]:
        """The same at checked inputs."""
        if self.detector is None:
            return self._answer(x), None
        answer, features = answer_and_features(self.guide, x)
        return self._of_outcome(answer), self.detector(x, features)

    def _tables_of(self, answer: Any, novelty: Tensor | None) -> dict[str, Any]:
        """Tables by site of one answer, with the novelty of its rows where there is one."""
        known = None if novelty is None else lambda: novelty
        by_site = self.outcome.by_site(answer).items()
        return {site: table_by_blocks([rows_of(own, alone=True)], known) for site, own in by_site}

    @full_precision()
    def _tables(self, x: Tensor) -> dict[str, Any]:
        """Tables by site at checked inputs, whose fields are computed when they are read.

        The pass is made now, block by block, and its answers are kept; novelty runs the trunk
        once more.
        """
        blocks = self._blocks(x)
        found: dict[str, list[Rows]] = {}
        for block in blocks:
            for site, own in self.outcome.by_site(self._answer(block)).items():
                found.setdefault(site, []).append(rows_of(own, alone=len(blocks) == 1))
        novelty = None if self.detector is None else self._novelty_later(x)
        return {site: table_by_blocks(rows, novelty) for site, rows in found.items()}

    def _novelty_later(self, x: Tensor) -> Callable[[], Tensor]:
        """The novelty of checked inputs, for when it is read."""
        before = _version(x)

        @cache
        def novelty() -> Tensor:
            if _version(x) != before:
                raise ArgumentError(
                    "`x` must stay as it is until novelty is read, which looks at it once more; it "
                    "was changed in place. Read it before, or pass x.clone()."
                )
            return self._novelty(x)

        return novelty

    @full_precision()
    def _novelty(self, x: Tensor) -> Tensor:
        """The novelty of checked inputs, block by block."""
        detector = self.detector
        assert detector is not None
        found = []
        for rows in self._blocks(x):
            reads = detector.features is not None
            features = answer_and_features(self.guide, rows)[1] if reads else None
            found.append(detector(rows, features))
        return joined(found, 0)

    def _blocks(self, x: Tensor) -> tuple[Tensor, ...]:
        """Blocks of rows whose passes take little memory; one where a graph is recorded."""
        rows = rows_at_once(x, math.prod(self.outcome.event_shape))
        return (x,) if is_traced() or len(x) <= rows else x.split(rows)

    def _answer(self, x: Tensor) -> Any:
        """What the guide answers at checked inputs."""
        raise NotImplementedError

    def _checked(self, x: InputLike) -> Tensor:
        """Inputs as the guide takes them."""
        raise NotImplementedError

    def _of_outcome(self, answer: Answer) -> Any:
        """The answer, refused where it is one to something else."""
        raise NotImplementedError


def _version(x: Tensor) -> int | None:
    """How often a tensor has been changed in place, where that is known."""
    return None if is_traced() or x.is_inference() else x._version


def with_novelty(student: Any, x: Tensor) -> Any:
    """A student that tells inputs which are unlike the rows of ``x``, its inputs packed."""
    student.detector = fit_novelty(student.guide, x, student.form.index_columns)
    return student
