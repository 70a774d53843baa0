"""Distillations that are killed, that other ranks or threads run beside: what must not happen."""

from __future__ import annotations

import hashlib
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks.reliability_jobs import FAILS, LOSSES, X, contents, ended, forked, refusals, student

Row = dict[str, Any]


def killed_runs(quick: bool, folder: Path) -> list[Row]:
    """Runs killed with -9 at random moments and started again, until they end by themselves."""
    rows, random = [], Random(0)
    for loss in LOSSES:
        kills = wrong = 0
        seeds = range(1 if quick else 4)
        for seed in seeds:
            whole, path = folder / "whole", folder / f"{loss}-{seed}"
            start = time.monotonic()
            ended(forked(lambda: contents(student(loss, seed)), whole), 600)  # noqa: B023
            seconds = time.monotonic() - start

            def resumed() -> bytes:
                return contents(student(loss, seed, checkpoint=path))  # noqa: B023

            most = 0.1 * seconds
            while not ended(forked(resumed, folder / "resumed"), random.uniform(0.05, most)):
                kills, most = kills + 1, most + 0.15 * seconds  # not for ever before the first save
            wrong += whole.read_bytes() != (folder / "resumed").read_bytes()
        what = f"runs ({loss}) killed with -9 and resumed end bit-equal to unbroken ones"
        rows.append({"what": what, "tried": len(seeds), "wrong": wrong, "note": f"{kills} kills"})
    return rows


def unlike_ranks(quick: bool, folder: Path) -> list[Row]:
    """Two ranks that differ in one thing, or of which one fails: both must stop within 10 s.

    Counted from the call, or from the failure of the one.
    """
    children = [
        forked(lambda: refusals(rank, folder), folder / str(rank))  # noqa: B023
        for rank in (0, 1)
    ]
    for child in children:
        ended(child, 300)
    found = [pickle.loads((folder / str(rank)).read_bytes()) for rank in (0, 1)]
    rows = []
    for name in found[0]:
        said, starts, ends = zip(*(each[name] for each in found), strict=True)
        seconds = max(ends) - (min(ends) if name == FAILS else min(starts))
        told = [text.startswith(("ValueError", "RuntimeError")) for text in said]
        wrong = 2 - sum(told) if seconds < 10 else 2
        what = f"two ranks stop within 10 s: {name}"
        rows.append({"what": what, "tried": 2, "wrong": wrong, "note": f"{seconds:.2f} s"})
    return rows


def answers_meanwhile(quick: bool, folder: Path) -> list[Row]:
    """``fast(x)`` in one thread while another distils: no answer twice, and none waits."""
    fast, done = student("energy", 0, num_samples=100), threading.Event()
    answers: list[bytes] = []
    longest = 0.0

    def ask() -> None:
        nonlocal longest
        while not done.is_set():
            start = time.monotonic()
            answers.append(hashlib.sha256(fast(X[:20])["obs"].contiguous().numpy()).digest())
            longest = max(longest, time.monotonic() - start)
            time.sleep(1e-3)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        for seed in range(1 if quick else 10):
            student("wasserstein", seed)
        done.set()
        asking.result()
    repeated = len(answers) - len(set(answers))
    what = "answers in one thread while another distils, repeated"
    note = f"longest call {1e3 * longest:.0f} ms"
    return [{"what": what, "tried": len(answers), "wrong": repeated, "note": note}]


def concurrent_runs(quick: bool, folder: Path) -> list[Row]:
    """Distillations with one seed in four threads at once against a lone one, bit by bit."""
    wrong, losses = 0, list(LOSSES)[: 1 if quick else None]
    before = torch.get_rng_state()
    for loss in losses:
        alone = contents(student(loss, 0))
        with ThreadPoolExecutor(4) as pool:
            runs = [pool.submit(lambda: contents(student(loss, 0))) for _ in range(4)]  # noqa: B023
            wrong += sum(run.result() != alone for run in runs)
    moved = not torch.equal(before, torch.get_rng_state())
    return [
        {
            "what": "distillations in four threads at once equal a lone one",
            "tried": 4 * len(losses),
            "wrong": wrong,
        },
        {
            "what": "torch's generator is where it was after all of them",
            "tried": 1,
            "wrong": int(moved),
        },
    ]
