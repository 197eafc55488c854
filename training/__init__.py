"""The base of trained modules, their checkpoints and settings, and trainings inside a measurement."""

from training.checkpoints import TrainingError
from training.lifecycle import (
    Average,
    Mean,
    Origin,
    TrainedModule,
    device_count,
    gathered,
    no_loss,
    over_devices,
    training_audit,
    training_warnings,
)
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
