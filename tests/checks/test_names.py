"""Names that a signature shows as a ``Literal`` are those of the table that they choose from."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, get_args

import pytest

from pyro_opu.choosing import CHOICES, GuideName, LossName
from pyro_opu.guides import GUIDES, ClassGuideName
from pyro_opu.guides.joint import JointGuide
from pyro_opu.guides.normal import REGRESSION_GUIDES, RealGuideName
from pyro_opu.interop.ready_teachers import CLASSIFIERS, REGRESSORS, ClassTeacher, RealTeacher
from pyro_opu.objectives import LOSSES, ClassLossName
from pyro_opu.objectives.normal import REAL_LOSSES, RealLossName
from pyro_opu.plots.canvas import SCALES
from pyro_opu.reports.readings import Measure
from pyro_opu.rivals.bayesian_dark_knowledge import FORMS, Form
from pyro_opu.rivals.subsets import METHODS, Method
from pyro_opu.teachers.outputs import _FORMS, Output
from pyro_opu.training.tuned import EFFORTS, Effort
from pyro_opu.transfer.corruptions import IMAGE_KINDS, ImageKind

OFCHOICES = {name for choice in CHOICES.values() for name in choice.guides}
TABLES: list[tuple[Any, Collection[str]]] = [
    (ClassGuideName, GUIDES),
    (RealGuideName, REGRESSION_GUIDES),
    (GuideName, {*OFCHOICES, "network", JointGuide.kind}),
    (ClassLossName, LOSSES),
    (RealLossName, REAL_LOSSES),
    (LossName, {*LOSSES, *REAL_LOSSES}),
    (Effort, EFFORTS),
    (Measure, SCALES),
    (Form, FORMS),
    (Method, METHODS),
    (Output, _FORMS),
    (ImageKind, {kind.__name__: kind for kind in IMAGE_KINDS.values()}),
    (ClassTeacher, CLASSIFIERS),
    (RealTeacher, REGRESSORS),
]


@pytest.mark.parametrize(("alias", "table"), TABLES)
def test_an_alias_has_the_names_of_its_table(alias: Any, table: Collection[str]) -> None:
    assert sorted(get_args(alias)) == sorted(table)
