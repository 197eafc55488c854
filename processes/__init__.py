"""Signals, ranks, locks, threads, progress in the log, runs as jobs, and the help of train.py."""
