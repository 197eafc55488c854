"""Wait policy of PyTorch's OpenMP threads. Imported before torch, whose OpenMP reads the policy when loaded.

By default a thread that has finished its part of a kernel spins, to start the next part at once. Spinning is fastest on
idle cores, but takes time from other processes on busy cores. Sleeping threads are fast on busy cores and slow on idle
ones, because waking up takes long. So the policy depends on the load of the machine at the start of the program.

Results do not depend on the policy. `OMP_WAIT_POLICY` or `GOMP_SPINCOUNT` set by the user takes precedence.
"""

import os
import time
from pathlib import Path

LOAD = Path("/proc/loadavg")


def running() -> int:
    """Return the number of running threads on this machine, the lowest of five counts within 20 ms; 1 without /proc."""
    counts = []
    try:
        for _ in range(5):
            counts.append(int(LOAD.read_text().split()[3].partition("/")[0]))
            time.sleep(0.004)
    except (OSError, ValueError, IndexError):
        return 1
    return min(counts)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wait_policy(others: int, cores: int, threads: int) -> str | None:
    """Return `PASSIVE` if idle OpenMP threads of this process should sleep, None if they should spin.

    They should sleep if `threads > 1` and `threads > cores - others`: this process has several threads,
    and too few cores are free for all of them.

    Args:
        others: Number of running threads of other processes, each taken to occupy one core.
        cores: Number of cores of the machine.
        threads: Number of threads of this process.
    """
    return "PASSIVE" if threads > 1 and cores - others < threads else None


def choose() -> None:
    """Set `OMP_WAIT_POLICY` to PASSIVE, so that idle OpenMP threads sleep, if the machine is busy now.

    `wait_policy` decides whether it is busy, from the threads that run at this moment. OpenMP reads the
    variable when torch is imported, so a later call has no effect; importing this module calls it.
    Nothing changes if the user has set `OMP_WAIT_POLICY` or `GOMP_SPINCOUNT`.
    """
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    policy = wait_policy(running() - 1, os.cpu_count() or 1, int(wanted) if wanted.isdigit() else cores())
    if policy is not None:
        os.environ["OMP_WAIT_POLICY"] = policy


choose()
