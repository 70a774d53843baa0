"""Files written atomically; tensors and JSON in one file, with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from pyro_opu.checks import ArgumentError, check_path

_FORMAT = "pyro_opu"
_VERSION = 2  # of the format
#: The checksum in the header: that of the whole file with zeros in its place.
_CHECKSUM = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_ZEROS = "0" * 64
#: What reading a damaged description raises; a RecursionError is a RuntimeError.
_DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
_ABANDONED = 3600.0  # seconds
_LONGEST = 2**26  # bytes of a header


def put(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Replace a file atomically by content that may come in pieces; see :func:`replacing`."""
    with replacing(path) as file:
        file.writelines([content] if isinstance(content, bytes) else content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Replace a file atomically, also under concurrent readers and writers.

    What is written goes to a new file in the same folder, which is synced and moved into place at
    the end. The target of a symbolic link is replaced; permissions of an existing file are kept.
    """
    path = Path(os.path.realpath(path))
    _remove_abandoned(path)
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        with aside.open("xb") as file:
            with suppress(FileNotFoundError):  # before there is anything to read
                aside.chmod(stat.S_IMODE(path.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Whether this is the only one inside with the file, which is made; a killed one has left.

    Where files cannot be locked, as on Windows and on some network file systems, all are let in.
    """
    if fcntl is None:
        yield True
        return
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except (BlockingIOError, FileNotFoundError):  # gone: the one before was ready just now
            alone = False
        except OSError:
            alone = True
        yield alone


def _sync_folder(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # folders cannot be opened
        return
    handle = os.open(folder, os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems refuse
            os.fsync(handle)
    finally:
        os.close(handle)


def _remove_abandoned(path: Path) -> None:
    """Remove partial files of killed processes, not written to for an hour."""
    part = re.compile(re.escape(path.name) + r"\.(\d+|[0-9a-f]{16})\.part")
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if part.fullmatch(entry.name) and time.time() - entry.stat().st_mtime > _ABANDONED:
                os.unlink(entry)


def placed(path: str | os.PathLike[str], name: str = "path") -> Path:
    """The path, if a file can be written there."""
    path = check_path(name, path)
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise FileNotFoundError(
            f"`{name}` must lie in an existing folder; {str(folder)!r} does not exist. Create it."
        )
    if path.exists() and not path.is_file():
        raise ArgumentError(
            f"`{name}` must be the path of a file; {str(path)!r} is a folder or a device. "
            "Add a file name."
        )
    return path


def write(
    path: str | os.PathLike[str], kind: str, tensors: dict[str, Tensor], config: object
) -> None:
    """Write named tensors, with the ``kind`` of the file and a JSON ``config`` in the header."""
    path = placed(path)
    metadata = {
        "format": _FORMAT,
        "version": str(_VERSION),
        "kind": kind,
        "config": json.dumps(config),
        "sha256": _ZEROS,
    }
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    content = save(whole, metadata)
    found = _CHECKSUM.search(content)
    assert found is not None
    start, end = found.span(1)
    digest = hashlib.sha256(content).hexdigest().encode()
    put(path, content[:start] + digest + content[end:])


def is_of(path: Path, kind: str) -> bool:
    """Whether a file says that it is of this kind."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            metadata = json.loads(file.read(min(size, _LONGEST)))["__metadata__"]
        return (metadata["format"], metadata["kind"]) == (_FORMAT, kind)
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], Any]:
    """Read ``(tensors, config)`` of a file of this kind; tensors are on the CPU."""
    path = check_path("path", path)
    if not path.is_file():
        raise FileNotFoundError(
            f"`path` must be a file written by pyro_opu; {str(path)!r} does not exist."
        )
    try:
        content = path.read_bytes()
        tensors = load(content)  # refuses a header that does not fit the content
        header = content[: 8 + int.from_bytes(content[:8], "little")]
        metadata = json.loads(header[8:]).get("__metadata__") or {}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            f"`path` must be a safetensors file written by pyro_opu; {str(path)!r} is corrupt or "
            f"of another format ({error}). Save it again from the original."
        ) from error
    if metadata.get("format") != _FORMAT or metadata.get("kind") != kind:
        found = f"{metadata.get('format', 'unknown')}/{metadata.get('kind', 'unknown')}"
        raise ArgumentError(
            f"`path` must be a {kind} file written by pyro_opu; {str(path)!r} holds {found}. "
            "Was it written by another library?"
        )
    if (version := metadata.get("version", "none")) != str(_VERSION):
        raise ArgumentError(
            f"`path` must be of format version {_VERSION}; {str(path)!r} says {version[:20]!r}. It "
            "was written by another pyro_opu, older or newer: read it there, or make it again."
        )
    _check_sum(path, header, memoryview(content)[len(header) :])
    with description_of(path):
        return tensors, json.loads(metadata["config"])


def _check_sum(path: Path, header: bytes, body: memoryview) -> None:
    """Refuse a file of which any bit has changed."""
    place = _CHECKSUM.search(header)
    digest = hashlib.sha256(_CHECKSUM.sub(b'"sha256":"%s"' % _ZEROS.encode(), header, count=1))
    digest.update(body)
    if place is None or place.group(1).decode() != digest.hexdigest():
        raise ArgumentError(
            f"`path` must be a file as pyro_opu wrote it; the checksum of {str(path)!r} differs "
            "from the one that it states, so it is damaged. Copy or save it again."
        )


@contextmanager
def description_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn any error in reading a file's description into a ``ValueError``."""
    try:
        yield
    except _DAMAGE as error:
        raise ArgumentError(
            f"`path` must be a file whose description is whole; that of {str(path)!r} is damaged "
            f"({type(error).__name__}: {str(error)[:200]}). Save it again from the original."
        ) from error


def flatten(tree: object, prefix: str = "") -> tuple[dict[str, Tensor], Any]:
    """Split nested dicts and lists into named tensors and JSON; tuples become lists."""
    tensors: dict[str, Tensor] = {}

    def walk(node: object, name: str) -> Any:
        if isinstance(node, Tensor):
            name = f"{len(tensors)}{name}"  # the number tells {"a.b": t} from {"a": {"b": t}}
            tensors[name] = node
            return {"tensor": name}
        if isinstance(node, dict):
            return {"dict": [[key, walk(value, f"{name}.{key}")] for key, value in node.items()]}
        if isinstance(node, (list, tuple)):
            return {"list": [walk(value, f"{name}.{i}") for i, value in enumerate(node)]}
        return {"value": node}

    return tensors, walk(tree, prefix)


def unflatten(tensors: dict[str, Tensor], plain: object) -> Any:
    """The inverse of :func:`flatten`."""
    try:
        return _unflatten(tensors, plain)
    except _DAMAGE as error:
        raise ValueError(
            "the description of a checkpoint must be as pyro_opu wrote it; it is damaged "
            f"({type(error).__name__}: {error}). Remove the file and start again."
        ) from error


def _unflatten(tensors: dict[str, Tensor], plain: Any) -> Any:
    ((tag, content),) = plain.items()
    if tag == "tensor":
        return tensors[content]
    if tag == "dict":
        return {key: _unflatten(tensors, value) for key, value in content}
    if tag == "list":
        return [_unflatten(tensors, value) for value in content]
    if tag == "value":
        return content
    raise ValueError(f"{tag!r:.50} is no kind of node")
