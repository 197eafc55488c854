"""Tasks that SLURM starts: one for each device of the trainer."""

import os

from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from pytorch_lightning import Trainer

from results.errors import UserError, counted


def refuse_shell() -> None:
    """Raise UserError in the interactive shell of a SLURM allocation, where no task runs."""
    if SLURMEnvironment.detect() and "SLURM_PROCID" not in os.environ:
        raise UserError(
            "The command runs in the shell of a SLURM allocation, not in a task. Start it with srun: srun python "
            "train.py …"
        )


def check_tasks(trainer: Trainer) -> None:
    """Check that SLURM started one task for each device; otherwise each task would be a whole run, or wait forever.

    Outside SLURM and under torchrun, there is nothing to check.

    Raises:
        UserError: The number of tasks differs from the trainer's number of devices on all nodes, or SLURM
            started several tasks in a job in which Lightning ignores SLURM.
    """
    if TorchElasticEnvironment.detect():  # takes precedence in Lightning too
        return
    if not SLURMEnvironment.detect():
        # Lightning ignores SLURM in a job with the name that `salloc` gives; only srun sets this variable.
        if (tasks := int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))) > 1:
            raise UserError(
                f"SLURM started {tasks} tasks, but Lightning ignores SLURM in a job named "
                f"'{SLURMEnvironment.job_name()}', so each task would do the whole run. Use srun --ntasks 1, or "
                f"another salloc --job-name."
            )
        return
    tasks, nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ.get("SLURM_NNODES", "1"))
    if tasks != trainer.num_devices * trainer.num_nodes:
        options = f"Give --trainer.devices {tasks // nodes} --trainer.num_nodes {nodes}, or start"
        raise UserError(
            f"SLURM has {counted(tasks, 'task')}, but the trainer needs {trainer.num_devices * trainer.num_nodes} "
            f"({counted(trainer.num_devices, 'device')} × {counted(trainer.num_nodes, 'node')}). "
            f"{'Start' if tasks % nodes else options} the command with srun --nodes {trainer.num_nodes} "
            f"--ntasks-per-node {trainer.num_devices}."
        )
