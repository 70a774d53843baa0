"""What inputs are: one tensor and its form, of whatever a user gives, and the way back."""

from __future__ import annotations

from pyro_opu.inputs.columns import Column
from pyro_opu.inputs.form import PLAIN, Form, Unpacked
from pyro_opu.inputs.parts import Part
from pyro_opu.inputs.reading import InputLike, Inputs, call_with, form_of, inputs_of

__all__ = [
    "PLAIN",
    "Column",
    "Form",
    "InputLike",
    "Inputs",
    "Part",
    "Unpacked",
    "call_with",
    "form_of",
    "inputs_of",
]
