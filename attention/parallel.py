"""Forward passes side by side: a pass on each core keeps a CPU busier than one pass at a time on all of them."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_order(
    compute: Callable[[Job], Result], jobs: Iterable[Job], workers: int
) -> Generator[tuple[Job, Result], None, None]:
    """Every job with its result, in order, `workers` of them computed at once.

    While the caller looks at a result, the next ones are computed: at most `workers` other results exist, or are about
    to. The threads of the process are shared out to the workers.
    """
    threads = torch.get_num_threads()
    share = max(threads // workers, 1)
    pending: deque[tuple[Job, Future[Result]]] = deque()
    try:
        with ThreadPoolExecutor(workers, "forward", torch.set_num_threads, (share,)) as pool:
            for job in jobs:
                if len(pending) > workers:
                    done, future = pending.popleft()
                    yield done, future.result()
                pending.append((job, pool.submit(compute, job)))
            while pending:
                done, future = pending.popleft()
                yield done, future.result()
    finally:
        torch.set_num_threads(threads)  # threads that are started later take over what any thread has set last
