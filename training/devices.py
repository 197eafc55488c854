"""One loss over the devices of a run, which share each batch, and its average over the batches of an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric


@dataclass(frozen=True)
class Mean:
    """A mean over what one device has of a batch, and what it is a mean over: a number of texts, words or weights."""

    value: Tensor
    count: Tensor | float


def over_devices(means: Sequence[Mean], world: int) -> list[Mean]:
    """The means of one of `world` devices, so weighted that their averages over all are those of the whole batch.

    DDP averages gradients over the devices. A device without an item has counts of 0. The counts that are returned are
    those of the whole batch, over the number of devices.
    """
    if world == 1:
        return list(means)
    counts = torch.stack([torch.as_tensor(mean.count, dtype=torch.float32, device=mean.value.device) for mean in means])
    totals = counts.clone()
    dist.all_reduce(totals)
    averages = (totals / world).clamp(min=torch.finfo(totals.dtype).tiny)
    return [
        Mean(mean.value * (count / average), average)
        for mean, count, average in zip(means, counts, averages, strict=True)
    ]


class Average(Metric):
    """Σ totals / Σ counts over the batches of all devices, 0 without a count: how items are batched changes nothing.

    `MeanMetric` ignores its weights where it lets nan pass.
    """

    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "count"):
            self.add_state(name, torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, total: Tensor, count: Tensor | float) -> None:
        """Add the total of a batch, and what it is a total over."""
        self.total += total
        self.count += count

    def compute(self) -> Tensor:
        """The average so far, a scalar."""
        return self.total / self.count.clamp(min=torch.finfo(self.count.dtype).tiny)

    def take(self) -> Tensor:
        """The average; the next one begins."""
        average: Tensor = self.compute()
        self.reset()
        return average
