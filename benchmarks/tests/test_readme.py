"""The README's example runs as it stands, with fewer draws and steps."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

import pyro_opu

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_example_starts_within_the_first_screen():
    assert README.read_text()[: README.read_text().index("```python")].count("\n") < 30


def run(code, shorter, folder, names=None):
    """The names that a code block leaves, run in an empty folder with some text replaced."""
    for text, replacement in shorter.items():
        assert code.count(text) == 1
        code = code.replace(text, replacement)
    names = dict(names or {})
    here = Path.cwd()
    try:
        os.chdir(folder)
        exec(compile(code, "README.md", "exec"), names)
    finally:
        os.chdir(here)
    return names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the tracing compiler warns about constants in the model
def test_example_runs(tmp_path, capsys):
    code = BLOCKS[0]
    shorter = {
        "500, 200)": "20, 20, disable_progbar=True)",
        "x[transfer])": "x[transfer], num_steps=20, progress=False)",
    }
    names = run(code, shorter, tmp_path)
    fast, predictive, x, new = (names[name] for name in ("fast", "predictive", "x", "new"))
    mine, theirs = fast(x[new]), predictive(x[new])
    assert {k: (v.shape, v.dtype) for k, v in mine.items()} == {
        k: (v.shape, v.dtype) for k, v in theirs.items()
    }
    assert fast.dirichlet(x[new]).batch_shape == (119,)
    assert "energy distance" in capsys.readouterr().out
    assert (tmp_path / "fast.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # few draws, which have not mixed
def test_example_of_a_network_runs(tmp_path, capsys):
    shorter = {
        "thinning=40), 500, 100)": "thinning=2), 60, 5, disable_progbar=True)",
        "predictive, train.x)": "predictive, train.x, num_steps=20, progress=False)",
    }
    names = run(BLOCKS[1], shorter, tmp_path)
    assert names["fast"].dirichlet(names["test"].x).batch_shape == (30,)
    assert "R-hat" in capsys.readouterr().out
    assert {"posterior", "log_likelihood", "observed_data"} <= set(names["data"].groups())


def test_students_that_are_named_exist():
    from pyro_opu import rivals
    from pyro_opu.guides import GUIDES
    from pyro_opu.objectives import as_objective

    code = BLOCKS[2]
    for name in re.findall(r"rivals\.(\w+)\(", code):
        assert callable(getattr(rivals, name)), name
    named = re.findall(r'guide="(\w+)"\)\s*# or "(\w+)", "(\w+)"', code)
    assert len(named) == 1 and set(named[0]) <= set(GUIDES)
    for name in re.findall(r'"(\w+)"', code.split("loss=")[1].splitlines()[0]):
        as_objective(name)


@pytest.mark.slow
def test_a_student_is_shipped_as_said(tmp_path):
    guide = pyro_opu.PredictiveGuide.for_inputs(torch.randn(9, 4), 3, hidden=(8,))
    fast, x = pyro_opu.OnePassPredictive(guide.eval(), (4,), 3), torch.randn(20, 4)
    names = run(BLOCKS[3], {}, tmp_path, {"fast": fast, "x": x, "new": slice(5)})
    # Fused float32 operations round differently.
    torch.testing.assert_close(
        names["captured"](x[:5]).mean, fast.dirichlet(x[:5]).mean, atol=1e-5, rtol=0
    )
    assert {path.name for path in tmp_path.iterdir()} == {"fast.safetensors", "fast.onnx"}
