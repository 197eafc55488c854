"""Many runs: a plan in YAML, its runs, their table, and comparisons on the same items."""
