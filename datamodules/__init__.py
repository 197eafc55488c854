"""Corpora and their attention, as batches."""

from datamodules.base import AttentionDataModule
from datamodules.batch import AntecedentBatch, AttentionBatch
from datamodules.coreference import CoreferenceDataModule
from datamodules.dependency import DependencyDataModule

__all__ = [
    "AntecedentBatch",
    "AttentionBatch",
    "AttentionDataModule",
    "CoreferenceDataModule",
    "DependencyDataModule",
]
