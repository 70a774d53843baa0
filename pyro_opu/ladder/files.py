"""Exact answers as one program with the draws inside, for files and compiled code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pyro_opu.checks import ArgumentError, ArgumentTypeError
from pyro_opu.export.formats import SEED
from pyro_opu.export.program import FileProgram, named_once
from pyro_opu.inputs import Form
from pyro_opu.ladder.sums import Sums, sums_of
from pyro_opu.parts import Part, by_part
from pyro_opu.programs.posterior import SAID, Said
from pyro_opu.rng import exclusive
from pyro_opu.utils.warnings import warn_user

__all__ = ["ExactProgram", "Exported", "nearest_draws"]

#: Outputs of a file by default.
OUTPUTS = ("mean", "total", "aleatoric", "epistemic")
#: Bytes of a file that are warned of, and that the format of ONNX cannot hold.
LARGE, MOST = 10**8, 2 * 10**9
#: Rows at which a program is tried at most, and numbers in its widest tensor there.
FEW, NUMBERS = 64, 2**25
#: A prime below 2^31, for labels; what is between the seeds of two sites.
PRIME, APART = 2**31 - 1, 2**24 + 43
_QUANTILE = re.compile(r"quantile_(0?\.\d+|0|1(?:\.0+)?)")
#: Measures of how draws differ, by the kind of what is observed.
_OF_CLASSES = {"epistemic", "variance", "expected_pairwise_kl", "concentration"}
SPREAD = {"classes": _OF_CLASSES, "real": {"epistemic", "total"}}


@dataclass(frozen=True)
class Exported:
    """What a file holds, and what it lost.

    Attributes:
        path: The file.
        size: In bytes.
        num_draws: S in it.
        outputs: Their names.
        lost: The largest difference of each output to all draws, at rows of the example by which
            they were not chosen, where the file has fewer.
    """

    path: str
    size: int
    num_draws: int
    outputs: tuple[str, ...]
    lost: dict[str, float]

    def __str__(self) -> str:
        lost = ", ".join(f"{name} by at most {off:.2g}" for name, off in self.lost.items())
        said = f"; fewer draws move {lost}" if lost else ""
        names = ", ".join(self.outputs)
        return f"{self.path}: {self.size / 1e6:.2f} MB, {self.num_draws} draws, {names}{said}"


class ExactProgram(FileProgram):
    """Parts of x -> what all draws say together, by name.

    Args:
        said: The recorded answers.
        parts: What is observed.
        form: The form of the inputs.
        x: A few of them, in one tensor.
        outputs: Names.
        index: The draws that are kept, by default all.
        kind: Name of the posterior, for errors.

    Attributes:
        few: Rows at which it is tried, few enough for memory.
    """

    def __init__(
        self,
        said: Said,
        parts: Sequence[Part],
        form: Form,
        x: Tensor,
        outputs: Sequence[str],
        index: Tensor | None = None,
        kind: str = "",
    ) -> None:
        super().__init__()
        bound = said.bound
        self.form, self.dtype, self.parts = form, x.dtype, tuple(parts)
        self.argument, self.kind = "source", kind
        self.advice = "Distil it, and export the student."
        self.trunk, self.late = bound.trunk, bound.only(SAID)
        values = bound.values if index is None else bound.values_of(index)
        self.count = bound.num_draws if index is None else len(index)
        for number, value in enumerate(values):
            self.register_buffer(f"draws_{number}", value.detach().cpu())
        self.num_values = len(values)
        self.units = _checked_outputs(outputs, self._units(x), [self._prefix(p) for p in parts])
        self.outputs = tuple(self.units)
        if self.count < 2:
            self._check_spread(x)
        if self._samples and SEED in self.form.named_parts(x):
            raise ArgumentError(
                f"`outputs` with labels take an input {SEED!r}, which `x` has too. Rename that of "
                "the model, or leave labels out."
            )
        single = len(parts) == 1 and parts[0].kind == "classes" and not parts[0].shape
        self.num_classes = parts[0].width if single else None
        numbers = bound.recorded.width(1) * self.count
        self.description = {"num_draws": self.count, "numbers_of_a_row": numbers}
        self.few = max(2, min(FEW, NUMBERS // numbers))
        with exclusive(), torch.no_grad():
            found = self(*self.inputs(x[: self.few].cpu()).values())
        self.shapes = {
            name: [len(value), "N", *value.shape[2:]]
            if name.endswith(("draws", "labels"))
            else ["N", *value.shape[1:]]
            for name, value in found.items()
        }

    def _check_spread(self, x: Tensor) -> None:
        """Refuse measures of how one draw differs from others."""
        for part in self.parts:
            kind = sums_of(part, torch.zeros(1, part.width), x[:1]).law.kind
            wrong = {f"{self._prefix(part)}{name}" for name in SPREAD[kind]} & set(self.outputs)
            if wrong:
                raise ArgumentError(
                    f"`source` must hold at least 2 draws for {', '.join(sorted(wrong))}; it holds "
                    "one. Ask for other outputs, such as outputs='mean, aleatoric'."
                )

    @property
    def size(self) -> int:
        """Bytes of the tensors that a file holds."""
        held = {id(each): each for each in self._held()}
        return sum(each.numel() * each.element_size() for each in held.values())

    def _held(self) -> list[Tensor]:
        graphs: list[fx.GraphModule] = [self.trunk, self.late]
        constants = [
            getattr(graph, node.target)
            for graph in graphs
            for node in graph.graph.nodes
            if node.op == "get_attr"
        ]
        return [*self.buffers(recurse=False), *constants]

    def check_size(self, path: str) -> None:
        """Refuse a file that no reader of ONNX takes, and warn of a large one."""
        if self.size >= MOST and path.endswith(".onnx"):
            raise ArgumentError(
                f"`source` must have draws that one ONNX file can hold, below 2 GB; {self.count} "
                f"draws take {self.size / 1e9:.1f} GB. Pass num_draws="
                f"{int(self.count * LARGE / self.size)} for 100 MB, or distil it."
            )
        if self.size > LARGE:
            warn_user(
                f"the file will take {self.size / 1e6:.0f} MB, of {self.count} draws; num_draws="
                f"{max(1, int(self.count * LARGE / self.size))} would take 100 MB."
            )

    def inputs(self, x: Tensor) -> dict[str, Tensor]:
        found = self.form.named_parts(x)
        return found | ({SEED: torch.zeros(1, dtype=torch.int64)} if self._samples else {})

    def joined(self, *inputs: Tensor) -> Tensor:
        return super().joined(*inputs[: self._num_parts])

    @property
    def _num_parts(self) -> int:
        return len(self.form.parts) or 1

    @property
    def dynamic_shapes(self) -> Any:
        ((*inputs,),) = super().dynamic_shapes
        return ((*inputs, *([None] if self._samples else [])),)

    @property
    def _samples(self) -> bool:
        return any(name.endswith("labels") for name in self.outputs)

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The outputs at the parts ``(N, ...)``, in order, and a seed ``(1,)`` for labels."""
        return self.of_packed(self.joined(*inputs), *inputs[self._num_parts :])

    def of_packed(self, x: Tensor, *seed: Tensor) -> dict[str, Tensor]:
        """The outputs at inputs in one tensor."""
        said, found = self._said(x), {}
        for number, values in enumerate(by_part(said, self.parts)):
            part, own_seed = self.parts[number], [each + number * APART for each in seed]
            own = [name for name in self.outputs if name.startswith(self._prefix(part))]
            sums = sums_of(part, values[0], x)
            sums.add(values)
            for name in own:
                bare = name.removeprefix(self._prefix(part))
                found[name] = _output(part, bare, values, sums, own_seed)
        return {name: self._in_rows(found[name], x.shape[0]) for name in self.outputs}

    def _in_rows(self, value: tuple[Part, int, Tensor], rows: int) -> Tensor:
        """An output with the numbers of a row in their place, in the inputs' precision."""
        part, axis, numbers = value
        if part.shape:
            numbers = numbers.reshape(
                *numbers.shape[:axis], rows, *part.shape, *numbers.shape[axis + 1 :]
            )
        return numbers.to(self.dtype) if numbers.is_floating_point() else numbers

    def _said(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        values = [getattr(self, f"draws_{number}") for number in range(self.num_values)]
        trunk = self.trunk.forward(rows, x)
        found: Tensor = self.late.forward(self.count, rows, *values, *trunk, x)[0]
        if indices := self.form.index_columns:  # a model counts those below 0 from the end
            found = torch.where((x[:, indices] >= 0).all(1)[:, None], found, torch.nan)
        return found

    def _prefix(self, part: Part) -> str:
        return f"{part.site}." if len(self.parts) > 1 else ""

    def _units(self, x: Tensor) -> dict[str, str]:
        """Unit of every output that there may be."""
        found: dict[str, str] = {}
        for part in self.parts:
            like = torch.zeros(1, part.width)
            units = dict(sums_of(part, like, x[:1]).units)
            units.pop("differential_entropy", None)
            units["draws"] = "probability" if part.on_simplex else "units of y, log deviation"
            units |= {"labels": "class"} if part.kind == "classes" else {}
            found |= {f"{self._prefix(part)}{name}": unit for name, unit in units.items()}
        return found


def _output(
    part: Part, name: str, said: Tensor, sums: Sums, seed: Sequence[Tensor]
) -> tuple[Part, int, Tensor]:
    """An output of a part, and its axis of rows."""
    if name == "labels":
        probs = said.exp()
        labels = labels_by(probs, uniform(seed[0], said[..., :1]))
        return part, 1, torch.where(probs[..., 0].isnan(), -1, labels)
    if name == "draws":
        return part, 1, said.exp() if part.on_simplex else said
    if (found := _QUANTILE.fullmatch(name)) is not None:
        place = float(found.group(1)) * (len(said) - 1)
        low = int(place)
        ordered = sums.shown(said).sort(0).values
        high = ordered[min(low + 1, len(said) - 1)]
        return part, 0, ordered[low] + (place - low) * (high - ordered[low])
    return part, 0, getattr(sums.measures(), name)


def labels_by(probs: Tensor, u: Tensor) -> Tensor:
    """Labels of probabilities ``(..., C)`` by uniform numbers ``(..., 1)``, none of no weight."""
    below, most = probs.cumsum(-1), 1.0 - torch.finfo(u.dtype).eps  # u may be rounded to 1
    return (below[..., :-1] <= below[..., -1:] * u.clamp(max=most)).sum(-1)


def uniform(seed: Tensor, like: Tensor) -> Tensor:
    r"""Uniform numbers ``(S, M, 1)`` by a seed ``(1,)``, from operations that every runtime has.

    Rounds of :math:`h \leftarrow (a h + i)^2 + s` modulo a prime, i the place.
    """
    draws, rows, _ = like.shape
    place = torch.arange(draws)[:, None] * 7919 * 65537 + torch.arange(rows) * 40503
    place, h = place % PRIME, seed % PRIME
    for round_, factor in enumerate((48271, 69621, 16807, 39373)):
        h = (h * factor + place + round_) % PRIME
        h = (h * h + seed * 3 + round_) % PRIME
    return ((h * 16807 % PRIME).to(torch.float64) / PRIME).to(like.dtype)[..., None]


def _checked_outputs(
    outputs: Sequence[str] | str, known: dict[str, str], sites: Sequence[str]
) -> dict[str, str]:
    """Names of outputs, from a list or from text with commas, and their units.

    The usual ones are those of each site, by its prefix.
    """
    given = [n.strip() for n in outputs.split(",")] if isinstance(outputs, str) else outputs
    if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in given):
        raise ArgumentTypeError(f"`outputs` must be names; got {outputs!r}. Write 'mean, total'.")
    names = [f"{s}{name}" for name in given for s in (sites if name in OUTPUTS else ("",))]
    quantiles: dict[str, str] = {}
    for name in names:
        match = re.search(r"quantile_[\d.]+$", name)
        if match and _QUANTILE.fullmatch(match.group()):
            unit = known.get(f"{name[: match.start()]}mean")
            quantiles |= {} if unit is None else {name: unit}
    named_once(names, [*known, *quantiles], ", or a quantile such as quantile_0.05")
    return {name: (known | quantiles)[name] for name in names}


