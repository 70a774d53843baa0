"""Digests of tensors, arrays and plain values, for ``benchmarks.golden``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Entries of reports that differ from run to run, or that are younger than the record.
PASSING = ("seconds", "path", "queries", "where", "taught_by", "family_by_default")


@dataclass(frozen=True)
class Digest:
    """The hash of all bytes, and the sum of all finite numbers as text."""

    sha: str
    total: str

    @classmethod
    def of(cls, value: Any) -> Digest:
        total = math.fsum(number for number in numbers(value) if math.isfinite(number))
        return cls(digest(value), repr(total))


def digest(value: Any) -> str:
    content = hashlib.sha256()
    for part in parts(value):
        content.update(part)
    return content.hexdigest()[:16]


def parts(value: Any) -> Iterator[bytes]:
    """The bytes of plain values, arrays and tensors; a mapping's in the order of its keys."""
    if isinstance(value, Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        for key in sorted(value):
            yield f"{key}:".encode()
            yield from parts(value[key])
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield f"{len(value)} of".encode()
        for each in value:
            yield from parts(each)
    elif value is None or isinstance(value, (bool, int, float, str)):
        yield repr(value).encode()
    else:
        raise TypeError(f"no digest of a {type(value).__name__}")


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, (Tensor, np.ndarray)):
        yield from torch.as_tensor(value).detach().double().flatten().tolist()
    elif isinstance(value, (Mapping, list, tuple)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from numbers(each)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)


def reported(name: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """The report with its keys, and its numbers without them."""
    plain = without_passing(report)
    return {name: plain, f"{name}_values": sorted(numbers(plain), key=repr)}


def without_passing(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {k: v for k, v in value.items() if not any(word in str(k) for word in PASSING)}
        return {str(k): without_passing(v) for k, v in kept.items()}
    return [without_passing(v) for v in value] if isinstance(value, (list, tuple)) else value
