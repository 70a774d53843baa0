"""The picture of the package's rooms in "How it works": python docs/pictures_house.py"""

from __future__ import annotations

import ast
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import FancyBboxPatch  # noqa: E402

from pyro_opu.plots.colours import BLACK, GREY, STUDENT  # noqa: E402

ROOT = Path(__file__).parents[1]
TARGET = Path(__file__).with_name("house.svg")


def rooms() -> dict[str, list[Path]]:
    """Room -> its files: the folders and files of the package."""
    found = {}
    for path in sorted((ROOT / "pyro_opu").iterdir()):
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        if files and (path.is_dir() or path.suffix == ".py"):
            found[path.stem] = files
    return found


def imported(file: Path, names: set[str]) -> set[str]:
    """Rooms that a file imports from, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            whole = [alias.name for alias in node.names]
        else:
            continue
        for name in whole:
            first, _, rest = name.partition(".")
            room = rest.partition(".")[0] if first == "pyro_opu" else first
            found.add(room if room in names else "__init__" if first == "pyro_opu" else "")
    return found & names


def floors(uses: dict[str, set[str]]) -> dict[str, int]:
    """Floor of every room: one above the highest that it imports from."""
    height: dict[str, int] = {}

    def of(room: str) -> int:
        if room not in height:
            height[room] = 1 + max((of(other) for other in uses[room]), default=0)
        return height[room]

    for room in uses:
        of(room)
    return height


def main() -> None:
    files = rooms()
    uses = {
        room: set().union(*(imported(path, set(files)) for path in paths)) - {room}
        for room, paths in files.items()
    }
    height = floors(uses)
    top = max(height.values())
    plt.rcParams["svg.hashsalt"] = "house"  # the same file every time
    figure, axes = plt.subplots(figsize=(10, 0.5 * top + 0.3))
    for floor in range(1, top + 1):
        here = [room for room in files if height[room] == floor]
        for place, room in enumerate(here):
            left = 0.6 + 1.9 * place
            folder = len(files[room]) > 1
            shape = FancyBboxPatch(
                (left, floor), 1.7, 0.7, "round,pad=0,rounding_size=0.1", fc="white",
                ec=STUDENT if folder else GREY, lw=1.5,
            )  # fmt: skip
            axes.add_patch(shape)
            name = "pyro_opu" if room == "__init__" else room
            axes.text(left + 0.85, floor + 0.35, name, ha="center", va="center", weight="bold")
        axes.text(0.3, floor + 0.35, str(floor), ha="center", va="center", color=BLACK)
    widest = max(list(height.values()).count(floor) for floor in range(1, top + 1))
    axes.set(xlim=(0, 0.7 + 1.9 * widest), ylim=(0.9, top + 0.85))
    axes.axis("off")
    figure.savefig(TARGET, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
