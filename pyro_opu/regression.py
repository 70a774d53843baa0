"""The names of one-pass regression: mean, aleatoric and epistemic variance of a real y."""

from __future__ import annotations

from pyro_opu.distributions.normal import Components, PredictiveNormal, PredictiveNormalMixture
from pyro_opu.guides.normal import (
    REGRESSION_GUIDES,
    GaussianGuide,
    NormalMixtureGuide,
    RealGuide,
)
from pyro_opu.metrics.uncertainty import RegressionUncertainty
from pyro_opu.objectives.normal import NormalCRPS, NormalMoments, RegressionObjective
from pyro_opu.teachers.finished import is_regressor
from pyro_opu.teachers.real import FunctionRegressionTeacher, RealTeacher, RegressionTeacher
from pyro_opu.teachers.regressors import as_regression_teacher

__all__ = [
    "REGRESSION_GUIDES",
    "Components",
    "FunctionRegressionTeacher",
    "GaussianGuide",
    "NormalCRPS",
    "NormalMixtureGuide",
    "NormalMoments",
    "PredictiveNormal",
    "PredictiveNormalMixture",
    "RealGuide",
    "RealTeacher",
    "RegressionObjective",
    "RegressionTeacher",
    "RegressionUncertainty",
    "as_regression_teacher",
    "is_regressor",
]
