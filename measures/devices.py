"""The one device of a measurement that has no other processes, in place of Lightning's Fabric."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch

Value = TypeVar("Value")


class OneProcess:
    """The CPU and this process alone, with the part of the interface of `lightning_fabric.Fabric` that `measure` uses.

    Importing Fabric takes seconds.

    Attributes:
        device: The CPU.
        global_rank: Rank of this process, 0.
        world_size: Number of processes, 1.
    """

    device = torch.device("cpu")
    global_rank = 0
    world_size = 1

    def launch(self, work: Callable[["OneProcess"], Value]) -> Value:
        """Call a function with this object, and return its result."""
        return work(self)

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context in which numbers have the precision of their models."""
        return nullcontext()

    def broadcast(self, value: Value) -> Value:
        """Return the value: no other process needs it."""
        return value

    def barrier(self) -> None:
        """Return at once: there is no other process to wait for."""
