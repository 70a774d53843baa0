"""Sites of a ``Predictive`` under all draws: runs of its model and guide, and their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from pyro.distributions import Delta
from torch import Tensor

from pyro_opu.programs.agreement import compare
from pyro_opu.programs.algebra import output
from pyro_opu.programs.apart import row_axes
from pyro_opu.programs.asked import all_hold, later
from pyro_opu.programs.bound import Bound, put
from pyro_opu.programs.forms import Call
from pyro_opu.programs.pace import Pace
from pyro_opu.programs.recorded import VALID, Recorded, few
from pyro_opu.programs.recorder import Together
from pyro_opu.programs.sites import arguments_of, unwrap
from pyro_opu.programs.trace import Run, quiet, trace_of
from pyro_opu.programs.vmap import COMPARED, Draws, loop, vectorized
from pyro_opu.programs.vmap_rewrites import Rewrites
from pyro_opu.programs.watched import Watched
from pyro_opu.utils.chunks import numbers_at_once

Shape = tuple[int, ...]
#: Draws by which the loop is timed.
LOOPED = 2
#: Rows of a block, where rows say nothing of one another, and numbers of a draw from which blocks
#: of rows are quicker.
ROWS, CACHE = 2**10, 2**19
#: Numbers in the widest tensor of a draw above which a processor convolves faster one by one.
WIDE_CONVOLUTION = 2**16
#: Draws with attention of which fewer fit in a block run one by one, by torch's fused kernels.
FEWEST_ATTENDED = 5


def draws_at_once(
    width: int, seen: Rewrites, tensors: Sequence[Tensor], numbers: int | None
) -> int:
    """Draws of a block at most; 0: one by one, as torch's own functions are quicker.

    Args:
        width: Numbers in the widest tensor of a draw.
        seen: What is among the operations.
        tensors: What they are given.
        numbers: In the widest tensor of a block; by default as many as keep the device busy.
    """
    on_gpus = [tensor.device for tensor in tensors if tensor.is_cuda]
    if seen.convolved and not on_gpus and width > WIDE_CONVOLUTION:
        return 1
    device = on_gpus[0] if on_gpus else torch.device("cpu")
    most = max(1, (numbers or numbers_at_once(device)) // width)
    return 0 if seen.attended and most < FEWEST_ATTENDED else most


class Runs:
    """Runs of a model or guide under one call's arguments, and what the first of them tells.

    Attributes:
        shapes: Shapes of its sites for one draw, as ``Predictive`` gives and orders them.
        returned: Shape of its value, ``None`` where that is no tensor.
    """

    def __init__(self, function: Callable[..., object], call: Call) -> None:
        self.function, self.call = function, call
        args, kwargs = call.given(call.tensors)
        first = Run.of(function, {}, *args, **kwargs)
        self.shapes: dict[str, Shape] = first.shapes
        value = first.returned
        self.returned = tuple(value.shape) if isinstance(value, Tensor) else None

    def nodes(self, latents: Draws, tensors: Sequence[Tensor] | None = None) -> Any:
        """What one run tells with these latents fixed, of the call or with other tensors."""
        args, kwargs = self.call.given(self.call.tensors if tensors is None else tensors)
        return trace_of(self.function, latents, *args, **kwargs).nodes

    def values(
        self, names: Iterable[str], latents: Draws, tensors: Sequence[Tensor] | None = None
    ) -> Draws:
        """Values of sites in one run."""
        nodes = self.nodes(latents, tensors)
        return {name: nodes[name]["value"] for name in names}

    def laid_out(self, names: Iterable[str], latents: Draws, tensors: Sequence[Tensor]) -> Draws:
        """Values of sites in one run, with the dimensions that ``Predictive`` gives them."""
        values = self.values(names, latents, tensors)
        dims = {name: len(self.shapes.get(name, value.shape)) for name, value in values.items()}
        return {name: _with_ones(value, 0, dims[name]) for name, value in values.items()}

    def together(self, names: Sequence[str], own_tensors: bool) -> Together:
        """:meth:`laid_out` under all draws, with all that must hold of them as one more value."""

        def together(draws: Draws, tensors: Sequence[Tensor]) -> Draws:
            with quiet(), later() as checks:
                one = partial(self.laid_out, names, tensors=tensors)
                found = vectorized(one, draws, own_tensors=own_tensors)
            return found | ({VALID: all_hold(checks)} if checks else {})

        return together

    def tensors(self, latents: Draws) -> Draws:
        """Values of all sites in one run, and the arguments of their distributions."""
        found: Draws = {}
        for name, node in self.nodes(latents).items():
            if name in self.shapes:
                found[name] = node["value"]
                if not isinstance(unwrap(node["fn"]), Delta):  # whose argument is the value
                    found |= {f"{name} {arg}": value for arg, value in arguments_of(node["fn"])}
        return found


def _some(draws: Draws, block: slice) -> Draws:
    return {name: value[block] for name, value in draws.items()}


def _with_ones(value: Tensor, place: int, dims: int) -> Tensor:
    """The value with so many dimensions from a place on: those of plates that it is not in."""
    ones = (1,) * (dims + place - value.dim())
    return value.reshape(value.shape[:place] + ones + value.shape[place:])


class SitePrograms:
    """What a form of call gives, without its model: recorded programs of guide and model.

    Attributes:
        free: Whether they serve any number of rows.
    """

    def __init__(
        self,
        model: Runs,
        guide: Runs | None,
        names: Sequence[str],
        samples: Draws,
        own_tensors: tuple[bool, bool],
        free: bool,
        numbers: int | None,
    ) -> None:
        self.free, self._names, self._samples, self._numbers = free, names, samples, numbers
        tensors, self._seen = model.call.tensors, Rewrites()
        self._parts: list[tuple[Together, Recorded]] = []
        self._guide: Bound | None = None
        latents = samples
        if guide is not None and guide.shapes:
            latents = {"": samples[""]}
            self._record(guide.together(tuple(guide.shapes), own_tensors[0]), latents, tensors)
            self._guide = Bound(self._parts[0][1], latents)
            latents = latents | self._guide(tensors)
            latents.pop(VALID, None)
        fresh = [name for name in names if name not in latents]
        self._record(model.together(fresh, own_tensors[1]), latents, tensors)
        self._bound = Bound(self._parts[-1][1], latents, fresh=self._guide is not None)
        self._watched = Watched([recorded for _, recorded in self._parts], samples)
        self._model = model
        self._dims = {name: len(shape) for name, shape in model.shapes.items()}
        self._checked: set[int] = set()
        self._paces: dict[tuple[int, bool], Pace] = {}
        self._axes = self._row_axes() if free else None

    def _record(self, together: Together, draws: Draws, tensors: Sequence[Tensor]) -> None:
        with self._seen:
            recorded = Recorded(together, draws, tensors, free=self.free)
        self._parts.append((together, recorded))

    def serves(self, call: Call) -> bool:
        """Whether the model is as it was, and gives what they give, compared once for N rows."""
        if not self._watched.unchanged():
            return False
        if call.rows not in self._checked and self.fits(call) and self._agrees(call.tensors):
            self._checked.add(call.rows)
        return call.rows in self._checked

    def fits(self, call: Call) -> bool:
        """Whether no fused kernel, which a record lacks, is quicker for so many rows."""
        return self._draws_at_once(call.tensors) > 0

    def _draws_at_once(self, tensors: Sequence[Tensor]) -> int:
        rows = self._parts[-1][1].of_rows(tensors)
        tensors = [*tensors, *self._samples.values()]
        return draws_at_once(self._bound.width(rows), self._seen, tensors, self._numbers)

    def _agrees(self, tensors: Sequence[Tensor]) -> bool:
        """Whether ``vmap`` gives the same under a few draws, by the same random numbers."""
        draws = few({"": self._samples[""]} if self._guide else self._samples, COMPARED)

        def said(kind: int) -> Draws:
            latents, found = draws, Draws()
            for part in self._parts:
                found |= (made := part[kind](latents, tensors))
                latents = latents | {k: v for k, v in made.items() if k != VALID}
            return found

        return not compare(partial(said, 1), partial(said, 0)).gaps

    def __call__(self, tensors: Sequence[Tensor]) -> dict[str, Tensor] | None:
        """Draws of the sites, or ``None`` if one of them cannot be sampled."""
        rows = self._parts[-1][1].of_rows(tensors)
        if (few := self._rows_at_once(rows, tensors)) < rows:
            return self._by_rows(tensors, rows, few)
        size, run = self._bound.num_draws, self._bound.at(tensors)
        guide = None if self._guide is None else self._guide.at(tensors)
        found: Draws = {}
        for block, values in self._pace(rows, tensors, LOOPED).blocks(
            lambda block: self._block(block, run, guide), partial(self._looped, tensors=tensors)
        ):
            if not bool(values.pop(VALID, True)):
                return None
            if block.stop - block.start == size:
                found = values
            else:
                put(found, block, values, size)
        return {name: found[name].contiguous() for name in self._names}

    def _pace(self, rows: int, tensors: Sequence[Tensor], looped: int) -> Pace:
        """The pace of so many rows; the loop is timed by blocks of some draws, or not at all."""
        key = rows.bit_length(), looped > 0
        if (pace := self._paces.get(key)) is None:
            width, most = self._bound.width(rows), max(1, self._draws_at_once(tensors))
            timed = not any(recorded.random for _, recorded in self._parts)
            size = self._bound.num_draws
            pace = self._paces[key] = Pace.of(size, width, most * width, timed, looped)
        return pace

    def _row_axes(self) -> dict[str, int | None] | None:
        """Axes of rows in what the model gives; nothing where it must see all rows at once."""
        found = row_axes(self._parts[-1][1])
        of_guide = [] if self._guide is None else output(self._parts[0][1].program)
        grow = (size.rows or size.both for node in of_guide for size in node.meta.get("sizes", ()))
        return None if any(grow) else found

    def _rows_at_once(self, rows: int, tensors: Sequence[Tensor]) -> int:
        """All, or as many as all draws have room for, or a processor's cache."""
        if self._axes is None or rows <= ROWS or rows * (width := self._bound.width(1)) <= CACHE:
            return rows
        device = (tensors or [self._samples[""]])[0].device
        most = (self._numbers or numbers_at_once(device)) // width
        return max(1, most // len(self._samples[""]), min(ROWS, most))

    def _by_rows(self, tensors: Sequence[Tensor], rows: int, few: int) -> Draws | None:
        """The same by blocks of rows, laid in their place at once."""
        assert self._axes is not None
        size, guide = len(self._samples[""]), None
        if self._guide is not None:  # each latent is the same for all blocks
            latents = self._guide.at(tensors)(slice(None))
            if not bool(latents.pop(VALID, True)):
                return None
            guide = partial(_some, latents)
        found: Draws = {}
        for start in range(0, rows, few):
            own = [x[start : start + few] if x.dim() and len(x) == rows else x for x in tensors]
            count, run = (
                min(few, rows - start),
                partial(self._block, run=self._bound.at(own), guide=guide),
            )
            for block, values in self._pace(count, own, 0).blocks(run, run):
                if not bool(values.pop(VALID, True)):
                    return None
                for name, value in values.items():
                    axis = self._axes.get(name)
                    if axis is None:
                        put(found, block, {name: value} if start == 0 else {}, size)
                        continue
                    if name not in found:
                        shape = (size, *value.shape[1:axis], rows, *value.shape[axis + 1 :])
                        found[name] = value.new_empty(shape)
                    found[name][block].narrow(axis, start, count).copy_(value)
        return {name: found[name] for name in self._names}

    def _looped(self, block: slice, tensors: Sequence[Tensor]) -> Draws:
        """The sites by a run of the model for every draw."""
        draws = {name: value[block] for name, value in self._samples.items()}
        with quiet(), later() as checks:
            found = loop(partial(self._model.laid_out, self._names, tensors=tensors), draws)
        return found | ({VALID: all_hold(checks)} if checks else {})

    def _block(
        self, block: slice, run: Callable[..., Draws], guide: Callable[[slice], Draws] | None
    ) -> Draws:
        """Values of the sites under a block of draws, and whether all could be sampled."""
        if guide is None:
            latents, found = self._samples, run(block)
        else:
            latents = {"": self._samples[""][block]} | guide(block)
            found, block = run(block, latents), slice(None)
            if VALID in latents:
                found[VALID] = found.get(VALID, latents[VALID]) & latents[VALID]
        for name in self._names:
            if name in latents:
                found[name] = _with_ones(latents[name][block], 1, self._dims[name]).clone()
        return found
