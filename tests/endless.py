"""Files without an end, in the place of files that are read."""

import os
from pathlib import Path
from typing import Literal

Endless = Literal["pipe", "device"]


def make_endless(path: Path, kind: Endless) -> Path:
    """Put a pipe that nobody writes to, or a link to a device, in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path
