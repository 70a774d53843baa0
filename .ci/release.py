"""What a release must have, and the README as a package index shows it.

python .ci/release.py check [vX.Y.Z]    refuses placeholders, and versions that differ
python .ci/release.py links             makes the README's links absolute, in place
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Stands where nobody has said yet whose repository it is.
PLACEHOLDER = "github.com/OWNER/"
#: Files that strangers read, in which it must not stand.
READ = ("*.toml", "*.cff", "*.md", ".github/**/*.*")
LINK = re.compile(r"(!?)\[([^]]*)\]\((?!\w+:|#)([^)\s]+)\)")


def complaints(root: Path, tag: str | None = None) -> list[str]:
    """Why a tree cannot be released, one reason a line."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    version = project["version"]
    found = [
        f"{path.relative_to(root)} has the placeholder {PLACEHOLDER}"
        for path in sorted({path for pattern in READ for path in root.glob(pattern)})
        if PLACEHOLDER in path.read_text()
    ]
    if not {"Repository", "Issues", "Documentation"} <= set(project.get("urls", {})):
        found.append("pyproject.toml has not the urls Repository, Issues and Documentation")
    if f"\nversion: {version}\n" not in (root / "CITATION.cff").read_text():
        found.append(f"CITATION.cff is not of version {version}")
    heading = re.compile(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", re.MULTILINE)
    if not heading.search((root / "CHANGELOG.md").read_text()):
        found.append(f"CHANGELOG.md has no date for {version}")
    if tag is not None and tag != f"v{version}":
        found.append(f"the tag {tag} is not v{version}")
    return found


def absolute(text: str, repository: str, tag: str) -> str:
    """Markdown whose relative links lead to a repository, pictures to their bytes."""

    def replaced(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}[{link[2]}]({repository}/{kind}/{tag}/{link[3]})"

    return LINK.sub(replaced, text)


def main(command: str, tag: str | None = None) -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if command == "links":
        readme = ROOT / "README.md"
        address = project["urls"]["Repository"].rstrip("/")
        readme.write_text(absolute(readme.read_text(), address, f"v{project['version']}"))
        return 0
    found = complaints(ROOT, tag)
    print("\n".join(found) or "ready")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
