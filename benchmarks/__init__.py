"""What the application costs, as ratios taken in one run: `python -m benchmarks.{extraction,probe_training,store}`."""
