"""Memory of this process."""

import os
import resource
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes; 0 on systems without /proc."""
    try:
        _, resident, *_ = map(int, _STATM.read_text().split())
    except OSError:
        return 0
    return resident * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int:
    """Return the most resident memory that this process has had, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def anonymous_bytes() -> int:
    """Return the resident memory without mapped files, in bytes; 0 on systems without /proc."""
    try:
        _, resident, shared, *_ = map(int, _STATM.read_text().split())
    except OSError:
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
