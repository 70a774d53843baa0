"""Images and tables are read from small files made here."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from datasets.dataset_files import everything_in, md5, put, url
from papers import datasets
from papers.datasets import images, tabular


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
2,0,80,0,0,20.5,0.25,33,0"""


def test_pima_is_read_as_published(tmp_path, monkeypatch):
    put(tmp_path, "uci/pima-indians-diabetes.csv", PIMA_ROWS.encode())
    monkeypatch.setattr(tabular, "PIMA", replace(tabular.PIMA, md5=md5(PIMA_ROWS.encode())))
    data = datasets.pima(root=tmp_path)
    assert data.x[1].tolist() == [2, 0, 80, 0, 0, 20.5, 0.25, 33]
    assert data.y.tolist() == [1, 0] and data.y.dtype == torch.int64
    assert data.feature_names[1] == "Glucose" and data.class_names == ("no diabetes", "diabetes")
