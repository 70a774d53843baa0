"""Plots of students and teachers: axes in, axes out.

Needs matplotlib, ``pip install "pyro_opu[plots]"``; write ``from pyro_opu import plots``. Every
function draws on the axes ``ax`` it is given, or on those of a new pyplot figure, and returns them;
nothing is shown, saved or styled beyond that. Colours are for colour-blind readers too.

================================  ======================================================
:func:`simplex`                   three classes: a student's density, a teacher's draws
:func:`three_classes`             three of many classes, for it
:func:`decision_map`              2-D inputs: classes by hue, uncertainty by darkness
:func:`decision_maps`             several such maps by one scale, to compare
:func:`reliability`               accuracy against confidence
:func:`risk_coverage`             error among the inputs kept against their share
:func:`concentration_histograms`  a measure of uncertainty, in and out of the domain
:func:`training_curves`           a distillation, step by step
:func:`fidelity_scatter`          a measure of uncertainty, student against teacher
:func:`use_style`                 pyplot's defaults as in the tutorials
================================  ======================================================
"""

from __future__ import annotations

from pyro_opu.plots.errors import reliability, risk_coverage
from pyro_opu.plots.learning_curves import training_curves
from pyro_opu.plots.maps import decision_map, decision_maps
from pyro_opu.plots.measures import concentration_histograms, fidelity_scatter
from pyro_opu.plots.style import use_style
from pyro_opu.plots.triangle import simplex, three_classes

__all__ = [
    "concentration_histograms",
    "decision_map",
    "decision_maps",
    "fidelity_scatter",
    "reliability",
    "risk_coverage",
    "simplex",
    "three_classes",
    "training_curves",
    "use_style",
]


def __dir__() -> list[str]:
    return sorted(__all__)
