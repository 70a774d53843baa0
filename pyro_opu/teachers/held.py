"""Draws of a posterior that are picked once and held: a finite teacher made from any other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_inputs
from pyro_opu.inputs import Form
from pyro_opu.programs.cost import Cost
from pyro_opu.programs.plug_in import PlugIn
from pyro_opu.programs.posterior import PosteriorProgram
from pyro_opu.programs.samples import Latents, choose
from pyro_opu.rng import fold_in, preserve_rng, seeded
from pyro_opu.teachers.base import BaseTeacher, Picked
from pyro_opu.teachers.mixture import MixtureTeacher, in_step, joined
from pyro_opu.teachers.networks import EnsembleTeacher
from pyro_opu.teachers.pyro_model import PredictiveTeacher
from pyro_opu.utils.chunks import some_rows

if TYPE_CHECKING:
    from typing import Self

__all__ = ["HeldTeacher", "held_draws", "held_from", "hold"]

#: Name of the tensor of draws that are seeds or indices.
INDEX = "draws"
#: Draws and rows at which it is tried whether a draw gives the same answer twice.
TRIED = 16
#: Number of the stream by which draws are held for a run of this seed.
STREAM = 2**32


class HeldTeacher(BaseTeacher[Picked]):
    r"""A teacher with a fixed list of draws, :math:`\theta_1, \dots, \theta_S`, of another one.

    :func:`.hold` picks them. A draw is what makes its answer: posterior samples themselves, the
    seed of dropout masks, the index of an ensemble's member. So K of S draws cost K evaluations.

    Example:
        >>> from pyro_opu import as_teacher
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout())
        >>> x = torch.randn(5, 2)
        >>> held = hold(as_teacher(net), x, 20)
        >>> bool((held.probs(x) == held.probs(x)).all())
        True
        >>> bool((held.chosen([3, 7]).probs(x) == held.probs(x)[[3, 7]]).all())
        True
    """

    def __init__(self, teacher: Any, draws: Any) -> None:
        self.teacher = teacher
        self.picked = draws
        self.size = self.max_draws = len(draws)
        self.chunk_size, self.in_steps = teacher.chunk_size, teacher.in_steps
        self._outcome = teacher._outcome

    def chosen(self, index: Sequence[int] | Tensor) -> Self:
        """Some of the draws, in ascending order of their indices."""
        ascending = torch.as_tensor(index, dtype=torch.long).sort().values
        return type(self)(self.teacher, _at(self.picked, ascending))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The draws by name, each with the S axis first, all that :func:`.held_from` needs."""
        latents = isinstance(self.picked, Latents)
        return dict(self.picked.values) if latents else {INDEX: self.picked}

    def _source_text(self) -> str:
        return f"of {self.teacher!r}"

    def operations(self, x: Tensor) -> int | None:
        """What a draw costs the teacher that evaluates it."""
        count: int | None = self.teacher.operations(x)
        return count

    def _blocks(self, x: Tensor, num_draws: int | None) -> Iterator[Tensor]:
        if not _answers_whole(self.teacher):
            yield from super()._blocks(x, num_draws)
            return
        index = self.picked[self._some(num_draws)]
        for block in self.teacher.stream(x):
            _check_indices(index, len(block))
            self._outcome = self.teacher.outcome
            yield block if len(index) == len(block) else block[index.to(block.device)]

    def plug_ins(self, x: Tensor) -> list[PlugIn]:
        """The plug-ins of the teacher that evaluates the draws."""
        found: list[PlugIn] = self.teacher.plug_ins(x)
        return found

    def _unpack_by(self, form: Form) -> None:
        self.teacher.unpack_by(form)

    def _pick(self, x: Tensor, num_draws: int) -> Picked:
        _check_fit(self.teacher, self.picked, x)
        self.max_rows = self.teacher.max_rows
        every = num_draws == self.size
        return self.picked if every else _at(self.picked, self._some(num_draws))

    def _some(self, num_draws: int | None) -> Tensor:
        """Indices of all draws, or of a random subset, in order."""
        return choose(self.size, self._checked(num_draws)).sort().values

    def _as_program(self, draws: Picked, x: Tensor) -> PosteriorProgram:
        found: PosteriorProgram = self.teacher._as_program(draws, x)
        return found

    def _evaluate(self, draws: Picked, x: Tensor) -> Tensor:
        found: Tensor = self.teacher._evaluate(draws, x)
        self._outcome = self.teacher._outcome or self._outcome
        return found

    def _measured(self, draws: Picked, x: Tensor) -> Cost:
        cost: Cost = self.teacher._measured(draws, x)
        return cost


