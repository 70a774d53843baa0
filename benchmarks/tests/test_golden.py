"""The digests that golden students are compared by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.golden import differences, wanted
from benchmarks.golden_digest import Digest, digest, reported

PAIR = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize("other", [PAIR.nextafter(2 * PAIR), PAIR[None], PAIR.double()])
def test_one_bit_a_shape_and_a_dtype_change_a_digest(other: torch.Tensor) -> None:
    assert digest(PAIR) == digest(PAIR.clone()) != digest(other)


def test_mappings_go_by_their_keys_and_lists_by_their_order() -> None:
    one, two = np.ones(2), {"nested": (None, True, "text", 0.1)}
    assert digest({"a": one, "b": two}) == digest({"b": two, "a": one})
    assert digest([one, two]) != digest([two, one])
    with pytest.raises(TypeError, match="no digest of a set"):
        digest({1})


def test_a_report_with_another_key_has_the_same_values_and_seconds_do_not_count() -> None:
    old: dict[str, Any] = {"kl": 0.5, "parts": [{"auroc": 1.0, "seconds": 3.2}]}
    new: dict[str, Any] = {"divergence": 0.5, "parts": [{"auroc": 1.0, "seconds": 4.1}]}
    before, after = reported("report", old), reported("report", new)
    assert digest(before["report"]) != digest(after["report"])
    assert before["report_values"] == after["report_values"] == [0.5, 1.0]


def test_what_differs_is_missing_or_new_is_said() -> None:
    found = {name: Digest.of(torch.ones(2)) for name in ("a/same", "a/other", "a/new")}
    sha = found["a/same"].sha
    recorded = {"a/same": [sha, "2.0"], "a/other": ["0" * 16, "3.0"], "b/gone": [sha, "2.0"]}
    assert differences(found, recorded) == [
        "a/new: made, and not recorded",
        "a/other: sum 3.0 recorded, 2.0 now",
        "b/gone: recorded, and no longer made",
    ]


def test_a_prefix_names_cases_or_items_of_one() -> None:
    names = ["mixture", "resumed/mixture", "loss/proxy", "mix"]
    assert [name for name in names if wanted(name, ["mixture/weights", "loss"])] == [
        "mixture",
        "loss/proxy",
    ]
    assert all(wanted(name, []) for name in names)
