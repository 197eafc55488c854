"""Refuses a module that outgrew one page of thought: `python -m tests.length`."""

import subprocess
import sys
from pathlib import Path

LIMIT = 300
FREE = ("tests/", "docs/")


def too_long(root: Path) -> list[str]:
    """Tracked and new text files outside `tests/` and `docs/` with more than `LIMIT` lines, as `path: lines`."""
    listed = subprocess.run(
        [
            "git",
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "*.py",
            "*.yaml",
            "*.toml",
            "*.md",
            "Makefile",
        ],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    counts = {
        name: len((root / name).read_text(encoding="utf-8").splitlines())
        for name in listed
        if not name.startswith(FREE) and (root / name).exists()
    }
    return [f"{name}: {lines} lines" for name, lines in sorted(counts.items()) if lines > LIMIT]


if __name__ == "__main__":
    found = too_long(Path(__file__).resolve().parent.parent)
    print("\n".join(f"{line}; at most {LIMIT}: make it two modules" for line in found) or "no file past 300 lines")
    sys.exit(bool(found))
