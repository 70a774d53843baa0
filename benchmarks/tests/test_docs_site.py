"""The documents: links lead somewhere, the site builds without a warning, its examples run."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch

import pyro_opu
import pyro_opu.interop.scikit_learn
from tests.test_docstrings import ROOMS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TASKS = sorted((DOCS / "how_to").glob("*.md"))
CHOICES = sorted((DOCS / "choosing").glob("*.md"))
TOPICS = sorted((DOCS / "benchmarks").glob("*.md"))
TOP = sorted(path for path in DOCS.glob("*.md") if path.name != "README.md")
PAGES = [*TOP, *TASKS, *CHOICES, *TOPICS, *sorted((DOCS / "api").glob("*.md"))]
#: What is read in the repository, beside the site's pages.
BESIDE = [*ROOT.glob("*.md"), DOCS / "README.md", *ROOT.glob("tutorials/*.md")]
NOTEBOOKS = sorted(ROOT.glob("tutorials/*.ipynb"))
#: What an example may import and a user need not have.
OPTIONAL = (
    *("arviz", "laplace", "lightning", "mapie", "onnxruntime", "polyagamma", "pymc"),
    *("jax", "numpyro", "torchmetrics"),
    *("mlflow", "tensorboard", "wandb"),
    *("dask", "fastapi", "pyspark", "ray"),
    "alembic",  # mlflow-skinny has no store without it
)
EXAMPLES = {
    path.relative_to(DOCS).with_suffix("").as_posix(): found
    for path in PAGES
    if (found := re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
}


def notebook(text: str) -> str:
    """A notebook with one cell of text, and one that would fail if it were run."""
    shown = {"output_type": "stream", "name": "stdout", "text": "as it was run"}
    code = {"source": "raise SystemExit", "outputs": [shown], "execution_count": 1}
    cells = [
        {"id": "text", "cell_type": "markdown", "metadata": {}, "source": text},
        {"id": "code", "cell_type": "code", "metadata": {}, **code},
    ]
    metadata = {"language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def checkout(tmp_path):
    """The documents and two notebooks, the package by links; nothing is built in the tree."""
    skipped = shutil.ignore_patterns("_build", "tutorials", "__pycache__")
    shutil.copytree(DOCS, tmp_path / "docs", ignore=skipped)
    for name in ("pyro_opu", "models", "benchmarks", "CHANGELOG.md", "CONTRIBUTING.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "tutorials").mkdir()
    (tmp_path / "tutorials" / "01_a.ipynb").write_text(notebook("# First\n[next](02_b.ipynb)"))
    second = "# Second\n[students](../docs/students.md), [code](../benchmarks/run.py)"
    (tmp_path / "tutorials" / "02_b.ipynb").write_text(notebook(second))
    return tmp_path


def build(root: Path) -> Path:
    """The site, with warnings as errors."""
    target = root / "docs" / "_build"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, str(root / "docs"), str(target)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return target


def documented(site: Path) -> set[str]:
    """Names in the inventory of a site."""
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(packed).decode().splitlines()
    return {line.split()[0] for line in lines if " py:" in line}


def missing(names: set[str]) -> list[str]:
    """Public names that are not documented, at the top or somewhere in their room."""
    listed = {name: getattr(pyro_opu, name) for name in pyro_opu.__all__}
    top = {name: thing for name, thing in listed.items() if not inspect.ismodule(thing)}
    found = [name for name in top if f"pyro_opu.{name}" not in names]
    for room in ROOMS:
        inside = {n.rpartition(".")[2] for n in names if n.startswith(f"pyro_opu.{room}.")}
        module = importlib.import_module(f"pyro_opu.{room}")
        left = [n for n in module.__all__ if all(getattr(module, n) is not t for t in top.values())]
        found += [f"{room}.{name}" for name in left if name not in inside]
    return found


def test_what_is_missing_is_named():
    everything = {f"pyro_opu.{name}" for name in pyro_opu.__all__}
    assert {"transfer.Jitter", "distributions.NormalSticks"} <= set(missing(everything))
    assert "distill" in missing(everything - {"pyro_opu.distill"})


@pytest.mark.slow
def test_it_builds_without_a_warning_and_has_every_public_name(checkout):
    for module in ("sphinx", "myst_nb", "furo", "latex2mathml"):
        pytest.importorskip(module)
    site = build(checkout)
    names = documented(site)
    assert missing(names) == []

    # Tutorials are shown as they are, and not run.
    page = (site / "tutorials" / "02_b.html").read_text()
    assert 'href="../students.html"' in page and "benchmarks/run.py" in page
    assert "as it was run" in page
    assert "tutorials/01_a.html" in (site / "tutorials.html").read_text()

    # Nothing is loaded from elsewhere, formulas neither.
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    loaded = re.compile(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//|<link[^>]* href="https?:')
    assert [path.name for path, text in pages.items() if loaded.search(text)] == []
    assert (
        '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"'
        in pages[site / "how_it_works.html"]
    )


def test_without_tutorials_there_is_no_empty_table(monkeypatch, tmp_path):
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("conf", DOCS / "conf.py")
    conf = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec.loader.exec_module(conf)
    monkeypatch.setattr(conf, "HERE", tmp_path / "docs")
    (tmp_path / "docs").mkdir()
    conf.copied_tutorials()
    source = [(DOCS / "tutorials.md").read_text()]
    conf.fit_links(None, "tutorials", source)
    assert "# Tutorials" in source[0] and "toctree" not in source[0]
    # What was copied for an earlier build goes away with its notebook.
    (tmp_path / "tutorials").mkdir()
    (tmp_path / "tutorials" / "01_a.ipynb").write_text(notebook("# First"))
    conf.copied_tutorials()
    source = [(DOCS / "tutorials.md").read_text()]
    conf.fit_links(None, "tutorials", source)
    assert "toctree" in source[0]
    (tmp_path / "tutorials" / "01_a.ipynb").unlink()
    conf.copied_tutorials()
    assert list((tmp_path / "docs" / "tutorials").iterdir()) == []


def test_every_page_is_in_one_table_of_contents():
    pages = [path for path in DOCS.rglob("*.md") if not {"_build", "tutorials"} & {*path.parts}]
    trees = [
        (page.parent / f"{entry}.md").resolve()
        for page in pages
        for tree in re.findall(r"```\{toctree\}(.*?)```", page.read_text(), re.S)
        for entry in tree.splitlines()
        if entry and not entry.startswith(":") and "*" not in entry
    ]
    named = [path for path in trees if DOCS / "tutorials" not in path.parents]
    assert [path for path in named if not path.exists()] == []
    wanted = {path.resolve() for path in pages} - {DOCS / "index.md", DOCS / "README.md"}
    assert wanted - {*named} == set()
    assert [path.name for path in {*named} if named.count(path) > 1] == []


def test_pages_are_short():
    most = {path: 110 for path in TASKS} | {path: 80 for path in (*TOPICS, *CHOICES)}
    most[DOCS / "measured.md"] = 200
    long = [path.name for path, lines in most.items() if path.read_text().count("\n") > lines]
    assert long == []


def anchors(page: Path) -> set[str]:
    """What a link to a heading of a page may end in."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def prose(page: Path) -> str:
    """The text of a page or of a notebook without code."""
    text = page.read_text()
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def broken(page: Path) -> list[str]:
    """Links of a page that lead to no file of the repository, or to no heading of a page."""
    found = []
    for link in re.findall(r"\]\(((?!\w+:)[^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        known = anchors(target) if target.suffix == ".md" and target.exists() else {anchor}
        if not target.exists() or anchor and anchor not in known:
            found.append(link)
    return found


def test_links_lead_somewhere():
    pages = (*PAGES, *BESIDE, *NOTEBOOKS)
    assert {page.name: found for page in pages if (found := broken(page))} == {}


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A b's `c`\n[x](#a-bs-c) [y](#b) [z](none.md) ![p](page.md#a-b) [w](https://a.b)\n"
    )
    assert broken(page) == ["#b", "none.md", "page.md#a-b"]


