"""Many runs: a plan in YAML, its runs, one table of them, and comparisons on the same items."""
