"""Every bad call is refused by an error that names an argument, and writes nothing anywhere."""

from __future__ import annotations

import re

import pytest

from bad_calls.judged import CASES, judged
from bad_calls.messages import SAYS

#: Calls whose error comes from elsewhere, or names no argument: none is to be added.
RAW = (
    "OnePassClassifier.fit: three rows",
    "OnePassPredictive(): a guide of other inputs",
    "OnePassPredictive(): a guide that raises",
    "OnePassPredictive(): an `inputs` that raises",
    "bayesian_network: another width",
)
#: What some need, by the beginning of their names or of their modules.
EXTRAS = {
    "pyro_opu.plots": "matplotlib",
    "to_inference_data": "arviz",
    "PolyaGammaGibbs": "polyagamma",
}


@pytest.mark.parametrize("case", CASES)
def test_is_answered_clearly(case: str) -> None:
    for name, extra in EXTRAS.items():
        function = getattr(CASES[case], "func", judged)
        if case.startswith(name) or function.__module__.startswith(name):
            pytest.importorskip(extra)
    outcome, message = judged(CASES[case])
    assert outcome == ("raw" if case in RAW else "clear"), message
    if case in SAYS:
        assert re.search(rf"^(Argument)?(Value|Type|Call|Key)?Error: .*{SAYS[case]}", message), (
            message
        )


def test_few_are_raw() -> None:
    assert set(SAYS) <= set(CASES)
    assert set(RAW) <= set(CASES)
    assert len(RAW) <= 0.02 * len(CASES)