def test_no_number_is_copied_between_marks_or_called_old():
    old = re.compile(r"older than (the|its) code|bit-equal since|<!-- (value|table|made|claims)\b")
    pages = (*PAGES, *BESIDE, *NOTEBOOKS)
    assert [page.name for page in pages if old.search(page.read_text())] == []


def test_every_argument_of_distill_is_in_a_group():
    rows = re.findall(r"^\| (`.*?`) \|", (DOCS / "arguments.md").read_text(), re.M)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    taken = [inspect.signature(each).parameters for each in (pyro_opu.distill, pyro_opu.Training)]
    of_source = inspect.signature(pyro_opu.as_teacher).parameters
    assert sorted(named) == sorted({*taken[0], *taken[1], *of_source})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # few draws, which have not mixed
@pytest.mark.parametrize("page", EXAMPLES)
def test_examples_run(page, monkeypatch, tmp_path):
    """In order, as they stand, but for fewer draws and steps."""
    distill = pyro_opu.distill

    def quick(*args, **options):
        training = options.get("training", pyro_opu.Training())
        options["training"] = dataclasses.replace(training, num_steps=10)
        return distill(*args, **options | {"num_steps": None, "progress": False})

    for module in (pyro_opu, pyro_opu.interop.scikit_learn):
        monkeypatch.setattr(module, "distill", quick)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of processes that an engine starts
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    absent = [name for name in OPTIONAL if importlib.util.find_spec(name) is None]
    names, without = {}, []
    for code in EXAMPLES[page]:
        torch.manual_seed(0)
        code = code.replace("num_samples=500, warmup_steps=200", "20, 10, disable_progbar=True")
        try:
            exec(compile(code, page, "exec"), names)
        except ImportError as error:
            if not any(name in str(error) for name in absent):
                raise
            without.append(str(error))
    if without:
        pytest.skip("; ".join(without))


