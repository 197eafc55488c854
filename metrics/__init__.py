"""Metrics: formulas as pure functions, and classes that accumulate over batches and devices."""
