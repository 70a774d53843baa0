"""Networks as teachers: Monte Carlo dropout, and ensembles or snapshots of a sampler."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pyro_opu.teachers.base import BaseTeacher, choose, log_probs_of_output
from pyro_opu.teachers.batched import Batched, Draws

# Dropout functions by how many leading axes their mask spans; the rest of the mask is one.
_MASKED_AXES: dict[Callable[..., Tensor], int | None] = {
    F.dropout: None,
    F.alpha_dropout: None,
    F.dropout1d: 2,
    F.dropout2d: 2,
    F.dropout3d: 2,
    F.feature_alpha_dropout: 2,
}
_ALPHA = (F.alpha_dropout, F.feature_alpha_dropout)
_SATURATION = -1.7580993408473766  # what a dropped SELU unit is set to


class _SharedMasks(TorchFunctionMode):
    """Replaces every dropout call by given keep-masks, shared by all rows of the input.

    With no masks it lets every unit through and records ``(shape, p)`` of each call.
    """

    def __init__(self, masks: list[Tensor] | None = None) -> None:
        super().__init__()
        self.masks = masks
        self.calls: list[tuple[tuple[int, ...], float]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        if func not in _MASKED_AXES:
            return func(*args, **kwargs)
        given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
        x, p = given["input"], float(given.get("p", 0.5))
        axes = _MASKED_AXES[func]
        shape = (1, *x.shape[1:axes], *(1 for _ in x.shape[axes:])) if axes else (1, *x.shape[1:])
        self.calls.append((tuple(shape), p))
        if self.masks is None:
            return x
        keep = self.masks[len(self.calls) - 1].to(x.dtype)
        if func not in _ALPHA:
            return x * keep / (1 - p) if p < 1 else x * 0
        scale = ((1 - p) * (1 + p * _SATURATION**2)) ** -0.5 if p < 1 else 0.0
        return scale * (x * keep + _SATURATION * (1 - keep) - p * _SATURATION)


class DropoutTeacher(BaseTeacher):
    r"""A network with dropout: draw ``s`` is one set of masks, used for all rows of ``x``.

    .. math:: \pi_s = \mathrm{softmax}\, f(x;\, \theta \odot m_s), \quad m_s \sim \mathrm{Bernoulli}(1 - p)

    Every call of ``torch.nn.functional.dropout`` and its relatives inside the module is given
    the draw's masks, whether the module is in training mode or not; all else runs in
    evaluation mode, and the module's own mode is put back. A draw is the seed of its masks, so
    the batched evaluation equals the loop, in any chunking. Axis 0 of every tensor that meets
    dropout must be the rows of ``x``.

    Args:
        module: ``x (N, ...) -> logits (N, C)`` (log-probabilities and probabilities do too).

    Raises:
        ValueError: at the first call, when no dropout is met.

    References:
        Gal and Ghahramani (2016), Dropout as a Bayesian approximation.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._calls: list[tuple[tuple[int, ...], float]] = []
        self._run = Batched("the dropout network")

    def _pick(self, x: Tensor, num_draws: int) -> Tensor:
        if not self._calls:
            with _evaluating(self.module), _SharedMasks() as probe:
                self.module(x[:1])
            self._calls = [(shape, p) for shape, p in probe.calls if p > 0]
        if not self._calls:
            raise ValueError(
                "`source` is a network in which no dropout with p > 0 was met, so all its draws are "
                "equal; expected dropout layers. Pass a list of trained networks for an ensemble, "
                "or a Predictive for a Bayesian network."
            )
        return torch.randint(2**62, (num_draws,))

    def _evaluate(self, draws: Tensor, x: Tensor) -> Tensor:
        masks = _masks(draws, self._calls, x.device)

        def one(masks: Draws) -> Tensor:
            with _SharedMasks(list(masks.values())):
                return self.module(x)

        with _evaluating(self.module):
            return log_probs_of_output(self._run(one, masks))


def _masks(
    seeds: Tensor, calls: list[tuple[tuple[int, ...], float]], device: torch.device
) -> Draws:
    """Keep-masks ``{call: (s, *shape)}`` of the draws with these seeds."""
    rows = []
    for seed in seeds.tolist():
        generator = torch.Generator().manual_seed(seed)
        rows.append([torch.rand(shape, generator=generator) >= p for shape, p in calls])
    return {
        str(call): torch.stack([row[call] for row in rows]).to(device) for call in range(len(calls))
    }


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, each submodule's own mode put back after."""
    modes = {child: child.training for child in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for child, mode in modes.items():
            child.training = mode


class EnsembleTeacher(BaseTeacher):
    r"""A sequence of networks, each one draw: an ensemble, or snapshots of SGLD.

    .. math:: \pi_s = \mathrm{softmax}\, f_s(x)

    Networks of one architecture are evaluated together (:func:`torch.func.stack_module_state`);
    others one after another.

    Args:
        modules: Networks ``x (N, ...) -> logits (N, C)``; they run in evaluation mode.

    Raises:
        TypeError: an entry is no ``nn.Module``.
        ValueError: the sequence is empty; at the first call, the numbers of classes differ.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = list(modules)
        if not self.modules:
            raise ValueError("`source` must hold at least two networks; got an empty sequence.")
        for index, module in enumerate(self.modules):
            if not isinstance(module, nn.Module):
                raise TypeError(
                    f"`source[{index}]` must be an nn.Module; got {type(module).__name__}."
                )
        self.max_draws = len(self.modules)
        self._run = Batched("the ensemble")

    def _pick(self, x: Tensor, num_draws: int) -> Tensor:
        return choose(len(self.modules), num_draws)

    def _evaluate(self, draws: Tensor, x: Tensor) -> Tensor:
        chosen = [self.modules[index] for index in draws.tolist()]
        if len(chosen) > 1 and _alike(chosen):
            return self._stacked(chosen, x)
        outputs = []
        for module in chosen:
            with _evaluating(module):
                outputs.append(log_probs_of_output(module(x)))
        if len({output.shape for output in outputs}) > 1:
            raise ValueError(
                "the networks of `source` must agree on the classes; got outputs of shape "
                f"{sorted({tuple(output.shape) for output in outputs})}."
            )
        return torch.stack(outputs)

    def _stacked(self, chosen: list[nn.Module], x: Tensor) -> Tensor:
        parameters, buffers = stack_module_state(chosen)
        skeleton = copy.deepcopy(chosen[0]).to("meta").eval()

        def one(state: Draws) -> Tensor:
            return functional_call(skeleton, state, (x,))

        return log_probs_of_output(self._run(one, {**parameters, **buffers}))


def _alike(modules: list[nn.Module]) -> bool:
    """Whether all have the same structure: class, printed form, and shapes of their state."""
    first = modules[0]
    shapes = [(name, value.shape) for name, value in first.state_dict().items()]
    return bool(shapes) and all(
        type(m) is type(first)
        and repr(m) == repr(first)
        and [(name, value.shape) for name, value in m.state_dict().items()] == shapes
        for m in modules
    )
