"""Memory that allocators keep for themselves after it was freed, handed back to the system."""

import ctypes
import os
import sys
from pathlib import Path

import pyarrow as pa

_STATM = Path("/proc/self/statm")


def return_free_memory() -> None:
    """Give back what allocators keep: no batch is like the one before, and memory would creep up with the corpus."""
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc; other C libraries keep less
        if trim is not None:
            trim(0)


class Allowance:
    """Lets memory grow by so many bytes before what is free of it is given back.

    Giving back after every batch would cost the next one as many page faults as it has pages.
    """

    def __init__(self, growth: int = 48 << 20) -> None:
        self._growth = growth
        self._before = _anonymous_bytes()

    def check(self) -> None:
        """Give free memory back if the process has grown by more than it may."""
        if _anonymous_bytes() - self._before > self._growth:
            return_free_memory()
            self._before = _anonymous_bytes()


def _anonymous_bytes() -> int:
    """Resident memory that no file stands behind; 0 where the system does not say."""
    try:
        _, resident, shared, *_ = map(int, _STATM.read_text().split())
    except OSError:
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
