"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings

#: Packages whose frames are skipped.
INSIDE = {"pyro_opu", "pyro", "torch", "contextlib"}


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the nearest line that is neither of this package nor of Pyro or torch."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _package(frame.f_globals) in INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]
