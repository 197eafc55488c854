"""Tasks that SLURM starts: one for each device of the trainer."""

import os

from attention_probing.results.errors import UserError, pluralize


def is_launched() -> bool:
    """Return True if SLURM or torchrun has started this process, also in a way that Lightning ignores."""
    return any(name.startswith(("SLURM_", "TORCHELASTIC_")) for name in os.environ)


def refuse_shell() -> None:
    """Raise UserError in the interactive shell of a SLURM allocation, where no task runs."""
    if not is_launched():
        return
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

    if SLURMEnvironment.detect() and "SLURM_PROCID" not in os.environ:
        raise UserError(
            "The command runs in the shell of a SLURM allocation, not in a task. Start it with srun probing …"
        )


def check_tasks(devices: int, nodes: int) -> None:
    """Check that SLURM started one task for each device; otherwise each task would be a whole run, or wait forever.

    Outside SLURM and under torchrun, there is nothing to check.

    Args:
        devices: Number of devices of a node.
        nodes: Number of nodes.

    Raises:
        UserError: The number of tasks differs from the number of devices on all nodes, or SLURM
            started several tasks in a job in which Lightning ignores SLURM.
    """
    if not is_launched():
        return
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    if TorchElasticEnvironment.detect():  # takes precedence in Lightning too
        return
    if not SLURMEnvironment.detect():
        # Lightning ignores SLURM in a job with the name that `salloc` gives; only srun sets this variable.
        tasks_of_step = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
        if tasks_of_step > 1:
            raise UserError(
                f"SLURM started {tasks_of_step} tasks, but Lightning ignores SLURM in a job named "
                f"'{SLURMEnvironment.job_name()}', so each task would do the whole run. Use srun --ntasks 1, or "
                f"another salloc --job-name."
            )
        return
    tasks = int(os.environ["SLURM_NTASKS"])
    nodes_of_job = int(os.environ.get("SLURM_NNODES", "1"))
    if tasks == devices * nodes:
        return
    remedy = "Start"
    if tasks % nodes_of_job == 0:
        remedy = f"Give --trainer.devices {tasks // nodes_of_job} --trainer.num_nodes {nodes_of_job}, or start"
    raise UserError(
        f"SLURM has {pluralize(tasks, 'task')}, but the trainer needs {devices * nodes} "
        f"({pluralize(devices, 'device')} × {pluralize(nodes, 'node')}). "
        f"{remedy} it with srun --nodes {nodes} --ntasks-per-node {devices}."
    )
