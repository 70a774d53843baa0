"""The notebooks as they are committed; that their cells run, ``python -m tutorials.run`` tests."""

from __future__ import annotations

import ast
import base64
import importlib
import importlib.util
import json
import re
import struct
import subprocess
import sys
import types
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "tutorials"
PATHS = sorted(FOLDER.glob("*.ipynb"))
PLACES = re.compile(r"/(root|tmp|home|work|usr|opt|Users)\b|site-packages|ipykernel_\d")

every = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == kind]


def texts(path: Path) -> list[str]:
    """All that the outputs say, pictures left out."""
    found: list[str] = []
    for output in (output for cell in cells(path, "code") for output in cell["outputs"]):
        found.append("".join(output.get("text", [])))
        data = output.get("data", {})
        found += ["".join(value) for kind, value in data.items() if kind.startswith("text/")]
    return found


@every
def test_form_is_plain(path: Path) -> None:
    notebook = read(path)
    assert notebook["nbformat"] == 4 and notebook["nbformat_minor"] >= 5
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    ids = [cell["id"] for cell in notebook["cells"]]
    assert ids == [f"cell-{number:02d}" for number in range(1, len(ids) + 1)]
    assert 15 <= len(ids) <= 40
    assert not any(cell["metadata"] for cell in notebook["cells"])


@every
def test_begins_with_its_question_and_ends_with_where_to_go(path: Path) -> None:
    first, last = (source(read(path)["cells"][place]) for place in (0, -1))
    title, question, expect, elsewhere = re.split(r"\n\n(?=\*\*)", first)
    assert title.startswith("# ") and question.startswith("**Question.**") and "?" in question
    assert expect.startswith("**What to expect**")
    assert 4 <= len(re.findall(r"^\* ", expect, re.MULTILINE)) <= 6
    assert re.search(r"\bminute[^.;]* on one core", expect)
    assert elsewhere.startswith("**Without a clone.** `pip install") and "Data: " in elsewhere
    assert "## Where to go on" in last


@every
def test_has_exercises_with_answers(path: Path) -> None:
    """Questions before what computes the answers, and the answers in words, folded away."""
    places = {}
    for place, cell in enumerate(read(path)["cells"]):
        for words in ("## Exercises", "# Answers\n", "<summary>Answers</summary>"):
            if words in source(cell):
                places[words] = place, cell
    exercises, computed, told = (
        places[words] for words in ("## Exercises", "# Answers\n", "<summary>Answers</summary>")
    )
    assert exercises[0] < computed[0] < told[0]
    numbered = re.compile(r"^\d\. ", re.MULTILINE)
    questions = numbered.findall(source(exercises[1]))
    assert len(questions) >= 2 and questions == numbered.findall(source(told[1]))
    assert computed[1]["cell_type"] == "code" and computed[1]["outputs"]


@every
def test_links_lead_somewhere(path: Path) -> None:
    links = [
        link
        for cell in cells(path, "markdown")
        for link in re.findall(r"\]\((\S+?)\)", source(cell))
    ]
    assert links
    for link in links:
        assert link.startswith("https://") or (FOLDER / link).is_file(), link


@every
def test_sizes_are_chosen_in_one_cell(path: Path) -> None:
    """The first of code, behind the imports: full ones, and in a comment as many small ones."""
    code = [source(cell) for cell in cells(path, "code")]
    assert read(path)["cells"][1]["cell_type"] == "code"
    lines = [line for line in code[0].splitlines() if "# quick:" in line]
    assert lines and not any("# quick:" in text or "environ" in text for text in code[1:])
    for line in lines:
        names, full = line.partition("  # quick:")[0].split(" = ")
        small = line.partition("# quick: ")[2]
        counts = {
            len(ast.parse(f"({part},)").body[0].value.elts)  # type: ignore[attr-defined]
            for part in (names, full, small)
        }
        assert len(counts) == 1 and small in runner().small(line)
    assert "plots.use_style()" in code[0] and "environ" not in code[0]


@every
def test_code_compiles_and_imports_what_is_public(path: Path) -> None:
    for cell in cells(path, "code"):
        for node in ast.walk(ast.parse(source(cell))):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "pyro_opu":
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert public(module, alias.name), f"{node.module}.{alias.name}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "pyro_opu":
                    assert public(importlib.import_module("pyro_opu"), node.attr), node.attr


def public(module: types.ModuleType, name: str) -> bool:
    """In ``__all__``, a module of the package without an underscore, or of a file of models."""
    if module.__name__.startswith("pyro_opu.models."):
        return getattr(module, name).__module__ == module.__name__ and not name.startswith("_")
    if name in module.__all__ or name.startswith("_") or not hasattr(module, "__path__"):
        return name in module.__all__
    return importlib.util.find_spec(f"{module.__name__}.{name}") is not None


