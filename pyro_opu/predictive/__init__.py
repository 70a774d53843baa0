"""The objects that replace ``pyro.infer.Predictive``."""

from pyro_opu.predictive.one_pass import InputPicker, OnePassPredictive

__all__ = ["InputPicker", "OnePassPredictive"]
