"""Sweeps of many runs: a plan in YAML, the execution of its runs, their table, and comparisons on the same items."""
