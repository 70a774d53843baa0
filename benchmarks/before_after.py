"""The default students of 18 posteriors before and after the objectives were mended, side by side.

Reads ``results/teachers_before.json``, made at an earlier commit, and ``results/teachers.json``.
What was attainable then is what is attainable now: posteriors, judging draws and test rows are made
by the same seeds. Seconds are of different machines where the files say so; ratios of them are not
given.

    python -m benchmarks.before_after
"""

from __future__ import annotations

from benchmarks.results import kept, parser, say, write


def main() -> None:
    args = parser(__doc__.splitlines()[0]).parse_args()
    before = {row["name"]: row for row in kept("teachers_before")["Teachers"]}
    after = [row for row in kept("teachers")["By seed"] if row["seed"] == 0]
    rows = [pair(before[row["name"]], row) for row in after if row["name"] in before]
    say({"Before and after": rows})
    if not args.quick:
        write("before_after", "python -m benchmarks.before_after", {}, {"Before and after": rows})


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
