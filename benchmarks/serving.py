"""The server of the page on serving, under load on this machine's loopback.

    python -m benchmarks.serving

The code of ``docs/how_to/serve.md`` is run as it stands by one uvicorn worker, with the student of
``benchmarks.scoring`` (digits, 64 inputs, 10 classes): mean, epistemic and novelty as JSON. Clients
are threads with a connection each, on the same two cores, which ask one after another; their number
of requests is fixed. Then rows that were not scaled are asked about.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from benchmarks.scoring import digits, student
from papers.results import finish, parser

PAGE = Path(__file__).parents[1] / "docs" / "how_to" / "serve.md"
#: Clients, requests in all, and rows of a request.
LOADS = ((1, 500, 1), (16, 3000, 1), (16, 1000, 100))


def main() -> None:
    args = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        fast = student(quick=args.quick)[0]
        fast.export(folder / "student.onnx", outputs=["mean", "epistemic", "novelty"])
        codes = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        app = next(code for code in codes if "FastAPI" in code)
        if args.quick:  # a student of a few steps is not near enough for the page's limit
            app = app.replace("bound > 0.2", "bound > 1")
        (folder / "app.py").write_text(app)
        x, raw = digits()[0][-197:], digits(scaled=False)[0][-197:]
        loads = ((2, 8, 3),) if args.quick else LOADS
        with served(folder) as (port, process):
            found = [under_load(port, x, *load) for load in loads]
            refused = [ask(port, raw[k : k + 10])[0] == 422 for k in range(0, 190, 10)]
            trusted = [ask(port, x[k : k + 10])[0] == 200 for k in range(0, 190, 10)]
            peak = status(process.pid)
    assert all(trusted), "rows like those of teaching were refused"
    door = {"requests": 19, "rows of each": 10, "unscaled, refused": sum(refused)}
    door |= {"scaled, answered": sum(trusted), "peak of the server, MB": peak}
    finish(__file__, args, {"Load": found, "At the door": [door]})


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[int, subprocess.Popen]]:
    """A server of the folder's app on a free port, when it is healthy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["app:app", "--port", str(port), "--log-level", "warning", "--no-access-log"]
    command = [sys.executable, "-m", "uvicorn", *words]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": ""})
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                if ask(port)[0] == 200:
                    break
            assert process.poll() is None, "the server has ended"
            time.sleep(0.1)
        yield port, process
    finally:
        process.terminate()
        process.wait()


def ask(
    port: int, rows: Tensor | None = None, connection: http.client.HTTPConnection | None = None
) -> tuple[int, dict]:
    """Status and answer of one request, by default for its health."""
    line = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    if rows is None:
        line.request("GET", "/health")
    else:
        given = {"Content-Type": "application/json"}
        line.request("POST", "/answer", json.dumps({"rows": rows.tolist()}), given)
    response = line.getresponse()
    return response.status, json.loads(response.read())


def under_load(port: int, x: Tensor, clients: int, requests: int, rows: int) -> dict[str, float]:
    """Requests by so many clients, each one after another."""

    def client(number: int) -> list[float]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        times = []
        for k in range(requests // clients):
            start = time.perf_counter()
            some = x.roll(number + k, 0).repeat(-(-rows // len(x)), 1)[:rows]
            code, found = ask(port, some, connection)
            times.append(time.perf_counter() - start)
            assert code in (200, 422) and (code == 422 or len(found["mean"]) == rows), found
        return times

    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        times = [each for found in threads.map(client, range(clients)) for each in found]
    took = time.perf_counter() - start
    cuts = statistics.quantiles(times, n=100)
    row = {"clients": clients, "requests": len(times), "rows of each": rows}
    row |= {"requests per second": len(times) / took, "rows per second": len(times) * rows / took}
    return row | {"median, ms": 1e3 * cuts[49], "99 %, ms": 1e3 * cuts[98]}


def status(pid: int) -> float:
    """The peak of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
