"""A call that can write in a folder of its own, and nowhere else."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

#: Events of ``sys.audit`` that change a file or folder: which arguments are paths there, and which
#: are descriptors of the folders that these are relative to.
CHANGES = {
    "os.mkdir": ((0,), (2,)),
    "os.remove": ((0,), (1,)),
    "os.rmdir": ((0,), (1,)),
    "os.chmod": ((0,), (2,)),
    "os.utime": ((0,), (3,)),
    "os.symlink": ((1,), (2,)),
    "os.rename": ((0, 1), (2, 3)),
    "os.link": ((0, 1), (2, 3)),
    "os.truncate": ((0,), (None,)),
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """An audit hook, which cannot be removed: it looks at nothing while ``folder`` is None.

    Python's own files pass it, as all that the package writes do. Files that compiled code opens do
    not: what it writes at relative paths and in the home lands in the folder all the same.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self.stopped: list[str] = []
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        found: Any = ()
        if event in CHANGES:
            paths, folders = CHANGES[event]
            found = [
                (args[i], -1 if j is None else args[j]) for i, j in zip(paths, folders, strict=True)
            ]
        elif event == "open" and args[2] & WRITING:
            found = [(args[0], -1)]
        for path, folder in found:
            if not isinstance(path, int) and self.outside(path, folder):
                self.stopped.append(f"{event} {path!r}")
                raise PermissionError(f"{event}: {path!r} is outside the folder of this call")

    def outside(self, path: Any, folder: int) -> bool:
        try:
            name = os.fsdecode(path)
            if folder >= 0:  # a path relative to an open folder
                name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
            found = os.path.realpath(name)
        except (TypeError, ValueError):  # no path, or with a NUL: nothing can be written there
            return False
        return found != os.devnull and not f"{found}/".startswith(f"{self.folder}/")


GUARD = Guard()
FOLDERS = ("work", "home", "temporary")
#: A folder that was left empty: to make and remove one takes longer than most calls.
_LEFT: list[tempfile.TemporaryDirectory[str]] = []


@contextmanager
def _empty_folder() -> Iterator[Path]:
    """A folder with three empty ones."""
    made = _LEFT.pop() if _LEFT else tempfile.TemporaryDirectory()
    folder = Path(os.path.realpath(made.name))
    for name in FOLDERS:
        (folder / name).mkdir(exist_ok=True)
    try:
        yield folder
    finally:
        if sorted(folder.rglob("*")) == sorted(folder / name for name in FOLDERS):
            _LEFT.append(made)
        else:
            made.cleanup()


@contextmanager
def confined() -> Iterator[Path]:
    """A fresh working directory; whatever is written elsewhere is stopped, and an error after it.

    The home and the folder of temporary files lie beside it.

    Raises:
        AssertionError: after the call, if it tried to write elsewhere, whatever it raised itself.
    """
    with suppress(ImportError):  # it keeps a list of fonts in the home at its first import
        import matplotlib.pyplot  # noqa: F401
    before = os.getcwd()
    with _empty_folder() as folder:
        work, home, temporary = (folder / name for name in FOLDERS)
        changed = {"HOME": str(home), "TMPDIR": str(temporary)}
        changed["TORCHINDUCTOR_CACHE_DIR"] = str(temporary)  # its compiler keeps the first one
        with (
            mock.patch.dict(os.environ, changed),
            mock.patch.object(tempfile, "tempdir", str(temporary)),
            mock.patch.object(sys, "dont_write_bytecode", True),
        ):
            os.chdir(work)
            GUARD.folder, GUARD.stopped = str(folder), []
            try:
                yield work
            finally:
                GUARD.folder = None
                os.chdir(before)
                assert not GUARD.stopped, f"tried to write elsewhere: {GUARD.stopped}"
