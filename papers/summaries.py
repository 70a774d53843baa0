"""Tables of mean ± deviation over seeds, made from the rows of ``papers.tables``."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from papers.results import spread

ERRORS = "misclassification"
#: Fixed in advance, for errors and for what is outside: of teachers, of students.
ERRORS_BY = "entropy"
OUTSIDE_BY = "mutual_information", "concentration"
#: Measures as the tables name them in brackets; the first three are the paper's.
SHORT = {
    "entropy": "Ent",
    "max_probability": "MaxP",
    "concentration": "CM",
    "mutual_information": "MI",
    "variance": "Var",
    "expected_pairwise_kl": "EPKL",
    "differential_entropy": "DE",
    "input_norm": "norm",
    "input_mean": "mean",
}
TRIVIAL = "trivial"
#: Sets of outside inputs that the paper has figures for.
PAPER_OUTSIDE = ("unit Gaussian", "Semeion, enlarged")
Key = tuple[str, str, int]


class Paper(NamedTuple):
    """A row of the paper: AUROC and AUPR of errors and of outside inputs, accuracy, seconds."""

    errors: tuple[str, str]
    outside: tuple[str, str]
    accuracy: float
    seconds: float


def key_of(row: dict) -> Key:
    return row["data"], row["protocol"], row["seed"]


def summary(
    answers: list[dict], scores: list[dict], paper: dict[str, dict[str, Paper]]
) -> dict[str, list[dict]]:
    """Mean ± deviation over seeds: four tables for each data set and protocol."""
    tables: dict[str, list[dict]] = {}
    for data, protocol in dict.fromkeys(key_of(row)[:2] for row in answers):
        mine = [of(rows, data=data, protocol=protocol) for rows in (answers, scores)]
        title = f"{data.capitalize()}, {protocol} protocol" if protocol else data.capitalize()
        tables[f"{title}: errors"] = errors_table(*mine, paper[data])
        tables[f"{title}: outside inputs"] = outside_table(mine[1], paper[data])
        near = nearness_table(mine[1])
        tables |= {f"{title}: nearness to the teacher": near} if near else {}
        tables[f"{title}: time for the test set"] = time_table(mine[0], paper[data])
    return tables


def of(rows: list[dict], **which: str) -> list[dict]:
    return [row for row in rows if all(row[key] == value for key, value in which.items())]


def names(rows: list[dict], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))


def errors_table(answers: list[dict], scores: list[dict], paper: dict[str, Paper]) -> list[dict]:
    table = []
    fixed = f"AUROC, {ERRORS_BY}"
    for name in names(answers, "method"):
        theirs, told = of(answers, method=name), of(scores, method=name, task=ERRORS)
        teacher = theirs[0]["teacher"]
        base = of(answers, method=teacher), of(scores, method=teacher, task=ERRORS)
        printed = paper.get(name)
        table.append(
            {
                "student": theirs[0].get("student", ""),
                "method": name,
                "seeds": len(theirs),
                "accuracy, %": over_seeds(theirs, "accuracy, %"),
                "less the teacher's": less(theirs, base[0], "accuracy, %"),
                "paper, accuracy": printed.accuracy if printed else "",
                "NLL, nats": over_seeds(theirs, "NLL, nats"),
                "AUROC by Ent": over_seeds(told, fixed),
                "AUROC less the teacher's": less(told, base[1], fixed),
                **flattering(told, printed.errors if printed else ("", "")),
            }
        )
    return table


def outside_table(scores: list[dict], paper: dict[str, Paper]) -> list[dict]:
    table = []
    for task in names([row for row in scores if row["task"] != ERRORS], "task"):
        for name in names(scores, "method"):
            told = of(scores, method=name, task=task)
            printed = paper.get(name) if task in PAPER_OUTSIDE else None
            table.append(
                {
                    "outside": task,
                    "method": name,
                    **{
                        f"AUROC by {SHORT[measure]}": over_seeds(told, f"AUROC, {measure}")
                        for measure in OUTSIDE_BY
                    },
                    **flattering(told, printed.outside if printed else ("", "")),
                }
            )
    return table


def nearness_table(scores: list[dict]) -> list[dict]:
    """How near every student is to its teacher, at test rows and at every kind of outside."""
    columns = "KL of the mean", "mutual information / teacher's", "its rank correlation"
    near = [row for row in scores if columns[0] in row]
    return [
        {
            "inputs": "test rows" if task == ERRORS else task,
            "method": name,
            **{column: over_seeds(told, column) for column in columns},
        }
        for task in names(near, "task")
        for name in names(near, "method")
        for told in [of(near, method=name, task=task)]
    ]


def time_table(answers: list[dict], paper: dict[str, Paper]) -> list[dict]:
    columns = ("answer, ms", "batched, ms", "speed-up", "speed-up over batched")
    return [
        {
            "method": name,
            **{column: over_seeds(of(answers, method=name), column) for column in columns},
            "paper, ms": 1e3 * paper[name].seconds if name in paper else "",
            "making it, CPU s": over_seeds(of(answers, method=name), "making it, CPU s"),
        }
        for name in names(answers, "method")
        if name != TRIVIAL
    ]


def over_seeds(rows: list[dict], column: str) -> str:
    return spread([row[column] for row in rows]) if column in rows[0] else ""


def less(rows: list[dict], base: list[dict], column: str) -> str:
    """The difference within splits."""
    if not base:
        return ""
    there = {row["seed"]: row[column] for row in base}
    return spread([row[column] - there[row["seed"]] for row in rows])


def flattering(rows: list[dict], paper: tuple[str, str]) -> dict[str, str]:
    """AUROC and AUPR of the measures that did best on the test rows, beside the paper's."""
    return {
        "best AUROC": best(rows, "AUROC"),
        "paper, AUROC": paper[0],
        "best AUPR": best(rows, "AUPR"),
        "paper, AUPR": paper[1],
    }


def best(rows: list[dict], kind: str) -> str:
    """The measure with the largest mean over seeds, its name in brackets."""
    measures = [m for m in SHORT if f"{kind}, {m}" in rows[0]]
    if not measures:
        return ""
    means = {m: statistics.mean(row[f"{kind}, {m}"] for row in rows) for m in measures}
    found = max(measures, key=means.__getitem__)
    return f"{over_seeds(rows, f'{kind}, {found}')} ({SHORT[found]})"
