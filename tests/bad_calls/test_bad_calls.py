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


#: Function -> its cases.
FUNCTIONS: dict[str, list[str]] = {}
for case in CASES:
    FUNCTIONS.setdefault(case.partition(": ")[0], []).append(case)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_is_answered_clearly(name: str) -> None:
    module = getattr(CASES[FUNCTIONS[name][0]], "func", judged).__module__
    for beginning, extra in EXTRAS.items():
        if name.startswith(beginning) or module.startswith(beginning):
            pytest.importorskip(extra)
    wrong = {}
    for case in FUNCTIONS[name]:
        outcome, message = judged(CASES[case])
        said = rf"^(Argument)?(Value|Type|Call|Key)?Error: .*{SAYS[case]}" if case in SAYS else ""
        if outcome != ("raw" if case in RAW else "clear") or not re.search(said, message):
            wrong[case] = outcome, message
    assert not wrong


def test_few_are_raw() -> None:
    assert set(SAYS) <= set(CASES)
    assert set(RAW) <= set(CASES)
    assert len(RAW) <= 0.02 * len(CASES)
