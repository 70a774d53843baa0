"""Validators of tensors, inputs, labels and devices."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from pyro_opu.checks.errors import ArgumentError, ArgumentTypeError
from pyro_opu.checks.values import _message, instance_of


def check_tensor(
    name: str, x: object, shape: str = "", advice: str = "", *, meta: bool = False
) -> Tensor:
    """A dense tensor that holds numbers; ``shape`` describes it in words and is not checked.

    With ``meta`` it may be one without numbers, by which a computation is looked at.
    """
    expected = f"a torch.Tensor of shape {shape}" if shape else "a torch.Tensor"
    advice = advice or f"Convert it with torch.as_tensor({name})."
    x = instance_of(name, x, Tensor, expected, advice)
    empty = x.is_meta or _fake(x)
    if x.layout == torch.strided and not (x.is_nested or x.is_quantized or (empty and not meta)):
        return x
    kind = "meta" if empty else "nested" if x.is_nested else "quantized"
    kind = kind if x.layout == torch.strided else str(x.layout).removeprefix("torch.")
    cure = {"meta": "Load it onto a device", "nested": f"Write {name}.to_padded_tensor(0.0)"}
    cure |= {"quantized": f"Convert it with {name}.dequantize()"}
    raise ArgumentError(
        f"`{name}` must be a dense tensor that holds numbers; got a {kind} tensor. "
        f"{cure.get(kind, f'Convert it with {name}.to_dense()')}."
    )


def _fake(x: Tensor) -> bool:
    """Whether it is a tensor without numbers outside a compiler, which has its own use for it."""
    return type(x).__name__ == "FakeTensor" and not torch.compiler.is_compiling()


_RECORDING: ContextVar[bool] = ContextVar("recording a graph", default=False)


@contextmanager
def recording() -> Iterator[None]:
    """Inside, a graph is recorded: numbers of tensors are those of one call, and not looked at."""
    token = _RECORDING.set(True)
    try:
        yield
    finally:
        _RECORDING.reset(token)


def is_traced() -> bool:
    """Whether a graph is being recorded, in which tensors stand for others."""
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")  # loaded by what records
    recorded = proxies is not None and proxies.get_proxy_mode() is not None
    recorded |= _RECORDING.get()
    return recorded or torch.compiler.is_compiling() or torch.jit.is_tracing()


def numbers_of(x: Tensor) -> Tensor:
    """The numbers of a tensor without gradient, of all rows that ``torch.func.vmap`` hides."""
    x = x.detach()
    while torch._C._functorch.maybe_get_level(x) >= 0:
        x = torch._C._functorch.get_unwrapped(x)
    return x


def check_floating(name: str, x: Tensor) -> Tensor:
    """A tensor of a floating dtype."""
    if x.is_floating_point():
        return x
    raise ArgumentTypeError(
        f"`{name}` must have a floating dtype; got {x.dtype}. Convert it with {name}.float()."
    )


def check_probs(name: str, p: object, shape: str = "(..., C)") -> Tensor:
    """Probabilities over the last axis: finite, nonnegative, rows that sum to one.

    A sum may deviate by 1e-3, or by 4 eps of a coarser dtype (0.031 in bfloat16).

    Example:
        >>> check_probs("probs", torch.tensor([[0.5, 0.2]]))
        Traceback (most recent call last):
        pyro_opu.checks.errors.ArgumentError: `probs` must hold probabilities over its last \
