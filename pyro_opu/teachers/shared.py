"""What a network draws at random, given from outside: the same for all rows of x."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pyro_opu.checks import ArgumentError

__all__ = ["Call", "SharedMasks", "given_by", "of_one_row"]

#: A function of torch; those that are met here mostly return tensors.
Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Call:
    """What a random function draws in one call.

    Attributes:
        law: "keep", false with probability ``p``; "uniform" in [0, 1); or standard "normal".
        shape: The shape of all rows, or where known of one, as several entries of an axis.
        p: The probability of "keep".
        of_rows: Whether each row has its own in a pass, where the shape is that for one row.
    """

    law: str
    shape: tuple[int, ...]
    p: float = 0.0
    of_rows: bool = True

    def draw(self, generator: torch.Generator) -> Tensor:
        """One draw."""
        if self.law == "normal":
            return torch.randn(self.shape, generator=generator)
        found = torch.rand(self.shape, generator=generator)
        return found >= self.p if self.law == "keep" else found

    @property
    def middle(self) -> float:
        """The mean of one number."""
        return {"keep": 1.0 - self.p, "uniform": 0.5}.get(self.law, 0.0)

    def is_like(self, other: Call) -> bool:
        """Whether both are draws of one distribution, with as many axes."""
        mine = self.law, self.p, len(self.shape)
        return mine == (other.law, other.p, len(other.shape))


def of_one_row(two: Sequence[Call], three: Sequence[Call]) -> list[Call]:
    """What the calls draw for one row, from what they draw for two rows and for three.

    Raises:
        ValueError: they are other calls, or the axis of the rows is unclear.
    """
    if len(two) != len(three):
        raise _unlike()
    return [_one_row(*pair) for pair in zip(two, three, strict=True)]


def _one_row(two: Call, three: Call) -> Call:
    if not two.is_like(three):
        raise _unlike()
    pairs = list(zip(two.shape, three.shape, strict=True))
    grow = [a for a, b in pairs if a != b]
    if len(grow) > 1 or any(2 * b != 3 * a for a, b in pairs if a != b):
        raise ArgumentError(
            "`source` must draw at random for every row of x; what it draws has the shape "
            f"{two.shape} for two rows and {three.shape} for three. Pass a callable "
            "(x, num_draws) -> (S, N, C)."
        )
    return Call(two.law, tuple(a if a == b else a // 2 for a, b in pairs), two.p, bool(grow))


def _unlike() -> ValueError:
    return ArgumentError(
        "`source` must call the same random functions for any number of rows, and under every "
        "draw; it did not. A layer that is left out at random cannot be sampled: switch that off, "
        "or pass a callable (x, num_draws) -> (S, N, C)."
    )


def given_by(calls: Iterable[Call], values: Iterable[Tensor]) -> Callable[[Call], Tensor]:
    """What :class:`SharedMasks` is given: values of known calls, in order."""
    pairs = iter(zip(calls, values, strict=False))

    def given(call: Call) -> Tensor:
        known = next(pairs, None)
        if known is None or not known[0].is_like(call):
            raise _unlike()
        return known[1]

    return given


class SharedMasks(TorchFunctionMode):
    """Gives every random function what it draws, for one row, and notes what it was asked for.

    All rows of a call get the same. Without it dropout keeps every unit, and other draws are in the
    middle of their distribution.

    Args:
        given: From a call, for all rows, to a tensor of its shape, or of that for one row.
    """

    def __init__(self, given: Callable[[Call], Tensor] | None = None) -> None:
        super().__init__()
        self.given = given
        self.calls: list[Call] = []

    def __torch_function__(
        self,
        func: Function,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        name = _RANDOM.get(func)
        if name is None:
            return self._other(func, args, kwargs or {})
        return self._sampled(name, func, args, kwargs or {})

    def _sampled(
        self, name: str, func: Function, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Any:
        """A random function, by the method of this name."""
        return getattr(self, name)(func, *args, **kwargs)

    def _other(self, func: Function, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
        """Any other call."""
        return func(*args, **kwargs)

    def _draw(self, law: str, shape: Iterable[int], like: Tensor, p: float = 0.0) -> Tensor:
        """What is drawn for all rows; an axis along which it does not vary may be 1."""
        assert self.given is not None
        call = Call(law, tuple(shape), p)
        self.calls.append(call)
        value = self.given(call).to(like.device)
        for axis, (own, size) in enumerate(zip(value.shape, call.shape, strict=True)):
            if own not in (1, size):
                shape = [-1] * (value.dim() + 1)
                shape[axis] = size // own
                value = value.unsqueeze(axis).expand(shape).flatten(axis, axis + 1)
        return value

    # Dropout -------------------------------------------------------------------------------------

    def _dropout(
        self,
        func: Function,
        input: Tensor,
        p: float = 0.5,
        training: bool | None = None,
        inplace: bool = False,
        train: bool | None = None,
    ) -> Tensor:
        said = train if training is None else training
        if not (func not in _OFF if said is None else said) or p == 0 or self.given is None:
            return input
        size = input.dim()
        axes = 1 if size < _BATCHED.get(func, 0) else 2 if func in _CHANNELS else size
        shape = (*input.shape[:axes], *(1 for _ in input.shape[axes:]))
        keep = self._draw("keep", shape, input, float(p))
        return self._masked(input, keep, float(p), func in _ALPHA)

    def _masked(self, x: Tensor, keep: Tensor, p: float, alpha: bool) -> Tensor:
        keep = keep.to(x.dtype)
        if not alpha:
            return x * (keep / (1 - p)) if p < 1 else x * 0
        scale = ((1 - p) * (1 + p * _SATURATION**2)) ** -0.5 if p < 1 else 0.0
        return scale * (x * keep + _SATURATION * (1 - keep) - p * _SATURATION)

    def _native(
        self, func: Function, input: Tensor, p: float, train: bool | None
    ) -> tuple[Tensor, Tensor]:
        result = self._dropout(func, input, p, train)
        return result, torch.ones_like(result, dtype=torch.bool)

    def _attention(
        self,
        func: Function,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        given = (query, key, value, attn_mask)
        p, more = float(dropout_p), {"scale": scale, "enable_gqa": enable_gqa}
        if p == 0 or self.given is None:
            return self._other(func, given, {"is_causal": is_causal, **more})
        weights, values = attention(*given, is_causal, scale, enable_gqa)
        keep = self._draw("keep", weights.shape, weights, p)
        return self._masked(weights, keep, p, False) @ values

    def _inside(self, func: Function, *args: object, **kwargs: object) -> Any:
        """Run a function written in Python so that what it calls is met."""
        if self.given is None:
            return func(*args, **kwargs)
        with self:
            return _opened(func)(*args, **kwargs)

    # Other draws ---------------------------------------------------------------------------------

    def _rrelu(
        self,
        func: Function,
        input: Tensor,
        lower: float = 1 / 8,
        upper: float = 1 / 3,
        training: bool = False,
        *_: object,
        **__: object,
    ) -> Tensor:
        slope: Tensor | float = (lower + upper) / 2
        if training and self.given is not None:
            drawn = self._draw("uniform", input.shape, input).to(input.dtype)
            slope = lower + (upper - lower) * drawn
        return torch.where(input >= 0, input, input * slope)

    def _bernoulli(
        self, func: Function, input: Tensor, p: Tensor | float | None = None, **_: object
    ) -> Tensor:
        into = func is Tensor.bernoulli_
        rate = (0.5 if into else input) if p is None else p
        if self.given is None:
            value = torch.as_tensor(rate).to(input)
        elif isinstance(rate, Tensor):
            value = self._draw("uniform", input.shape, input) < rate
        else:
            value = self._draw("keep", input.shape, input, 1 - rate)
        return _filled(input if into else torch.empty_like(input), value)

    def _fresh(self, func: Function, *args: object, **kwargs: object) -> Tensor:
        empty, law = _FRESH[func]
        kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
        made: Tensor = empty(*args, **kwargs)
        return _filled(made, self._base(law, made))

    def _fill(self, func: Function, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        law, names, made = _FILLED[func]
        given = {**names, **dict(zip(names, args, strict=False)), **kwargs}
        return _filled(x, made(self._base(law, x), *(given[name] for name in names)))

    def _normal(
        self,
        func: Function,
        mean: Tensor | float = 0.0,
        std: Tensor | float = 1.0,
        size: Sequence[int] | None = None,
        **_: object,
    ) -> Tensor:
        mean, std = torch.as_tensor(mean), torch.as_tensor(std)
        shape = torch.broadcast_shapes(mean.shape, std.shape) if size is None else size
        return mean + std * self._base("normal", (mean + std).expand(shape))

    def _base(self, law: str, like: Tensor) -> Tensor:
        if self.given is None:
            return torch.full_like(like, 0.5 if law == "uniform" else 0.0)
        return self._draw(law, like.shape, like).to(like.dtype)


def _filled(x: Tensor, value: Tensor) -> Tensor:
    return x.copy_(value.to(x.dtype).expand(x.shape))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Attention :math:`\mathrm{softmax}(q k^\top s + m)`, and the values that it weights.

    Arguments as of ``torch.nn.functional.scaled_dot_product_attention``.
    """
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (each.repeat_interleave(times, -3) for each in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(ones.triu(1), -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    nothing = scores.amax(-1, keepdim=True) == -torch.inf  # is attended to
    return torch.where(nothing, 0.0, scores.softmax(-1)), value


@cache
def _opened(func: Callable[..., object]) -> Function:
    """A function of ``torch.nn.functional`` that does not hand itself to a mode."""
    asks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    within = {**func.__globals__, **{name: lambda *_: False for name in asks}}
    found = types.FunctionType(func.__code__, within, func.__name__, func.__defaults__)
    found.__kwdefaults__ = func.__kwdefaults__
    return found


#: Dropout functions whose mask spans two leading axes; the others' spans all.
_CHANNELS: set[Callable[..., Any]] = {F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout}
_CHANNELS |= {F.feature_alpha_dropout, torch.feature_alpha_dropout}
_CHANNELS |= {torch.feature_dropout_, torch.feature_alpha_dropout_}
_DROPOUTS: set[Callable[..., Any]] = {
    F.dropout,
    F.alpha_dropout,
    torch.dropout,
    torch.alpha_dropout,
    *_CHANNELS,
}
_DROPOUTS |= {torch.dropout_, torch.alpha_dropout_}
_ALPHA = {function for function in _DROPOUTS if "alpha" in function.__name__}
#: Those that do nothing unless they are told to, and axes below which the first is the channels'.
_OFF = {F.alpha_dropout, F.feature_alpha_dropout}
_BATCHED = {F.dropout1d: 3, F.dropout3d: 5}
_SATURATION = -1.7580993408473766  # what a dropped SELU unit is set to
_FRESH: dict[Callable[..., Any], tuple[Callable[..., Any], str]] = {
    torch.rand: (torch.empty, "uniform"),
    torch.rand_like: (torch.empty_like, "uniform"),
    torch.randn: (torch.empty, "normal"),
    torch.randn_like: (torch.empty_like, "normal"),
}
#: In-place functions: law, arguments with their defaults, and what is made of a draw of the law.
_FILLED: dict[Callable[..., Any], tuple[str, dict[str, float], Callable[..., Tensor]]] = {
    Tensor.uniform_: ("uniform", {"from": 0.0, "to": 1.0}, lambda u, low, up: low + (up - low) * u),
    Tensor.normal_: ("normal", {"mean": 0.0, "std": 1.0}, lambda z, mean, std: mean + std * z),
    Tensor.exponential_: ("uniform", {"lambd": 1.0}, lambda u, rate: -torch.log1p(-u) / rate),
}
#: The method by which a random function is given what it draws.
_RANDOM: dict[Callable[..., Any], str] = {
    **dict.fromkeys(_DROPOUTS, "_dropout"),
    **dict.fromkeys((torch.native_dropout,), "_native"),
    **dict.fromkeys((F.rrelu, torch.rrelu, torch.rrelu_), "_rrelu"),
    **dict.fromkeys((torch.bernoulli, Tensor.bernoulli, Tensor.bernoulli_), "_bernoulli"),
    **dict.fromkeys(_FRESH, "_fresh"),
    **dict.fromkeys(_FILLED, "_fill"),
    torch.normal: "_normal",
    F.scaled_dot_product_attention: "_attention",
    F.multi_head_attention_forward: "_inside",
    F.gumbel_softmax: "_inside",
}
