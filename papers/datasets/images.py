"""Data sets of images: MNIST and two in its form, and Semeion."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import torch
from torch.nn.functional import interpolate
from torch.nn.functional import pad as padded

from papers.datasets.record import Dataset
from papers.datasets.sources import File, PathLike, content
from pyro_opu.checks import check_bool, positive_int

#: Folder -> servers of its files.
_SERVERS = {
    "MNIST": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "FashionMNIST": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    "KMNIST": ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
}
#: Folder, part, kind of an archive -> its md5 sum, and that of its content where it is known.
_TABLE = """\
MNIST train images f68b3c2dcbeaaa9fbdd348bbdeb94873 6bbc9ace898e44ae57da46a324031adb
MNIST train labels d53e105ee54ea40749a09fcbcd1e9432 a25bea736e30d166cdddb491f175f624
MNIST t10k images 9fb629c4189551a2d022fa330f9573f3 2646ac647ad5339dbf082846283269ea
MNIST t10k labels ec29112dd5afa0611ce80d1b7f02629c 27ae3e4e09519cfbb04c329615203637
FashionMNIST train images 8d4fb7e6c68d591d4c3dfef9ec88bf0d f4a8712d7a061bf5bd6d2ca38dc4d50a
FashionMNIST train labels 25c81989df183df01b3e8a0aad5dffbe 9018921c3c673c538a1fc5bad174d6f9
FashionMNIST t10k images bef4ecab320f06d8554ea6380940ec79 8181f5470baa50b63fa0f6fddb340f0a
FashionMNIST t10k labels bb300cfdad3c16e7a12a480ee83cd310 15d484375f8d13e6eb1aabb0c3f46965
KMNIST train images bdb82020997e1d708af4cf47b453dcf7
KMNIST train labels e144d726b3acfaa3e44228e80efcd344
KMNIST t10k images 5c965bf0a639b31b8f53240b1b52f4d7 bf305b8cd328700fbc17f5acbc2856d2
KMNIST t10k labels 7320c461ea6c1c855c0b718fb2a4b134 9f55f451c0988b028eccdf7d5cc265ab
"""
_SUMS = {
    (folder, part, kind): tuple(sums)
    for folder, part, kind, *sums in map(str.split, _TABLE.splitlines())
}
SEMEION = File(
    "semeion.data",
    "cb545d371d2ce14ec121470795a77432",
    ("https://archive.ics.uci.edu/ml/machine-learning-databases/semeion/semeion.data",),
)

_DIGITS = tuple("0123456789")
#: Folder -> names of its classes.
_CLASSES = {
    "MNIST": _DIGITS,
    "FashionMNIST": tuple(
        "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot".split(",")
    ),
    "KMNIST": tuple("o ki su tsu na ha ma ya re wo".split()),
}


def mnist(*, train: bool = True, root: PathLike | None = None, download: bool = True) -> Dataset:
    """MNIST: handwritten digits, white on black, 60,000 to train on and 10,000 to test on.

    Pixels are divided by 255. The OPU paper normalises them "with mean 0.5 and std 0.5", which is
    ``2 * x - 1``; Bayesian Dark Knowledge divides the bytes by 126, which is ``x * 255 / 126``, and
    trains on 50,000 of the rows, ``split(mnist(), test=10_000)``.

    Args:
        train: The training rows, or the test rows.
        root: The data folder, with the files in ``MNIST/raw`` (the layout of torchvision), packed
            or unpacked; see :mod:`papers.datasets`.
        download: Whether to download missing files (12 MB) into the cache.

    Example:
        >>> mnist(train=False)
        Dataset('mnist': 10000 x 28 x 28, 10 classes)

    References:
        LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition
        (1998). Section 4.3 of Cui et al. (2019); section 3.2 of Korattikara et al. (2015).
    """
    return _in_mnist_form("MNIST", "mnist", train, root, download)


def fashion_mnist(
    *, train: bool = True, root: PathLike | None = None, download: bool = True
) -> Dataset:
    """Fashion-MNIST: pictures of clothes in the form of MNIST, 26 MB; called as :func:`mnist`.

    References:
        Xiao, Rasul, Vollgraf: Fashion-MNIST (2017), arXiv:1708.07747.
    """
    return _in_mnist_form("FashionMNIST", "fashion_mnist", train, root, download)


def kmnist(*, train: bool = False, root: PathLike | None = None, download: bool = True) -> Dataset:
    """Kuzushiji-MNIST: ten cursive Japanese characters in the form of MNIST, 18 MB.

    Called as :func:`mnist`, but the test rows, mostly used as out-of-distribution inputs, are the
    default; they need no training files.

    References:
        Clanuwat et al.: Deep learning for classical Japanese literature (2018), arXiv:1812.01718.
    """
    return _in_mnist_form("KMNIST", "kmnist", train, root, download)


def semeion(
    size: int = 16, pad: int = 0, *, root: PathLike | None = None, download: bool = True
) -> Dataset:
    """Semeion: 1,593 handwritten digits, white on black, 16 x 16 pixels of 0 or 1.

    There is no official split. As out-of-distribution inputs of an MNIST classifier they must be
    28 x 28, and the way there decides how hard they are to detect. ``semeion(28)``, the likely
    reading of the papers, enlarges the digits to the edges, and the mean pixel alone separates them
    from MNIST's test rows with an AUROC of 99.6 %. ``semeion(20, pad=4)`` frames them like MNIST,
    20 x 20 within 4 black pixels, and the mean pixel gives 75.0 %.

    Args:
        size: Side of the image, resized by (smoothed) linear interpolation; 16 keeps the pixels.
        pad: Black pixels then added on each side.
        root, download: As of :func:`mnist`; 2.9 MB.

    References:
        Semeion Handwritten Digit, doi:10.24432/C5SC8V. Section 4.3 of Cui et al. (2019).
    """
    size = positive_int("size", size)
    pad = positive_int("pad", pad, 0, "semeion(20, pad=4) has images framed like those of MNIST.")
    table = torch.from_numpy(np.loadtxt(BytesIO(content(SEMEION, root, download)))).float()
    x = table[:, :256].reshape(-1, 1, 16, 16)
    if size != 16:
        x = interpolate(x, size=(size, size), mode="bilinear", antialias=True).clamp_(0, 1)
    x = padded(x, (pad, pad, pad, pad)).squeeze(1)
    return Dataset(x, table[:, 256:].argmax(1), "semeion", class_names=_DIGITS)


def _in_mnist_form(
    folder: str, name: str, train: bool, root: PathLike | None, download: bool
) -> Dataset:
    part = "train" if check_bool("train", train) else "t10k"
    images, labels = (content(_file(folder, part, k), root, download) for k in ("images", "labels"))
    # An idx file has big-endian integers, two and the lengths of further axes, then the bytes.
    count, height, width = np.frombuffer(images, ">i4", count=3, offset=4)
    pixels = np.frombuffer(images, np.uint8, offset=16).astype(np.float32)
    x = torch.from_numpy(pixels).reshape(int(count), int(height), int(width)).div_(255)
    y = torch.from_numpy(np.frombuffer(labels, np.uint8, offset=8).astype(np.int64))
    return Dataset(x, y, name, class_names=_CLASSES[folder])


def _file(folder: str, part: str, kind: str) -> File:
    name = f"{part}-{kind}-{'idx3' if kind == 'images' else 'idx1'}-ubyte.gz"
    md5, *unpacked = _SUMS[folder, part, kind]
    urls = tuple(f"{server}{name}" for server in _SERVERS[folder])
    return File(f"{folder}/raw/{name}", md5, urls, unpacked[0] if unpacked else None)
