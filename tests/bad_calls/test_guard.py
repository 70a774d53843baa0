"""The judge of bad calls: what is clear, and that a call writes nowhere but in its folder."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from bad_calls.guard import GUARD, confined
from bad_calls.judged import judged
from pyro_opu.checks import positive_int


def leave_a_file() -> None:
    Path("half").write_text("written")
    positive_int("n", 0)


@pytest.mark.parametrize(
    "call, outcome, message",
    [
        (lambda: positive_int("n", 0), "clear", "`n` must be a positive integer; got 0."),
        (lambda: torch.zeros(2) + torch.zeros(3), "raw", "The size of tensor a"),
        (lambda: {}["n"], "raw", "'n'"),
        (lambda: torch.zeros(2), "silent", "returned a value of type Tensor"),
        (leave_a_file, "silent", r"Left: \['half'\]"),
    ],
)
def test_outcome(call, outcome, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    found, said = judged(call)
    assert found == outcome and re.search(message, said)
    assert not list(tmp_path.iterdir())


#: Ways to change what lies outside, each of which names a file or folder there.
WRITES = {
    "write": lambda out: (out / "new").write_text("no"),
    "append": lambda out: (out / "kept").open("a"),
    "read and write": lambda out: (out / "kept").open("r+"),
    "by a descriptor": lambda out: os.open(out / "new", os.O_CREAT | os.O_WRONLY),
    "by its bytes": lambda out: open(os.fsencode(out / "new"), "wb"),
    "through a link": lambda out: (os.symlink(out, "link"), Path("link/new").write_text("no")),
    "by a relative path": lambda out: Path(os.path.relpath(out), "new").write_text("no"),
    "mkdir": lambda out: (out / "new").mkdir(),
    "makedirs": lambda out: os.makedirs(out / "new" / "er"),
    "rename": lambda out: (out / "kept").rename("mine"),
    "replace": lambda out: (Path("mine").write_text("no"), os.replace("mine", out / "kept")),
    "link": lambda out: (Path("mine").write_text("no"), os.link("mine", out / "new")),
    "symlink": lambda out: os.symlink("mine", out / "new"),
    "remove": lambda out: (out / "kept").unlink(),
    "rmtree": lambda out: shutil.rmtree(out),
    "remove from an open folder": lambda out: os.unlink("kept", dir_fd=os.open(out, os.O_RDONLY)),
    "truncate": lambda out: os.truncate(out / "kept", 0),
    "copy": lambda out: (Path("mine").write_text("no"), shutil.copy("mine", out / "new")),
    "a temporary file": lambda out: tempfile.mkstemp(dir=out),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("caught", [False, True])
def test_what_is_written_elsewhere_is_stopped_and_fails_the_test(name, caught, tmp_path) -> None:
    (tmp_path / "kept").write_text("kept")

    def call() -> None:
        try:
            WRITES[name](tmp_path)
        except OSError:
            if not caught:
                raise
        positive_int("n", 0)  # a clear error does not make up for it

    with pytest.raises(AssertionError, match="tried to write elsewhere"):
        judged(call)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_text() == "kept"
    assert GUARD.folder is None


def test_a_call_reads_anywhere_and_writes_in_its_folder_home_and_temporary_one(tmp_path) -> None:
    (tmp_path / "kept").write_text("kept")
    before = Path.cwd(), Path.home(), tempfile.gettempdir(), sys.dont_write_bytecode
    with confined() as folder:
        assert Path.cwd() == folder and not list(folder.iterdir())
        assert (tmp_path / "kept").read_text() == "kept"
        for parent in (Path("."), Path.home(), Path(tempfile.gettempdir())):
            (parent / "new").mkdir()
            (parent / "new" / "file").write_text("yes")
            shutil.rmtree(parent / "new")
        Path(os.devnull).write_text("gone")
        with pytest.raises(ValueError, match="null"):
            Path("a\0b").write_text("no")
    assert not list(folder.iterdir())  # it may serve again
    with confined() as other:
        (other / "left").touch()
    assert not other.exists()
    assert (Path.cwd(), Path.home(), tempfile.gettempdir(), sys.dont_write_bytecode) == before
    (tmp_path / "after").write_text("written once the call is over")
