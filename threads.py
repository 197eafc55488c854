"""How the threads of PyTorch wait for each other; imported before torch, whose OpenMP reads its settings when loaded.

A thread that has done its share of a kernel spins by default, to begin the next at once. Where another process wants
the core, it spins away the time that the thread it waits for would need. Sleeping threads give the core up. The user's
own `OMP_WAIT_POLICY` (or `GOMP_SPINCOUNT`, which OpenMP of GCC prefers) stands; results are the same under any.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
