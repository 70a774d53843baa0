"""Files, tables, warnings and chunks, independent of Bayesian models."""

from pyro_opu.utils.laws import is_known
from pyro_opu.utils.printing import name_of
from pyro_opu.utils.warnings import warn_user
