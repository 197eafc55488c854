"""The base of all datamodules: Lightning's `LightningDataModule`, from the moment that Lightning is imported.

Importing Lightning takes longer than everything else that a measurement needs, and a measurement needs no Trainer. So
a datamodule begins as a plain class, and becomes a subclass of `LightningDataModule` when anything imports
`pytorch_lightning`: a probe, a classifier, or a program of a user that makes a Trainer.
"""

from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule

    DataModule = LightningDataModule
else:

    class _NotYet:
        """Base of `DataModule` until Lightning is imported; sets the attributes that `LightningDataModule` sets."""

        def __init__(self) -> None:
            self.trainer = None
            self.prepare_data_per_node = True
            self.allow_zero_length_dataloader_with_multiple_devices = False
            self._log_hyperparams = False

    class DataModule(_NotYet):
        """A `LightningDataModule` as soon as `pytorch_lightning` is imported."""


@wrapt.when_imported("pytorch_lightning")
def _derive(lightning: Any) -> None:  # noqa: ANN401 # the module
    """Make `DataModule`, with its subclasses and their objects, a `LightningDataModule`."""
    DataModule.__bases__ = (lightning.LightningDataModule,)