class _HeldMixture(HeldTeacher):
    """Held draws of the members of a mixture, one member after another."""

    def __init__(self, teacher: BaseTeacher, members: Sequence[HeldTeacher]) -> None:
        super().__init__(teacher, members)
        self.size = self.max_draws = sum(member.size for member in members)

    def chosen(self, index: Sequence[int] | Tensor) -> Self:
        left, parts = torch.as_tensor(index, dtype=torch.long), []
        for member in self.picked:
            parts.append(member.chosen(left[(left >= 0) & (left < member.size)]))
            left = left - member.size
        return type(self)(self.teacher, parts)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The draws of the members, whose number stands before the name."""
        members = enumerate(self.picked)
        return {f"{k}/{name}": value for k, part in members for name, value in part.tensors.items()}

    def _blocks(self, x: Tensor, num_draws: int | None) -> Iterator[Tensor]:
        some = self.chosen(self._some(num_draws))
        streams = [member.stream(x) for member in some.picked if member.size]
        for parts in in_step(streams):
            yield self._check_output(joined(parts), parts[0].shape[1])


def hold(teacher: BaseTeacher, x: Tensor, num_draws: int | None = None) -> HeldTeacher:
    """Pick draws of a teacher once and hold them.

    Args:
        teacher: Any but a function that draws afresh.
        x: Inputs ``(N, ...)``, of which a few rows are looked at.
        num_draws: S; by default all draws in order, or ``default_draws`` of a teacher that draws
            afresh. A mixture gives S / K draws of each of its K members, one member after another.
    """
    check_inputs(x)
    if isinstance(teacher, HeldTeacher):
        return teacher.chosen(choose(teacher.size, teacher._checked(num_draws)))
    with preserve_rng():
        teacher.draws(some_rows(x, 2), 1)  # refuses what is no teacher; counts its draws
    count = teacher._checked(num_draws)
    if isinstance(teacher, MixtureTeacher):
        share, more = divmod(count, len(teacher.members))
        members = enumerate(teacher.members[:count])
        return _HeldMixture(teacher, [hold(each, x, share + (k < more)) for k, each in members])
    teacher.outcome.check_single()
    whole, size = _answers_whole(teacher), teacher.max_draws
    if whole and size is None:
        raise ArgumentError(
            "`source` must hold its draws; it is a function that draws afresh at every call. Let "
            "it return all S draws, x -> (S, N, C), from parameters drawn before, or pass the "
            "Predictive, network or ensemble itself."
        )
    held = cast(HeldTeacher, fixed(teacher, x, count))
    _check_repeats(held, x)
    return held


def held_draws(teacher: BaseTeacher, x: Tensor, num_draws: int | None, seed: int) -> HeldTeacher:
    """:func:`hold` by a stream of random numbers of its own."""
    with seeded(fold_in(seed, STREAM)):
        return hold(teacher, x, num_draws)


def fixed(teacher: BaseTeacher, x: Tensor, num_draws: int | None = None) -> BaseTeacher:
    """A teacher of draws that are picked now, once; it may draw latents of a row at every call.

    A function that draws afresh at every call is left as it is.
    """
    count, size = teacher._checked(num_draws), teacher.max_draws
    if isinstance(teacher, MixtureTeacher):
        share, more = divmod(count, len(teacher.members))
        members = enumerate(teacher.members[:count])
        found = [fixed(each, x, share + (k < more)) for k, each in members]
        held = [each for each in found if isinstance(each, HeldTeacher)]
        return _HeldMixture(teacher, held) if len(held) == len(found) else teacher
    if isinstance(teacher, HeldTeacher):
        return teacher.chosen(choose(teacher.size, count))
    if _answers_whole(teacher):
        return HeldTeacher(teacher, choose(size, count).sort().values) if size else teacher
    return HeldTeacher(teacher, teacher._pick(x, count))


def held_from(teacher: BaseTeacher, tensors: dict[str, Tensor]) -> HeldTeacher:
    """Make a teacher of these draws, ``tensors``, evaluated by another one."""
    if isinstance(teacher, HeldTeacher):
        return held_from(teacher.teacher, tensors)
    if isinstance(teacher, MixtureTeacher):
        parts: list[dict[str, Tensor]] = [{} for _ in teacher.members]
        for name, value in tensors.items():
            number, _, rest = name.partition("/")
            if not number.isdigit() or int(number) >= len(parts):
                raise _unlike(teacher, tensors)
            parts[int(number)][rest] = value
        pairs = zip(teacher.members, parts, strict=True)
        return _HeldMixture(teacher, [held_from(each, part) for each, part in pairs if part])
    if isinstance(teacher, PredictiveTeacher) and tensors:
        latents = Latents(tensors, len(next(iter(tensors.values()))))
        return HeldTeacher(teacher, latents)
    if isinstance(teacher, PredictiveTeacher) or set(tensors) != {INDEX}:
        raise _unlike(teacher, tensors)
    return HeldTeacher(teacher, tensors[INDEX])


def _answers_whole(teacher: BaseTeacher) -> bool:
    """Whether a teacher gives all its draws at once: a function, an object of the user's."""
    return type(teacher)._pick is BaseTeacher._pick


