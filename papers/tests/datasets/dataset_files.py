"""Files of data sets made by tests, and the server that serves them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch

from papers import datasets
from papers.datasets.sources import File


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``answers``: path -> body, or (body, the length that it claims to have)."""

    answers: dict[str, bytes | tuple[bytes, int]]
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        answer = self.server.answers.get(self.path)
        if answer is None:
            self.send_error(404)
            return
        body, length = answer if isinstance(answer, tuple) else (answer, len(answer))
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def url(server: Server, path: str) -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def everything_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def numbered(n: int = 40) -> datasets.Dataset:
    """Row i holds i and 10 i, and has the label i."""
    x = torch.arange(float(n))[:, None] * torch.tensor([1.0, 10.0])
    return datasets.Dataset(x, torch.arange(n), "numbered", ("a", "b"), ("0", "1"))


BODY = b"one,two\n1,2\n"


def a_file(*urls: str, **changes) -> File:
    return replace(File("sub/some.csv", md5(BODY), urls or ("http://127.0.0.1:9/no",)), **changes)


def put(folder: Path, path: str, data: bytes) -> Path:
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return place
