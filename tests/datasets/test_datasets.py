"""Data sets: the published ones as they should be, and how files are found, fetched and refused."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from pyro_opu import datasets
from pyro_opu.datasets import images, sources, tabular
from pyro_opu.datasets.sources import File, cache_folder, content


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data folder is set, and the cache is a folder of this test; returns that."""
    monkeypatch.delenv("PYRO_OPU_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache" / "pyro_opu"


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


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.answers, running.asked = {}, []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def url(server: Server, path: str) -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def everything_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


# --- the record, splitting -------------------------------------------------------------------


def numbered(n: int = 40) -> datasets.Dataset:
    """Row i holds i and 10 i, and has the label i."""
    x = torch.arange(float(n))[:, None] * torch.tensor([1.0, 10.0])
    return datasets.Dataset(x, torch.arange(n), "numbered", ("a", "b"), ("0", "1"))


def test_record_is_frozen_short_and_checked():
    data = numbered()
    assert len(data) == 40
    assert repr(data) == "Dataset('numbered': 40 x 2, 2 classes)"
    assert repr(datasets.toy_regression()) == "Dataset('toy_regression': 20 x 1)"
    with pytest.raises(FrozenInstanceError):
        data.x = data.x + 1
    few = data.take(torch.tensor([3, 1]))
    assert few.y.tolist() == [3, 1] and few.x[:, 1].tolist() == [30.0, 10.0]
    assert few.feature_names == ("a", "b") and few.name == "numbered"
    with pytest.raises(
        ValueError, match=r"`y` must have shape \(N,\).*got y \(39,\) and x \(40, 2\)"
    ):
        replace(data, y=data.y[1:])
    with pytest.raises(ValueError, match=r"`y` must have shape \(N,\).*got y \(40, 1\)"):
        replace(data, y=data.y[:, None])


@pytest.mark.parametrize(("test", "rows"), [(0.1, 4), (0.49, 20), (7, 7), (1, 1), (39, 39)])
def test_split_parts_are_disjoint_whole_and_keep_rows_together(test, rows):
    train, held = datasets.split(numbered(), test=test, seed=3)
    assert (len(train), len(held)) == (40 - rows, rows)
    assert sorted([*train.y.tolist(), *held.y.tolist()]) == list(range(40))
    for part in (train, held):
        assert torch.equal(part.x[:, 0], part.y.float())


def test_split_follows_the_stated_generator_and_no_other():
    before = torch.get_rng_state()
    train, held = datasets.split(numbered(), test=0.25, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(5))
    assert torch.equal(held.y, order[:10]) and torch.equal(train.y, order[10:])
    again = datasets.split(numbered(), test=0.25, seed=5)[1]
    assert torch.equal(again.y, held.y)
    assert not torch.equal(datasets.split(numbered(), test=0.25, seed=6)[1].y, held.y)
    smaller = datasets.split(numbered(), test=0.1, seed=5)[1]
    assert set(smaller.y.tolist()) < set(held.y.tolist())


@pytest.mark.parametrize("test", [0.0, 1.0, 1.5, -0.1, math.nan, True])
def test_split_refuses_no_part(test):
    with pytest.raises(ValueError, match=r"`test` must be a fraction of the rows, in \(0, 1\), or"):
        datasets.split(numbered(), test=test)


@pytest.mark.parametrize("test", [0, 40, -1, 0.001, 0.999])
def test_split_refuses_an_empty_part(test):
    with pytest.raises(ValueError, match=r"`test` must leave at least one row on either side"):
        datasets.split(numbered(), test=test)


# --- scaling ---------------------------------------------------------------------------------


def loop_standardize(train: np.ndarray, x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    for d in range(x.shape[1]):
        mean = sum(train[:, d]) / len(train)
        sd = math.sqrt(sum((v - mean) ** 2 for v in train[:, d]) / len(train))
        out[:, d] = (x[:, d] - mean) / sd
    return out


def test_standardize_against_a_loop():
    train = torch.randn(30, 4, dtype=torch.float64) * 7 + 100
    other = torch.randn(9, 4, dtype=torch.float64) * 7 + 100
    got_train, got_other = datasets.standardize(train, other)
    for got, x in ((got_train, train), (got_other, other)):
        np.testing.assert_allclose(got, loop_standardize(train.numpy(), x.numpy()), rtol=1e-10)
    # 1e-12: rounding of a mean of 30 numbers of size 1.
    torch.testing.assert_close(got_train.mean(0), torch.zeros(4).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(got_train.std(0, correction=0), torch.ones(4).double())
    assert (got_other.mean(0).abs() > 1e-3).all()  # the others' own mean is not taken


def test_l2_columns_against_a_loop():
    train, other = torch.randn(30, 4, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
    got_train, got_other = datasets.l2_columns(train, other)
    for d in range(4):
        norm = math.sqrt(sum(float(v) ** 2 for v in train[:, d]))
        torch.testing.assert_close(got_train[:, d], train[:, d] / norm)
        torch.testing.assert_close(got_other[:, d], other[:, d] / norm)
    torch.testing.assert_close(got_train.norm(dim=0), torch.ones(4).double())
    assert ((got_other.norm(dim=0) - 1).abs() > 1e-3).all()


@pytest.mark.parametrize("scale", [datasets.standardize, datasets.l2_columns])
def test_a_row_looks_the_same_in_every_part(scale):
    train, other = torch.randn(20, 3), torch.randn(6, 3)
    other[2] = train[7]
    got_train, got_other, got_third = scale(train, other, train[7:8])
    assert torch.equal(got_other[2], got_train[7]) and torch.equal(got_third[0], got_train[7])


@pytest.mark.parametrize("scale", [datasets.standardize, datasets.l2_columns])
def test_scaling_gives_back_what_it_was_given(scale):
    data = numbered()
    before = data.x.clone()
    scaled, raw = scale(data, torch.ones(3, 2))
    assert isinstance(scaled, datasets.Dataset) and isinstance(raw, torch.Tensor)
    assert scaled.y is data.y and scaled.feature_names == data.feature_names
    assert scaled.x.dtype == raw.dtype == torch.float32
    assert torch.equal(data.x, before)
    (pictures,) = scale(torch.rand(5, 4, 4))
    assert pictures.shape == (5, 4, 4)
    assert len(scale(data)) == 1


@pytest.mark.parametrize("value", [0.0, 0.1, -3e7])
def test_constant_columns_are_safe(value):
    train = torch.stack([torch.full((7,), value), torch.arange(7.0)], 1)
    other = torch.tensor([[value, 1.0], [value + 8.0, 2.0]])
    got, got_other = datasets.standardize(train, other)
    assert torch.equal(got[:, 0], torch.zeros(7))  # 0.1 has no exact mean, and no sd of exactly 0
    assert got_other[:, 0].tolist() == [0.0, (other[1, 0] - other[0, 0]).item()]
    got, got_other = datasets.l2_columns(train, other)
    assert got.isfinite().all() and got_other.isfinite().all()
    if value == 0.0:
        assert torch.equal(got[:, 0], torch.zeros(7)) and got_other[1, 0] == 8.0
    (single,) = datasets.standardize(torch.tensor([[4.0, 5.0]]))
    assert torch.equal(single, torch.zeros(1, 2))


def test_scaling_keeps_digits_of_large_offsets():
    train = 1e6 + torch.arange(8.0)[:, None]  # float32 sums of squares would lose all digits
    (got,) = datasets.standardize(train)
    expected = (torch.arange(8.0) - 3.5) / math.sqrt(63 / 12)
    torch.testing.assert_close(got[:, 0], expected)


@pytest.mark.parametrize("scale", [datasets.standardize, datasets.l2_columns])
def test_scaling_failures(scale):
    holed = numbered()
    holed.x[3, 1] = math.nan
    with pytest.raises(ValueError, match=r"`train` must not hold missing.*NaN in b\. .*`missing=`"):
        scale(holed)
    with pytest.raises(ValueError, match=r"`others\[1\]` must not hold.*NaN in 1 columns"):
        scale(numbered(), numbered(), holed.x)
    with pytest.raises(ValueError, match=r"`train` must be finite; got NaN or infinity in 1 of 2"):
        scale(torch.tensor([[1.0], [math.inf]]))
    with pytest.raises(ValueError, match=r"`others\[0\]` must have shape \(N, 2\); got \(4, 3\)"):
        scale(numbered(), torch.zeros(4, 3))
    with pytest.raises(ValueError, match="`train` must hold at least one input"):
        scale(torch.zeros(0, 3))
    with pytest.raises(TypeError, match="`train` must have a floating dtype"):
        scale(torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"`others\[0\]` must be a torch\.Tensor.*got ndarray"):
        scale(numbered(), np.zeros((3, 2)))


# --- toys ------------------------------------------------------------------------------------


def test_two_moons_is_that_of_scikit_learn():
    from sklearn.datasets import make_moons

    data = datasets.two_moons(61, noise=0.2, seed=4)
    x, y = make_moons(61, noise=0.2, random_state=4)
    np.testing.assert_array_equal(data.x.numpy(), x.astype(np.float32))
    assert data.y.tolist() == y.tolist() and data.y.bincount().tolist() == [30, 31]
    assert data.x.dtype == torch.float32 and data.y.dtype == torch.int64
    with pytest.raises(ValueError, match="`n` must be an integer of at least 2; got 1"):
        datasets.two_moons(1)


def test_toy_classification_is_as_stated():
    draws = [datasets.toy_classification(seed) for seed in range(400)]
    x = torch.stack([d.x for d in draws])
    assert x.shape == (400, 20, 2) and x.abs().max() < 10  # the domain; 5.3 sd to its edge
    for data in draws[:3]:
        assert data.y.tolist() == [0] * 10 + [1] * 10
    for part, centre in ((x[:, :10], [-2.0, 2.0]), (x[:, 10:], [2.0, -2.0])):
        flat = part.reshape(-1, 2)
        # 5 sigma of Monte Carlo with 4,000 points: mean 1.5 / sqrt(4000), covariance the like.
        assert (flat.mean(0) - torch.tensor(centre)).abs().max() < 5 * 1.5 / math.sqrt(4000)
        error = (flat.T.cov() - 2.25 * torch.eye(2)).abs().max()
        assert error < 5 * 2.25 * math.sqrt(2 / 4000)
    beyond = torch.cat([x[:, :10, 0] > x[:, :10, 1], x[:, 10:, 0] < x[:, 10:, 1]]).float().mean()
    # The 3 % of the docstring; 5 sigma with 8,000 points is 0.0095.
    assert abs(beyond - 0.0297) < 0.0095


def test_toy_regression_is_as_stated():
    data = datasets.toy_regression(20_000, seed=1)
    x, noise = data.x[:, 0].double(), data.y.double() - data.x[:, 0].double() ** 3
    assert data.x.shape == (20_000, 1) and data.y.dtype == torch.float32
    assert -4 <= x.min() < -3.99 and 3.99 < x.max() <= 4
    # 5 sigma of Monte Carlo with 20,000 points, of a mean and of a variance of 9.
    assert abs(noise.mean()) < 5 * 3 / math.sqrt(20_000)
    assert abs(noise.var() - 9) < 5 * 9 * math.sqrt(2 / 20_000)
    assert abs(x.mean()) < 5 * 8 / math.sqrt(12 * 20_000)
    assert len(datasets.toy_regression()) == 20 and datasets.toy_regression().class_names == ()
    with pytest.raises(ValueError, match="`n` must be a positive integer; got 0"):
        datasets.toy_regression(0)


@pytest.mark.parametrize(
    "make", [datasets.two_moons, datasets.toy_classification, datasets.toy_regression]
)
def test_toys_follow_their_seed_and_no_other(make):
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, again, other = make(seed=1), make(seed=1), make(seed=2)
    assert torch.equal(first.x, again.x) and torch.equal(first.y, again.y)
    assert not torch.equal(first.x, other.x)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)


# --- where files are found -------------------------------------------------------------------

BODY = b"one,two\n1,2\n"


def a_file(*urls: str, **changes) -> File:
    return replace(File("sub/some.csv", md5(BODY), urls or ("http://127.0.0.1:9/no",)), **changes)


def put(folder: Path, path: str, data: bytes) -> Path:
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return place


def test_root_goes_before_environment_before_cache(nowhere, tmp_path, monkeypatch):
    contents = {name: f"from {name}".encode() for name in ("root", "environment", "cache")}
    folders = {"root": tmp_path / "r", "environment": tmp_path / "e", "cache": nowhere}
    for name, folder in folders.items():
        put(folder, "sub/some.csv", contents[name])

    def file(name: str) -> File:  # only the folder that should be read has the right sum
        return a_file(md5=md5(contents[name]))

    assert content(file("cache")) == contents["cache"]
    monkeypatch.setenv("PYRO_OPU_DATA", str(folders["environment"]))  # read at the call
    assert content(file("environment")) == contents["environment"]
    assert content(file("root"), folders["root"]) == contents["root"]
    assert content(file("root"), str(folders["root"])) == contents["root"]
    monkeypatch.setenv("PYRO_OPU_DATA", "")
    assert content(file("cache")) == contents["cache"]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYRO_OPU_DATA", "~/e")
    assert content(file("environment")) == contents["environment"]


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "pyro_opu"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "pyro_opu"


@pytest.mark.parametrize("by", ["`root`", "PYRO_OPU_DATA"])
def test_given_folder_without_the_file_is_neither_filled_nor_passed_over(
    by, nowhere, tmp_path, monkeypatch, server
):
    given = tmp_path / "given"
    given.mkdir()
    put(nowhere, "sub/some.csv", BODY)  # the cache is no substitute for what was asked for
    server.answers["/some.csv"] = BODY
    if by == "PYRO_OPU_DATA":
        monkeypatch.setenv("PYRO_OPU_DATA", str(given))
    with pytest.raises(FileNotFoundError) as caught:
        content(a_file(url(server, "/some.csv")), given if by == "`root`" else None)
    message = str(caught.value)
    assert f"'sub/some.csv' is not in {str(given)!r}, the folder given by {by}." in message
    assert "set PYRO_OPU_DATA, or `root`, to a folder that holds it as 'sub/some.csv'" in message
    assert f"downloaded from {url(server, '/some.csv')} into {str(nowhere)!r}" in message
    assert everything_in(given) == [] and server.asked == []


def test_found_file_that_differs_is_an_error(nowhere, tmp_path):
    place = put(tmp_path / "given", "sub/some.csv", b"damaged")
    expected = (
        rf"{place} must be the published some\.csv, with md5 {md5(BODY)}; got {md5(b'damaged')} "
        r"\(7 bytes\)\. Replace it by the original, from http://127\.0\.0\.1:9/no\.$"
    )
    with pytest.raises(ValueError, match=expected):
        content(a_file(), tmp_path / "given")
    put(nowhere, "sub/some.csv", b"damaged")
    with pytest.raises(ValueError, match=r"or delete it and it will be downloaded again\.$"):
        content(a_file())


def test_line_ends_of_texts(tmp_path):
    windows = BODY.replace(b"\n", b"\r\n")
    put(tmp_path, "sub/some.csv", windows)
    assert content(a_file(any_line_end=True), tmp_path) == BODY
    with pytest.raises(ValueError, match="must be the published"):
        content(a_file(), tmp_path)


def test_archives_and_their_contents(tmp_path, nowhere):
    packed = gzip.compress(BODY, mtime=0)
    file = File("some.gz", md5(packed), ("http://127.0.0.1:9/no",), unpacked_md5=md5(BODY))
    with pytest.raises(FileNotFoundError, match=r"'some\.gz' is not in"):
        content(file, tmp_path)
    bare = put(tmp_path, "some", BODY)
    assert content(file, tmp_path) == BODY
    with pytest.raises(FileNotFoundError):  # what cannot be verified is not read
        content(replace(file, unpacked_md5=None), tmp_path)
    bare.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"the published some, with md5"):
        content(file, tmp_path)
    put(tmp_path, "some.gz", packed)  # goes first
    assert content(file, tmp_path) == BODY


# --- downloading, from this machine ----------------------------------------------------------


def test_download_is_kept_and_not_repeated(nowhere, server):
    server.answers["/some.csv"] = BODY.replace(b"\n", b"\r\n")
    file = a_file(url(server, "/some.csv"), any_line_end=True)
    assert content(file) == BODY
    assert everything_in(nowhere) == ["sub/some.csv"]
    assert (nowhere / "sub/some.csv").read_bytes() == BODY
    server.answers.clear()
    assert content(file) == BODY and content(file, download=False) == BODY
    assert server.asked == ["/some.csv"]


def test_download_from_a_file_address_and_of_an_archive(nowhere, tmp_path):
    packed = gzip.compress(BODY, mtime=0)
    source = put(tmp_path, "there/some.gz", packed)
    file = File("in/some.gz", md5(packed), (source.as_uri(),), unpacked_md5=md5(BODY))
    assert content(file) == BODY
    assert (nowhere / "in/some.gz").read_bytes() == packed


def test_next_address_where_one_fails(nowhere, server):
    server.answers["/cut"] = (BODY[:5], len(BODY))  # the connection ends early
    server.answers["/some.csv"] = BODY
    addresses = [url(server, path) for path in ("/missing", "/cut", "/some.csv", "/never")]
    assert content(a_file(*addresses)) == BODY
    assert server.asked == ["/missing", "/cut", "/some.csv"]


@pytest.mark.parametrize("download", [True, False])
def test_no_network_is_one_error_with_both_ways(download, nowhere, server):
    server.answers["/cut"] = (BODY[:5], len(BODY))
    file = a_file(url(server, "/missing"), url(server, "/cut"))
    with pytest.raises(FileNotFoundError) as caught:
        content(file, download=download)
    message = str(caught.value)
    if download:
        assert "could not be downloaded" in message
        assert f"{url(server, '/missing')}: HTTP Error 404" in message
        assert f"{url(server, '/cut')}: IncompleteRead(5 bytes read" in message
        assert caught.value.__cause__ is not None
    else:
        assert f"is not in {str(nowhere)!r}, and `download` is False" in message
        assert server.asked == []
    assert "set PYRO_OPU_DATA" in message and "with `download=True`" in message
    assert not nowhere.exists()


def test_refused_connection(nowhere):
    with pytest.raises(FileNotFoundError, match=r"could not be downloaded \(http://127\.0\.0\.1:9"):
        content(a_file())


def test_download_of_something_else_leaves_nothing_behind(nowhere, server):
    server.answers["/some.csv"] = b"<html>please log in</html>"
    address = url(server, "/some.csv")
    with pytest.raises(ValueError, match=f"{address} must be the published.*Nothing was kept"):
        content(a_file(address))
    assert not nowhere.exists()


def test_interrupted_writing_leaves_nothing_behind(nowhere, server, monkeypatch):
    server.answers["/some.csv"] = BODY
    seen = []

    def interrupt(aside, place):
        seen.append((Path(aside).read_bytes(), Path(aside).name, Path(place).exists()))
        raise KeyboardInterrupt

    monkeypatch.setattr(sources.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        content(a_file(url(server, "/some.csv")))
    ((written, name, in_place),) = seen
    assert written == BODY and not in_place
    assert re.fullmatch(r"some\.csv\.[0-9a-f]{16}\.part", name)  # of no other writer
    assert everything_in(nowhere) == []


# --- reading, from small files made here -----------------------------------------------------


def idx(values: np.ndarray) -> bytes:
    """The format of MNIST: 0, 0, 8 for bytes, the number of axes, their lengths, the bytes."""
    return (
        struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()
    )


@pytest.fixture
def small_mnist(tmp_path, monkeypatch) -> tuple[Path, np.ndarray, np.ndarray]:
    """Five pictures of 3 x 4, and their labels, in place of MNIST's test rows."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 4)).astype(np.uint8)
    pixels[0, 0, :2] = 0, 255
    labels = np.array([3, 0, 9, 1, 1], np.uint8)
    for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
        data, packed = idx(values), gzip.compress(idx(values), mtime=0)
        put(tmp_path, f"MNIST/raw/t10k-{kind}-ubyte.gz", packed)
        key = ("MNIST", "t10k", kind.partition("-")[0])
        monkeypatch.setitem(images._SUMS, key, (md5(packed), md5(data)))
    return tmp_path, pixels, labels


@pytest.mark.parametrize("form", ["packed", "unpacked"])
def test_idx_files(form, small_mnist):
    root, pixels, labels = small_mnist
    if form == "unpacked":
        for path in (root / "MNIST" / "raw").glob("*.gz"):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    before = everything_in(root)
    data = datasets.mnist(train=False, root=root)
    assert data.x.shape == (5, 3, 4) and data.x.dtype == torch.float32
    for n in range(5):
        for row in range(3):
            for column in range(4):
                assert data.x[n, row, column] == np.float32(pixels[n, row, column]) / np.float32(
                    255
                )
    assert data.y.tolist() == labels.tolist() and data.y.dtype == torch.int64
    assert data.class_names == tuple("0123456789")
    assert everything_in(root) == before  # nothing is unpacked beside the archives


@pytest.mark.parametrize(
    ("load", "folder"),
    [
        (datasets.mnist, "MNIST"),
        (datasets.fashion_mnist, "FashionMNIST"),
        (datasets.kmnist, "KMNIST"),
    ],
)
@pytest.mark.parametrize("train", [True, False])
def test_image_sets_ask_for_the_right_files(load, folder, train, tmp_path):
    part = "train" if train else "t10k"
    with pytest.raises(FileNotFoundError, match=rf"'{folder}/raw/{part}-images-idx3-ubyte\.gz'"):
        load(train=train, root=tmp_path)


def test_image_sets_download_both_files(nowhere, small_mnist, server, monkeypatch):
    root, _, labels = small_mnist
    raw = root / "MNIST" / "raw"
    server.answers = {f"/{path.name}": path.read_bytes() for path in raw.glob("*.gz")}
    monkeypatch.setitem(images._SERVERS, "MNIST", (url(server, "/gone/"), url(server, "/")))
    assert datasets.mnist(train=False).y.tolist() == labels.tolist()
    assert everything_in(nowhere / "MNIST" / "raw") == everything_in(raw)


def small_semeion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Three pictures: all black, all white, one white pixel; labels 4, 0, 9."""
    pictures = np.zeros((3, 16, 16))
    pictures[1], pictures[2, 5, 6] = 1, 1
    rows = np.hstack([pictures.reshape(3, 256), np.eye(10)[[4, 0, 9]]])
    text = "\r\n".join(" ".join(f"{v:.4f}" for v in row) + " " for row in rows).encode()
    put(tmp_path, "semeion.data", text)
    monkeypatch.setattr(images, "SEMEION", replace(images.SEMEION, md5=md5(text)))
    return pictures


def test_semeion_sizes(tmp_path, monkeypatch):
    pictures = small_semeion(tmp_path, monkeypatch)
    plain = datasets.semeion(root=tmp_path)
    np.testing.assert_array_equal(plain.x.numpy(), pictures)
    assert plain.y.tolist() == [4, 0, 9]
    framed = datasets.semeion(16, pad=6, root=tmp_path).x
    assert framed.shape == (3, 28, 28) and framed[2].argmax() == (5 + 6) * 28 + 6 + 6
    assert torch.equal(framed[:, 6:22, 6:22], plain.x) and framed.sum() == plain.x.sum()
    large = datasets.semeion(20, pad=4, root=tmp_path).x
    assert large.shape == (3, 28, 28) and 0 <= large.min() and large.max() <= 1
    # 1e-5: float32 rounding of the interpolation weights; white stays white up to the edge.
    torch.testing.assert_close(large[1, 4:24, 4:24], torch.ones(20, 20), atol=1e-5, rtol=0)
    assert large[1].sum() == pytest.approx(400, abs=1e-3)
    # Linear interpolation by hand: output pixel i looks at (i + 1/2) 16/20 - 1/2 of the input.
    at = (np.arange(20) + 0.5) * 0.8 - 0.5
    down, across = (np.maximum(0, 1 - np.abs(at - centre)) for centre in (5, 6))
    expected = torch.from_numpy(np.outer(down, across)).float()
    torch.testing.assert_close(large[2, 4:24, 4:24], expected, atol=1e-5, rtol=0)
    assert datasets.semeion(8, root=tmp_path).x.shape == (3, 8, 8)


@pytest.mark.parametrize(("size", "pad"), [(0, 0), (16, -1)])
def test_semeion_failures(size, pad):
    with pytest.raises(ValueError, match="`(size|pad)` must be an? .*integer.*; got (0|-1)"):
        datasets.semeion(size, pad)


PIMA_ROWS = """\
Pregnancies,Glucose,BloodPressure,SkinThickness,Insulin,BMI,DiabetesPedigreeFunction,Age,Outcome
0,100,70,20,0,30.5,0.5,21,1
2,0,80,0,0,20.5,0.25,33,0
1,110,0,30,90,0,0.125,40,0
0,120,90,22,60,25.5,1.5,50,1"""


@pytest.fixture
def small_pima(tmp_path, monkeypatch) -> Path:
    put(tmp_path, "uci/pima-indians-diabetes.csv", PIMA_ROWS.encode())
    monkeypatch.setattr(tabular, "PIMA", replace(tabular.PIMA, md5=md5(PIMA_ROWS.encode())))
    return tmp_path


def test_pima_missing_values(small_pima):
    kept = datasets.pima(root=small_pima)
    assert kept.x[1].tolist() == [2, 0, 80, 0, 0, 20.5, 0.25, 33]
    assert kept.y.tolist() == [1, 0, 0, 1] and kept.y.dtype == torch.int64
    assert kept.feature_names[1] == "Glucose" and kept.class_names == ("no diabetes", "diabetes")

    holes = torch.zeros(4, 8, dtype=torch.bool)
    for row, column in ((0, 4), (1, 1), (1, 3), (1, 4), (2, 2), (2, 5)):
        holes[row, column] = True  # and not the zeros of Pregnancies
    marked = datasets.pima("nan", root=small_pima)
    assert torch.equal(marked.x.isnan(), holes)
    assert torch.equal(marked.x[~holes], kept.x[~holes])

    filled = datasets.pima("median", root=small_pima)
    medians = [110.0, 80.0, 22.0, 75.0, 25.5]  # 75 of 60 and 90, the mean of the middle two
    for row, column in holes.nonzero().tolist():
        assert filled.x[row, column] == medians[column - 1]
    assert torch.equal(filled.x[~holes], kept.x[~holes])

    complete = datasets.pima("drop", root=small_pima)
    assert len(complete) == 1 and torch.equal(complete.x[0], kept.x[3]) and complete.y.item() == 1


def test_pima_refuses_other_ways():
    with pytest.raises(
        ValueError, match=r"`missing` must be one of .*'keep', .*; got 'mean'\. Pass"
    ):
        datasets.pima("mean")


def test_import_is_light():
    code = "import sys, pyro_opu.datasets; print(sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("'sklearn'", "'scipy'", "'pandas'", "'torchvision'"):
        assert name not in run.stdout


# --- the published data ----------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize(
    ("load", "train", "counts"),
    [
        (datasets.mnist, True, [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        (datasets.mnist, False, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
        (datasets.fashion_mnist, True, [6000] * 10),
        (datasets.fashion_mnist, False, [1000] * 10),
        (datasets.kmnist, False, [1000] * 10),
    ],
)
def test_real_images(load, train, counts):
    data = load(train=train)
    assert data.x.shape == (sum(counts), 28, 28) and data.x.dtype == torch.float32
    assert data.x.min() == 0 and data.x.max() == 1
    assert data.y.bincount().tolist() == counts
    assert len(data.class_names) == 10 and data.feature_names == ()
    # Bright on black: the frame is dark and the middle is not.
    assert data.x[:, 0].mean() < 0.1 < data.x[:, 10:18, 10:18].mean()


@pytest.mark.data
def test_real_mnist_is_the_right_way_up():
    """A template of each class classifies most digits; one that was turned does not."""
    train, test = datasets.mnist().take(slice(5000)), datasets.mnist(train=False)
    means = torch.stack([train.x[train.y == k].mean(0).flatten() for k in range(10)])

    def accuracy(x: torch.Tensor) -> float:
        return (torch.cdist(x.flatten(1), means).argmin(1) == test.y).float().mean().item()

    assert accuracy(test.x) > 0.75 > 0.5 > accuracy(test.x.mT)


@pytest.mark.data
def test_real_kmnist_training_rows_are_not_there():
    if (Path(os.environ["PYRO_OPU_DATA"]) / "KMNIST/raw/train-images-idx3-ubyte.gz").exists():
        pytest.skip("this folder has them")
    with pytest.raises(FileNotFoundError, match=r"KMNIST/raw/train-images.*set PYRO_OPU_DATA"):
        datasets.kmnist(train=True)


@pytest.mark.data
def test_real_semeion():
    data = datasets.semeion()
    assert data.x.shape == (1593, 16, 16) and set(data.x.unique().tolist()) == {0.0, 1.0}
    assert data.y.bincount().tolist() == [161, 162, 159, 159, 161, 159, 161, 158, 155, 158]
    assert data.x.mean() < 0.5  # white on black
    zeros = data.x[data.y == 0].mean(0)
    assert zeros[7:9, 7:9].mean() < 0.2 < 0.5 < zeros.max()  # a ring


@pytest.mark.data
@pytest.mark.parametrize(("size", "pad", "auroc"), [(28, 0, 0.996), (20, 4, 0.750)])
def test_real_semeion_against_mnist_by_the_mean_pixel(size, pad, auroc):
    from sklearn.metrics import roc_auc_score

    means = [d.x.mean((1, 2)) for d in (datasets.mnist(train=False), datasets.semeion(size, pad))]
    outside = np.repeat([0, 1], [len(m) for m in means])
    # 0.0005: the digits stated in the docstring.
    assert roc_auc_score(outside, torch.cat(means)) == pytest.approx(auroc, abs=5e-4)


@pytest.mark.data
def test_real_spambase():
    data = datasets.spambase()
    assert data.x.shape == (4601, 57) and data.y.bincount().tolist() == [2788, 1813]
    assert (data.y[:1813] == 1).all()  # sorted by class
    assert data.x[:, 54:].amax(0).tolist() == [1102.5, 9989.0, 15841.0]
    assert data.x.min() == 0 and data.x[:, :54].max() <= 100
    assert len(set(data.feature_names)) == 57
    # The means and largest values that the original's documentation gives for some columns.
    means = {"word_freq_you": 1.6621, "word_freq_george": 0.7673, "word_freq_650": 0.12484}
    means |= {"char_freq_!": 0.26907, "char_freq_#": 0.044238, "word_freq_conference": 0.031869}
    for name, mean in means.items():
        column = data.x[:, data.feature_names.index(name)].double()
        assert column.mean().item() == pytest.approx(mean, rel=1e-4)  # five digits given
    train, test = datasets.split(data)
    for part in (train, test):  # 5 sigma of 460 rows at 0.39
        assert abs(part.y.float().mean() - 1813 / 4601) < 5 * math.sqrt(0.24 / 460)


@pytest.mark.data
def test_real_pima():
    data = datasets.pima()
    assert data.x.shape == (768, 8) and data.y.bincount().tolist() == [500, 268]
    zeros = dict(zip(data.feature_names, (data.x == 0).sum(0).tolist(), strict=True))
    missing = {"Glucose": 5, "BloodPressure": 35, "SkinThickness": 227, "Insulin": 374, "BMI": 11}
    assert {name: zeros[name] for name in missing} == missing
    assert data.x[:, 7].min() == 21  # years of age: women of 21 and older
    assert datasets.pima("nan").x.isnan().sum(0).tolist() == [0, 5, 35, 227, 374, 11, 0, 0]
    filled = datasets.pima("median").x
    assert filled[:, 1:6].min() > 0 and filled[0, 4] == 125  # Insulin's median
    assert datasets.pima("drop").y.bincount().tolist() == [262, 130]


@pytest.mark.data
def test_real_boston_housing():
    data = datasets.boston_housing()
    assert data.x.shape == (506, 13) and data.y.dtype == torch.float32
    assert data.y.mean().item() == pytest.approx(22.5328, abs=5e-5)  # the digits given
    assert data.class_names == () and len(data.feature_names) == 13
    chas = data.x[:, data.feature_names.index("CHAS")]
    assert set(chas.tolist()) == {0.0, 1.0}
    assert [len(part) for part in datasets.split(data, test=50)] == [456, 50]


@pytest.mark.data
def test_real_pima_under_a_unit_prior_and_a_scaled_one():
    """What the docstring of l2_columns says of weights and the number of rows."""
    from sklearn.linear_model import LogisticRegression

    accuracy = {"unit": [], "root N": [], "standardized": []}
    for seed in range(3):
        parts = datasets.split(datasets.pima(), seed=seed)
        for name, scale, variance in (
            ("unit", datasets.l2_columns, 1.0),
            ("root N", datasets.l2_columns, len(parts[0])),
            ("standardized", datasets.standardize, 1.0),
        ):
            train, test = scale(*parts)
            mode = LogisticRegression(C=float(variance), max_iter=2000).fit(train.x, train.y)
            accuracy[name].append(mode.score(test.x, test.y))
    means = {name: sum(values) / 3 for name, values in accuracy.items()}
    # 0.01: the digits stated, and where the optimiser stops (one row in 231 is 0.004).
    expected = {"unit": 0.66, "root N": 0.77, "standardized": 0.77}
    assert means == pytest.approx(expected, abs=0.01)
