"""Files that appear whole or not at all."""

import os
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, text: str) -> Path:
    """Write a UTF-8 file under a name of its own beside `path`, and move it to its place; return `path`."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
