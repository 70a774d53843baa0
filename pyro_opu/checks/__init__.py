"""What an argument must be: one validator per kind, used once where the argument enters."""

from pyro_opu.checks.inputs import check_inputs
from pyro_opu.checks.tensors import (
    check_device,
    check_log_probs,
    check_probs,
    check_tensor,
    rows_off_simplex,
    simplex_tolerance,
)
from pyro_opu.checks.values import (
    check_bool,
    check_callable,
    check_path,
    check_seed,
    in_range,
    one_of,
    positive_float,
    positive_int,
    sizes,
)

__all__ = [
    "check_bool",
    "check_callable",
    "check_device",
    "check_inputs",
    "check_log_probs",
    "check_path",
    "check_probs",
    "check_seed",
    "check_tensor",
    "in_range",
    "one_of",
    "positive_float",
    "positive_int",
    "rows_off_simplex",
    "simplex_tolerance",
    "sizes",
]
