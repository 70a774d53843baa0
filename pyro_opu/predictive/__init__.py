"""The objects that replace ``pyro.infer.Predictive``."""

from pyro_opu.predictive.drop_in import student_of
from pyro_opu.predictive.one_pass import InputPicker, OnePassPredictive
from pyro_opu.predictive.student_file import read_student

__all__ = ["OnePassPredictive"]
