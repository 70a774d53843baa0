"""Answers for tables: a file in blocks, and the batches of data engines."""

from __future__ import annotations

__all__: list[str] = []
