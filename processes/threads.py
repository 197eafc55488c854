"""Choice of how PyTorch's threads wait for each other. Imported before torch, whose OpenMP reads it when loaded.

By default a thread that has finished its part of a kernel spins for a while, to start the next part at once.
That is the quickest way on idle cores. Beside another process it wastes the time that the thread it waits for needs.
Sleeping threads are the reverse: quick beside others, slow alone, because an idle core takes long to wake up. No length
of spinning is good at both, so the choice depends on how busy the machine is when the program starts.

Results do not depend on it. The user's own `OMP_WAIT_POLICY` or `GOMP_SPINCOUNT` is left as it is.
"""

import os
import time
from pathlib import Path

LOAD = Path("/proc/loadavg")


def running() -> int:
    """Threads that run or wait for a core on this machine, this one included: the least of five counts in 20 ms.

    1 where the system does not tell (no /proc).
    """
    counts = []
    try:
        for _ in range(5):
            counts.append(int(LOAD.read_text().split()[3].partition("/")[0]))
            time.sleep(0.004)
    except (OSError, ValueError, IndexError):
        return 1
    return min(counts)


def wait_policy(others: int, cores: int, threads: int) -> str | None:
    """`PASSIVE` where `others` running threads leave fewer of the `cores` than the `threads` want, else None."""
    return "PASSIVE" if threads > 1 and cores - others < threads else None


def choose() -> None:
    """Set `OMP_WAIT_POLICY` for the machine as it is now, unless the user has chosen."""
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    cores = os.cpu_count() or 1
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    policy = wait_policy(running() - 1, cores, int(wanted) if wanted.isdigit() else own)
    if policy is not None:
        os.environ["OMP_WAIT_POLICY"] = policy


choose()
