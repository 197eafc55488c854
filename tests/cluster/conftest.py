"""A real SLURM on this machine, on loopback and free ports, from Debian's packages."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "srun")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

CONFIG = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={at}/munge/socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd.pid
SlurmctldLogFile={at}/log/slurmctld.log
SlurmdLogFile={at}/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
JobRequeue=1
KillWait=5
OverTimeLimit=0
SlurmctldTimeout=30
SlurmdTimeout=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory={memory} State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=sudden Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
"""Two cores; jobs in `high` preempt those in `low`, 20 s after a signal, and in `sudden`, at once. No accounting."""


@dataclass
class Slurm:
    """A running SLURM.

    Attributes:
        folder: Its folder, with logs in `log/`.
        environment: The environment of its commands.
    """

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str) -> str:
        """Run a command and return its output."""
        found = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert found.returncode == 0, f"{' '.join(command)}: {found.stderr}"
        return found.stdout.strip()

    def submit(self, script: Path | str, *options: str) -> str:
        """Submit a script, or a command; return the name of its job."""
        what = [str(script)] if isinstance(script, Path) else [f"--wrap={script}"]
        return self.run("sbatch", "--parsable", f"--output={self.folder}/%j.out", *options, *what)

    def state(self, job: str) -> str:
        """State of a job, such as PENDING, RUNNING, COMPLETED or FAILED."""
        return self.run("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")

    def wait(self, job: str, *states: str, seconds: float = 60) -> str:
        """Wait until a job has one of some states, by default until it has ended; return its state."""
        end = time.monotonic() + seconds
        wanted = states or ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")
        while (state := self.state(job)) not in wanted:
            assert time.monotonic() < end, f"job {job} is {state} after {seconds} s"
            time.sleep(0.2)
        return state


def free_ports(number: int) -> list[int]:
    """Ports on loopback that nobody listens on."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def running_slurm(at: Path) -> Iterator[Slurm]:
    """A SLURM with two cores and the partitions `low` and `high`, which keeps its files in a folder."""
    for name in ("state", "spool", "log", "munge"):
        (at / name).mkdir(mode=0o700 if name == "munge" else 0o755)
    key = at / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20 - 512
    host = socket.gethostname().partition(".")[0]
    config = at / "slurm.conf"
    config.write_text(CONFIG.format(host=host, ports=free_ports(2), at=at, memory=memory), encoding="utf-8")
    found = Slurm(at, {**os.environ, "PATH": PATH, "SLURM_CONF": str(config)})
    munge = [f"--{name}-file={at}/munge/{name}" for name in ("key", "pid", "log", "seed")]
    try:
        found.run("munged", "--force", f"--socket={at}/munge/socket", *munge)
        found.run("slurmctld", "-c")
        found.run("slurmd")
        end = time.monotonic() + 30
        while (
            "idle"
            not in subprocess.run(
                ["sinfo", "--noheader", "--format=%T"],
                env=found.environment,
                capture_output=True,
                text=True,
                check=False,
            ).stdout
        ):
            assert time.monotonic() < end, (at / "log" / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.1)
        yield found
        found.run("scancel", "--user=root")
    finally:
        for pid in (at / "slurmd.pid", at / "slurmctld.pid", at / "munge" / "pid"):
            with suppress(OSError, ValueError):
                os.kill(int(pid.read_text()), signal.SIGTERM)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A SLURM for the tests of this process."""
    if missing := [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]:
        pytest.skip(f"SLURM is not installed ({', '.join(missing)}): `make cluster-test` installs it")
    if os.geteuid() != 0:
        pytest.skip("slurmd starts jobs as their users, which only root may")
    with running_slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found
