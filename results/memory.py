"""Memory of this process."""

import os
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes; 0 on systems without /proc."""
    try:
        _, resident, *_ = map(int, _STATM.read_text().split())
    except OSError:
        return 0
    return resident * os.sysconf("SC_PAGE_SIZE")


def anonymous_bytes() -> int:
    """Return the resident memory without mapped files, in bytes; 0 on systems without /proc."""
    try:
        _, resident, shared, *_ = map(int, _STATM.read_text().split())
    except OSError:
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
