import pytest
import torch

from attention.options import Options, StoreError


@pytest.mark.parametrize("name", ["layers", "heads"])
@pytest.mark.parametrize("chosen", [(), (0,), (-1, 2), (2, 1), (1, 1)])
def test_numbers_that_mean_nothing_are_refused(name: str, chosen: tuple[int, ...]) -> None:
    with pytest.raises(StoreError, match=rf"{name}: .*from 1 on, in ascending order"):
        Options(**{name: chosen})  # type: ignore[arg-type]


@pytest.mark.parametrize("chosen", [None, (1,), (3, 7, 12)])
def test_numbers_from_one_on_are_accepted(chosen: tuple[int, ...] | None) -> None:
    assert Options(layers=chosen, heads=chosen).layers == chosen


def test_precision_is_a_dtype() -> None:
    assert Options().dtype == torch.float16
    assert Options(precision="float32").dtype == torch.float32
