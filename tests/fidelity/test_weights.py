"""Groups of slots against loops over them."""

import torch
from torch import Tensor

from fidelity.weights import group_sums, permuted, renormalised, uniform

GROUPS = torch.tensor([[0, 0, 0, 1, 1, -1], [-1, 0, 1, 1, 2, 2], [0, 0, -1, -1, -1, -1]])


def weights(*shape: int) -> Tensor:
    drawn = torch.rand(*shape, *GROUPS.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return drawn.masked_fill(GROUPS < 0, 0)


def members() -> list[tuple[int, list[int]]]:
    """Row and slots of each group."""
    rows = enumerate(GROUPS.tolist())
    return [
        (row, [slot for slot, one in enumerate(groups) if one == group])
        for row, groups in rows
        for group in range(max(groups) + 1)
    ]


def test_sums_are_those_of_each_group() -> None:
    values = weights(2, 3)
    sums = group_sums(values, GROUPS)
    for row, slots in members():
        expected = values[..., row, slots].sum(-1, keepdim=True).expand(2, 3, len(slots))
        torch.testing.assert_close(sums[..., row, slots], expected)


def test_what_is_left_of_a_group_sums_to_one_and_an_empty_group_stays_zero() -> None:
    values = weights(2)
    values[:, 0, 3:5] = 0
    found = renormalised(values, GROUPS)
    assert found.isfinite().all()
    for row, slots in members():
        if row == 0 and slots == [3, 4]:
            assert not found[:, row, slots].any()
        else:
            expected = values[:, row, slots] / values[:, row, slots].sum(-1, keepdim=True)
            torch.testing.assert_close(found[:, row, slots], expected)
    assert not found[:, GROUPS < 0].any()


def test_the_gradient_of_a_group_with_nothing_left_is_a_number() -> None:
    values = weights().requires_grad_()
    renormalised(values * torch.tensor([1, 1, 1, 0, 0, 0]), GROUPS).square().sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert values.grad.isfinite().all()
    assert values.grad[0, :3].any()


def test_uniform_weights_are_equal_within_each_group() -> None:
    found = uniform(GROUPS)
    for row, slots in members():
        assert found[row, slots].tolist() == [torch.tensor(1 / len(slots)).item()] * len(slots)
    assert not found[GROUPS < 0].any()


def test_a_shuffle_moves_weights_within_their_group_and_all_heads_alike() -> None:
    heads = weights(2)
    noise = torch.rand(50, *GROUPS.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = permuted(heads, noise, GROUPS)
    assert found.shape == (50, 2, *GROUPS.shape)
    for row, slots in members():
        for draw in range(50):
            # The slot with the n-th lowest noise gives its weight to the n-th slot.
            order = sorted(slots, key=lambda slot: float(noise[draw, row, slot]))
            for slot, giver in zip(slots, order, strict=True):
                assert found[draw, :, row, slot].tolist() == heads[:, row, giver].tolist()
    assert not found[..., GROUPS < 0].any()


def test_every_order_of_a_group_comes_up_about_equally_often() -> None:
    groups = torch.zeros(1, 3, dtype=torch.int64)
    noise = torch.rand(6000, 1, 3, generator=torch.Generator().manual_seed(2))
    found = permuted(torch.tensor([[[0.0, 1.0, 2.0]]]), noise, groups)[:, 0, 0]
    orders = (found @ torch.tensor([9.0, 3.0, 1.0])).unique(return_counts=True)[1]  # type: ignore[no-untyped-call]
    assert len(orders) == 6
    assert ((orders - 1000).abs() < 150).all()
