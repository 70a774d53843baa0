"""One pass against all other ways to the same answer: how long each takes, and how that grows.

python -m benchmarks.speed
python -m benchmarks.speed --only mlp memory
python -m benchmarks.speed --device cuda

Everything is timed in one process, the ways of a point in turn, passes before calls that draw, and
these before the slow ones: medians, and as spread the distance between the quartiles. In parts,
each written when it is done; ``--only`` makes some of them anew and keeps the rest of the results
file.

- mlp, logistic, convolution: plug-in network, one pass, one pass captured, the drop-in call that
  draws S labels or S class probabilities, of the student that ``distill`` makes by default and of
  one as wide as the plug-in network; ``Predictive`` (one draw after another, and ``parallel=True``,
  with labels and with class probabilities), the batched teacher (all S draws, and a compact subset
  of 50 of them), NumPyro's ``Predictive`` compiled by ``jax.jit`` and laplace-torch's last layer,
  which holds the Jacobians of all inputs and is left out where these are more than 0.3 GB. First at
  N = 1 and 1000 with S = 500, then over N, S and C one at a time around N = 1000, S = 500, C = 10,
  with the exponents of time.
- digits: laplace-torch against one pass on the digits network at N = 500.
- fused: a pass as it is trained, fused and captured, beside a network of its widths.
- memory: the peak of every way, in a process of its own.
- cuda: on a GPU alone, graphs, throughput and the share of the device's peak.

``parallel=True`` is silently wrong for samples as ``MCMC`` gives them when S = N: their draws meet
the axis of the data. It is timed on samples shaped so that it is right, ``(S, 1, D)``; a
convolution takes no axis of draws, so there it is not.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import (
    speed_bars,
    speed_cost,
    speed_cuda,
    speed_memory,
    speed_parallel,
    speed_picture,
    speed_ways,
)
from benchmarks.results import FOLDER, kept, parser, say, write
from benchmarks.speed_models import ONE_PASS, SUBJECTS, Kit
from benchmarks.speed_peers import PEERS, absent
from benchmarks.speed_sweeps import exponents, sweeps
from benchmarks.speed_ways import Found, Row, rows_of

Tables = dict[str, list[Row]]
#: Ways that the table "Time" has a column for.
SHOWN = ("plug-in", "one pass", "drop-in call", "Predictive", "batched teacher")


def main() -> None:
    args = options().parse_args()
    if args.memory_of:
        print(speed_memory.of_one(args.memory_of, args.draws, args.device))
        return
    torch.set_num_threads(args.threads)
    if args.quick:
        args.draws, args.budget, args.bound = 10, 0.01, 0.01
    anew = args.quick or args.only == list(PARTS)
    if args.device == "cpu":
        args.only = [part for part in args.only if part != "cuda"]
    name = "speed" if args.device == "cpu" else f"speed_{torch.device(args.device).type}"
    tables = {} if anew else kept(name)
    for part in args.only:
        start = time.perf_counter()
        found = {"Left out": left_out(args.device), **PARTS[part](args)}
        seconds = time.perf_counter() - start
        found["Parts"] = [
            {"seconds": seconds, "threads": args.threads, "load average": os.getloadavg()[1]}
        ]
        tables = merged(tables, part, found)
        tables["Bars"] = speed_bars.bars(tables, args.device)
        new = {title: of_part(rows, part) for title, rows in tables.items()}
        say({title: rows for title, rows in new.items() if rows})
        if not args.quick:
            record(name, args, tables)
    say({"Bars": tables["Bars"]})


def options() -> argparse.ArgumentParser:
    found = parser(__doc__.splitlines()[0])
    found.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    found.add_argument("--device", default="cpu")
    found.add_argument("--threads", type=int, default=2)
    found.add_argument("--draws", type=int, default=500, help="S outside the sweeps")
    found.add_argument("--budget", type=float, default=4.0, help="seconds of quick calls at a time")
    found.add_argument("--bound", type=float, default=0.5, help="seconds of a slow call in sweeps")
    found.add_argument("--memory-of", help=argparse.SUPPRESS)
    return found


def merged(tables: Tables, part: str, found: Tables) -> Tables:
    """The tables with the rows of a part made anew; the other parts' rows stay."""
    titles = dict.fromkeys([*tables, *found])
    new = {title: [{"part": part, **row} for row in found.get(title, [])] for title in titles}
    whole = {
        title: [r for r in tables.get(title, []) if r.get("part") not in (part, None)] + new[title]
        for title in titles
    }
    return {title: rows for title, rows in whole.items() if rows}


