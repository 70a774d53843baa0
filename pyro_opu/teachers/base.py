"""What a teacher is: draws of class probabilities from a posterior, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from pyro_opu.inputs import check_inputs

#: Draws times inputs evaluated at once. Small enough that the activations of a layer of a few
#: hundred units stay in a processor's cache, large enough to hide the cost of a call.
CHUNK_ROWS = 8_192
#: Draws taken by default from a posterior that can give any number of them.
DEFAULT_DRAWS = 500


@runtime_checkable
class Teacher(Protocol):
    r"""A posterior as draws on the simplex, :math:`\pi_s = T(x; \theta_s)`.

    Draws are joint over inputs: draw ``s`` uses one :math:`\theta_s` for all rows of ``x``, where the
    posterior allows it. Anything with these three members is a teacher;
    :func:`~pyro_opu.as_teacher` makes one from a Pyro ``Predictive``, a network or a function.
    """

    @property
    def num_classes(self) -> int:
        """Number of classes ``C``."""
        ...

    def probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        """Class probabilities ``(S, N, C)`` at the inputs ``x`` ``(N, ...)``."""
        ...

    def log_probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        """Their logarithms ``(S, N, C)``, accurate near the corners of the simplex."""
        ...


def log_probs_of_output(output: Any) -> Tensor:
    """Log-probabilities ``(..., N, C)`` from what a classifier network returns.

    Logits, log-probabilities and probabilities are all understood: normalising logits leaves
    log-probabilities as they are, and rows that are non-negative and sum to one are probabilities.

    Raises:
        TypeError: the output is no tensor.
        ValueError: it is not ``(..., N, C)`` with at least two classes.
    """
    if not isinstance(output, Tensor):
        raise TypeError(
            "the network must return a tensor of logits (N, C); "
            f"got {type(output).__name__}. Wrap it in a module that returns the logits alone."
        )
    if output.ndim < 2 or output.shape[-1] < 2:
        raise ValueError(
            "the network must return logits of shape (N, C) with at least two classes (C >= 2); got "
            f"{tuple(output.shape)}. For one logit z per input return stack([zeros_like(z), z], -1)."
        )
    if output.min() >= 0 and (output.sum(-1) - 1).abs().max() < 1e-4:
        output = output.clamp_min(torch.finfo(output.dtype).tiny).log()
    return output.log_softmax(-1)


class BaseTeacher:
    """The common half of all teachers: choosing draws, chunking, and checking what comes out.

    A subclass says how to pick draws (:meth:`_pick`) and how to evaluate some of them at some
    inputs (:meth:`_evaluate`); both are called with bounded sizes.

    Attributes:
        max_draws: How many draws the posterior holds, or ``None`` where every call draws afresh.
        default_draws: Draws taken when ``num_draws`` is not given.
        chunk_rows: Draws times inputs evaluated at once, the bound on memory.
    """

    max_draws: int | None = None
    default_draws: int = DEFAULT_DRAWS
    chunk_rows: int = CHUNK_ROWS
    _num_classes: int | None = None

    def _pick(self, x: Tensor, num_draws: int) -> Any:  # noqa: ANN401 - each teacher's own handle
        """Choose ``num_draws`` draws; the result supports ``len`` and slicing."""
        raise NotImplementedError

    def _evaluate(self, draws: Any, x: Tensor) -> Tensor:  # noqa: ANN401
        """Log-probabilities ``(s, n, C)`` of the chosen draws at the inputs."""
        raise NotImplementedError

    @property
    def num_classes(self) -> int:
        """Number of classes ``C``; known once the teacher has seen an input."""
        if self._num_classes is None:
            raise RuntimeError(
                "num_classes is not known before the teacher has seen an input; "
                "call .probs(x[:1]) once first"
            )
        return self._num_classes

    def probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        """Class probabilities ``(S, N, C)``; see :meth:`log_probs`."""
        return self.log_probs(x, num_draws).exp_()

    def log_probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        """Log class probabilities of joint posterior draws.

        Args:
            x: Inputs ``(N, ...)``, floating and finite.
            num_draws: Number of draws ``S``. From a posterior that holds fewer than asked for, an
                error; more, a random subset without replacement. By default all of them.

        Returns:
            Tensor ``(S, N, C)``; rows of ``exp`` sum to one.

        Raises:
            TypeError: ``x`` is no floating tensor.
            ValueError: bad ``x`` or ``num_draws``; the model does not give class probabilities.
        """
        return torch.cat(list(self.stream(x, num_draws)), dim=1)

    @torch.no_grad()
    def stream(self, x: Tensor, num_draws: int | None = None) -> Iterator[Tensor]:
        """The same draws for successive blocks of inputs, ``(S, n, C)`` each, in bounded memory."""
        x = check_inputs(x)
        draws = self._pick(x, self._checked(num_draws))
        rows = min(len(x), max(1, self.chunk_rows // 8))
        for block in x.split(rows):
            step = max(1, self.chunk_rows // len(block))
            parts = [
                self._check_output(self._evaluate(draws[start : start + step], block), len(block))
                for start in range(0, len(draws), step)
            ]
            yield parts[0] if len(parts) == 1 else torch.cat(parts)

    def _checked(self, num_draws: int | None) -> int:
        if num_draws is None:
            return self.default_draws if self.max_draws is None else self.max_draws
        if isinstance(num_draws, bool) or not isinstance(num_draws, int) or num_draws < 1:
            raise ValueError(f"`num_draws` must be a positive integer; got {num_draws!r}.")
        if self.max_draws is not None and num_draws > self.max_draws:
            raise ValueError(
                f"`num_draws` is {num_draws}, but the posterior holds {self.max_draws} draws; "
                "ask for at most that many, or sample a longer posterior."
            )
        return num_draws

    def _check_output(self, log_probs: Tensor, rows: int) -> Tensor:
        if log_probs.shape[1] != rows:
            raise ValueError(
                f"the teacher must give one row of class probabilities per input; got "
                f"{tuple(log_probs.shape)} for {rows} inputs, expected (S, {rows}, C)."
            )
        if torch.isnan(log_probs.sum()):
            raise ValueError(
                "the teacher's class probabilities hold NaN; check the posterior draws "
                "(torch.isfinite) and the model at these inputs."
            )
        self._num_classes = log_probs.shape[-1]
        return log_probs.clamp_min_(torch.finfo(log_probs.dtype).min / 4)


def choose(held: int, num_draws: int) -> Tensor:
    """Indices of ``num_draws`` of ``held`` draws: all in order, or a random subset."""
    return torch.arange(held) if num_draws == held else torch.randperm(held)[:num_draws]
