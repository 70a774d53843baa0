"""The README is plain to read, and its examples run as they stand, with fewer draws and steps."""

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


def test_its_source_reads_as_the_page_does():
    """Few comments, each on a line of its own: two round what the scoreboard writes, one for CI."""
    text = README.read_text()
    lines = [line for line in text.splitlines() if "<!--" in line or "-->" in line]
    assert len(lines) <= 4 and all(re.fullmatch(r"<!-- [\w /-]+ -->", line) for line in lines)
    assert "<!-- test-command -->" in lines
    assert 0 < text.index("<!-- scoreboard -->") < text.index("<!-- /scoreboard -->")


def test_first_example_runs_without_a_warning(tmp_path, capsys, recwarn):
    whole = "distill(predictive, x[300:500])"
    shorter = {whole: whole[:-1] + ", num_steps=20, progress=False)"}
    names = run(BLOCKS[0], shorter, tmp_path)
    shown = capsys.readouterr().out
    assert "distilling takes" in shown and "draws, held out" in shown and "tensor([" in shown
    assert names["fast"].dirichlet(names["x"][:5]).batch_shape == (5,)
    assert not [str(each.message) for each in recwarn if "pyro_opu" in each.filename]


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
    code = BLOCKS[1]
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
def test_a_student_is_shipped_as_said(tmp_path):
    guide = pyro_opu.PredictiveGuide.for_inputs(torch.randn(9, 4), 3, hidden=(8,))
    fast, x = pyro_opu.OnePassPredictive(guide.eval(), (4,), 3), torch.randn(20, 4)
    names = run(BLOCKS[2], {}, tmp_path, {"fast": fast, "x": x, "new": slice(5)})
    # Fused float32 operations round differently.
    torch.testing.assert_close(
        names["captured"](x[:5]).mean, fast.dirichlet(x[:5]).mean, atol=1e-5, rtol=0
    )
    assert {path.name for path in tmp_path.iterdir()} == {"fast.safetensors", "fast.onnx"}
