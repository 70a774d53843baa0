"""The validators: what passes, and what each error says."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from pyro_opu import checks


@pytest.mark.parametrize("value", [1, 7, np.int64(3)])
def test_positive_int(value):
    found = checks.positive_int("n", value)
    assert type(found) is int and found == value


@pytest.mark.parametrize(
    "value, least, message",
    [
        (0, 1, "`n` must be a positive integer; got 0."),
        (True, 1, "`n` must be a positive integer; got True."),
        (2.5, 1, "`n` must be a positive integer; got 2.5."),
        (2.0, 1, "`n` must be a positive integer; got 2.0."),
        ("3", 1, "`n` must be a positive integer; got '3'."),
        (None, 1, "`n` must be a positive integer; got None."),
        (1, 2, "`n` must be an integer of at least 2; got 1."),
    ],
)
def test_not_a_positive_int(value, least, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        checks.positive_int("n", value, least)


def test_advice_comes_last():
    with pytest.raises(ValueError, match=r"got 0\. Leave it out\.$"):
        checks.positive_int("n", 0, advice="Leave it out.")


@pytest.mark.parametrize("value", [1, 0.5, np.float32(2.0)])
def test_positive_float(value):
    found = checks.positive_float("rate", value)
    assert type(found) is float and found == value


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1"])
def test_not_a_positive_float(value):
    with pytest.raises(ValueError, match="`rate` must be a positive finite number; got"):
        checks.positive_float("rate", value)


@pytest.mark.parametrize(
    "value, limits, message",
    [
        (1.0, (0, 1, "[)"), "a number in [0, 1); got 1.0."),
        (0, (0, 1, "(]"), "a number in (0, 1]; got 0."),
        (math.nan, (0, 1), "a number in [0, 1]; got nan."),
        (-1, (0,), "a finite number of at least 0; got -1."),
        (1, (1, math.inf, "()"), "a finite number above 1; got 1."),
        (math.inf, (), "a finite number; got inf."),
    ],
)
def test_out_of_range(value, limits, message):
    with pytest.raises(ValueError, match=re.escape(f"`p` must be {message}")):
        checks.in_range("p", value, *limits)


def test_limits_of_a_range():
    assert checks.in_range("p", 0, 0, 1) == 0.0
    assert checks.in_range("p", 1, 0, 1, "(]") == 1.0
    with pytest.raises(ValueError, match="got 'half'"):
        checks.in_range("p", "half", 0, 1)


@pytest.mark.parametrize("value", [0, 1, "no", None])
def test_not_a_bool(value):
    with pytest.raises(TypeError, match="`progress` must be True or False; got"):
        checks.check_bool("progress", value)


@pytest.mark.parametrize("value", [None, 0, -3, 2**63, np.int32(5)])
def test_seed(value):
    assert checks.check_seed(value) == value


@pytest.mark.parametrize("value", [1.5, True, 2**64, "0"])
def test_no_seed(value):
    with pytest.raises(ValueError, match="`seed` must be an integer from .* or None; got"):
        checks.check_seed(value)


def test_one_of():
    assert checks.one_of("form", "a", {"a", "b"}) == "a"
    with pytest.raises(ValueError, match=r"`form` must be one of \['a', 'b'\]; got 'c'"):
        checks.one_of("form", "c", {"a", "b"})
    with pytest.raises(TypeError, match="got 1"):
        checks.one_of("form", 1, {"a", "b"})


def test_path(tmp_path):
    assert checks.check_path("path", str(tmp_path)) == tmp_path
    with pytest.raises(TypeError, match="`path` must be the path of a file; got 3"):
        checks.check_path("path", 3)


@pytest.mark.parametrize("value, error", [(8, TypeError), ("8", TypeError), ((2.5,), ValueError)])
def test_no_sizes(value, error):
    with pytest.raises(error, match="`hidden` must be a tuple of positive integers; got"):
        checks.sizes("hidden", value)


def test_sizes():
    assert checks.sizes("hidden", [3, np.int64(4)]) == (3, 4)


def test_callable():
    assert checks.check_callable("f", len, "x -> n") is len
    with pytest.raises(TypeError, match="`f` must be a callable x -> n; got 3"):
        checks.check_callable("f", 3, "x -> n")


@pytest.mark.parametrize("value", [[0.5], np.zeros(2)])
def test_no_tensor(value):
    with pytest.raises(TypeError, match=r"`p` must be a torch\.Tensor.*torch\.as_tensor\(p\)"):
        checks.check_tensor("p", value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_probabilities_of_many_classes(dtype):
    p = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0)).softmax(-1).to(dtype)
    assert checks.check_probs("p", p) is p


@pytest.mark.parametrize(
    "rows, message",
    [
        ([[0.5, 0.6]], "a smallest entry 0.5 and a sum off by 0.1"),
        ([[-0.1, 1.1]], "a smallest entry -0.1"),
        ([[math.nan, 1.0], [0.5, 0.5]], "be finite; got NaN or infinity in 1 of 2 rows"),
        ([[math.inf, 0.0]], "be finite"),
        ([], "which holds none"),
    ],
)
def test_no_probabilities(rows, message):
    with pytest.raises(ValueError, match=f"`p` must .*{re.escape(message)}"):
        checks.check_probs("p", torch.tensor(rows))


def test_probabilities_of_another_dtype():
    with pytest.raises(TypeError, match=r"floating dtype; got torch\.int64"):
        checks.check_probs("p", torch.tensor([[0, 1]]))


@pytest.mark.parametrize(
    "device, error, message",
    [
        ("meta", ValueError, '`device` is "meta"'),
        ("gpu", ValueError, "`device` must be such as"),
        (0, TypeError, "`device` must be such as"),
    ],
)
def test_no_device(device, error, message):
    with pytest.raises(error, match=message):
        checks.check_device(device)


def test_device():
    assert checks.check_device(None) == checks.check_device("cpu") == torch.device("cpu")
