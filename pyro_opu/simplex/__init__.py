"""Distributions of class probabilities that are no single Dirichlet."""

from __future__ import annotations

from pyro_opu.simplex.atoms import Atoms
from pyro_opu.simplex.base import (
    Answer,
    SimplexDistribution,
    as_answer,
    is_answer,
    stratified_draws,
)

__all__ = ["Answer", "Atoms", "SimplexDistribution", "as_answer", "is_answer", "stratified_draws"]