def nearest_draws(numbers: Tensor, count: int) -> Tensor:
    r"""Indices of so many draws that, as a sample, are nearest to all, by their energy distance.

    .. math::
        \frac{2}{KS} \sum_{a \in A} \sum_s |z_a - z_s| - \frac{1}{K^2} \sum_{a,b \in A} |z_a - z_b|

    They are picked one after another. To match the means of the numbers alone would take draws that
    vary too little, and lose mutual information.

    Args:
        numbers: What the draws say, ``(S, F)``; z are these in units of their deviations.

    References:
        Mak and Joseph (2018), Support points, Eq. 8; Chen, Welling and Smola (2010), Super-samples
        from kernel herding, section 3, for the order.
    """
    rounding = (1e-6 * numbers.abs().amax(0)).clamp_min(torch.finfo(numbers.dtype).tiny)
    z = (numbers - numbers.mean(0)) / numbers.std(0).maximum(rounding)
    mean = torch.cat([torch.cdist(block, z).mean(1) for block in z.split(2**10)])
    near, free, picked = torch.zeros_like(mean), torch.zeros_like(mean), []
    for number in range(1, count + 1):
        best = int((number * mean - near + free).argmin())
        picked.append(best)
        free[best] = torch.inf
        near = near + torch.cdist(z[best : best + 1], z)[0]
    return torch.tensor(sorted(picked))
