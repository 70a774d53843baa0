"""Rows per core-second of a scored table, its peak memory, and a run that is killed in the middle.

    python -m benchmarks.scoring

A logistic regression of ten classes on digits, 64 inputs, Laplace, 500 draws held; a student of
`effort="quick"`; rows are those of digits with noise of a tenth of a deviation, in float32. Each
way is a process of its own with one thread. Counted is the processor time of the process and of
those that it starts, less what it takes at 1,000 rows: imports and reading of the files. "Three"
are mean, concentration and epistemic; "all" is every measure that there is. All ways read the
Parquet file, too, but the first, which has its rows in memory, as the graph takes them. The peak is
that of the largest process; at 1,000 rows it is what libraries and file take.

Killed: the command is killed when it has three parts, is started again, and its output is compared
with that of a run that was left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow
import torch
from pyarrow import parquet
from pyro.infer import Predictive
from sklearn.datasets import load_digits
from torch import Tensor

import pyro_opu
from papers.results import finish, parser, say
from pyro_opu.models.laplace import laplace
from pyro_opu.models.logistic_regression import logistic_regression

THREE = ["mean", "concentration", "epistemic"]
NAMES = [f"pixel_{k}" for k in range(64)]
ROWS, FEW, BATCH, AT_ONCE = 1_000_000, 1000, 2**14, 1024
#: Way -> the file that answers, and the share of the rows.
WAYS = {
    "ONNX Runtime, rows in memory, three.onnx": ("three.onnx", 1.0),
    "ONNX Runtime itself, three.onnx": ("three.onnx", 1.0),
    "Scorer, three.onnx": ("three.onnx", 1.0),
    "Scorer, all.onnx": ("all.onnx", 1.0),
    "Scorer, student.safetensors": ("student.safetensors", 1.0),
    "Scorer, exact.onnx, three": ("exact.onnx", 0.02),
    "command, Parquet to Parquet, three.onnx": ("three.onnx", 1.0),
    "Ray Data, two workers, three.onnx": ("three.onnx", 1.0),
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--way", nargs=3, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.way:
        scored(args.way[0], Path(args.way[1]), int(args.way[2]))
        return
    rows = 20_000 if args.quick else ROWS
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        counts = {FEW, *(max(FEW, int(share * rows)) for _, share in WAYS.values())}
        make(folder, counts, args.quick)
        found = []
        for way, (file, share) in WAYS.items():
            if args.quick and not (way.startswith("command") and share == 1):
                continue
            count = max(FEW, int(share * rows))
            few, many = measured(way, folder, FEW), measured(way, folder, count)
            seconds = many["cpu"] - few["cpu"]
            row = {"way": way, "rows": count, "file, kB": (folder / file).stat().st_size / 1e3}
            row |= {"rows per core-second": round(count / seconds), "core-seconds": seconds}
            found.append(row | {"peak, MB": many["peak"], "peak at 1,000 rows, MB": few["peak"]})
            say({"so far": found[-1:]})
        broken = killed(folder, rows)
    del args.way
    finish(__file__, args, {"Rows per core-second": found, "Killed in the middle": [broken]})


def digits(scaled: bool = True) -> tuple[Tensor, Tensor]:
    """Inputs and labels."""
    x, y = (torch.tensor(each) for each in load_digits(return_X_y=True))
    x = x.float()
    return ((x - x.mean(0)) / x.std(0).clamp_min(0.1) if scaled else x), y


def student(quick: bool) -> tuple[pyro_opu.OnePassPredictive, Predictive]:
    """The student and its posterior."""
    x, y = digits()
    torch.manual_seed(0)
    guide = laplace(x[:800], y[:800], 10).guide
    held = {k: v for k, v in Predictive(guide, num_samples=500)(x[:1]).items() if k != "obs"}
    posterior = Predictive(logistic_regression(10), held, return_sites=["obs"])
    steps = {"num_steps": 20} if quick else {"effort": "quick"}
    return pyro_opu.distill(posterior, x[800:1600], seed=0, progress=False, **steps), posterior


def make(folder: Path, counts: set[int], quick: bool) -> None:
    """The student and the draws as files, and tables of so many rows."""
    x = digits()[0]
    fast, posterior = student(quick)
    fast.save(folder / "student.safetensors")
    fast.export(folder / "three.onnx", outputs=THREE)
    if not quick:
        fast.export(folder / "all.onnx", outputs=fast.uncertainty(x[:2]).keys())
        pyro_opu.exact(posterior).export(folder / "exact.onnx", x[:64], outputs="mean, epistemic")
    g = np.random.default_rng(0)
    for count in counts:
        whole = x.numpy()[g.integers(len(x), size=count)]
        whole = whole + 0.1 * g.standard_normal(whole.shape, dtype=np.float32)
        columns = {"id": np.arange(count), **dict(zip(NAMES, whole.T, strict=True))}
        parquet.write_table(pyarrow.table(columns), folder / f"{count}.parquet")


def measured(way: str, folder: Path, count: int) -> dict[str, float]:
    """Processor seconds and peak of a process that scores so many rows."""
    command = [sys.executable, "-m", "benchmarks.scoring", "--way", way, str(folder), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    cpu, peak = done.stdout.split()[-2:]
    return {"cpu": float(cpu), "peak": float(peak)}


def scored(way: str, folder: Path, count: int) -> None:
    """Score in this process, and print its processor seconds and peak."""
    torch.set_num_threads(1)
    table = folder / f"{count}.parquet"
    path, before = folder / WAYS[way][0], 0.0
    if way.startswith("ONNX"):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options)
        batches = parquet.ParquetFile(table).iter_batches(BATCH, columns=NAMES)
        given = (np.stack([column.to_numpy() for column in batch.columns], 1) for batch in batches)
        if "in memory" in way:
            given = list(given)
            before = used()[0]
        for x in given:
            for start in range(0, len(x), AT_ONCE):
                session.run(THREE, {"x": x[start : start + AT_ONCE]})
    elif way.startswith("Scorer"):
        scorer = pyro_opu.Scorer(path, NAMES)
        for batch in parquet.ParquetFile(table).iter_batches(BATCH):
            scorer(batch)
    elif way.startswith("Ray"):
        by_ray(path, table)
    else:
        from pyro_opu.__main__ import main as command

        command(answering(path, table, folder / "out.parquet"))
    seconds, peak = used()
    print(seconds - before, peak)


def answering(student: Path, table: Path, output: Path) -> list[str]:
    """Words of the command."""
    return ["answer", str(student), str(table), "-o", str(output), "--columns", ",".join(NAMES)]


def by_ray(path: Path, table: Path) -> None:
    """Two actors that score; reading and writing are tasks, which need a share of their own."""
    import ray

    root = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[1])}}  # a worker runs elsewhere
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=root)
    given = {"fn_constructor_args": (path, NAMES), "concurrency": 2, "batch_size": BATCH}
    scored = ray.data.read_parquet(str(table)).map_batches(
        pyro_opu.Scorer, batch_format="pyarrow", **given
    )
    scored.write_parquet(str(table.with_suffix(".scored")))


def used() -> tuple[float, float]:
    """Processor seconds of this process and of those below it, and the largest peak in MB."""
    parents, seconds = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            parents[int(place.name)] = int(fields[1])
            seconds[int(place.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    peaks = [0.0]
    for pid in mine:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            peaks += [int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM")]
    return sum(seconds.get(pid, 0.0) for pid in mine), max(peaks)


def killed(folder: Path, rows: int) -> dict[str, object]:
    """Kill the command in the middle, start it again, and compare with a run left alone."""
    table, output = folder / f"{rows}.parquet", folder / "again.parquet"
    words = answering(folder / "three.onnx", table, output)
    command = [sys.executable, "-m", "pyro_opu", *words]
    third = Path(f"{output}.parts") / ("000002" if rows > 2**17 else "000000")
    run = subprocess.Popen(command)
    while not third.exists() and run.poll() is None:
        time.sleep(0.001)
    run.send_signal(signal.SIGKILL)
    run.wait()
    parts, early = len(list(third.parent.glob("[0-9]" * 6))), output.exists()
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)
    whole, again = (parquet.read_table(path) for path in (folder / "out.parquet", output))
    return {
        "rows": rows,
        "parts when killed": parts,
        "output there when killed": early,
        "said": (done.stderr.splitlines() or [""])[0],
        "every row once, in order": again["id"].to_pylist() == list(range(rows)),
        "equal to a run left alone": again.equals(whole),
    }


if __name__ == "__main__":
    main()
