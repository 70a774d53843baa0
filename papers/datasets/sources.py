"""Files of a data set: found in a folder or downloaded, and always verified.

torchvision is not used: it unpacks files beside the archives, in a folder that must stay as it is,
and does not open a KMNIST of which only the test files are there.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from pyro_opu.checks import check_bool, instance_of
from pyro_opu.utils import files

PathLike = str | os.PathLike[str]
#: Timeout of a download, in seconds.
_PATIENCE = 30.0


@dataclass(frozen=True)
class File:
    """One file of a data set, and its checksum."""

    path: str  # in a data folder; a ``.gz`` is unpacked on reading
    md5: str
    urls: tuple[str, ...]  # in the order of trial
    unpacked_md5: str | None = None  # with it the unpacked file is read where there is no archive
    any_line_end: bool = False  # whether a text may have CR LF, as git on Windows gives it


def cache_folder() -> Path:
    """``pyro_opu`` in ``$XDG_CACHE_HOME``, else in ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyro_opu"


def content(file: File, root: PathLike | None = None, download: bool = True) -> bytes:
    """The verified bytes of a file, unpacked if it is an archive.

    It is read as :mod:`papers.datasets` says, and downloaded whole and verified, or not at all.
    """
    kinds = (str, os.PathLike, type(None))
    instance_of("root", root, kinds, "a path or None", "Pass the data folder.")
    check_bool("download", download)
    asked = "`root`" if root else "PYRO_OPU_DATA"
    given = root or os.environ.get("PYRO_OPU_DATA")
    folder = Path(given).expanduser() if given else cache_folder()
    forms = [file]
    if file.unpacked_md5 is not None:
        forms.append(File(file.path.removesuffix(".gz"), file.unpacked_md5, file.urls))
    for form in forms:
        place = folder / form.path
        if place.is_file():
            remedy = f"Replace it by the original, from {file.urls[0]}"
            remedy += "." if given else ", or delete it and it will be downloaded again."
            return _unpacked(_verified(place.read_bytes(), form, str(place), remedy), form)
    if given:
        raise _not_found(file, f"is not in {str(folder)!r}, the folder given by {asked}")
    if not download:
        raise _not_found(file, f"is not in {str(folder)!r}, and `download` is False")
    data = _downloaded(file)
    place = folder / file.path
    place.parent.mkdir(parents=True, exist_ok=True)
    files.put(place, data)
    return _unpacked(data, file)


def _unpacked(data: bytes, file: File) -> bytes:
    return gzip.decompress(data) if file.path.endswith(".gz") else data


def _verified(data: bytes, file: File, origin: str, remedy: str) -> bytes:
    if file.any_line_end:
        data = data.replace(b"\r\n", b"\n")
    got = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if got != file.md5:
        raise ValueError(
            f"{origin} must be the published {Path(file.path).name}, with md5 {file.md5}; got "
            f"{got} ({len(data):,} bytes). {remedy}"
        )
    return data


def _downloaded(file: File) -> bytes:
    failures: list[tuple[str, Exception]] = []
    for url in file.urls:
        try:
            request = Request(url, headers={"User-Agent": "pyro_opu"})
            with urlopen(request, timeout=_PATIENCE) as response:
                data: bytes = response.read()
        except (OSError, HTTPException) as error:
            failures.append((url, error))
            continue
        remedy = f"set PYRO_OPU_DATA to a folder that holds it as {file.path!r}."
        return _verified(data, file, url, f"Nothing was kept. Try again later, or {remedy}")
    reasons = "; ".join(f"{url}: {failure}" for url, failure in failures)
    raise _not_found(file, f"could not be downloaded ({reasons})") from failures[-1][1]


def _not_found(file: File, reason: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"the data file {file.path!r} {reason}. Either set PYRO_OPU_DATA, or `root`, to a folder "
        f"that holds it as {file.path!r}; or leave both unset, with `download=True`, and it is "
        f"downloaded from {file.urls[0]} into {str(cache_folder())!r}."
    )
