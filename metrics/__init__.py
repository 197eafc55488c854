"""Metrics: formulas as pure functions, and torchmetrics classes that accumulate over batches."""
