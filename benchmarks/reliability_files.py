"""Files and inputs: damage, many writers, killed writers, exported programs, time stamps."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pyro_opu
from pyro_opu import OnePassPredictive, PredictiveGuide
from pyro_opu.export.formats import run_onnx
from pyro_opu.export.program import StudentProgram, far_inputs
from pyro_opu.guides import GUIDES
from pyro_opu.guides.networks import Perceptron
from pyro_opu.utils import files

Row = dict[str, Any]


def damaged_files(quick: bool, folder: Path) -> list[Row]:
    """One bit of a student's file is another; to load it must be refused by a ``ValueError``."""
    path, tried, loaded, raw = folder / "fast", 40 if quick else 400, 0, 0
    _student().save(path)
    whole = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    for bit in torch.randperm(8 * len(whole), generator=generator)[:tried].tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            OnePassPredictive.load(path)
            loaded += 1
        except ValueError:
            pass
        except Exception:  # whatever it is, it is not the error that is promised
            raw += 1
    what = f"a bit of a student's file ({len(whole) / 1024:.0f} kB) flipped, loaded without error"
    return [{"what": what, "tried": tried, "wrong": loaded + raw}]


def many_writers(quick: bool, folder: Path) -> list[Row]:
    """Eight threads save to one path while two load from it; four processes write beside them."""
    path, failed = folder / "fast", 0
    students = [_constant(number) for number in range(8)]
    students[0].save(path)
    saves, loads = (5, 40) if quick else (30, 1000)

    def save(fast: OnePassPredictive) -> None:
        for _ in range(saves):
            fast.save(path)

    def load() -> None:
        for _ in range(loads):
            values = [v.unique() for v in OnePassPredictive.load(path).guide.parameters()]
            assert len(torch.cat(values).unique()) == 1

    with ThreadPoolExecutor(10) as pool:
        done = [pool.submit(save, fast) for fast in students]
        done += [pool.submit(load) for _ in range(2)]
        failed = sum(each.exception() is not None for each in done)
    what = "saves by 8 threads to one path, and loads beside them: failed or torn"
    rows = [{"what": what, "tried": 8 * saves + 2 * loads, "wrong": failed}]
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=_put, args=(folder / "bytes", n, saves)) for n in range(4)]
    for worker in workers:
        worker.start()
    torn = 0
    while any(worker.is_alive() for worker in workers):
        if (folder / "bytes").exists():
            torn += not _whole(folder / "bytes")
    for worker in workers:
        worker.join()
    torn += sum(worker.exitcode != 0 for worker in workers) + len(list(folder.glob("*.part")))
    what = "writes of 1 MB by 4 processes to one path: failed, torn, or left behind"
    return [*rows, {"what": what, "tried": 4 * saves, "wrong": torn}]


def killed_writers(quick: bool, folder: Path) -> list[Row]:
    """A process is killed by signal 9 while it writes; the file is whole, and parts do not pile."""
    path, tried, torn, parts = folder / "bytes", 5 if quick else 40, 0, 0
    fork = multiprocessing.get_context("fork")
    files.put(path, b"\0" * 2**20)
    delays = torch.rand(tried, generator=torch.Generator().manual_seed(0)).tolist()
    for number, delay in enumerate(delays):
        worker = fork.Process(target=_put, args=(path, number % 256, 10**6))
        worker.start()
        time.sleep(0.02 + 0.03 * delay)
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join()
        torn += not _whole(path)
    for part in folder.glob("*.part"):
        parts += 1
        os.utime(part, (0, time.time() - 2 * 3600))
    files.put(path, b"\0")
    what = f"writers killed by signal 9 ({parts} in the middle of a write): file torn"
    left = len(list(folder.glob("*.part")))
    return [
        {"what": what, "tried": tried, "wrong": torn},
        {"what": "their parts, left by a write an hour later", "tried": parts, "wrong": left},
    ]


