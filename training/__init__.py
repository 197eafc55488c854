"""The command line, the folder of a run, the bases of experiments and trained modules, and trainings inside a test."""

from training.checkpoints import TrainingError
from training.experiment import Experiment
from training.lifecycle import Average, Mean, Origin, TrainedModule, device_count, gathered, no_loss, over_devices
from training.lightning_private import alone
from training.nested import (
    Best,
    Training,
    nested_trainer,
    quiet,
    recorded_gradients,
    result_of,
    share,
    train_nested,
)
from training.run import kept_file, kept_tensors
