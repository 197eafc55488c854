"""Sums and items that are gathered over devices; their import needs neither Lightning nor torchmetrics."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Item = TypeVar("Item")
Total = TypeVar("Total")


def gather_items(items: Sequence[Item]) -> list[Item]:
    """Return the items of all devices, in the order of the devices; every process must call it."""
    if not dist.is_available() or not dist.is_initialized():
        return list(items)
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, list(items))
    gathered: list[Item] = []
    for part in parts:
        gathered.extend(part)
    return gathered


class Gathered(nn.Module, ABC, Generic[Total]):
    """Base class of accumulators whose states are sums over batches and devices.

    A subclass declares its states in the constructor with `add_sum`, changes them in `update`, and implements `total`.
    States are attributes; they move with the module to a device, and keep their type.

    Attributes:
        over_devices: False to leave the states of other processes out, which may work on something else.
    """

    over_devices = True

    def __init__(self) -> None:
        super().__init__()
        self._sums: dict[str, Tensor] = {}
        self._on_device = torch.empty(0)

    def add_sum(self, name: str, start: Tensor) -> None:
        """Declare a state that is summed over devices.

        Args:
            name: Name of the attribute.
            start: Its value before the first batch, usually zeros.
        """
        self._sums[name] = start
        setattr(self, name, start.clone())

    @property
    def device(self) -> torch.device:
        """Device of the states."""
        return self._on_device.device

    @abstractmethod
    def total(self) -> Total:
        """Return the result over the states as they are; `compute` calls it with those of all devices."""

    def compute(self) -> Total:
        """Return the result over the batches of all devices; every process must call it."""
        with self._of_all_devices():
            return self.total()

    def take(self) -> Total:
        """Return the result over the batches of all devices, and begin anew."""
        total = self.compute()
        self.reset()
        return total

    def reset(self) -> None:
        """Forget all batches."""
        for name, start in self._sums.items():
            setattr(self, name, start.to(self.device, copy=True))

    @contextmanager
    def _of_all_devices(self) -> Iterator[None]:
        """Within the block, let the states be those of all devices."""
        if not self.over_devices or not dist.is_available() or not dist.is_initialized():
            yield
            return
        of_this_device = {name: getattr(self, name) for name in self._sums}
        try:
            for name, state in of_this_device.items():
                of_devices = [torch.empty_like(state) for _ in range(dist.get_world_size())]
                dist.all_gather(of_devices, state.contiguous())
                setattr(self, name, torch.stack(of_devices).sum(dim=0))
            yield
        finally:
            for name, state in of_this_device.items():
                setattr(self, name, state)

    def _apply(self, fn: Any, recurse: Any = True) -> Self:  # noqa: ANN401
        """Move the states with the module; a change of precision is one of parameters, not of sums."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._on_device = fn(self._on_device)
        for name in self._sums:
            state = getattr(self, name)
            setattr(self, name, state.to(self.device))
        return self
