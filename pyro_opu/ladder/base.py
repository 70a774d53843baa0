"""What exact answers of every posterior have: their draws, recorded and evaluated all at once."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, positive_int
from pyro_opu.export import checked_path, write
from pyro_opu.export.capture import Captured, captured
from pyro_opu.inputs import InputLike
from pyro_opu.ladder.files import FEW, OUTPUTS, ExactProgram, Exported, nearest_draws
from pyro_opu.ladder.sums import Sums, checked_levels, laid_out, sums_of
from pyro_opu.metrics.uncertainty import table_of
from pyro_opu.parts import Outcome, Part, by_part
from pyro_opu.programs.asked import validates
from pyro_opu.programs.posterior import PROBS, SAID, PosteriorProgram, Said
from pyro_opu.programs.recorder import NotRecorded, NotValid
from pyro_opu.programs.vmap import Draws
from pyro_opu.rng import exclusive, full_precision
from pyro_opu.teachers import Teacher
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.teachers.held import fixed

#: Numbers of all draws by which those of a smaller file are chosen.
CHOSEN = 2**24


class Exact(Teacher):
    """What exact answers of every posterior have; :func:`~pyro_opu.exact` makes them.

    Attributes:
        teacher: The posterior as :func:`~pyro_opu.as_teacher` reads it.
        reason: Why its answers at the last inputs are not recorded, "" where they are.
    """

    teacher: BaseTeacher
    chunk_size: int | None
    reason: str
    _wanted: int | None
    _seen: Any
    _held: BaseTeacher | None
    _said: dict[Hashable, Said | str]

    def _begin(self, teacher: BaseTeacher, num_draws: int | None, chunk_size: int | None) -> None:
        self.teacher, self.chunk_size, self._wanted = teacher, chunk_size, num_draws
        self.reason, self._held, self._said, self._seen = "", None, {}, None

    def __getstate__(self) -> dict[str, Any]:
        """All but the record, which is made anew."""
        return {**self.__dict__, "_said": {}}

    @property
    def outcome(self) -> Outcome:
        """What is observed; known once an input has been seen."""
        return self.teacher.outcome

    @property
    def num_classes(self) -> int:
        """C; known once an input has been seen."""
        return self.teacher.num_classes

    @property
    def max_draws(self) -> int | None:
        """Draws behind ``.probs``; ``None`` before an input has been seen of what draws afresh."""
        return self._wanted or (self._held or self.teacher).max_draws

    def probs(self, x: InputLike, num_draws: int | None = None) -> Tensor:
        """Class probabilities ``(S, N, C)`` of joint posterior draws; see :meth:`log_probs`."""
        found = self._whole(x, num_draws, PROBS)
        self.outcome.check_classes("a posterior")
        return found

    def log_probs(self, x: InputLike, num_draws: int | None = None) -> Tensor:
        """Log class probabilities ``(S, N, C)``.

        Args:
            x: Inputs ``(N, ...)``, or several, as ``distill`` takes them.
            num_draws: S; fewer than there are are a random subset. By default all.

        Raises:
            TypeError: what is observed is no class label.
            ValueError: bad ``x`` or ``num_draws``.
        """
        found = self._whole(x, num_draws)
        self.outcome.check_classes("a posterior")
        return found

    def draws(self, x: InputLike, num_draws: int | None = None) -> Tensor:
        """What joint draws say of the inputs, ``(S, N, K)``: a teacher's ``draws``."""
        return self._whole(x, num_draws, PROBS)

    @torch.no_grad()
    @full_precision()
    def uncertainty(self, x: InputLike, *, quantiles: Sequence[float] | None = None) -> Any:
        """Mean, total, aleatoric and epistemic uncertainty, and more, without draws ``(S, N, C)``.

        Draws are added up block by block, in float64, so that memory does not grow with S N.

        Args:
            x: Inputs ``(N, ...)``, or several.
            quantiles: Levels, such as ``(0.05, 0.95)``, of the class probabilities (or of the mean
                of a real y) over the draws; they hold all draws of a block of rows, and sort them.

        Returns:
            The table of :func:`pyro_opu.uncertainty`, as of ``fast.uncertainty(x)``, with the
            ``mean`` and the ``quantiles``, ``(N, ...)`` each; a dict of these where several sites
            are observed.

        Raises:
            ValueError: a posterior of one draw; a level that is not between 0 and 1.
        """
        x = self._look(x)
        if (self._held or self.teacher).max_draws == 1:
            raise ArgumentError(
                "`source` must hold at least 2 draws, to say how they differ; it holds one. Call "
                ".draws(x), or export(path, x, outputs='mean, aleatoric')."
            )
        levels = checked_levels(quantiles)
        try:
            return self.outcome.shown(self._tables(x, self._said_at(x), levels))
        except NotRecorded:
            return self.outcome.shown(self._tables(x, None, levels))

    def _tables(self, x: Tensor, said: Said | None, levels: Tensor | None) -> dict[str, Any]:
        """Tables by site, of the record or of the posterior itself."""
        parts = self.outcome.parts
        found: dict[str, list[Any]] = {part.site: [] for part in parts}
        start = 0
        for rows, answers in self._blocks(x, said):
            for site, table in self._of_block(parts, x[start : start + rows], answers, levels):
                found[site].append(table)
            start += rows
        return {part.site: laid_out(part, found[part.site]) for part in parts}

    @torch.no_grad()
    @full_precision()
    def export(
        self,
        path: str | os.PathLike[str],
        example_x: InputLike | None = None,
        *,
        outputs: Sequence[str] | str = OUTPUTS,
        num_draws: int | None = None,
    ) -> Exported:
        """Write one program with the draws inside, which needs neither Pyro nor this package.

        The suffix says the format, ``.onnx`` or ``.pt2``, as in :func:`pyro_opu.export.export`; the
        number of rows is free, and several inputs are so many named ones. What is written has been
        compared with this object at the example. All draws of all rows of a call are in memory at
        once. A file weighs what the draws do, 4 bytes a number: a warning tells it above 100 MB.

        Args:
            path: Ends in ``.onnx`` or ``.pt2``; replaced atomically.
            example_x: Inputs ``(N, ...)``, or several; by default rows of the first call.
            outputs: Names, in a list or with commas between: "mean", "total", "aleatoric",
                "epistemic", "max_probability", "variance", "expected_pairwise_kl",
                "concentration"; quantiles over the draws, such as "quantile_0.05"; "draws"
                ``(S, N, K)``; "labels" ``(S, N)``, one per draw, -1 at rows that are not finite,
                for which the program takes an input "seed", int64 ``(1,)``. Where several sites are
                observed, "site.mean", and "mean" is that of each. A row with an index below 0 has
                NaN.
            num_draws: Fewer draws, which as a sample are nearest to all at every other row of the
                example (``ladder.files.nearest_draws``): give some hundred rows.

        Returns:
            An :class:`~pyro_opu.ladder.files.Exported`: size, draws, and what fewer draws moved at
            the other rows.

        Raises:
            ValueError: answers that are no program, are random under a draw, or that the format
                cannot express, by what it lacks; another suffix; an unknown output.
            ImportError: for ``.onnx`` without the extra "onnx".
        """
        place = checked_path(path)
        x = self._example(example_x)
        program, lost = self._program(x, outputs, num_draws)
        program.check_size(place.name)
        sites = [part.site or "obs" for part in program.parts]
        size = write(program, place, x[: program.few].cpu(), sites)
        return Exported(os.fspath(path), size, program.count, program.outputs, lost)

    @torch.no_grad()
    def file_size(self, x: InputLike) -> int | None:
        """Bytes of draws and weights in a file, ``None`` where :meth:`export` would refuse."""
        try:
            return self._program(self._look(x)[:FEW], "mean", None)[0].size
        except ArgumentError:
            return None

    def _program(
        self, x: Tensor, outputs: Sequence[str] | str, num_draws: int | None
    ) -> tuple[ExactProgram, dict[str, float]]:
        """The program of these outputs, and what fewer draws moved in each."""
        said = self._said_at(x) and self._said_at(x[:1])  # one row is what models look for most
        if said is None or said.is_random:
            why = self.reason or "it draws at random under a draw, for each row"
            raise ArgumentError(
                f"`source` must be a program of its draws, to be a file; {self.teacher!r} is not: "
                f"{why.rstrip('.')}. Distil it, and export the student."
            )
        if not said.is_apart(x):
            raise ArgumentError(
                "`source` must say the same of rows whatever rows are beside them, to be a program "
                "that is given any; asked alone they do not. Scale x by numbers of the training "
                "rows, not by x.mean(0), and sort and sum over no rows; or call .uncertainty and "
                ".draws, which take all rows together."
            )
        beside = said, self.outcome.parts, self.teacher.named_form, x, outputs
        whole = ExactProgram(*beside, kind=repr(self.teacher))
        if num_draws is None or num_draws == whole.count:
            return whole, {}
        count = self._checked_draws(num_draws, whole.count)
        chosen, judged = (x[::2], x[1::2]) if len(x) > 1 else (x, x)
        most = max(1, CHOSEN // whole.count // sum(p.columns * p.width for p in whole.parts))
        chosen = chosen[:: -(-len(chosen) // most)]
        values = zip(whole.parts, by_part(said.whole(chosen), whole.parts), strict=True)
        numbers = torch.cat([sums_of(p, v[0], chosen).numbers(v) for p, v in values], 1)
        few = ExactProgram(*beside, nearest_draws(numbers, count), repr(self.teacher))
        inputs = whole.inputs(judged[: whole.few].cpu()).values()
        pairs = zip(whole(*inputs).items(), few(*inputs).values(), strict=True)
        rows = [name for name, shape in whole.shapes.items() if shape[0] == "N"]
        return few, {k: float((a - b).abs().max()) for (k, a), b in pairs if k in rows}

    def _checked_draws(self, num_draws: int, held: int) -> int:
        if positive_int("num_draws", num_draws, 2) > held:
            raise ArgumentError(
                f"`num_draws` must be at most {held}, the draws that there are; got {num_draws}. "
                "Leave it out."
            )
        return num_draws

    @torch.no_grad()
    def capture(
        self, example_x: InputLike | None = None, *, outputs: Sequence[str] | str = OUTPUTS
    ) -> Captured:
        """The outputs of :meth:`export` as compiled code, on a GPU as a CUDA graph.

        ``captured(x)`` is a dict of tensors. It is compiled where that works, in some seconds; on
        a processor it needs a C++ compiler. ``captured.kind`` says what it is, ``reason`` why not.

        Args:
            example_x: Inputs ``(N, ...)``, or several; a CUDA graph has as many rows.
            outputs: As in :meth:`export`, without labels.
        """
        x = self._example(example_x)
        program, _ = self._program(x, outputs, None)
        if program._samples:
            raise ArgumentError(
                "`outputs` must be without labels, which need a seed for each call; got "
                f"{list(program.outputs)}. Call the exact answer itself, or export it."
            )
        program = program.to(x.device)
        names = program.outputs

        def forward(x: Tensor) -> tuple[Tensor, ...]:
            return tuple(program.of_packed(x).values())

        made = captured(forward, lambda *values: dict(zip(names, values, strict=True)), x)
        made.form = self.teacher.form
        return made

    def _example(self, example_x: InputLike | None) -> Tensor:
        """Inputs as one tensor, of the first call where none are given."""
        if example_x is None and self._seen is None:
            raise ArgumentError(
                "`example_x` must be inputs of which the shape is that of all; got none, and it "
                "has not been called yet. Pass a few rows, export(path, x[:100])."
            )
        return self._look(self._seen if example_x is None else example_x)

    def _of_block(
        self, parts: Sequence[Part], x: Tensor, answers: Iterator[Draws], levels: Tensor | None
    ) -> Iterator[tuple[str, Any]]:
        """Tables of the sites at a block of rows."""
        sums: list[Sums] = []
        kept: list[list[Tensor]] = [[] for _ in parts]
        for found in answers:
            values = by_part(found[SAID], parts)
            if not sums:
                sums = [sums_of(p, v[0], x) for p, v in zip(parts, values, strict=True)]
            for each, value, keep in zip(sums, values, kept, strict=True):
                each.add(value, found.get(PROBS))
                if levels is not None:
                    keep.append(value)
        for part, each, keep in zip(parts, sums, kept, strict=True):
            table = table_of(each.measures())
            if levels is not None:
                shown = each.shown(torch.cat(keep))
                table = replace(table, quantiles=torch.quantile(shown, levels.to(shown), dim=0))
            yield part.site, table

    @torch.no_grad()
    @full_precision()
    def _whole(self, x: InputLike, num_draws: int | None, name: str = SAID) -> Tensor:
        """What draws say of the inputs; as a teacher's ``draws`` gives it by the name of PROBS."""
        x = self._look(x)
        said = self._said_at(x)
        direct = said is not None and name == PROBS and name in said.bound.names
        try:
            whole = None if said is None else said.whole(x, PROBS if direct else SAID)
        except NotRecorded:
            whole = None
        if said is None or whole is None:
            assert self._held is not None
            whole = self._held.streamed(x, num_draws)
            return self.outcome.plain(whole) if name == PROBS else whole
        if num_draws is not None and self._held is not None:
            index = torch.randperm(len(whole))[: self._held._checked(num_draws)]
            whole = whole[index.sort().values.to(whole.device)]
        if direct and said.proved and not math.isnan(whole.sum()):
            return whole
        whole = self.outcome.checked(whole.log() if direct else whole, len(x), not said.proved)
        return self.outcome.plain(whole) if name == PROBS else whole

    def _blocks(self, x: Tensor, said: Said | None) -> Iterator[tuple[int, Iterator[Draws]]]:
        """Rows of each block, and what successive draws say of them."""
        if said is None:
            assert self._held is not None
            for block in self._held.stream(x):
                yield block.shape[1], iter([{SAID: block}])
        else:
            yield from said.blocks(x, *(n for n in (SAID, PROBS) if n in said.bound.names))

    def _look(self, x: Any) -> Tensor:
        """Inputs as one tensor; at the first the posterior is looked at, and its draws are held."""
        packed = self.teacher.packed(x)
        if self._seen is None:
            self._seen = packed[:FEW].detach().clone()
        if self._held is None:
            with exclusive():
                self.teacher.finish(packed, self._wanted)
                self._held = fixed(self.teacher, packed, self._wanted)
        return packed

    def _said_at(self, x: Tensor) -> Said | None:
        """The record that serves inputs of this shape, ``None`` where there is none."""
        key = x.shape[1:], x.dtype, x.device, validates()
        said = self._said.get(key)
        if said is None or (isinstance(said, Said) and not said.watched.unchanged()):
            with exclusive():
                said = self._said[key] = self._record(x)
        try:
            if isinstance(said, Said):
                said.check(x[: said.rows_at_once(x)])
                self.reason = ""
                return said
            self.reason = said
        except NotRecorded as error:
            self.reason = str(error)
        return None

    def _record(self, x: Tensor) -> Said | str:
        """The record, or why there is none."""
        assert self._held is not None
        program: PosteriorProgram | None = None
        try:
            program = self._held.posterior_program(x)
            single = len(self.outcome.parts) == 1 and self.outcome.kind == "classes"
            return Said(program, x, self.chunk_size, single)
        except Exception as error:  # noqa: BLE001 - whatever cannot be recorded is evaluated
            reason = error
        if program is not None and isinstance(reason, NotValid):
            program.complain(x)
        return (str(reason).splitlines() or [type(reason).__name__])[0]
