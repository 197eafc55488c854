"""The uses of private parts of Lightning by trained modules and trainings; `commands.lightning_private` has the others.

pyproject.toml bounds the minor version of Lightning for them. tests/commands/test_lightning_private.py has a test of
each, which fails when a library changes it.
"""

from pytorch_lightning import LightningModule, Trainer


def attached_trainer(module: LightningModule) -> Trainer | None:
    """Return the trainer of a module; None if it has none, where `module.trainer` would raise an error."""
    return module._trainer


def ignore_signals(trainer: Trainer) -> None:
    """Disable Lightning's signal handlers for a trainer.

    They would save a checkpoint in the middle of an epoch, and let a test go on after SIGTERM. Without them a signal
    ends the process at once, which loses at most one epoch.
    """
    trainer._signal_connector.register_signal_handlers = _register_none  # type: ignore[method-assign]


def _register_none() -> None:
    """Register no handler; a module-level function, because spawning strategies pickle the trainer."""
