"""One traced program of tensor operations: x -> named outputs, of a student or another module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyro
import torch
from torch import Tensor, fx, nn

from pyro_opu.checks import ArgumentError, ArgumentTypeError, is_sequence
from pyro_opu.distributions import Answer, as_answer
from pyro_opu.export.plain_ops import PLAIN_OPS
from pyro_opu.guides.affine import AffineTrunk
from pyro_opu.guides.base import TrunkGuide
from pyro_opu.guides.fused import fused
from pyro_opu.guides.joint import marginal_of
from pyro_opu.guides.networks import Indexed, centres, keeps_digits
from pyro_opu.guides.novelty import NOVEL, Novelty, answer_and_features
from pyro_opu.guides.table import TableGuide
from pyro_opu.inputs import PLAIN, Form
from pyro_opu.rng import exclusive

#: Notes of a graph on where its steps come from: paths of this machine, and half of its size.
_NOTES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")


Arguments = tuple[Tensor, ...]
#: Names of outputs, "all" that there are, or the usual ones.
Outputs = Sequence[str] | str | None
#: Outputs that follow from the novelty of the inputs, and their units.
BESIDE = {
    "novelty": "share of held-out rows",
    "trust": "1 inside the taught region, 0 outside",
    "bound": "distance of the mean from the teacher's, inf outside",
}


class FileProgram(nn.Module):
    """A module that is traced for a file: the parts of x, in order -> named outputs.

    Attributes:
        form: The form of the inputs.
        dtype: In which they are taken.
        outputs: Names, in order.
        units, shapes: Unit and shape of every output.
        num_classes: C, where one label is observed.
        description: What else the file says of it.
        argument: What errors call the module by.
        kind: Its name, for errors.
        advice: What to do where it cannot be traced.
    """

    form: Form
    dtype: torch.dtype
    outputs: tuple[str, ...]
    units: dict[str, str]
    shapes: dict[str, list[Any]]
    num_classes: int | None
    description: Mapping[str, object] = {}
    argument: str
    kind: str
    advice: str

    def inputs(self, x: Tensor) -> dict[str, Tensor]:
        """The arguments of :meth:`forward` by name, from inputs in one tensor."""
        return self.form.named_parts(x)

    def joined(self, *inputs: Tensor) -> Tensor:
        """The inverse of :meth:`inputs`."""
        return self.form.join(inputs, self.dtype)

    @property
    def dynamic_shapes(self) -> Any:
        """N of every input, as torch.export wants it."""
        return (tuple({0: torch.export.Dim("N")} for _ in self.form.parts or "x"),)

    def far(self, x: Tensor) -> Tensor:
        """Inputs far from these, where answers must be of the same kind; by default none."""
        return x[:0]


class StudentProgram(FileProgram):
    """The module that is traced: x -> named outputs of a copy of a guide on the CPU.

    ``outputs`` are in this order; by default the usual ones of the guide's answer, and with "all"
    whatever it has. Several inputs are so many arguments. A program cannot refuse an index that
    was not seen: its answer is NaN.
    """

    def __init__(
        self,
        guide: nn.Module,
        input_shape: Sequence[int],
        outputs: Outputs = None,
        novelty: Novelty | None = None,
        form: Form = PLAIN,
        bound: float | None = None,
    ) -> None:
        super().__init__()
        self.bound = bound
        self.form, self.argument, self.kind = form, "guide", type(guide).__name__
        self.advice = (
            "The guides of pyro_opu are; in one of your own keep Python's control flow free of "
            "tensors' values and of the number of rows, and answer with a PredictiveDirichlet."
        )
        self.guide = fused(marginal_of(guide)).cpu()
        self.novelty = None if novelty is None else copy.deepcopy(novelty).cpu()
        weight = next(self.guide.parameters(), None)
        self.dtype = torch.get_default_dtype() if weight is None else weight.dtype
        answer = as_answer(self.guide(torch.zeros(1, *input_shape, dtype=self.dtype)))
        measures = answer.measures()
        units = measures.units
        if novelty is not None:
            units = units | BESIDE
            if bound is None:
                del units["bound"]
        for column, values in form.indices:
            seen = torch.zeros(max(values, default=0) + 2, dtype=torch.bool)  # last: above all
            self.register_buffer(f"seen_{column}", seen.index_fill(0, torch.tensor(values), True))
        self.num_classes = answer.num_classes
        self.outputs = _checked(outputs, answer, units, measures.usual)
        self.units = {name: units[name] for name in self.outputs}
        found = self._named(answer)  # caches, such as fixed points, are filled here
        shapes = {name: ["N", *value.shape[1:]] for name, value in found.items()}
        self.shapes = {**dict.fromkeys(BESIDE, ["N"]), **shapes}

    def far(self, x: Tensor) -> Tensor:
        return far_inputs(self.guide, x)

    def joined(self, *inputs: Tensor) -> Tensor:
        """The inverse of :meth:`inputs`."""
        wide = keeps_digits(self.guide) and self.form.dtype == torch.float64
        return self.form.join(inputs, torch.float64 if wide else self.dtype)

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The outputs at the parts ``(N, *shape)``, in order: mean ``(N, C)``, others ``(N,)``."""
        x = self.joined(*inputs)
        named = self._outputs(x)
        for column in self.form.index_columns:
            seen: Tensor = getattr(self, f"seen_{column}")
            index = x[:, column].long()
            known = seen[index.clamp(0, len(seen) - 1)] & (index >= 0)
            for name, value in named.items():
                rows = known.reshape(-1, *(1 for _ in value.shape[1:]))
                named[name] = torch.where(rows, value, torch.nan)
        return named

    def _outputs(self, x: Tensor) -> dict[str, Tensor]:
        """The outputs at the guide's inputs ``(N, *input_shape)``."""
        if not isinstance(self.guide, (TrunkGuide, TableGuide)):
            if not set(self.outputs) & BESIDE.keys():  # fewer operations, without features
                return self._named(self.guide(x))
            answer, features = answer_and_features(self.guide, x)
            return self._beside(self._named(answer), x, features)
        # One row at a time: families look at shapes, which must be numbers in a trace.
        guide = self.guide
        given = (x,) if isinstance(guide, TableGuide) else ()

        def of_one(*row: Tensor) -> dict[str, Tensor]:
            named = self._named(guide.answer(*(each[None] for each in row)))
            return {name: value.squeeze(0) for name, value in named.items()}

        features = guide.trunk(x)
        return self._beside(torch.vmap(of_one)(guide.head(features), *given), x, features)

    def _beside(
        self, named: dict[str, Tensor], x: Tensor, features: Tensor | None
    ) -> dict[str, Tensor]:
        """All outputs in order, the novelty of the inputs beside what is said of the answer."""
        if self.novelty is not None and set(self.outputs) & BESIDE.keys():
            novelty = self.novelty(x, features)
            inside = novelty <= NOVEL
            bound = torch.full_like(novelty, torch.inf if self.bound is None else self.bound)
            found = {"novelty": novelty, "trust": inside, "bound": bound.where(inside, torch.inf)}
            named |= {name: value.to(self.dtype) for name, value in found.items()}
        return {name: named[name] for name in self.outputs}

    def _named(self, answer: object) -> dict[str, Tensor]:
        names = [name for name in self.outputs if name not in BESIDE]
        return as_answer(answer).measures().rounded(names)


