import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from attention.parallel import in_order


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_though_later_ones_are_ready_first() -> None:
    def compute(job: int) -> int:
        time.sleep(0.02 * (job % 3 == 0))
        return job**2

    assert list(in_order(compute, range(10), 3)) == [(job, job**2) for job in range(10)]


@pytest.mark.parametrize(("workers", "share"), [(1, 4), (2, 2), (3, 1), (8, 1)])
def test_workers_share_the_threads_and_give_them_back(workers: int, share: int) -> None:
    found = list(in_order(lambda _: (torch.get_num_threads(), threading.get_ident()), range(20), workers))
    assert {threads for _, (threads, _) in found} == {share}
    assert 1 <= len({worker for _, (_, worker) in found}) <= workers
    assert torch.get_num_threads() == 4
    started_later: list[int] = []
    thread = threading.Thread(target=lambda: started_later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert started_later == [4]


def test_no_more_is_taken_than_is_soon_wanted() -> None:
    taken: list[int] = []

    def jobs() -> Iterator[int]:
        for job in range(100):
            taken.append(job)
            yield job

    with closing(in_order(lambda job: job, jobs(), 2)) as results:
        for wanted in range(5):
            assert next(results) == (wanted, wanted)
            assert len(taken) <= wanted + 4
    assert len(taken) <= 8
    assert torch.get_num_threads() == 4


def test_an_error_comes_where_its_result_would_have() -> None:
    results = in_order(lambda job: 1 // job, [2, 1, 0, 1], 2)
    assert [next(results), next(results)] == [(2, 0), (1, 1)]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert torch.get_num_threads() == 4
