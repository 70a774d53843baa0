"""What a network draws at random in training mode, by which parts, and with what spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_opu.checks import ArgumentError
from pyro_opu.inputs import Unpacked
from pyro_opu.rng import evaluating
from pyro_opu.teachers.shared import Call, SharedMasks, of_one_row
from pyro_opu.utils.chunks import some_rows
from pyro_opu.utils.warnings import warn_user

__all__ = ["RandomCalls", "compare_spreads", "training"]

#: Rows at which spreads are compared, draws of each side, and passes in training mode that make
#: them, at least: what a pass draws once for all rows is seen only in several.
ROWS, DRAWS, PASSES = 2, 256, 32
#: Standard errors of a sum of scores beyond which spreads differ: 1.4e-5 of the time by chance, at
#: two rows together. A variance half as large is seen 94 % of the time of two classes, else always.
ERRORS = 4.5
#: Relative and absolute differences that are rounding.
TIED, ROUNDING = 1e-3, 1e-9


@dataclass(frozen=True)
class RandomCalls:
    """The random calls of a network at inputs of one shape.

    Attributes:
        module: The network.
        on: Parts that draw at random in training mode, and run in it; others never do.
        calls: What is drawn for one row, in order.
        whole: Whether the network answers with all parts in training mode; some then give more.
    """

    module: nn.Module
    on: tuple[nn.Module, ...]
    calls: tuple[Call, ...]
    whole: bool

    @classmethod
    def of(cls, module: nn.Module, x: Tensor, answers: Callable[..., Tensor]) -> RandomCalls:
        """From runs at two and at three rows like these.

        Args:
            module: The network.
            x: Inputs ``(N, ...)``.
            answers: From what it returns to log-probabilities, an error where there are none.

        Raises:
            ValueError: nothing is drawn, or something is that cannot be given from outside.
        """
        with torch.no_grad(), evaluating(module):
            answer = module(some_rows(x, 3))  # which gives lazy layers their weights
        with training(module):
            made = _Made.in_run(module, some_rows(x, 2))
        if made.hidden:
            raise _hidden(module, made.hidden)
        answers(answer)
        if not made.calls:
            raise ArgumentError(
                "`source` must be a network with dropout; in this one no dropout with p > 0 was "
                "met, so that all its draws are equal. Pass a list of trained networks for an "
                "ensemble, a Predictive for a Bayesian network, or lambda x: module(x) if the "
                "module returns draws (S, N, C) itself."
            )
        try:
            whole = answers(made.answer) is not None
        except ArgumentError:  # no log-probabilities
            whole = False
        found = cls(module, tuple(dict.fromkeys(made.by)), (), whole)
        with found.running():
            same = _Made.in_run(module, some_rows(x, 2)).calls == made.calls
        if whole and not same:  # one part decides by its mode what another draws
            every = tuple(part for part in module.modules() if not _is_norm(part))
            found = cls(module, every, (), whole)
        with found.running():
            two, three = (_Made.in_run(module, some_rows(x, rows)).calls for rows in (2, 3))
        return cls(module, found.on, tuple(of_one_row(two, three)), whole)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, the parts that draw at random are in training mode, and others are not."""
        with evaluating(self.module):
            for part in self.on:
                part.training = True
            yield

    @property
    def are_of_rows(self) -> bool:
        """Whether every row has draws of its own in a pass in training mode."""
        return all(call.of_rows for call in self.calls)

    def drawn(self, seed: int) -> Iterator[Tensor]:
        """What one draw of the posterior, a seed, gives to the calls."""
        generator = torch.Generator().manual_seed(seed)
        return (call.draw(generator) for call in self.calls)


class _Made:
    """Random calls of a run, and the parts that made them; of some it is not known what they draw.

    Attributes:
        calls: In order.
        by: The part that made each.
        hidden: By part, the operation that cannot be given what it draws.
        answer: What the run gave.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.by: list[nn.Module] = []
        self.hidden: dict[nn.Module, str] = {}
        self.answer: Any = None

    @classmethod
    def in_run(cls, module: nn.Module, x: Tensor) -> _Made:
        """What a run at these inputs draws, in the modes that its parts are in."""
        made, inside = cls(), [module]
        generator = torch.Generator().manual_seed(0)

        def given(call: Call) -> Tensor:
            made.by.append(inside[-1])
            return call.draw(generator)

        own = set(module.modules())

        def enter(part: nn.Module, *_: object) -> None:
            if part in own:
                inside.append(part)

        def leave(part: nn.Module, *_: object) -> None:
            if part in own:
                inside.pop()

        # Of all modules, as scripted ones take no hooks of their own.
        hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        masks = SharedMasks(given)
        try:
            with torch.no_grad(), _Hidden(lambda name: made.hidden.setdefault(inside[-1], name)):
                with masks:
                    made.answer = module(x)
        finally:
            for hook in hooks:
                hook.remove()
        made.calls = masks.calls
        return made


class _Hidden(TorchDispatchMode):
    """Notes operations that draw at random by torch's own generator."""

    def __init__(self, note: Callable[[str], object]) -> None:
        super().__init__()
        self.note = note

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs):
            self.note(func._schema.name.partition("::")[2])
        return func(*args, **kwargs)


