"""The README's example runs as it stands, with fewer draws and steps."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_example_starts_within_the_first_screen():
    assert README.read_text()[: README.read_text().index("```python")].count("\n") < 30


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the tracing compiler warns about constants in the model
def test_example_runs(tmp_path, capsys):
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    shorter = {
        "500, 200)": "20, 20, disable_progbar=True)",
        "x[transfer])": "x[transfer], num_steps=20, progress=False)",
    }
    for text, replacement in shorter.items():
        assert code.count(text) == 1
        code = code.replace(text, replacement)
    names: dict = {}
    here = Path.cwd()
    try:
        os.chdir(tmp_path)
        exec(compile(code, "README.md", "exec"), names)
    finally:
        os.chdir(here)
    fast, predictive, x, new = (names[name] for name in ("fast", "predictive", "x", "new"))
    mine, theirs = fast(x[new]), predictive(x[new])
    assert {k: (v.shape, v.dtype) for k, v in mine.items()} == {
        k: (v.shape, v.dtype) for k, v in theirs.items()
    }
    assert fast.dirichlet(x[new]).batch_shape == (119,)
    assert "energy distance" in capsys.readouterr().out
    assert (tmp_path / "fast.safetensors").is_file()
