"""One loss over the devices of a run, which share each batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


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
