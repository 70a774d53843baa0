"""What the numbers of a network are: classes, labels, or a real y."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_opu.checks import ArgumentError, one_of
from pyro_opu.inputs import Form
from pyro_opu.parts import ClassPart, Outcome
from pyro_opu.programs.cost import Cost
from pyro_opu.programs.posterior import SAID, PosteriorProgram
from pyro_opu.programs.sites import logits_of
from pyro_opu.programs.vmap import Draws
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.teachers.classifiers import WithLogits, returned_by
from pyro_opu.teachers.networks import DropoutTeacher, EnsembleTeacher

__all__ = ["Output", "with_output"]

#: What a network's numbers may be.
Output = Literal["classes", "labels", "mean", "mean and log variance"]
#: Deviation of the noise of a y whose network says its mean alone.
NO_NOISE = 1e-3
_FORMS = {
    "classes": "logits or probabilities (N, C)",
    "labels": "logits or probabilities (N, L) of L labels",
    "mean": "means (N,) or (N, 1)",
    "mean and log variance": "(N, 2), or a pair of (N,) or (N, 1)",
}


class Reading:
    """Reads the numbers ``(N, K)`` off what a network returns.

    Attributes:
        columns: K, once a network has been read.
        dtype: The dtype of what it returned.
        probs: Whether labels are given by their probabilities, what a sigmoid has made.
    """

    def __init__(self, output: Output) -> None:
        self.output = output
        self.columns = 0
        self.dtype = torch.float32
        self.probs = False

    def __call__(self, returned: object) -> Tensor:
        """The numbers."""
        found = logits_of(returned)
        if self.output == "mean and log variance" and isinstance(found, (tuple, list)):
            found = torch.stack([each.reshape(len(each)) for each in found], -1)
        if isinstance(found, Tensor) and found.ndim == 1 and self.output in ("mean", "labels"):
            found = found[:, None]
        wanted = {"mean": 1, "mean and log variance": 2}.get(self.output)
        numbers = isinstance(found, Tensor) and found.is_floating_point() and found.ndim == 2
        if not numbers or wanted not in (None, found.shape[1]):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ArgumentError(
                f'`source` must return {_FORMS[self.output]} for output="{self.output}"; got '
                f"{shape}. Choose another of {list(get_args(Output))}, or wrap the network."
            )
        self.columns, self.dtype = found.shape[1], found.dtype
        return torch.logit(found, eps=1e-7) if self.probs else found


class Numbers(nn.Module):
    """A network whose numbers stand beside a constant, as logits of so many classes and one more.

    From log-probabilities of these a draw's numbers are read back, so that any network is asked as
    one of classes is; in float64, since a mean of millions leaves a log variance few digits.
    """

    def __init__(self, module: nn.Module, reading: Reading) -> None:
        super().__init__()
        self.module, self.reading = module, reading

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        """The numbers and -1, which no probability is."""
        numbers = self.reading(self.module(*args, **kwargs)).double()
        return torch.cat([numbers, -torch.ones_like(numbers[:, :1])], -1)


class NetworkTeacher(BaseTeacher[Tensor]):
    """A network with dropout, or several, whose numbers are not those of classes.

    A mean alone says nothing of the noise, whose deviation is taken for 1e-3.

    Args:
        teacher: The teacher of the networks as :class:`Numbers`.
        reading: Theirs.
    """

    def __init__(self, teacher: DropoutTeacher | EnsembleTeacher, reading: Reading) -> None:
        self.teacher, self.reading = teacher, reading
        self.max_draws, self.default_draws = teacher.max_draws, teacher.default_draws
        self.of_chains = teacher.of_chains  # type: ignore[misc]
        self._looked = False

    def _source_text(self) -> str:
        return f"networks of {self.reading.output}"

    def _unpack_by(self, form: Form) -> None:
        self.teacher._unpack_by(form)

    def operations(self, x: Tensor) -> int | None:
        """The networks' own."""
        return self.teacher.operations(x)

    def _pick(self, x: Tensor, num_draws: int) -> Tensor:
        if not self._looked:
            network, self._looked = self._network(), True
            numbers = next(each for each in network.modules() if isinstance(each, Numbers))
            _, by_sigmoid = returned_by(network, x, numbers.module)
            self.reading.probs = by_sigmoid and self.reading.output == "labels"
        return self.teacher._pick(x, num_draws)

    def _network(self) -> nn.Module:
        teacher = self.teacher
        return teacher.module if isinstance(teacher, DropoutTeacher) else teacher.modules[0]

    def _measured(self, draws: Tensor, x: Tensor) -> Cost:
        return self.teacher._measured(draws, x)

    def _as_program(self, draws: Tensor, x: Tensor) -> PosteriorProgram:
        inner = self.teacher._as_program(draws, x)

        def program(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
            return {SAID: self._of_log_probs(inner.program(draws, inputs)[SAID])}

        return PosteriorProgram(program, inner.draws)

    def _evaluate(self, draws: Tensor, x: Tensor) -> Tensor:
        return self._of_log_probs(self.teacher._evaluate(draws, x))

    def _of_log_probs(self, log_probs: Tensor) -> Tensor:
        numbers = log_probs[..., :-1] - log_probs[..., -1:] - 1
        return self._said(numbers.to(self.reading.dtype))

    def _said(self, numbers: Tensor) -> Tensor:
        """What the numbers ``(s, n, K)`` of the networks say, by which the outcome is known."""
        if self.reading.output == "labels":
            columns = (numbers.shape[-1],) if numbers.shape[-1] > 1 else ()
            self._outcome = Outcome((ClassPart("obs", columns),))
            return torch.stack([F.logsigmoid(-numbers), F.logsigmoid(numbers)], -1).flatten(-2)
        self._outcome, mean = Outcome.of_real(), numbers[..., 0]
        none = torch.full_like(mean, math.log(NO_NOISE))
        return torch.stack([mean, numbers[..., 1] / 2 if numbers.shape[-1] > 1 else none], -1)


def with_output(source: nn.Module | Sequence[nn.Module], output: Output) -> BaseTeacher:
    """The teacher of a network with dropout, or of several, whose numbers are of a kind.

    Raises:
        ValueError: ``output`` is none of the kinds; at the first call, a network that returns what
            cannot be so.
    """
    one_of("output", output, get_args(Output))
    alone = isinstance(source, nn.Module) and not isinstance(source, nn.ModuleList)
    one: Any = source
    if output == "classes":
        members: Any = WithLogits(one) if alone else [WithLogits(each) for each in one]
        return _of_networks(members)
    reading = Reading(output)
    members = Numbers(one, reading) if alone else [Numbers(each, reading) for each in one]
    return NetworkTeacher(_of_networks(members), reading)


def _of_networks(networks: Any) -> DropoutTeacher | EnsembleTeacher:
    """The teacher of a network, or of several, whose numbers are those of classes."""
    alone = isinstance(networks, nn.Module)
    teacher = DropoutTeacher(networks) if alone else EnsembleTeacher(networks)
    teacher.of_classes = True
    return teacher
