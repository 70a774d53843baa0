"""The training engine of `distill` and of the rivals."""

from pyro_opu.training.fit import minimize
from pyro_opu.training.options import Training
