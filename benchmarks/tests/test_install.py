"""Installed in an environment of its own: ``pyro_opu`` with its models, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import pyro_opu

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; print(build_meta.{}('dist'))"
#: Run in a user's folder that holds a ``models.py`` of theirs.
BESIDE = """
import models
from pyro_opu.models.logistic_regression import logistic_regression

assert models.THEIRS == 1
print(logistic_regression.__code__.co_filename)
"""
ALONE = "import importlib.util; print(importlib.util.find_spec('models'))"


def run(folder: Path, *command: str | Path) -> str:
    """What a command prints where nothing points to this checkout."""
    known = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=known, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout.strip()


def build(tree: Path, hook: str) -> Path:
    """The file that the build backend makes of a folder."""
    said = run(tree, sys.executable, "-c", BUILD.format(hook))
    return tree / "dist" / said.splitlines()[-1]


def installed(tree: Path, wheel: Path) -> Path:
    """The Python of a fresh environment with a wheel, and with what this one has besides."""
    fresh = tree / "fresh"
    venv.create(fresh)
    python = fresh / "bin" / "python"
    folder = run(fresh, python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    install = ("install", "-q", "--no-deps", "--no-index", wheel)
    run(fresh, sys.executable, "-m", "pip", "--python", python, *install)
    others = {sysconfig.get_path(name) for name in ("purelib", "platlib")}  # torch and the like
    (Path(folder) / "others.pth").write_text("\n".join(sorted(others)))
    return python


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the distribution is built of, so that nothing is built in the checkout."""
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pyro_opu", tmp_path / "tree" / "pyro_opu", ignore=skipped)
    for name in ("models", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "tree", follow_symlinks=False)
    return tmp_path / "tree"


def test_tree_imports_its_own_models(tree: Path) -> None:
    """Without being installed, whatever other tree is."""
    found = run(tree, sys.executable, "-c", "import pyro_opu.models as m; print(m.__file__)")
    assert Path(found) == tree / "pyro_opu" / "models" / "__init__.py"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel of sdist", "wheel without links", "editable"])
def test_installed_beside_models_of_the_user(tree: Path, kind: str) -> None:
    code = {path.relative_to(tree).as_posix() for path in (tree / "pyro_opu").rglob("*.py")}
    if kind == "wheel without links":  # as a link is checked out where there are none
        (tree / "models").unlink()
        (tree / "models").write_text("pyro_opu/models")
    if kind == "wheel of sdist":
        with tarfile.open(build(tree, "build_sdist")) as packed:
            packed.extractall(tree / "unpacked", filter="data")
        (tree,) = (tree / "unpacked").iterdir()
    wheel = build(tree, "build_editable" if kind == "editable" else "build_wheel")
    if kind != "editable":
        with zipfile.ZipFile(wheel) as packed_wheel:
            names = {name for name in packed_wheel.namelist() if name.endswith(".py")}
        assert names == code

    python = installed(tree, wheel)
    user = tree / "user"
    user.mkdir()
    if kind != "editable":  # which puts the tree, and so its link, on the path
        assert run(user, python, "-c", ALONE) == "None"
    (user / "models.py").write_text("THEIRS = 1\n")
    imported = Path(run(user, python, "-c", BESIDE))
    assert imported.is_relative_to(tree / "pyro_opu" if kind == "editable" else tree / "fresh")


@pytest.mark.slow
def test_a_typed_program_is_checked_against_an_editable_install(tree: Path) -> None:
    python = installed(tree, build(tree, "build_editable"))
    user = tree / "user"
    user.mkdir()
    program = shutil.copy(Path(__file__).with_name("typed_calls.py"), user)
    settings = {"enableTypeIgnoreComments": False, "reportUnnecessaryTypeIgnoreComment": True}
    (user / "pyrightconfig.json").write_text(json.dumps(settings))
    assert run(user, python, program, "fast.safetensors").endswith(pyro_opu.__version__)
    for checker, *options in (
        ("mypy", "--strict", "--python-executable", python, program),
        ("pyright", "--pythonpath", python),
    ):
        pytest.importorskip(checker)
        run(user, sys.executable, "-m", checker, *options)
