"""Validators of arguments, each called once, where the argument enters."""

from pyro_opu.checks.inputs import check_inputs, check_labels, check_row_shape
from pyro_opu.checks.tensors import (
    check_device,
    check_floating,
    check_log_probs,
    check_probs,
    check_tensor,
    rows_off_simplex,
    simplex_tolerance,
)
from pyro_opu.checks.values import (
    check_bool,
    check_callable,
    check_mapping,
    check_path,
    check_seed,
    in_range,
    instance_of,
    one_of,
    positive_float,
    positive_int,
    sizes,
)

__all__ = [
    "check_bool",
    "check_callable",
    "check_device",
    "check_floating",
    "check_inputs",
    "check_labels",
    "check_log_probs",
    "check_mapping",
    "check_path",
    "check_probs",
    "check_row_shape",
    "check_seed",
    "check_tensor",
    "in_range",
    "instance_of",
    "one_of",
    "positive_float",
    "positive_int",
    "rows_off_simplex",
    "simplex_tolerance",
    "sizes",
]