def test_words_in_the_tables_of_choices_exist():
    from pyro_opu.guides import GUIDES
    from pyro_opu.guides.joint import JointGuide
    from pyro_opu.guides.normal import REGRESSION_GUIDES
    from pyro_opu.objectives import as_objective

    text = (DOCS / "choosing" / "guide_and_loss.md").read_text()
    losses, guides = (
        text.split(f"## Which {part}")[1].split("\n## ")[0] for part in ("objective", "guide")
    )
    named = [row.split("|")[1] for row in losses.splitlines() if row.startswith('| `"')]
    found = re.findall(r'"(\w+)"', " ".join(named))
    assert [as_objective(name) for name in found] and len(found) == 7
    named = [row.split("|")[1] for row in guides.splitlines() if row.startswith('| `"')]
    assert set(re.findall(r'"(\w+)"', " ".join(named))) == {*GUIDES, JointGuide.kind}
    assert set(re.findall(r'"(\w+)"', guides.split("For a regressor")[1])) == set(REGRESSION_GUIDES)


@pytest.mark.parametrize(("name", "word"), [("flow", "recalibrated"), ("house", "distillation")])
def test_a_picture_is_what_its_script_draws(monkeypatch, tmp_path, name, word):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(DOCS))
    picture = importlib.import_module(f"pictures_{name}")
    monkeypatch.setattr(picture, "TARGET", tmp_path / f"{name}.svg")
    picture.main()
    words = re.compile(r"<!-- (.*?) -->")  # matplotlib writes each text beside its outlines
    drawn, kept = ((folder / f"{name}.svg").read_text() for folder in (tmp_path, DOCS))
    assert words.findall(drawn) == words.findall(kept)
    assert word in " ".join(words.findall(kept))