def of_part(rows: list[Row], part: str) -> list[Row]:
    return [row for row in rows if row.get("part") == part]


def record(name: str, args: argparse.Namespace, tables: Tables) -> None:
    """The results file, and the pictures of the sweeps."""
    settings: dict[str, Any] = {"device": device_name(args.device)}
    settings |= {key: getattr(args, key) for key in ("draws", "budget", "bound")}
    command = "python -m benchmarks.speed" + (
        "" if args.device == "cpu" else f" --device {args.device}"
    )
    write(name, command, settings, {"Bars": tables["Bars"], **tables})
    for axis in "NSC":
        speed_picture.draw(
            FOLDER / f"{name}_{axis}.png", axis, tables.get(f"Sweep over {axis}", [])
        )


def device_name(device: str) -> str:
    return "cpu" if device == "cpu" else torch.cuda.get_device_name(device)


def left_out(device: str) -> list[Row]:
    """What a machine has no package for."""
    gone = [
        {"absent": package, "left out": what} for package, what in PEERS.items() if absent(package)
    ]
    if device != "cpu" and not absent("numpyro"):
        gone.append({"absent": "numpyro on this device", "left out": PEERS["numpyro"]})
    return gone


def compared(subject: str) -> Callable[[argparse.Namespace], Tables]:
    """The part of one subject: the two points of the first tables, then the sweeps."""

    def part(args: argparse.Namespace) -> Tables:
        device, chosen = torch.device(args.device), SUBJECTS[subject]
        kit = Kit(chosen, 2 if subject == "logistic" else 10, args.draws, device)
        tables: Tables = {"Time": [], "All ways": []}
        many = 100 if args.quick else 1000
        for rows in (many,) if subject == "logistic" else (1, many):
            found = at(kit, rows, args)
            same = {"model": chosen.name.format(kit.classes), "S": args.draws, "N": rows}
            tables["Time"] += [
                {"student": name, **same, **wide(found, end)} for end, name in kit.names.items()
            ]
            tables["All ways"] += rows_of(found, same, kit.names)
        tables["Predictive with parallel=True"] = speed_parallel.checks(chosen)
        del kit
        tables |= sweeps(chosen, device, args.budget / 8, args.bound, args.quick)
        tables["Exponents"] = [
            row for axis in "NSC" for row in exponents(axis, tables[f"Sweep over {axis}"])
        ]
        return tables

    return part


def at(kit: Kit, rows: int, args: argparse.Namespace) -> dict[str, Found]:
    """Every way with all draws."""
    x, draws = kit.inputs(rows), args.draws
    first = speed_ways.quick_ways(kit, x, captured=not args.quick)
    slow = speed_ways.slow_ways(kit, x, draws)
    slow |= speed_ways.numpyro_ways(kit, x, draws, both=True)
    budgets, bound = (args.budget, 2 * args.budget), 60.0
    found = speed_ways.clocked(first, slow, budgets, bound, kit.device)
    if args.quick:
        return found
    peers = speed_ways.laplace_of(kit, x, draws)
    return found | speed_ways.clocked(peers, {}, (args.budget, 0.0), bound, kit.device)


def wide(found: dict[str, Found], end: str) -> Row:
    """Milliseconds of the main ways in one row, and their ratios, of the student of these ways."""
    names = {way: f"{way}{end}" if way in ONE_PASS else way for way in SHOWN}
    took = {way: found[name].time.median for way, name in names.items()}
    slow, one = took["Predictive"], took["one pass"]
    parallel = found.get("Predictive, parallel, probabilities")
    probs = found[f"drop-in call, probabilities{end}"].time.median
    return {
        **{f"{way}, ms": 1e3 * value for way, value in took.items()},
        "one pass / plug-in": one / took["plug-in"],
        "Predictive / one pass": slow / one,
        "Predictive / drop-in call": slow / took["drop-in call"],
        "Predictive / batched teacher": slow / took["batched teacher"],
        "parallel / drop-in call, both with probabilities": parallel.time.median / probs
        if parallel
        else "",
    }


PARTS: dict[str, Callable[[argparse.Namespace], Tables]] = {
    **{subject: compared(subject) for subject in SUBJECTS},
    "digits": speed_cost.digits_part,
    "fused": speed_cost.fused_part,
    "memory": speed_memory.part,
    "cuda": speed_cuda.part,
}


if __name__ == "__main__":
    main()
