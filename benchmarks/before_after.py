"""The default students of 18 posteriors before and after their loss was mended, side by side.

Reads ``results/teachers.json`` and three files of its kind, made at earlier commits. What was
attainable then is what is attainable now: posteriors, judging draws and test rows are made by the
same seeds. Seconds are of different machines where the files say so; ratios of them are not given.

"A tenth of the weight" is of students before and after the loss of the concentration was weighed by
a tenth (``MomentMatching(concentration=0.1)``), from ``teachers_full_weight`` to
``teachers_by_mutual_information``. "Recalibration" is from the latter, where the concentration was
shifted as far towards the teacher's mutual information as the energy distance did not rise, to
``teachers``, where it is shifted to where that is least. Both are means over the seeds that two
files have.

    python -m benchmarks.before_after
"""

from __future__ import annotations

from benchmarks.results import kept, over_seeds, parser, say, write

SHARE = "mutual information / teacher's"


def main() -> None:
    args = parser(__doc__.splitlines()[0]).parse_args()
    before = {row["name"]: row for row in kept("teachers_before")["Teachers"]}
    after = [row for row in kept("teachers")["By seed"] if row["seed"] == 0]
    rows = [pair(before[row["name"]], row) for row in after if row["name"] in before]
    full, by_information, now = "teachers_full_weight", "teachers_by_mutual_information", "teachers"
    weighed = "KL / attainable", "energy distance", "rank correlation", "distill, CPU s", SHARE
    shifted = "energy distance", SHARE, "central 50 %", "central 90 %"
    tables = {
        "Before and after": rows,
        "A tenth of the weight": compared(full, by_information, weighed),
        "Recalibration": compared(by_information, now, shifted),
    }
    say(tables)
    if not args.quick:
        write("before_after", "python -m benchmarks.before_after", {}, tables)


def compared(before: str, after: str, names: tuple[str, ...]) -> list[dict]:
    """These columns of every posterior in two files, over the seeds that both have."""
    old, new = by_seed(before), by_seed(after)
    rows = []
    for key, row in new.items():
        if key in old:
            found = {name: row[name] for name in ("teacher", "data", "seed")}
            for name in names:
                found |= {f"{name}, before": old[key][name], f"{name}, after": row[name]}
            rows.append(found)
    return over_seeds(rows, ("teacher", "data"))


def by_seed(file: str) -> dict[tuple[str, int], dict]:
    """The rows of a file by posterior and seed, with the share of the mutual information."""
    return {
        (row["name"], row["seed"]): row | {SHARE: row["mutual information"] / row["teacher's"]}
        for row in kept(file)["By seed"]
    }


def pair(old: dict, new: dict) -> dict:
    attainable = new.get("KL attainable") or None
    return {
        "teacher": new["teacher"],
        "data": new["data"],
        "KL / attainable, before": old["KL"] / attainable if attainable else "",
        "after": new["KL"] / attainable if attainable else "",
        "energy distance, before": old["energy distance"],
        "energy distance, after": new["energy distance"],
        "mutual information / teacher's, before": old["mutual information"] / old["teacher's"],
        "mutual information / teacher's, after": new["mutual information"] / new["teacher's"],
        "seconds, before": old["distill, s"],
        "seconds, after": new["distill, s"],
        "faithful": new.get("faithful", ""),
        "kept": str(new.get("kept", "")).split(":")[0],
    }


if __name__ == "__main__":
    main()
