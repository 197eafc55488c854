"""Losses of a training as means over a batch that several devices share."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric


@dataclass(frozen=True)
class Mean:
    """Mean over one device's share of a batch.

    Attributes:
        value: The mean, a scalar.
        count: Number of averaged texts or words, or the sum of their weights; 0 for an empty share.
    """

    value: Tensor
    count: Tensor | float


def device_count(module: LightningModule) -> int:
    """Return the number of devices that share a batch; 1 without a trainer."""
    trainer = module._trainer  # `module.trainer` raises an error without one
    return 1 if trainer is None else trainer.world_size


def no_loss(module: nn.Module) -> Tensor:
    """Return the loss of a device whose share of the batch is empty: 0, with gradients of 0 for all parameters."""
    sums = [parameter.sum() for parameter in module.parameters() if parameter.requires_grad]
    return 0 * torch.stack(sums).sum()


def over_devices(means: Sequence[Mean], module: LightningModule) -> list[Mean]:
    """Return the means of this device, scaled so that their average over all devices is the mean of the whole batch.

    DDP averages gradients over the devices. A returned count is the count of the whole batch divided by the number of
    devices.

    Args:
        means: Means over this device's share of the batch.
        module: Module that is trained.
    """
    devices = device_count(module)
    if devices == 1:
        return list(means)
    device = means[0].value.device
    counts = torch.stack([torch.as_tensor(mean.count, dtype=torch.float32, device=device) for mean in means])
    totals = counts.clone()
    dist.all_reduce(totals)
    averages = (totals / devices).clamp(min=torch.finfo(totals.dtype).tiny)
    scaled = []
    for mean, count, average in zip(means, counts, averages, strict=True):
        scaled.append(Mean(mean.value * (count / average), average))
    return scaled


class Average(Metric):
    """Metric that averages over batches and devices: Σ totals / Σ counts, or 0 if all counts are 0.

    The average is nan if a total is nan. The `MeanMetric` of torchmetrics by default drops nan values;
    with `nan_strategy="disable"` it keeps them, but ignores the weights.
    """

    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "count"):
            self.add_state(name, torch.zeros(()), dist_reduce_fx="sum")

    def update(self, total: Tensor, count: Tensor | float) -> None:
        """Add the total of a batch and its count to the sums of the average."""
        self.total += total
        self.count += count

    def compute(self) -> Tensor:
        """Return the average over all batches so far, a scalar."""
        return self.total / self.count.clamp(min=torch.finfo(self.count.dtype).tiny)

    def take(self) -> Tensor:
        """Return the average and reset the metric."""
        if not self.update_called:  # a device without a text; torchmetrics would warn
            self.update(torch.zeros_like(self.total), 0.0)
        average: Tensor = self.compute()
        self.reset()
        return average
