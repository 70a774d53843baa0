"""The objects that replace ``pyro.infer.Predictive``."""

from pyro_opu.predictive.batched import BatchedPredictive
from pyro_opu.predictive.one_pass import InputPicker, OnePassPredictive, OnePassRegression

__all__ = ["BatchedPredictive", "InputPicker", "OnePassPredictive", "OnePassRegression"]
