"""Draws of a posterior from elsewhere, with a function of them, as a teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_bool, check_callable
from pyro_opu.inputs import Form
from pyro_opu.parts.values import said_by
from pyro_opu.programs.cost import Cost
from pyro_opu.programs.plug_in import PlugIn, plug_in_draws
from pyro_opu.programs.posterior import SAID, PosteriorProgram
from pyro_opu.programs.recorder import NotRecorded
from pyro_opu.programs.samples import choose
from pyro_opu.programs.signature import Call, first_argument, names_of
from pyro_opu.programs.vmap import Batched, Draws, vectorized
from pyro_opu.teachers.arrays import AnyFunction, as_arrays, as_tensors, outputs_of
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.utils.chunks import some_rows
from pyro_opu.utils.printing import name_of
from pyro_opu.utils.warnings import warn_user

__all__ = ["PosteriorTeacher", "is_posterior", "samples_of"]

#: Chains that a sampler has at most, and how far a sum of probabilities may be off one.
MOST_CHAINS, LEAST_SUM = 16, 1e-3
FORMS = (
    "an ArviZ InferenceData (or its posterior group), or a dict of draws {name: (S, ...)}, with a "
    "function of one draw and of x: (posterior, function)"
)


class PosteriorTeacher(BaseTeacher[Tensor]):
    r"""Draws of parameters, from PyMC, Stan, NumPyro or any sampler, with a function of them.

    ``as_teacher((posterior, function))`` and ``distill((posterior, function), x)`` make it, too.

    Args:
        posterior: An ArviZ ``InferenceData``, whose chains are joined; its posterior group; or a
            dict ``{name: draws (S, ...)}`` of arrays or tensors.
        function: ``(draw, x) -> probabilities (N, C)`` with the parameters of one draw by name,
            tensors or arrays as the function takes them; of tensors it runs under
            :func:`torch.vmap` where it can. For a real y it returns ``(loc, scale)``,
            ``(N,)`` each, or the scale a number.
        of_all: The function takes all draws, ``(S, ...)`` each, and returns ``(S, N, C)``.

    Raises:
        TypeError: ``posterior`` is none of these.
        ValueError: no draws, or parameters with another number of draws.

    Example:
        >>> from pyro_opu import as_teacher
        >>> posterior = {"w": torch.randn(50, 4, 3), "b": torch.randn(50, 3)}
        >>> teacher = as_teacher((posterior, lambda t, x: (x @ t["w"] + t["b"]).softmax(-1)))
        >>> teacher.probs(torch.zeros(5, 4)).shape
        torch.Size([50, 5, 3])
    """

    of_chains = True

    def __init__(
        self, posterior: object, function: Callable[..., object], *, of_all: bool = False
    ) -> None:
        self.samples = samples_of(posterior)
        self.max_draws = len(next(iter(self.samples.values())))
        self.of_all = check_bool("of_all", of_all)
        self.asked = check_callable("function", function, "(draw, x) -> probabilities (N, C)")
        self.call: Call = first_argument
        self._compared = False  # whether draws have been looked at for chains
        # Draws go in by name, since only inputs have rows to be split into blocks.
        self._function = AnyFunction(partial(_of_draw, function))
        self._run = Batched("the function of the posterior")

    def _source_text(self) -> str:
        return name_of(self.asked)

    @property
    def argument_names(self) -> tuple[str, ...]:
        return names_of(self.asked)[1:]

    def _unpack_by(self, form: Form) -> None:
        self.call = form.call

    def operations(self, x: Tensor) -> int | None:
        """The number for a function of tensors; ``None`` where it is one of arrays."""
        return None if self._of_arrays(x) else super().operations(x)

    def _measured(self, draws: Tensor, x: Tensor) -> Cost:
        if self._of_arrays(x):
            return Cost(x.shape[1:], x[0].numel(), None)
        return super()._measured(draws, x)

    def _pick(self, x: Tensor, num_draws: int) -> Tensor:
        return choose(len(next(iter(self.samples.values()))), num_draws)

    def _evaluate(self, draws: Tensor, x: Tensor) -> Tensor:
        return self._read(self._values(draws, x), len(x))

    def _of_arrays(self, x: Tensor) -> bool:
        if not self._function.known:
            self._values(torch.arange(1), some_rows(x, 2))
        return self._function.of_arrays

    def _check_ungrouped(self, x: Tensor) -> None:
        """Refuse draws by chain ``(chains, S, ...)`` if the function takes them joined alone."""
        if (shape := grouped_by(self.samples)) is None or self.of_all:
            return

        def fits(draw: Mapping[str, Any]) -> bool:
            args, kwargs = self.call(x)
            try:
                found = self._function(*args, **kwargs, draw=as_tensors_like(draw, x))
                outputs = _of_one(outputs_of(found), x)
            except Exception:  # noqa: BLE001 - of a function that cannot take such a draw
                return False
            return len(outputs) == 2 or bool((outputs[0].sum(-1) - 1).abs().max() < LEAST_SUM)

        alone = fits({name: value[0] for name, value in self.samples.items()})
        if not fits({name: value[0, 0] for name, value in self.samples.items()}):
            return
        said = (
            f"draws {shape}, which {'may be' if alone else 'are'} grouped by chain: join them as "
            "{name: value.reshape(-1, *value.shape[2:])}, or pass ArviZ's object"
        )
        if not alone:
            raise ArgumentError(f"`posterior` must have one axis of draws; got {said}.")
        warn_user(f"`posterior` has {said}. It is read as {shape[0]} draws.")

    def _as_program(self, draws: Tensor, x: Tensor) -> PosteriorProgram:
        if self._of_arrays(x):
            raise NotRecorded(f"{self!r} computes in arrays, not in tensors")

        def program(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
            one = partial(self._of_one, inputs[0])
            found = one(draws) if self.of_all else vectorized(one, draws)
            return {SAID: said_by(tuple(found.values()))}

        return PosteriorProgram(program, self._chosen(draws, x))

    def plug_ins(self, x: Tensor) -> list[PlugIn]:
        """The function under the mean of the draws, or under one of them."""
        if self.of_all or self._of_arrays(x):
            return []

        def at(draw: Mapping[str, Tensor], x: Tensor) -> Tensor:
            return said_by(tuple(self._of_one(x, dict(draw)).values()))

        some = self._chosen(torch.arange(1), x)
        draws = self._chosen(self._pick(x, plug_in_draws(some, self.max_draws)), x)
        return [PlugIn.of_draws(at, draws)]

    def _chosen(self, index: Tensor, x: Tensor) -> Draws:
        chosen = {name: value[index.numpy()] for name, value in self.samples.items()}
        return as_tensors_like(chosen, x)

    def _of_one(self, x: Tensor, draw: Draws) -> dict[str, Tensor]:
        """What the function says under one draw, or under all, part by part."""
        args, kwargs = self.call(x)
        found = self._function(*args, **kwargs, draw=draw)
        outputs = outputs_of(found)
        if not self.of_all:
            outputs = _of_one(outputs, x)
        return {str(number): each for number, each in enumerate(outputs)}

    def _values(self, index: Tensor, x: Tensor) -> Any:
        """What the function says under these draws, stacked."""
        if not self._compared:
            self._compared = True
            self._check_ungrouped(x[:2])
        draws, one = self._chosen(index, x), partial(self._of_one, x)
        if self.of_all:
            found = one(draws)
        elif not self._function.known or self._function.of_arrays:
            each = [one({k: v[s] for k, v in draws.items()}) for s in range(len(index))]
            found = {name: torch.stack([e[name] for e in each]) for name in each[0]}
        else:
            found = self._run(one, draws, x)
        return tuple(found.values()) if len(found) > 1 else found["0"]


def is_posterior(source: Any) -> TypeGuard[tuple[Any, Callable[..., Any]]]:
    """Whether it is a pair of draws and a function of them."""
    pair = isinstance(source, (tuple, list)) and len(source) == 2 and callable(source[1])
    return pair and (isinstance(source[0], Mapping) or _group(source[0]) is not None)


def samples_of(posterior: object) -> dict[str, NDArray[Any]]:
    """Draws ``(S, ...)`` by name, chains joined."""
    group = _group(posterior)
    if group is not None:
        found = {str(name): _draws_first(value) for name, value in group.data_vars.items()}
    elif isinstance(posterior, Mapping):
        found = {str(name): _draws_first(value) for name, value in posterior.items()}
    else:
        kind = type(posterior).__name__
        raise ArgumentTypeError(
            f"`posterior` must be {FORMS}; got {kind}. Collect the draws in a dict."
        )
    sizes = {name: value.shape[:1] for name, value in found.items()}
    if len(set(sizes.values())) != 1 or () in sizes.values() or (0,) in sizes.values():
        raise ArgumentError(
            "`posterior` must hold as many draws of every parameter, on the first axis; got shapes "
            f"{ {name: value.shape for name, value in found.items()} }. Join chains with "
            "value.reshape(-1, *value.shape[2:]); give constants to the function."
        )
    return found


def _group(source: Any) -> Any:
    """The posterior group of ArviZ's object, or the group itself."""
    group = getattr(source, "posterior", source)
    if hasattr(group, "to_dataset") and not hasattr(group, "data_vars"):  # one variable of extract
        group = group.to_dataset(name=group.name or "value")
    return group if hasattr(group, "data_vars") else None


