"""Files written aside and moved into place; tensors and plain text in one safetensors file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

_FORMAT = "pyro_opu"


def put(path: Path, content: bytes) -> None:
    """Write a file beside its place and move it there: it appears whole or not at all."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        aside.write_bytes(content)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def placed(path: str | os.PathLike[str]) -> Path:
    """The path, if its folder exists.

    Raises:
        FileNotFoundError: it does not.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"`path` must lie in an existing folder; {str(path.parent)!r} does not exist. "
            "Create it first."
        )
    return path


def write(path: str | os.PathLike[str], kind: str, tensors: dict[str, Tensor], config: Any) -> None:  # noqa: ANN401
    """Write named tensors with a JSON description in the header; no pickle.

    Args:
        path: Where to; its folder must exist.
        kind: What the file holds, checked by :func:`read`.
        tensors: Named tensors.
        config: Anything JSON can hold.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    path = placed(path)
    metadata = {"format": _FORMAT, "kind": kind, "config": json.dumps(config)}
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    put(path, save(whole, metadata))  # save_file would make it unreadable to others


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], Any]:
    """Read back what :func:`write` wrote.

    Args:
        path: The file.
        kind: What it must hold.

    Returns:
        ``(tensors, config)``, tensors on the CPU.

    Raises:
        FileNotFoundError: no such file.
        ValueError: corrupt, not of this project, or of another kind.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"`path` must be a file written by pyro_opu; {str(path)!r} does not exist."
        )
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"`path` must be a safetensors file written by pyro_opu; {str(path)!r} is corrupt or "
            f"of another format ({error}). Save it again from the original."
        ) from error
    if metadata.get("format") != _FORMAT or metadata.get("kind") != kind:
        found = f"{metadata.get('format', 'unknown')}/{metadata.get('kind', 'unknown')}"
        raise ValueError(
            f"`path` must be a {kind} file written by pyro_opu; {str(path)!r} holds {found}. "
            f"Was it written by another library?"
        )
    return tensors, json.loads(metadata["config"])


def flatten(tree: Any, prefix: str = "") -> tuple[dict[str, Tensor], Any]:  # noqa: ANN401
    """Split nested dicts and lists into named tensors and what JSON can hold.

    Tuples come back from :func:`unflatten` as lists; keys of dicts stay numbers or text.
    """
    tensors: dict[str, Tensor] = {}

    def walk(node: Any, name: str) -> Any:  # noqa: ANN401
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


def unflatten(tensors: dict[str, Tensor], plain: Any) -> Any:  # noqa: ANN401
    """Put back together what :func:`flatten` took apart."""
    ((tag, content),) = plain.items()
    if tag == "tensor":
        return tensors[content]
    if tag == "dict":
        return {key: unflatten(tensors, value) for key, value in content}
    if tag == "list":
        return [unflatten(tensors, value) for value in content]
    return content
