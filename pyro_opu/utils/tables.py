"""Plain-text tables and strict JSON for the reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def cell(value: float | None) -> str:
    """A number for a table; NaN is ``n/a``, ``None`` is ``-``.

    Example:
        >>> [cell(v) for v in (0.12345, 0.00012345, 0.0, 12345.6, float("nan"), None)]
        ['0.1235', '1.2e-04', '0.0000', '1.2e+04', 'n/a', '-']
    """
    if value is None:
        return "-"
    if math.isnan(value):
        return "n/a"
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        return f"{value:.1e}"
    return f"{value:.4f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, the first to the left, the others to the right.

    Example:
        >>> print(table(["", "student"], [["KL", "0.0057"], ["agreement", "0.98"]]))
                   student
        KL          0.0057
        agreement     0.98
    """
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, *rows):
        label, *values = row
        padded = [text.rjust(width) for text, width in zip(values, widths[1:], strict=True)]
        lines.append("  ".join([label.ljust(widths[0]), *padded]).rstrip())
    return "\n".join(lines)


def json_ready(value: object) -> Any:
    """A value in strict JSON's types: NaN and infinity become ``None``."""
    if hasattr(value, "_asdict"):  # a named tuple
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
