"""Files of a data set: found in a folder or downloaded, and always verified.

torchvision is not used for the image sets: it unpacks the files beside the archives, in a folder
that must not be written to, and does not open a KMNIST of which only the test files are there.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from pyro_opu.checks import instance_of
from pyro_opu.utils import files

__all__ = ["File", "PathLike", "cache_folder", "content"]

PathLike = str | os.PathLike[str]
#: Timeout of a download, in seconds.
_PATIENCE = 30.0


@dataclass(frozen=True)
class File:
    """One file of a data set, and its checksum.

    Attributes:
        path: Its path in a data folder; a ``.gz`` is unpacked on reading.
        md5: Checksum of its bytes.
        urls: Where it can be downloaded, in the order of trial.
        unpacked_md5: Checksum of an archive's content; with it the unpacked file is read where
            there is no archive.
        any_line_end: Whether a text may also have CR LF, as some servers and git on Windows give
            it; ``md5`` is that of the text with LF.
    """

    path: str
    md5: str
    urls: tuple[str, ...]
    unpacked_md5: str | None = None
    any_line_end: bool = False


def cache_folder() -> Path:
    """``pyro_opu`` in ``$XDG_CACHE_HOME``, else in ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyro_opu"


def content(file: File, root: PathLike | None = None, download: bool = True) -> bytes:
    """The verified bytes of a file, unpacked if it is an archive.

    It is read from ``root``, by default the folder that ``PYRO_OPU_DATA`` names. Where neither is
    given, it is read from the cache folder, and downloaded into it if ``download``: verified and
    whole, or not at all. A given folder is never written to.
    """
    kinds = (str, os.PathLike, type(None))
    instance_of("root", root, kinds, "a path or None", "Pass the data folder.")
    asked = "`root`" if root else "PYRO_OPU_DATA"
    given = root or os.environ.get("PYRO_OPU_DATA")
    folder = Path(given).expanduser() if given else cache_folder()
    for form in _forms(file):
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


def _forms(file: File) -> tuple[File, ...]:
    """The file, and its unpacked form."""
    if file.unpacked_md5 is None:
        return (file,)
    return file, File(file.path.removesuffix(".gz"), file.unpacked_md5, file.urls)


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
        remedy = (
            "Nothing was kept. Try again later, or get the file elsewhere and set PYRO_OPU_DATA to "
            f"a folder that holds it as {file.path!r}."
        )
        return _verified(data, file, url, remedy)
    reasons = "; ".join(f"{url}: {failure}" for url, failure in failures)
    raise _not_found(file, f"could not be downloaded ({reasons})") from failures[-1][1]


def _not_found(file: File, reason: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"the data file {file.path!r} {reason}. Either set PYRO_OPU_DATA, or `root`, to a folder "
        f"that holds it as {file.path!r}; or leave both unset, with `download=True`, and it is "
        f"downloaded from {file.urls[0]} into {str(cache_folder())!r}."
    )
