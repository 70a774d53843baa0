"""Students, teachers and runs of samplers in the terms of ArviZ, scikit-learn and Lightning."""

from importlib import import_module
from typing import Any

from pyro_opu.interop.arviz import summary, to_inference_data

__all__ = ["summary", "to_inference_data"]

#: Modules that are imported when first asked for, as the packages that they need are.
_LATER = ["lightning", "scikit_learn"]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return import_module(f"pyro_opu.interop.{name}")
    raise AttributeError(f"module 'pyro_opu.interop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_LATER])
