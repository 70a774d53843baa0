"""Samplers that Pyro lacks, as MCMC kernels; schedules and tempering."""

from pyro_opu.samplers.energy import NUTSWithEnergy
from pyro_opu.samplers.polya_gamma import PolyaGammaGibbs
from pyro_opu.samplers.schedules import (
    Constant,
    Halving,
    PolynomialDecay,
)
from pyro_opu.samplers.sgld import SGLD
from pyro_opu.samplers.tempering import tempered

__all__ = [
    "SGLD",
    "Halving",
    "NUTSWithEnergy",
    "PolyaGammaGibbs",
    "PolynomialDecay",
    "tempered",
]


def __dir__() -> list[str]:
    return sorted(__all__)
