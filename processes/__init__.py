"""Signals, ranks, locks, threads, progress in the log, and runs as jobs."""