def _checked(
    outputs: Outputs, answer: Answer, units: Collection[str], usual: Collection[str]
) -> tuple[str, ...]:
    """Check the names of the outputs; by default the usual ones."""
    known = [name for name in units if name not in answer.untraceable]
    if outputs is None or outputs == "all":
        return tuple(known if outputs else usual)
    if not is_sequence(outputs):
        raise ArgumentTypeError(
            f"`outputs` must be a list of names, or \"all\"; got {outputs!r}. Write ['mean', "
            "'epistemic']."
        )
    advice = f"What a {type(answer).__name__} has no closed form for is not exported."
    return named_once(outputs, known, advice=advice)


def named_once(
    outputs: Sequence[str], known: Collection[str], more: str = "", advice: str = ""
) -> tuple[str, ...]:
    """Names of outputs, of those that are known, each once; ``more`` says what else there is."""
    if not outputs or len(set(outputs)) < len(outputs) or not set(outputs) <= set(known):
        raise ArgumentError(
            f"`outputs` must name some of {', '.join(known)}{more}, each once; got "
            f"{list(outputs)}. {advice}".rstrip()
        )
    return tuple(outputs)


def trace(program: FileProgram, inputs: Arguments) -> torch.export.ExportedProgram:
    """The program as a graph for any number N >= 1 of rows, of operations that all runtimes have.

    It is traced, and compared with the module, at ``inputs``, ``(N, ...)`` each.
    """
    one = len(inputs[0]) == 1  # a traced dimension of 1 would stay 1
    rows = tuple(torch.cat([x, x]) if one else x for x in inputs)
    try:
        with exclusive(), pyro.validation_enabled(False):
            shapes = program.dynamic_shapes
            graph = torch.export.export(program, rows, dynamic_shapes=shapes, strict=False)
            graph = graph.run_decompositions(PLAIN_OPS)
        run = graph.module()
        run(*(x[:1] for x in inputs))
    except Exception as error:
        raise ArgumentError(
            f"`{program.argument}` must be one that torch.export can trace for any number of "
            f"rows; {program.kind} is not ({type(error).__name__}: {error}). {program.advice}"
        ) from error
    wrong = differing(program, run, inputs)
    if wrong:
        raise ArgumentError(
            f"`{program.argument}` must not branch on the values of x; the traced graph gives "
            f"another {wrong!r}. Is something in it random, or does it choose by looking at x?"
        )
    for node in graph.graph.nodes:
        for note in _NOTES:
            node.meta.pop(note, None)
        if node.target is torch.ops.aten.index.Tensor:
            _widen_indices(graph.graph, node)
    return graph


