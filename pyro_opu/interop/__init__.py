"""What :func:`pyro_opu.to_inference_data` is made of: ArviZ's groups, for ArviZ 0.x and 1.x."""

from pyro_opu.interop.answers import class_groups, gives_class_probs
from pyro_opu.interop.groups import Arrays, Groups, Wanted, arrays, assembled, found_arviz
from pyro_opu.interop.names import plate_names, probs_name, site_dims

__all__ = [
    "Arrays",
    "Groups",
    "Wanted",
    "arrays",
    "assembled",
    "class_groups",
    "found_arviz",
    "gives_class_probs",
    "plate_names",
    "probs_name",
    "site_dims",
]
