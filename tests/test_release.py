"""What is released: a tree without placeholders, by workflows that test what is promised."""

from __future__ import annotations

import importlib.util
import re
import shutil
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
READ = ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "SECURITY.md")


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path, release: ModuleType) -> Path:
    """The files as a person would fill them in."""
    for name in READ:
        shutil.copy(ROOT / name, tmp_path)
        text = (tmp_path / name).read_text().replace(release.PLACEHOLDER, "github.com/us/")
        (tmp_path / name).write_text(text.replace("] - unreleased", "] - 2026-12-01"))
    return tmp_path


def version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_a_filled_in_tree_is_ready(tree: Path, release: ModuleType) -> None:
    assert release.complaints(tree, f"v{version()}") == []
    assert release.complaints(tree, "v9.9.9") == [f"the tag v9.9.9 is not v{version()}"]


@pytest.mark.parametrize(
    ("name", "text", "other", "complaint"),
    [
        ("SECURITY.md", "github.com/us/", "github.com/OWNER/", "has the placeholder"),
        ("pyproject.toml", "github.com/us/", "github.com/OWNER/", "has the placeholder"),
        ("pyproject.toml", "Issues = ", "Wiki = ", "Repository, Issues and Documentation"),
        ("CITATION.cff", f"version: {version()}", "version: 0.0.1", "not of version"),
        ("CHANGELOG.md", "2026-12-01", "unreleased", "has no date"),
    ],
)
def test_what_is_not_ready_is_refused(
    tree: Path, release: ModuleType, name: str, text: str, other: str, complaint: str
) -> None:
    content = (tree / name).read_text()
    assert text in content
    (tree / name).write_text(content.replace(text, other))
    (found,) = release.complaints(tree)
    assert complaint in found


def test_links_work_on_an_index(release: ModuleType) -> None:
    text = "[a](docs/a.md#b) ![p](docs/p.png) [c](https://c.d) [e](#f) [g](CHANGELOG.md)"
    assert release.absolute(text, "https://h/o/r", "v1") == (
        "[a](https://h/o/r/blob/v1/docs/a.md#b) ![p](https://h/o/r/raw/v1/docs/p.png) "
        "[c](https://c.d) [e](#f) [g](https://h/o/r/blob/v1/CHANGELOG.md)"
    )
    readme = release.absolute((ROOT / "README.md").read_text(), "https://h/o/r", "v1")
    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert links and all(link.startswith(("https://", "http://", "#")) for link in links)


def test_one_version_is_unreleased_at_most() -> None:
    headings = re.findall(r"^## \[(.*?)\] - (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings and [date for _, date in headings].count("unreleased") <= 1


def test_workflows_try_every_python_and_pin_what_they_use() -> None:
    yaml = pytest.importorskip("yaml")
    folder = ROOT / ".github" / "workflows"
    flows = {path.stem: yaml.safe_load(path.read_text()) for path in folder.glob("*.yml")}
    assert set(flows) == {"tests", "docs", "release"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python ::" in each]
    tried = flows["tests"]["jobs"]["pythons"]["strategy"]["matrix"]["python"]
    assert tried == [each for each in named if "." in each]
    used = re.findall(r"uses: (\S+)", "".join(path.read_text() for path in folder.glob("*.yml")))
    assert all(re.search(r"@v\d+\.\d+\.\d+$", each) or each.startswith("./") for each in used)
    publish = flows["release"]["jobs"]["publish"]
    assert set(publish["needs"]) == {"tests", "docs", "build"}
    assert publish["permissions"] == {"id-token": "write"}


def test_the_paper_cites_what_its_bibliography_has() -> None:
    paper, entries = (ROOT / "paper.md").read_text(), (ROOT / "paper.bib").read_text()
    known = set(re.findall(r"^@\w+\{(\w+),", entries, re.M))
    assert set(re.findall(r"@([a-z]+\d*)\b", paper)) == known
    body = paper.split("---", 2)[2]
    assert 750 <= len(body.split()) <= 1750  # what JOSS asks for
