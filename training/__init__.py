"""The command line, the folder of a run, the bases of experiments and trained modules, and trainings inside a test."""

from training.checkpoints import TrainingError
from training.devices import Average, Mean, over_devices
from training.experiment import Experiment
from training.lifecycle import Origin, TrainedModule
from training.lightning_private import alone
from training.nested import Best, Training, nested_trainer, quiet, recorded_gradients, share, train_nested
from training.resume import kept_file, kept_tensors
