"""Corpora and their attention, as batches."""

from datamodules.base import AttentionDataModule
from datamodules.batch import AntecedentBatch, AttentionBatch
from datamodules.coreference import CoreferenceDataModule
from datamodules.dependency import DependencyDataModule
from datamodules.vector_files import VectorError
from datamodules.vectors import VectorSpec

__all__ = [
    "AntecedentBatch",
    "AttentionBatch",
    "AttentionDataModule",
    "CoreferenceDataModule",
    "DependencyDataModule",
    "VectorError",
    "VectorSpec",
]
