"""Files, tables, warnings and chunks, independent of Bayesian models."""

from pyro_opu.utils.laws import Node, is_known, is_subsample
from pyro_opu.utils.printing import name_of
from pyro_opu.utils.warnings import warn_user
