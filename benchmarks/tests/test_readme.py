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


def test_it_is_short_and_its_example_is_near_the_top():
    text = README.read_text()
    assert text.count("\n") <= 120
    assert text[: text.index("```python")].count("\n") < 30


def test_its_source_reads_as_the_page_does():
    """Few comments, each on a line of its own: two round what the scoreboard writes, one for CI."""
    text = README.read_text()
    lines = [line for line in text.splitlines() if "<!--" in line or "-->" in line]
    assert len(lines) <= 4 and all(re.fullmatch(r"<!-- [\w /-]+ -->", line) for line in lines)
    assert "<!-- test-command -->" in lines
    assert 0 < text.index("<!-- scoreboard -->") < text.index("<!-- /scoreboard -->")


@pytest.mark.filterwarnings("ignore")  # the tracing compiler warns about constants in the model
def test_three_ways_print_what_is_said(tmp_path, capsys):
    said = re.search(r"```text\n(.*?)```", README.read_text(), re.DOTALL).group(1).splitlines()
    names = run(BLOCKS[0], {"500, 200,": "40, 40,"}, tmp_path)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == said[0].replace("500", "40")
    assert 0 < float(shown[2]) < 0.2 and shown[1].startswith("tensor([") and len(shown) == len(said)
    assert shown[3].startswith("torch.Size([40, 74]) Routed(") and names["safe"].routed.last >= 5
    x, predictive, fast = names["new"], names["predictive"], names["fast"]
    shares = [way(x)["obs"].mean(0) for way in (names["exact"], predictive)]
    assert (shares[0] - shares[1]).abs().max() < 0.5  # labels of 40 draws each: five deviations
    assert (fast(x)["obs"].shape, fast(x)["obs"].dtype) == ((40, 69), torch.float32)


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
def test_a_student_is_shipped_as_said(tmp_path):
    guide = pyro_opu.PredictiveGuide.for_inputs(torch.randn(9, 4), 3, hidden=(8,))
    fast = pyro_opu.OnePassPredictive(guide.eval(), (4,), 3)
    run(BLOCKS[1], {}, tmp_path, {"fast": fast, "new": torch.randn(5, 4)})
    assert {path.name for path in tmp_path.iterdir()} == {"fast.safetensors", "fast.onnx"}
