"""A student as one traced program of tensor operations: x -> named outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyro_opu.distributions import Answer, as_answer
from pyro_opu.export.plain_ops import PLAIN_OPS
from pyro_opu.guides.base import TrunkGuide
from pyro_opu.guides.fused import fused
from pyro_opu.guides.networks import centres

#: Notes of a graph on where its steps come from: paths of this machine, and half of its size.
_NOTES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")


class StudentProgram(nn.Module):
    """The module that is traced: x -> named outputs of a copy of a guide on the CPU.

    ``outputs`` are in this order; by default all that the guide's answer has.
    """

    def __init__(
        self, guide: nn.Module, input_shape: Sequence[int], outputs: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        self.guide = fused(guide).cpu()
        weight = next(self.guide.parameters(), None)
        self.dtype = torch.get_default_dtype() if weight is None else weight.dtype
        answer = as_answer(self.guide(torch.zeros(1, *input_shape, dtype=self.dtype)))
        self.event_shape, units = answer.event_shape, answer.measures().units
        self.outputs = _checked(outputs, answer, units)
        self.units = {name: units[name] for name in self.outputs}
        self._named(answer)  # caches, such as fixed points, are filled here

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """The outputs at inputs ``(N, *input_shape)``: mean ``(N, C)``, all others ``(N,)``."""
        if not isinstance(self.guide, TrunkGuide):
            return self._named(self.guide(x))
        # One row at a time: families look at shapes, which must be numbers in a trace.
        guide = self.guide

        def of_one(row: Tensor) -> dict[str, Tensor]:
            named = self._named(guide.answer(row[None]))
            return {name: value.squeeze(0) for name, value in named.items()}

        return torch.vmap(of_one)(guide.head(guide.trunk(x)))

    def _named(self, answer: Any) -> dict[str, Tensor]:
        return as_answer(answer).measures().rounded(self.outputs)


def _checked(
    outputs: Sequence[str] | None, answer: Answer, units: dict[str, str]
) -> tuple[str, ...]:
    """Check the names of the outputs; by default all that can be traced."""
    known = [name for name in units if name not in answer.untraceable]
    if outputs is not None and (isinstance(outputs, str) or not isinstance(outputs, Sequence)):
        raise TypeError(
            f"`outputs` must be a list of names; got {outputs!r}. Write ['mean', 'epistemic']."
        )
    chosen = known if outputs is None else list(outputs)
    wrong = [name for name in chosen if name not in known]
    if wrong or not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(
            f"`outputs` must name some of {', '.join(known)}, each once; got {chosen}. What a "
            f"{type(answer).__name__} has no closed form for is not exported."
        )
    return tuple(chosen)


def trace(student: StudentProgram, x: Tensor) -> torch.export.ExportedProgram:
    """The program as a graph for any number N >= 1 of rows, of operations that all runtimes have.

    It is traced, and compared with the student, at inputs ``x`` ``(N, *input_shape)``.
    """
    rows = x if len(x) > 1 else torch.cat([x, x])  # a traced dimension of 1 would stay 1
    try:
        with pyro.validation_enabled(False):
            shapes = ({0: torch.export.Dim("N")},)
            graph = torch.export.export(student, (rows,), dynamic_shapes=shapes, strict=False)
            graph = graph.run_decompositions(PLAIN_OPS)
        run = graph.module()
        run(x[:1])
    except Exception as error:
        raise ValueError(
            f"`guide` must be one that torch.export can trace for any number of rows; "
            f"{type(student.guide).__name__} is not ({type(error).__name__}: {error}). The guides "
            "of pyro_opu are; in one of your own keep Python's control flow free of tensors' "
            "values and of the number of rows, and answer with a PredictiveDirichlet."
        ) from error
    wrong = differing(student, run, x)
    if wrong:
        raise ValueError(
            f"`guide` must not branch on the values of x; the traced graph gives another "
            f"{wrong!r}. Is something in it random, or does it choose by looking at x?"
        )
    for node in graph.graph.nodes:
        for note in _NOTES:
            node.meta.pop(note, None)
    return graph


def differing(
    student: StudentProgram, run: Callable[[Tensor], dict[str, Tensor]], x: Tensor
) -> str | None:
    """Name the first output in which a program ``run`` differs from the student, if any.

    Compared at ``x``, at its first row, and at :func:`far_inputs`.
    """
    far = far_inputs(student.guide, x)
    for rows, same in ((x, _close), (x[:1], _close), (far, _same_kind)):
        if len(rows):
            found = run(rows)
            for name, value in student(rows).items():
                if not same(found[name], value):
                    return name
    return None


def far_inputs(guide: nn.Module, like: Tensor) -> Tensor:
    """Ten inputs from 1e-3 to 1e6 deviations off; none if the guide does not centre its inputs."""
    if not centres(guide):
        return like[:0]
    trunk: Any = guide.trunk
    signs = torch.rand(10, *like.shape[1:], generator=torch.Generator().manual_seed(0)) - 0.5
    z = signs.sign() * torch.logspace(-3, 6, 10).view(-1, *(1 for _ in like.shape[1:]))
    shape = getattr(trunk, "image_shape", trunk.standardize.shift.shape)
    x = trunk.standardize.inverse(z.double().reshape(-1, *shape)).reshape(z.shape)
    most = torch.finfo(trunk.standardize.shift.dtype).max / 4
    return x.clamp(-most, most).to(like.dtype)


def _close(found: Tensor, expected: Tensor) -> bool:
    """Whether two answers differ by rounding only, of whatever precision the weights have."""
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-5, equal_nan=True)


def _same_kind(found: Tensor, expected: Tensor) -> bool:
    """Whether both are NaN, infinite or moderate at the same places.

    Far out a logit of 1e6 is rounded by 0.1, so that values need not agree.
    """
    kinds = [torch.where(each.abs() < 1e30, 0.0, each.sign()) for each in (found, expected)]
    return torch.equal(*(kind.nan_to_num(2.0) for kind in kinds))