@every
def test_outputs_are_whole_and_clean(path: Path) -> None:
    code = cells(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {
        "stream",
        "display_data",
        "execute_result",
    }
    # Nothing on stderr: no warning of anyone's.
    assert not [o["text"] for o in outputs if o.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 1
    assert not [text for text in texts(path) if PLACES.search(text)]


@every
def test_numbers_are_numbers(path: Path) -> None:
    """A NaN in print is a result that is none; ``n/a`` is how the reports say so."""
    assert not [text for text in texts(path) if re.search(r"\bnan\b", text)]


@every
def test_text_names_every_student_that_is_not_faithful(path: Path) -> None:
    run = runner()
    assert run.unexplained(run.nbformat.read(path, as_version=4)) == []


@every
def test_pictures_are_sharp_and_modest(path: Path) -> None:
    """At 120 dots per inch, and at most 16 by 11 of them; notebooks of a size that opens fast."""
    assert path.stat().st_size < 1_500_000
    for cell in cells(path, "code"):
        for output in cell["outputs"]:
            if "image/png" in output.get("data", {}):
                png = base64.b64decode("".join(output["data"]["image/png"]))
                width, height = struct.unpack(">II", png[16:24])
                assert 300 <= width <= 1920 and height <= 1320


@every
def test_index_has_it(path: Path) -> None:
    rows = [row for row in (FOLDER / "README.md").read_text().splitlines() if path.name in row]
    assert len(rows) == 1 and rows[0].startswith("| [")
    title = source(read(path)["cells"][0]).splitlines()[0].removeprefix("# ")
    assert title.replace("`", "") in rows[0].replace("`", "")


# The runner: what needs no kernel ----------------------------------------------------------------


def runner() -> Any:
    pytest.importorskip("nbclient")
    return importlib.import_module("tutorials.run")


def test_runner_chooses_by_parts_of_names() -> None:
    run = runner()
    assert len(PATHS) == 14
    assert run.chosen([]) == PATHS and run.chosen([PATHS[3].stem[:2]]) == [PATHS[3]]
    with pytest.raises(SystemExit, match="`names` must be parts of"):
        run.chosen(["no such notebook"])


@pytest.mark.parametrize(
    ("line", "fails"),
    [
        ("from pyro_opu.utils.warnings import warn_user; warn_user('ours')", True),
        ("import warnings; warnings.warn('not ours')", False),
    ],
)
def test_a_warning_of_the_project_is_an_error(line: str, fails: bool) -> None:
    script = f"{runner().STRICT}\n{line}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stderr
    assert "ours" in done.stderr


@pytest.mark.parametrize(
    ("verdict", "text", "named"),
    [
        ("Not faithful, fair: 6.1 points", "The student is *not\nfaithful*.", True),
        ("head: Not faithful, fair: 6.1 points", "A fair student.", True),
        ("Not faithful, fair: 6.1 points", "Unfair, but nearly faithful.", False),
        ("Undecided, not graded: 6.1 points", "Too few inputs: undecided.", True),
        ("Undecided, good: 6.1 points", "", False),
        ("Faithful, good: 1.1 points", "", True),
    ],
)
def test_a_full_run_wants_words_for_a_student_that_is_not_faithful(
    verdict: str, text: str, named: bool
) -> None:
    new = runner().nbformat.v4
    code = new.new_code_cell(id="judged", outputs=[new.new_output("stream", text=verdict)])
    empty, said = new.new_code_cell(), new.new_markdown_cell(text)
    late = new.new_markdown_cell("It is not faithful, fair, undecided.")
    expected = [] if named else [("judged", verdict.partition(":")[0])]
    unexplained = runner().unexplained
    assert unexplained(new.new_notebook(cells=[code, empty, said, late])) == expected
    assert bool(unexplained(new.new_notebook(cells=[said, code]))) == ("Faithful" not in verdict)


@pytest.mark.parametrize("colours", [20, 300])
def test_pictures_are_packed_without_a_loss(colours: int) -> None:
    image = pytest.importorskip("PIL.Image")
    ramp = np.linspace(0, colours - 1, 300).round()[None] + np.zeros((100, 1))
    pixels = np.stack([ramp % 256, ramp // 256, 0 * ramp], -1).astype("uint8")
    before = BytesIO()
    image.fromarray(pixels).save(before, "PNG", compress_level=1)
    after = base64.b64decode(runner().packed(base64.b64encode(before.getvalue()).decode()))
    assert len(after) < len(before.getvalue())
    np.testing.assert_array_equal(np.asarray(image.open(BytesIO(after)).convert("RGB")), pixels)


def test_small_sizes_take_the_place_of_full_ones() -> None:
    source = "import torch\n\nSTEPS, DRAWS = 500, 3_000  # quick: 20, 30\nx = 3  # quick: no size"
    found = runner().small(source)
    assert found == "import torch\n\nSTEPS, DRAWS = 20, 30\nx = 3  # quick: no size"
