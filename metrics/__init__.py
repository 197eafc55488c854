"""Formulas as functions, and state as torchmetrics."""
