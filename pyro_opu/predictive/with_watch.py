"""Whether the rows that a student is asked about are still like those it was taught at."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, check_bool, in_range
from pyro_opu.inputs import Form, InputLike
from pyro_opu.judging.drift import INPUTS, LEVELS, Watch, counted, edges_of
from pyro_opu.parts import Outcome
from pyro_opu.predictive.distillation_report import DistillationReport
from pyro_opu.rng import full_precision

#: Rows taught at by which scores are counted, at most.
MOST_ROWS = 1024
#: What is ranked of answers.
OF_CLASSES, OF_NUMBERS = ("class", "certainty"), ("mean", "variance")
_LOCK = threading.Lock()


class WithWatch(nn.Module):
    """A student that says when its inputs are no longer those of teaching."""

    outcome: Outcome
    form: Form
    report: DistillationReport
    watched: Watch | None

    def watch(self, x: InputLike, *, false_alarms: float = 0.001, restart: bool = False) -> Watch:
        r"""Count a batch of rows, and say whether they are still like those of teaching.

        Scores of each row, its :meth:`novelty` and of its answer the likeliest class and its
        probability (of other sites mean and variance), are ranked among those of all rows so far
        and of the rows that were kept for :meth:`bound`. A betting martingale of the ranks says at
        any time, after any number of batches of any size, whether there is enough evidence
        (``pyro_opu/judging/drift.py``). How few rows were kept is accounted for.

        The stream is taken to be in random order: rows sorted by time of day or by class are found
        to change. Counts and evidence are the student's own and are not in its file; what it is
        loaded as begins anew. Several threads may call it.

        Args:
            x: A batch of rows, one or more; see :meth:`.OnePassPredictive.distribution`.
            false_alarms: The probability of an alarm, ever, if all rows are like those kept.
            restart: Forget the rows before these, such as after an alarm.

        Returns:
            The :class:`~pyro_opu.judging.drift.Watch` of all batches since it began: ``.alarm``,
            ``.since`` which batch, ``.of`` "inputs" or "answers", and it prints.

        Raises:
            ValueError: a student without kept rows or without novelty; ``false_alarms`` not between
                0 and 1, or another than that it began with.

        Example:
            >>> import torch, pyro_opu
            >>> w = torch.randn(20, 2, 3)
            >>> teacher = lambda x: torch.softmax(x @ w, -1)
            >>> x = torch.randn(500, 2)
            >>> fast = pyro_opu.distill(teacher, x, num_steps=100, seed=0, progress=False)
            >>> fast.watch(torch.randn(200, 2)).alarm, fast.watch(3 + torch.randn(99, 2)).since
            (False, 2)
        """
        in_range("false_alarms", false_alarms, 0.0, 1.0, "()", "Pass 0.001.")
        check_bool("restart", restart)
        if "watch" not in self.report:
            reason = self.report.get("bound", {}).get("reason", "its report has no such rows")
            raise ArgumentError(
                "`watch` needs rows that were kept apart, to compare new ones with, and the "
                f"student has none: {reason}. Distil it again, at 190 inputs or more."
            )
        scores = self._scores(x)
        with _LOCK:
            if self.watched is None or restart:
                self.watched = Watch(self.report["watch"], false_alarms)
            if self.watched.false_alarms != false_alarms:
                raise ArgumentError(
                    "`false_alarms` must be that which the watch began with, "
                    f"{self.watched.false_alarms:g}; got {false_alarms:g}. Pass restart=True too."
                )
            self.watched.add(scores)
            return self.watched

    @torch.no_grad()
    @full_precision()
    def _scores(self, x: InputLike) -> dict[str, np.ndarray]:
        """What is ranked of each row, ``(N,)`` each, block by block."""
        blocks = [self._scores_of(*self._both(rows)) for rows in self._blocks(self._checked(x))]
        return {name: np.concatenate([each[name] for each in blocks]) for name in blocks[0]}

    def _scores_of(self, answer: Any, novelty: Any) -> dict[str, np.ndarray]:
        """What is ranked of the rows of an answer."""
        found = {INPUTS: novelty}
        for site, own in self.outcome.by_site(answer).items():
            said = own.measures()
            classes = said.kind == "classes"
            values = (
                (said.mean.argmax(-1), said.max_probability) if classes else (said.mean, said.total)
            )
            names = OF_CLASSES if classes else OF_NUMBERS
            pairs = zip(names, values, strict=True)
            found |= {f"{site} {name}".strip(): value for name, value in pairs}
        return {
            name: value.double().reshape(len(value), -1).mean(1).cpu().numpy()
            for name, value in found.items()
        }

    def _checked(self, x: InputLike) -> Tensor:
        raise NotImplementedError

    def _blocks(self, x: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _both(self, x: Tensor) -> tuple[Any, Any]:
        raise NotImplementedError


def with_watch(student: Any, x: Tensor, kept: Tensor) -> Any:
    """A student that can watch, by rows ``x`` that it was taught at and those that were kept.

    Both are packed. Nothing to compare with is left where its bound has none.
    """
    if "sites" in student.report["bound"] and student.detector is not None:
        some = x[:: -(-len(x) // MOST_ROWS)]
        taught, apart = (student._scores(student.form.unpack(rows)) for rows in (some, kept))
        edges = {name: LEVELS if name == INPUTS else edges_of(taught[name]) for name in taught}
        student.report["watch"] = {name: counted(apart[name], edges[name]) for name in edges}
    return student
