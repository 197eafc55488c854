"""Signals, the other processes of a run, locks, threads, and a run as a job. Imported before torch."""
