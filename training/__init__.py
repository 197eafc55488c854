"""What every trained module shares, probes and classifiers alike, and the one training inside a test."""

from training.lifecycle import Origin, TrainedModule, TrainingError, check_new
from training.nested import Best, nested_trainer, quiet, recorded_gradients, train_nested

__all__ = [
    "Best",
    "Origin",
    "TrainedModule",
    "TrainingError",
    "check_new",
    "nested_trainer",
    "quiet",
    "recorded_gradients",
    "train_nested",
]
