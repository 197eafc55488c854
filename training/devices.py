"""One loss over the devices of a run, which share each batch, and its average over the batches of an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric


@dataclass(frozen=True)
class Mean:
    """A mean over one device's share of a batch, with its count: a number of texts, words or weights."""

    value: Tensor
    count: Tensor | float


def over_devices(means: Sequence[Mean], world: int) -> list[Mean]:
    """Return the means of one of `world` devices, weighted: their average over the devices is the mean of the batch.

    DDP averages gradients over the devices. A device without an item has counts of 0. A returned count is the count of
    the whole batch divided by the number of devices.
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
    """Σ totals / Σ counts over the batches of all devices, 0 without a count; it does not depend on the batches.

    `MeanMetric` ignores its weights where it lets nan pass.
    """

    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "count"):
            self.add_state(name, torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, total: Tensor, count: Tensor | float) -> None:
        """Add the total of a batch and its count."""
        self.total += total
        self.count += count

    def compute(self) -> Tensor:
        """Return the average so far, a scalar."""
        return self.total / self.count.clamp(min=torch.finfo(self.count.dtype).tiny)

    def take(self) -> Tensor:
        """Return the average, and begin the next one."""
        average: Tensor = self.compute()
        self.reset()
        return average
