"""Several inputs, indices among them, as one tensor, and the way back."""

from __future__ import annotations

from pyro_opu.packing.form import Packing, Structured, Unpacked, packed, packing_of
from pyro_opu.packing.parts import Part

__all__ = ["Packing", "Part", "Structured", "Unpacked", "packed", "packing_of"]
