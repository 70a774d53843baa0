"""Bad calls of objectives and of guide families, for ``bad_input``."""

from __future__ import annotations

from functools import partial

from torch import nn

from benchmarks.bad_input import Cases
from benchmarks.bad_input_models import BROKEN, NAN, X
from pyro_opu import objectives
from pyro_opu.guides.families import LogisticNormalGuide, MixtureGuide

CASES = Cases()
add, each = CASES.add, CASES.each

each("WassersteinELBO", objectives.WassersteinELBO, "beta", -1.0, NAN, "1")
each("WassersteinELBO", objectives.WassersteinELBO, "likelihood", -1.0, NAN)
each("WassersteinELBO", objectives.WassersteinELBO, "penalty", -1.0, NAN)
each("WassersteinELBO", objectives.WassersteinELBO, "ground", "l3", None)
each("WassersteinELBO", objectives.WassersteinELBO, "num_samples", 0, 1, 2.5)
each("WassersteinELBO", objectives.WassersteinELBO, "critic_steps", 0, 1.5)
each("WassersteinELBO", objectives.WassersteinELBO, "critic_warmup", -1, 1.5)
each("WassersteinELBO", objectives.WassersteinELBO, "critic_learning_rate", 0.0, NAN)
each("WassersteinELBO", objectives.WassersteinELBO, "critic", "network", 3)
each("WassersteinELBO", objectives.WassersteinELBO, "residual", "no", None)
each("EnergyDistance", objectives.EnergyDistance, "num_samples", 0, 1, 2.5, "64")
each("EnergyDistance", objectives.EnergyDistance, "likelihood", -1.0, NAN)
each("MomentMatching", objectives.MomentMatching, "weights", "equal", None)
each("DirichletLikelihood", objectives.DirichletLikelihood, "smoothing", -0.1, 1.0, NAN, "0")
each("EnsembleDistribution", objectives.EnsembleDistribution, "temperature", 0.5, NAN, "10")
each("EnsembleDistribution", objectives.EnsembleDistribution, "smoothing", -0.1, 1.0, NAN)
each("MetaCritic", objectives.MetaCritic, "num_classes", 1, 2.5, x=X)
each("MetaCritic", objectives.MetaCritic, "widths", (0,), 8, x=X, num_classes=3)
each("MetaCritic", objectives.MetaCritic, "hidden", (), (0,), 8, x=X, num_classes=3)
each("MetaCritic", objectives.MetaCritic, "generate", "some", 3, x=X, num_classes=3)
each("MetaCritic", objectives.MetaCritic, "x", X[0], X.tolist(), BROKEN, num_classes=3)
each("as_objective", objectives.as_objective, "loss", "kl", 3, objectives.EnergyDistance)

each("MixtureGuide.for_inputs", MixtureGuide.for_inputs, "x", X.tolist(), BROKEN,
     num_classes=3)  # fmt: skip
each("LogisticNormalGuide", partial(LogisticNormalGuide, nn.Identity(), 3, 3), "rank", 1.5)
add("LogisticNormalGuide", "no trunk", LogisticNormalGuide, None, 3, 3)
for _guide in (MixtureGuide, LogisticNormalGuide):
    add(_guide.__name__, "no features", _guide, nn.Identity(), 0, 3)
    add(_guide.__name__, "one class", _guide, nn.Identity(), 3, 1)
