"""The objects that replace ``pyro.infer.Predictive``."""

from pyro_opu.predictive.one_pass import InputPicker, OnePassPredictive
from pyro_opu.predictive.other_outcomes import OnePassRegression, OnePassSeveral

__all__ = [
    "InputPicker",
    "OnePassPredictive",
    "OnePassRegression",
    "OnePassSeveral",
]
