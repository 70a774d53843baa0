"""The papers' Bayesian classifiers as Pyro models; they import ``pyro_opu``, never the reverse.

"Li (2022)" in their docstrings is Li's lecture notes on Bayesian neural networks (2022).
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyro_opu.models import (
        dropout,
        factored,
        gaussian_process,
        laplace,
        last_layer,
        logistic_regression,
        neural_network,
        process_guide,
        sgpmc,
        variational,
    )

__all__ = [
    "dropout",
    "factored",
    "gaussian_process",
    "laplace",
    "last_layer",
    "logistic_regression",
    "neural_network",
    "process_guide",
    "sgpmc",
    "variational",
]


if not TYPE_CHECKING:  # where it would say that every name is there

    def __getattr__(name: str) -> ModuleType:
        if name in __all__:
            return import_module(f"pyro_opu.models.{name}")
        raise AttributeError(f"module 'pyro_opu.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