def _draws(func: Any, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Whether an operation that can draw at random does, by no generator of its own."""
    known = func._schema.arguments
    given = {each.name: each.default_value for each in known if each.has_default_value()}
    given |= dict(zip((each.name for each in known), args, strict=False)) | dict(kwargs)
    off = any(given.get(name) is False for name in ("train", "training"))
    rates = (given[name] for name in ("p", "dropout_p", "dropout") if name in given)
    return not off and all(rates) and given.get("generator") is None


def _hidden(module: nn.Module, hidden: Mapping[nn.Module, str]) -> ValueError:
    whole = module.module if isinstance(module, Unpacked) else module
    names = {part: name for name, part in whole.named_modules()}
    found = ", ".join(
        f"'{names.get(part, '')}' is a {type(part).__name__} that calls {name}"
        for part, name in hidden.items()
    )
    return ArgumentError(
        "`source` must draw at random in ways that can be shared by all rows; in training mode "
        f"{found} inside. Set its `dropout` to 0, write it with torch.nn.functional, or pass a "
        "callable (x, num_draws) -> (S, N, C)."
    )


@contextmanager
def training(module: nn.Module) -> Iterator[None]:
    """Inside, a module is in training mode, but normalises by its running statistics.

    On exit each part has the mode that it had, and every buffer the numbers.
    """
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    with evaluating(module):
        for part in module.modules():
            part.training = not _is_norm(part)
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in before:
                    buffer.copy_(value)


def _is_norm(part: nn.Module) -> bool:
    return isinstance(part, nn.modules.batchnorm._NormBase)


@torch.no_grad()
def compare_spreads(
    found: RandomCalls,
    evaluate: Callable[[int, Tensor], Tensor],
    answers: Callable[..., Tensor],
    x: Tensor,
    at_once: int,
) -> None:
    """Warn where draws of a network spread otherwise than its passes in training mode.

    Squared distances of single draws from their mean are compared by scores of their ranks, row by
    row (:func:`_score_sums`).

    Args:
        found: What the network draws.
        evaluate: The teacher: from a number of draws and rows to probabilities ``(S, N, C)``.
        answers: From what the network returns to log-probabilities ``(N, C)``.
        x: Inputs, of which :data:`ROWS` are asked at.
        at_once: Rows of one pass, at most.
    """
    rows = some_rows(x, ROWS)
    mine = evaluate(DRAWS, rows)
    if mine.ndim != 3 or mine.shape[1] != ROWS:
        return  # which is refused elsewhere
    copies = min(DRAWS // PASSES, max(1, at_once // ROWS)) if found.are_of_rows else 1
    passes = -(-DRAWS // copies)
    many = rows.repeat_interleave(copies, 0)
    with training(found.module) if found.whole else found.running():
        parts = [answers(found.module(many)).unflatten(0, (ROWS, -1)) for _ in range(passes)]
    theirs = torch.cat(parts, 1)[:, :DRAWS].transpose(0, 1).exp()
    errors = _score_sums(_apart(mine, theirs))
    if float(errors.abs().max()) > ERRORS:
        spreads = [float(each.double().var(0).mean()) for each in (mine, theirs)]
        warn_user(
            f"`source`'s class probabilities vary otherwise in training mode (variance "
            f"{spreads[1]:.2g}) than under the teacher's draws ({spreads[0]:.2g}): it is random in "
            "a way that is not met, such as numbers that are not torch's, or dropout in place "
            "whose result is not used. Pass a callable (x, num_draws) -> (S, N, C) that samples it."
        )


def _apart(mine: Tensor, theirs: Tensor) -> Tensor:
    """Squared distances of both from their mean ``(2 S, N)``."""
    both = torch.cat([mine, theirs]).double()
    return (both - both.mean(0)).square().sum(-1)


def _score_sums(apart: Tensor) -> Tensor:
    r"""Standard errors by which scores of the first half of ``(2 S, N)`` are off, ``(N,)``.

    The rank r of 2 S scores as the square of a normal number would,
    :math:`\Phi^{-1}(\tfrac12 + \tfrac{r}{4 S + 2})^2`, which assumes no distribution (Klotz, 1962).
    """
    size, found = len(apart) // 2, []
    for column in apart.double().T:
        values, order = column.sort()
        new = values.diff() > TIED * values[1:] + ROUNDING
        groups = torch.cat([new.new_zeros(1), new]).cumsum(0)
        counts = groups.bincount().double()
        ranks = torch.empty_like(values)
        ranks[order] = (counts.cumsum(0) - (counts - 1) / 2)[groups]
        scores = torch.special.ndtri(0.5 + ranks / (4 * size + 2)).square()
        scores = scores - scores.mean()
        variance = size * scores.square().sum() / (4 * size - 2)
        found.append(scores[:size].sum() / variance.clamp_min(TIED).sqrt())
    return torch.stack(found)
