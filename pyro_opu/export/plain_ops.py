r"""Digamma and related functions from operations that every ONNX runtime has.

ONNX has no digamma and no log-gamma, and its runtimes make :math:`e^x - 1`, :math:`\log(1 + x)`
and log-sums by the formula as written, which loses all digits near zero, or over- and underflows.
The first four functions are for positive arguments (``expm1``: any) in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

#: Smaller arguments are shifted up by this; above it the asymptotic series is good to 1e-15.
_SHIFT = 8


def _shifted(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which are small; these, or 1, and 7 more in steps of 1 ``(8, ...)``; all past the shift."""
    small = x < _SHIFT
    steps = torch.arange(_SHIFT, dtype=x.dtype).view(-1, *[1] * x.ndim)
    low = torch.where(small, x, 1.0) + steps
    return small, low, torch.where(small, x + _SHIFT, x)


def digamma(x: Tensor) -> Tensor:
    r"""The derivative of log-gamma, to 1e-15 (relative, absolute below 1) in float64.

    .. math::
        \psi(x) = \psi(x + 8) - \sum_{i<8} \frac{1}{x + i}, \qquad
        \psi(y) \approx \log y - \frac{1}{2y} - \sum_{n \le 7} \frac{B_{2n}}{2n\, y^{2n}}

    References:
        Abramowitz and Stegun (1964), Handbook of Mathematical Functions, 6.3.5 and 6.3.18.
    """
    small, low, high = _shifted(x)
    inverse = high.reciprocal()
    s = inverse * inverse
    series = s * (691 / 32760 - s / 12)
    for coefficient in (1 / 132, 1 / 240, 1 / 252, 1 / 120, 1 / 12):
        series = s * (coefficient - series)
    steps = torch.where(small, low.reciprocal().sum(0), 0.0)
    return high.log() - inverse / 2 - series - steps


def lgamma(x: Tensor) -> Tensor:
    r"""The logarithm of the gamma function, to 1e-14 (relative, absolute below 1) in float64.

    .. math::
        \log\Gamma(x) = \log\Gamma(x + 8) - \log \prod_{i<8} (x + i), \qquad
        \log\Gamma(y) \approx (y - \tfrac12) \log y - y + \tfrac12 \log 2\pi
            + \sum_{n \le 7} \frac{B_{2n}}{2n (2n - 1)\, y^{2n - 1}}

    References:
        Abramowitz and Stegun (1964), 6.1.15 and 6.1.41.
    """
    small, low, high = _shifted(x)
    inverse = high.reciprocal()
    s = inverse * inverse
    series = 691 / 360360 - s / 156
    for coefficient in (1 / 1188, 1 / 1680, 1 / 1260, 1 / 360, 1 / 12):
        series = coefficient - s * series
    stirling = (high - 0.5) * high.log() - high + math.log(2 * math.pi) / 2 + inverse * series
    return stirling - torch.where(small, low.prod(0).log(), 0.0)


def expm1(x: Tensor) -> Tensor:
    r""":math:`e^x - 1 = \tanh(x / 2)\,(e^x + 1)`, exact and without the cancellation near zero."""
    return (x / 2).tanh() * (x.exp() + 1.0)


def log1p(x: Tensor) -> Tensor:
    r""":math:`\log(1 + x) = x \log u / (u - 1)` with u the rounded 1 + x, whose rounding cancels.

    References:
        Goldberg (1991), What every computer scientist should know about floating-point
        arithmetic, theorem 4.
    """
    u = x + 1.0
    same = (u == 1.0) | (u == math.inf)
    return torch.where(same, x, x * (u.log() / torch.where(same, 1.0, u - 1.0)))


def log_sigmoid(x: Tensor) -> Tensor:
    r""":math:`\min(x, 0) - \log(1 + e^{-|x|})`; some runtimes have a sigmoid of zero below -18."""
    return x.clamp_max(0.0) - log1p((-x.abs()).exp())


def log_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    r""":math:`x - \log\sum_k e^{x_k}`; some runtimes take the log of a softmax of zero."""
    x = x if dtype is None else x.to(dtype)
    x = x - x.amax(dim, keepdim=True)
    return x - x.exp().sum(dim, keepdim=True).log()


def logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    r""":math:`\log\sum_k e^{x_k}` of finite x; some runtimes compute it as written."""
    most = x.amax(dim, keepdim=True)
    total = (x - most).exp().sum(dim, keepdim=True).log() + most
    return total if keepdim else total.squeeze(dim)


#: Replacements of torch's operations in an exported program.
PLAIN_OPS: dict[torch._ops.OpOverload, Callable[..., Tensor]] = {
    torch.ops.aten.digamma.default: digamma,
    torch.ops.aten.lgamma.default: lgamma,
    torch.ops.aten.expm1.default: expm1,
    torch.ops.aten.log1p.default: log1p,
    torch.ops.aten.square.default: lambda x: x * x,  # ONNX has a power alone, which is slower
    torch.ops.aten.log_sigmoid.default: log_sigmoid,
    torch.ops.aten.log_softmax.int: log_softmax,
    torch.ops.aten._log_softmax.default: lambda x, dim, half_to_float: log_softmax(x, dim),
    torch.ops.aten.logsumexp.default: logsumexp,
}
