"""Distances between distributions; see :mod:`pyro_opu.metrics.distances`."""

from pyro_opu.metrics.distances import *  # noqa: F403
from pyro_opu.metrics.distances import __all__ as __all__