def exported_far_out(quick: bool, folder: Path) -> list[Row]:
    """An ONNX file beside its student, from 1e-3 to 1e6 deviations off the transfer inputs."""
    rows = []
    for kind in ("dirichlet",) if quick else ("dirichlet", "single_head", "mixture"):
        fast = _student(kind)
        fast.export(folder / f"{kind}.onnx")
        program = StudentProgram(fast.guide, fast.input_shape)
        run = run_onnx((folder / f"{kind}.onnx").read_bytes(), ["x"], program.outputs)
        x = far_inputs(fast.guide, torch.zeros(1, 4))
        found, expected = run(x), program(x)
        wrong, largest = 0, 0.0
        for name, value in expected.items():
            same = (found[name].isnan() == value.isnan()) & (
                found[name].isfinite() == value.isfinite()
            )
            wrong += int((~same).sum())
            near = value[:6].isfinite()
            error = (found[name][:6] - value[:6]).abs() / value[:6].abs().clamp_min(1.0)
            largest = max(largest, float(error[near].max()))
        rows.append(
            {
                "what": f"numbers of an ONNX file ({kind}) to 1e6 deviations: NaN or infinity "
                "where the student has none, or the other way round",
                "tried": sum(value.numel() for value in expected.values()),
                "wrong": wrong,
                "largest difference up to 100 deviations": f"{largest:.1e}",
            }
        )
    return rows


def time_stamps(quick: bool, folder: Path) -> list[Row]:
    """Milliseconds since 1970 with a spread of 30 s, in float64: KL of the student."""
    torch.manual_seed(0)
    x, slopes = torch.randn(1000, 1).double(), 2 + 0.3 * torch.randn(50, 1).double()
    found = {}
    for name, location, rounded in (
        ("no offset", 0.0, False),
        ("offset, centred and then rounded", 1.7e12, False),
        ("offset, rounded and then centred", 1.7e12, True),
    ):

        def ask(stamps: Tensor, location: float = location) -> Tensor:
            p = torch.sigmoid((stamps[:, 0] - location) / 3e4 * slopes)
            return torch.stack([1 - p, p], -1)

        stamps = location + 3e4 * x
        trunk = Perceptron((1,), (32, 32))
        trunk.fit_scale(stamps.float() if rounded else stamps)
        # A trunk that is not known to centre gets its inputs in the dtype of its weights.
        guide = PredictiveGuide(nn.Sequential(trunk) if rounded else trunk, 32, 2)
        fast = pyro_opu.distill(
            ask, stamps, guide=guide, num_steps=200 if quick else 500, seed=0, progress=False
        )
        found[name] = fast.report["kl"]
    good = found["no offset"]
    return [
        {
            "what": f"time stamps, {name}: KL over 1e-4 and twice that without the offset",
            "tried": 1,
            "wrong": int(kl > 2 * good + 1e-4) if "rounded and" not in name else 0,
            "KL": f"{kl:.1e}",
        }
        for name, kl in found.items()
    ]


def _student(kind: str = "dirichlet") -> OnePassPredictive:
    torch.manual_seed(0)
    guide: Any = GUIDES[kind].for_inputs(torch.randn(50, 4), 3, hidden=(16, 16))
    with torch.no_grad():
        for name, head in guide.named_children():
            if name.endswith("head"):
                head.weight.mul_(8.0)
    return OnePassPredictive(guide.requires_grad_(False).eval(), (4,), 3)


def _constant(number: int) -> OnePassPredictive:
    """A student whose weights are all this number."""
    fast = _student()
    for parameter in fast.guide.parameters():
        parameter.fill_(number)
    return fast


def _put(path: Path, number: int, times: int) -> None:
    for _ in range(times):
        files.put(path, bytes([number]) * 2**20)


def _whole(path: Path) -> bool:
    content = path.read_bytes()
    return len(content) == 2**20 and content == content[:1] * 2**20
