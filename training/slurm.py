"""Tasks that SLURM or torchrun started for a run, and whether they are those that its trainer wants."""

import os
import shutil
import subprocess

from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from pytorch_lightning import Trainer

from results.errors import UserError, counted


def started_tasks() -> tuple[int, int]:
    """Return the number of this process, from 0, and of all that SLURM or torchrun has started for the run."""
    names = ("RANK", "WORLD_SIZE") if TorchElasticEnvironment.detect() else ("SLURM_PROCID", "SLURM_NTASKS")
    detected = TorchElasticEnvironment.detect() or (SLURMEnvironment.detect() and "SLURM_PROCID" in os.environ)
    rank, world = (int(os.environ[name]) for name in names) if detected else (0, 1)
    return rank, world


def was_requeued() -> bool:
    """Return whether SLURM has begun the job of this process before."""
    return os.environ.get("SLURM_RESTART_COUNT", "0") != "0"


def nodes_of_step() -> set[str]:
    """Return the nodes of this step of SLURM; none where they are not known."""
    listed = os.environ.get("SLURM_STEP_NODELIST", "")
    if not listed or shutil.which("scontrol") is None:
        return set()
    command = ["scontrol", "show", "hostnames", listed]
    return set(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split())


def refuse_shell() -> None:
    """Raise a UserError in the shell of an allocation, which is no task of it."""
    if SLURMEnvironment.detect() and "SLURM_PROCID" not in os.environ:
        raise UserError("This is the shell of a SLURM allocation, which has no task: start the command with srun.")


def check_tasks(trainer: Trainer) -> None:
    """Refuse a SLURM step with other than one task for each device.

    Its tasks would each run the whole experiment, or wait for tasks that never start.

    Raises:
        UserError: SLURM started more or fewer tasks than the trainer has devices on all its nodes.
    """
    if TorchElasticEnvironment.detect():  # it goes first in Lightning as well
        return
    if not SLURMEnvironment.detect():
        # Lightning takes no notice of SLURM in a job that is named as `salloc` names it; only srun sets this number.
        if (tasks := int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))) > 1:
            raise UserError(
                f"SLURM has {tasks} tasks, and each would be the whole run: the job is named "
                f"{SLURMEnvironment.job_name()}, and Lightning takes no notice of SLURM in such a job. Give srun "
                f"--ntasks 1, or salloc another --job-name."
            )
        return
    tasks, nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ.get("SLURM_NNODES", "1"))
    if tasks != trainer.num_devices * trainer.num_nodes:
        options = f"--trainer.devices {tasks // nodes} --trainer.num_nodes {nodes}, or "
        raise UserError(
            f"SLURM has {counted(tasks, 'task')}, and the trainer wants {trainer.num_devices * trainer.num_nodes} "
            f"(devices × nodes: {trainer.num_devices} × {trainer.num_nodes}). Give "
            f"{'' if tasks % nodes else options}srun --nodes {trainer.num_nodes} --ntasks-per-node "
            f"{trainer.num_devices}."
        )
