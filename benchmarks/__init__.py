"""What the application costs, as ratios taken in one run: `python -m benchmarks.{extraction,probe_training,store}`."""

import commands.threads  # noqa: F401 # as in train.py