axis, rows that are >= 0 and sum to 1; got a smallest entry 0.2 and a sum off by 0.3. \
Apply softmax(-1), or divide by sum(-1).
    """
    p = check_floating(name, check_tensor(name, p, shape))
    if p.ndim == 0 or p.numel() == 0:
        raise ArgumentError(
            f"`{name}` must hold probabilities of shape {shape}; got shape {tuple(p.shape)}, which "
            "holds none. Pass at least one row."
        )
    values = p.detach()
    low, off = rows_off_simplex(values)
    if not math.isfinite(off):
        raise ArgumentError(
            f"`{name}` must be finite; got NaN or infinity in "
            f"{int((~torch.isfinite(values)).any(-1).sum())} of {values[..., 0].numel()} rows. "
            "Look where they come from with torch.isfinite."
        )
    if low < 0 or off > simplex_tolerance(p.dtype):
        raise ArgumentError(
            f"`{name}` must hold probabilities over its last axis, rows that are >= 0 and sum to "
            f"1; got a smallest entry {low:.3g} and a sum off by {off:.3g}. Apply softmax(-1), or "
            "divide by sum(-1)."
        )
    return p


def check_log_probs(name: str, log_p: object, shape: str = "(..., C)") -> Tensor:
    """Log-probabilities over the last axis; minus infinity stands for zero."""
    log_p = check_tensor(name, log_p, shape)
    off = math.nan
    if log_p.is_floating_point() and log_p.ndim and log_p.numel():
        off = rows_off_simplex(log_p.detach().exp())[1]
        if off <= simplex_tolerance(log_p.dtype):
            return log_p
    raise ArgumentError(
        f"`{name}` must hold log-probabilities {shape}, rows whose exp sums to 1; got a "
        f"{log_p.dtype} tensor of shape {tuple(log_p.shape)} with a sum off by {off:.3g}. Apply "
        "log_softmax(-1) to logits, log() to probabilities."
    )


def simplex_tolerance(dtype: torch.dtype) -> float:
    """Largest allowed deviation from one of the sum of a row of probabilities."""
    return max(1e-3, 4 * torch.finfo(dtype).eps)


def rows_off_simplex(p: Tensor) -> tuple[float, float]:
    """The smallest entry, and the largest deviation of a row sum from one; either may be NaN."""
    wide = torch.promote_types(p.dtype, torch.float32)
    return float(p.min()), float((p.sum(-1, dtype=wide) - 1).abs().max())


def check_inputs(
    x: object, argument: str = "x", *, features: bool = True, dtype: torch.dtype | None = None
) -> Tensor:
    """A non-empty, dense, finite, floating tensor ``(N, D)`` or ``(N, *input_shape)``.

    ``features=False`` allows ``(N,)`` too; ``dtype`` is what ``x`` will be rounded to, in which it
    must be finite too.

    Example:
        >>> check_inputs(torch.zeros(3), "inputs")
        Traceback (most recent call last):
        pyro_opu.checks.errors.ArgumentError: `inputs` must have shape (N, D) or (N, \
*input_shape); got (3,). For a single input pass inputs[None]; \
for one feature per input pass inputs[:, None].
    """
    advice = f"Convert it with torch.as_tensor({argument}, dtype=torch.float32)."
    x = check_floating(argument, check_tensor(argument, x, "(N, *input_shape)", advice))
    if x.ndim < 1 + features:
        raise ArgumentError(
            f"`{argument}` must have shape (N, D) or (N, *input_shape); got {tuple(x.shape)}. "
            f"For a single input pass {argument}[None]; "
            f"for one feature per input pass {argument}[:, None]."
        )
    if x.numel() == 0:
        raise ArgumentError(
            f"`{argument}` must hold at least one input with at least one feature; got shape "
            f"{tuple(x.shape)}. Was it filtered down to nothing?"
        )
    if is_traced():
        return x
    numbers = numbers_of(x)
    rounded = numbers.to(dtype or x.dtype)
    if not all_finite(rounded):
        bad = f"`{argument}` must be finite; got NaN or infinity"
        _check_rows(numbers, bad, "Remove or impute them")
        most = torch.finfo(rounded.dtype).max
        _check_rows(
            rounded,
            f"`{argument}` must be finite in {rounded.dtype}, at most {most:.3g}; got up to "
            f"{float(numbers.abs().max()):.3g}, too large",
            "Rescale the inputs, or call .double() on what answers",
        )
    return x


def all_finite(x: Tensor) -> bool:
    """Whether all numbers are finite: their sum is, or they are one by one, which takes longer."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return math.isfinite(x.sum(dtype=wide)) or bool(x.isfinite().all())


