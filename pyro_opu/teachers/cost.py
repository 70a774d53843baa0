"""Floating-point operations of a computation: matrix products, triangular systems, factors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch


def operations_of(compute: Callable[[], object]) -> int:
    """Counts the operations of one call, where each entry of a matrix or vector takes many.

    torch counts products and convolutions; solutions of triangular systems (n^2 for each right-hand
    side) and Cholesky factors (n^3 / 3), most of what a Gaussian process costs, are counted here.
    What takes one operation per number, such as an activation, counts nothing.
    """
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    with FlopCounterMode(display=False, custom_mapping=_more()) as counter:
        compute()
    return int(counter.get_total_flops())


def _more() -> dict[Any, Any]:
    aten = torch.ops.aten
    return {
        aten.linalg_solve_triangular: _triangular,
        aten.cholesky_solve: _from_factor,
        aten.linalg_cholesky_ex: _cholesky,
    }


def _triangular(matrix: torch.Size, rest: torch.Size, *, out_shape: Any, **_: Any) -> int:
    return int(matrix[-1] * prod(out_shape))


def _from_factor(rest: torch.Size, factor: torch.Size, *_: Any, out_shape: Any, **__: Any) -> int:
    return int(2 * factor[-1] * prod(out_shape))


def _cholesky(matrix: torch.Size, *_: Any, **__: Any) -> int:
    return int(prod(matrix) * matrix[-1] // 3)