def _at(draws: object, index: Tensor) -> Any:
    """The draws at these indices."""
    if isinstance(draws, Latents):
        return draws.at(index)
    if isinstance(draws, Tensor):
        return draws[index.to(draws.device)]
    raise ArgumentTypeError(
        "`source` must be of a kind whose draws can be held: a Predictive, a dropout network, an "
        f"ensemble, or a function; this teacher picks its draws as {type(draws).__name__}."
    )


def _check_fit(teacher: BaseTeacher, draws: Any, x: Tensor) -> None:
    """Refuse draws that the teacher cannot evaluate."""
    if isinstance(teacher, PredictiveTeacher):
        teacher.prepare(x)
        shared = teacher.program.posterior.shared
        if set(shared) != set(draws.values):
            raise ArgumentError(
                f"`source` must have the latents of the held draws, {sorted(draws.values)}; it has "
                f"{sorted(shared)}. Pass the model that they were drawn for."
            )
        teacher.compare(draws, x)
    elif isinstance(teacher, EnsembleTeacher):
        _check_indices(draws, len(teacher.modules))


def _check_indices(index: Tensor, available: int) -> None:
    if int(index.max()) >= available:
        raise ArgumentError(
            f"`source` must hold the draws that were chosen, up to number {int(index.max())} from "
            f"0; it holds {available}. Pass all of them, in the same order."
        )


def _unlike(teacher: BaseTeacher, tensors: dict[str, Tensor]) -> ValueError:
    return ArgumentError(
        f"`source` must be of the kind that the draws {sorted(tensors)} were held of; got a "
        f"{type(teacher).__name__}. Pass the source that they were chosen from."
    )


def _check_repeats(held: HeldTeacher, x: Tensor) -> None:
    """Refuse draws that do not fix the answer."""
    few, rows = held.chosen(range(min(TRIED, held.size))), some_rows(x, TRIED)
    with preserve_rng():
        first, again = (few.streamed(rows) for _ in range(2))
    # Float rounding of a device that sums in no fixed order; what is drawn afresh differs by more.
    if not held.tensors or not torch.allclose(first, again, rtol=1e-4, atol=1e-4):
        raise ArgumentError(
            "`source` must answer the same when it is asked about the same draw twice. What is "
            "drawn anew at every call are latents local to a row of x, latents that the posterior "
            "samples lack, and all random numbers in a function. Draw them before, or use "
            '`distill` without guide="joint", which needs no held draws.'
        )
