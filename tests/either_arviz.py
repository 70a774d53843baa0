"""What ArviZ 0.x and 1.x call differently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

az = pytest.importorskip("arviz")
#: Whether a run is a ``DataTree`` of ArviZ 1.x, and not an ``InferenceData``.
NEW = int(az.__version__.split(".")[0]) >= 1


def loo(found: Any) -> tuple[float, float, np.ndarray, np.ndarray]:
    """elpd, p, pointwise elpd and pointwise k."""
    result = az.loo(found, pointwise=True)
    if NEW:
        return result.elpd, result.p, result.elpd_i.values, result.pareto_k.values
    return result.elpd_loo, result.p_loo, result.loo_i.values, result.pareto_k.values


def groups(found: Any) -> set[str]:
    return set(found.children) if NEW else set(found.groups())