@contextmanager
def lent(x: Tensor, name: str = "source") -> Iterator[Tensor]:
    """A copy of the inputs for a function of the user's, which is refused if it changes them."""
    own = x.clone()
    yield own
    if not torch.equal(own, x):
        raise ArgumentError(
            f"`{name}` must leave its inputs as they are; it changed x in place, so that other "
            "draws and the caller see other numbers. Write x = x - 1 in place of x -= 1, take "
            "inplace=True off the first layer, or begin with x = x.clone()."
        )


def check_row_shape(name: str, x: Tensor, shape: Sequence[int], advice: str) -> Tensor:
    """A tensor ``(N, *shape)``."""
    if tuple(x.shape[1:]) == tuple(shape):
        return x
    expected = ", ".join(map(str, ("N", *shape)))
    raise ArgumentError(f"`{name}` must have shape ({expected}); got {tuple(x.shape)}. {advice}")


def check_labels(y: object, rows: int, classes: int) -> Tensor:
    """Integer class labels ``(rows,)`` from 0 to ``classes - 1``, as int64."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.is_complex():
        found = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise ArgumentTypeError(
            f"`y` must be a tensor of integer labels; got {found}. Convert it with .long()."
        )
    check_tensor("y", y, f"({rows},)")
    if y.shape != (rows,):
        raise ArgumentError(
            f"`y` must hold one label per input, shape ({rows},); got {tuple(y.shape)}. Were "
            "labels and inputs filtered in the same way?"
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise ArgumentError(
            f"`y` must hold labels from 0 to C - 1 = {classes - 1}; got labels from {low} to "
            f"{high}. Number the classes from 0."
        )
    return y.long()


def _check_rows(x: Tensor, wrong: str, remedy: str) -> None:
    bad = ~torch.isfinite(x).reshape(len(x), -1).all(1)
    if bad.any():
        raise ArgumentError(
            f"{wrong} in {int(bad.sum())} of {len(x)} rows (first: row {int(bad.nonzero()[0])}). "
            f"{remedy}."
        )


def check_targets(y: object, rows: int, name: str = "y") -> Tensor:
    """Real numbers ``(rows,)``, finite and of a floating dtype, without gradient."""
    y = check_floating(name, check_tensor(name, y, f"({rows},)"))
    if y.shape != (rows,):
        raise ArgumentError(
            f"`{name}` must hold one number per input, shape ({rows},); got {tuple(y.shape)}. For "
            f"a column write {name}.squeeze(-1)."
        )
    return check_inputs(y, name, features=False).detach()


def check_device(device: torch.device | str | None, name: str = "device") -> torch.device:
    """An available device that stores values; the CPU where ``device`` is None."""
    if device is not None and not isinstance(device, (str, torch.device)):
        raise ArgumentTypeError(_message(name, 'such as "cpu" or "cuda"', device))
    try:
        chosen = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ArgumentError(_message(name, 'such as "cpu" or "cuda"', device)) from error
    fault = _fault(chosen)
    if fault:
        raise ArgumentError(f'`{name}` is "{chosen}", {fault}.')
    return chosen


def _fault(device: torch.device) -> str:
    """Why nothing can be computed on a device, and what to pass."""
    if device.type == "cpu":
        return ""
    if device.type == "meta":
        return 'which holds shapes and no numbers; pass device="cpu" or "cuda"'
    if device.type == "cuda" and not torch.cuda.is_available():
        return 'but this machine has no CUDA device that torch can use; pass device="cpu"'
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        return f'but this machine has {count} CUDA devices, counted from 0; pass device="cuda"'
    try:
        torch.empty(0, device=device)
    except (RuntimeError, NotImplementedError, AssertionError):
        return 'which this machine or this build of torch lacks; pass device="cpu"'
    return ""
