"""The default students of 18 posteriors before and after their loss was mended, side by side.

Reads ``results/teachers_before.json`` and ``results/teachers_full_weight.json``, made at earlier
commits, and ``results/teachers.json``. What was attainable then is what is attainable now:
posteriors, judging draws and test rows are made by the same seeds. Seconds are of different
machines where the files say so; ratios of them are not given.

"A tenth of the weight" is of students before and after the loss of the concentration was weighed by
a tenth (``MomentMatching(concentration=0.1)``), means over the seeds that both files have.

    python -m benchmarks.before_after
"""

from __future__ import annotations

from benchmarks.results import kept, over_seeds, parser, say, write


def main() -> None:
    args = parser(__doc__.splitlines()[0]).parse_args()
    before = {row["name"]: row for row in kept("teachers_before")["Teachers"]}
    after = [row for row in kept("teachers")["By seed"] if row["seed"] == 0]
    rows = [pair(before[row["name"]], row) for row in after if row["name"] in before]
    tables = {"Before and after": rows, "A tenth of the weight": weighed()}
    say(tables)
    if not args.quick:
        write("before_after", "python -m benchmarks.before_after", {}, tables)


def weighed() -> list[dict]:
    """Every posterior before and after, over the seeds that both files have."""
    before = {(row["name"], row["seed"]): row for row in kept("teachers_full_weight")["By seed"]}
    rows = []
    for row in kept("teachers")["By seed"]:
        old = before.get((row["name"], row["seed"]))
        if old is None:
            continue
        found = {"teacher": row["teacher"], "data": row["data"], "seed": row["seed"]}
        for name in ("KL / attainable", "energy distance", "rank correlation", "distill, CPU s"):
            found |= {f"{name}, before": old[name], f"{name}, after": row[name]}
        share = "mutual information / teacher's"
        for when, each in (("before", old), ("after", row)):
            found[f"{share}, {when}"] = each["mutual information"] / each["teacher's"]
        rows.append(found)
    return over_seeds(rows, ("teacher", "data"))


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
