"""What inputs are: one tensor and its form, of whatever a user gives, and the way back."""

from __future__ import annotations

from pyro_opu.inputs.form import PLAIN, Form, Inputs, Structured, Unpacked, form_of
from pyro_opu.inputs.parts import Part

__all__ = ["PLAIN", "Form", "Inputs", "Part", "Structured", "Unpacked", "form_of"]