def _widen_indices(graph: fx.Graph, node: fx.Node) -> None:
    """Take numbers by indices in int64, which ONNX asks for."""
    for index in node.all_input_nodes[1:]:
        value = index.meta["val"]
        if value.dtype == torch.int32:
            with graph.inserting_before(node):
                options: dict[str, Any] = {"dtype": torch.int64}
                wide = graph.call_function(torch.ops.aten._to_copy.default, (index,), options)
            wide.meta["val"] = value.to(torch.int64)
            node.replace_input_with(index, wide)


def differing(
    program: FileProgram, run: Callable[..., dict[str, Tensor]], inputs: Arguments
) -> str | None:
    """Name the first output in which a file that is ``run`` differs from the program, if any.

    Compared at the ``inputs``, at their first row, and far from them.
    """
    first = tuple(x[:1] for x in inputs)
    far = tuple(program.inputs(program.far(program.joined(*inputs))).values())
    for rows, same in ((inputs, _close), (first, _close), (far, _same_kind)):
        if len(rows[0]):
            found = run(*rows)
            for name, value in program(*rows).items():
                fits = {"novelty": _of_two_digits, "trust": _but_one, "bound": _but_one}.get(
                    name, same
                )
                if not fits(found[name], value):
                    return name
    return None


def far_inputs(guide: nn.Module, like: Tensor) -> Tensor:
    """Ten inputs from 1e-3 to 1e6 deviations off; none if the guide does not centre its inputs."""
    if not centres(guide):
        return like[:0]
    trunk: Any = guide.trunk
    if isinstance(trunk, (Indexed, AffineTrunk)):  # indices stay
        far, shift = like[:1].repeat(10, 1), trunk.standardize.shift
        far[:, trunk.columns] = _far_from(trunk, far[:, trunk.columns]) if len(shift) else shift
        return far
    return _far_from(trunk, like)


def _far_from(trunk: Any, like: Tensor) -> Tensor:
    signs = torch.rand(10, *like.shape[1:], generator=torch.Generator().manual_seed(0)) - 0.5
    z = signs.sign() * torch.logspace(-3, 6, 10).view(-1, *(1 for _ in like.shape[1:]))
    shape = getattr(trunk, "image_shape", trunk.standardize.shift.shape)
    x = trunk.standardize.inverse(z.double().reshape(-1, *shape)).reshape(z.shape)
    most = torch.finfo(trunk.standardize.shift.dtype).max / 4
    return x.clamp(-most, most).to(like.dtype)


def _close(found: Tensor, expected: Tensor) -> bool:
    """Whether two answers differ by rounding only, of whatever precision the weights have."""
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-5, equal_nan=True)


def _of_two_digits(found: Tensor, expected: Tensor) -> bool:
    """Whether two shares agree to 0.01: distances of features that hardly vary are rounded most."""
    return torch.allclose(found, expected, rtol=0, atol=1e-2, equal_nan=True)


def _but_one(found: Tensor, expected: Tensor) -> bool:
    """Whether they agree at all rows but one, whose novelty may be the threshold to rounding."""
    return int((~torch.isclose(found, expected, equal_nan=True)).sum()) <= 1


def _same_kind(found: Tensor, expected: Tensor) -> bool:
    """Whether both are NaN, infinite or moderate at the same places.

    Far out a logit of 1e6 is rounded by 0.1, so that values need not agree.
    """
    kinds = [torch.where(each.abs() < 1e30, 0.0, each.sign()) for each in (found, expected)]
    return torch.equal(*(kind.nan_to_num(2.0) for kind in kinds))