def _draws_first(value: Any) -> NDArray[Any]:
    """An array ``(S, ...)``; of one with named axes chains and draws, or samples, are joined."""
    dims = getattr(value, "dims", ())
    names = [name for name in ("chain", "draw", "sample") if name in dims]
    if not names:
        return np.asarray(as_arrays(value))
    array = np.asarray(value.transpose(*names, ...).values)
    return array.reshape(-1, *array.shape[len(names) :])


def grouped_by(samples: Mapping[str, NDArray[Any]]) -> tuple[int, int] | None:
    """Chains and draws of each if all parameters may be grouped so."""
    shapes = {value.shape[:2] for value in samples.values()}
    shape = shapes.pop()
    few = not shapes and len(shape) == 2 and shape[0] < shape[1] and shape[0] <= MOST_CHAINS
    return (shape[0], shape[1]) if few else None


def as_tensors_like(values: Mapping[str, NDArray[Any]], x: Tensor) -> Draws:
    """Arrays by name as tensors beside x."""
    return {name: as_tensors(value, x) for name, value in values.items()}


def _of_one(outputs: tuple[Any, ...], x: Tensor) -> tuple[Tensor, ...]:
    """What one draw says, a scale for every row; what cannot be that is refused."""
    rows, pair = len(x), len(outputs) == 2
    shape = tuple(outputs[0].shape) if isinstance(outputs[0], Tensor) else type(outputs[0]).__name__
    if len(shape) != 2 - pair or shape[0] != rows:
        raise ArgumentError(
            f"`function` must return, for one draw and {rows} inputs, probabilities ({rows}, C) "
            f"that sum to 1, or of a real y (loc, scale), ({rows},) each; got {shape}. For two "
            "classes return [1 - p, p]; for a function that takes all draws write "
            "PosteriorTeacher(posterior, function, of_all=True)."
        )
    if not pair:
        return outputs
    loc, scale = outputs
    return loc, torch.as_tensor(scale, dtype=loc.dtype, device=loc.device).expand_as(loc)


def _of_draw(function: Callable[..., object], *args: Any, draw: object, **kwargs: Any) -> Any:
    """A function of a draw, which is given by name."""
    return function(draw, *args, **kwargs)
