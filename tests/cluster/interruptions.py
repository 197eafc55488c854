"""Signals at random moments of real runs: `python -m tests.cluster.interruptions [--stages …]`.

Each trial starts a command, sends a signal at a random moment, gives the same command again until it has results (on
SLURM only where the job was not requeued; after a preemption it must be), and compares all that lies on the disk then
with a run that was left alone: scores, tables, items, weights, stores, and the names of all files. One row a trial;
exit code 1 if any trial differs or hangs.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from attention_probing.corpora.sample import write_sample_treebank
from benchmarks.harness import first_sentences
from tests.cluster.conftest import Slurm, running_slurm

ROOT = Path(__file__).parent.parent.parent
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
PREEMPTION = signal.SIGUSR2
"""Stands for a preemption in `send`."""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")
HANGS = 240.0
"""Seconds without an end after which a run hangs."""
PLAN = """
name: sweep
scores: [uas]
rows:
  fast: {config: CONFIG}
  slow: {config: CONFIG, set: {model.init_args.learning_rate: 0.01}}
"""


@dataclass(frozen=True)
class Stage:
    """What is interrupted.

    Attributes:
        command: of train.py; empty for a sweep.
        module: what is run, which has a finished run in `version_0` already.
        begins, ends: texts in the output between which signals are sent; no end: until the program ends.
        extracts: whether the stores are made by the run itself.
    """

    module: str
    command: tuple[str, ...]
    begins: str
    ends: str = ""
    extracts: bool = False

    @property
    def sweeps(self) -> bool:
        return not self.command


PROBE = (
    "--data.corpus=SHARED/{split}.conllu",
    "--data.batch_size=16",
)
ADVERSARIES = "[{class_path: ConsistentAdversary, init_args: {strengths: [0.0, 0.01], max_epochs: 3}}]"
STAGES = {
    "extraction": Stage(
        "AttentionOnlyProbe",
        ("fit", "--config=configs/clark2019/attention_only.yaml", *PROBE, "--trainer.max_epochs=1"),
        "Extracting",
        "Training",
        extracts=True,
    ),
    "training": Stage(
        "AttentionOnlyProbe",
        ("fit", "--config=configs/clark2019/attention_only.yaml", *PROBE, "--trainer.max_epochs=15"),
        "Training",
    ),
    "nested": Stage(
        "ControlTask",
        ("measure", "--config=configs/hewitt2019/control.yaml", *PROBE, "--model.max_epochs=3"),
        "Data ready",
    ),
    "adversary": Stage(
        "Fidelity",
        (
            "measure",
            "--config=configs/wiegreffe2019/fidelity.yaml",
            "--model.checkpoints=SHARED/classifier",
            f"--model.tests={ADVERSARIES}",
        ),
        "Data ready",
        extracts=True,  # adversaries are kept beside the stores
    ),
    "sweep": Stage("", (), "begun"),
    "classifier": Stage(
        "AttentionClassifier", ("fit", "--config=configs/demo_classifier.yaml", "--trainer.max_epochs=8"), "Training"
    ),
    "description": Stage(
        "DescriptionLength",
        ("measure", "--config=configs/voita2020/mdl.yaml", *PROBE, "--model.max_epochs=2"),
        "Data ready",
    ),
    "heads": Stage("SingleHeads", ("measure", "--config=configs/clark2019/heads.yaml", *PROBE), "Data ready"),
    "stream": Stage(
        "SingleHeads", ("measure", "--config=configs/clark2019/heads.yaml", *PROBE, "--data.store=stream"), "Data ready"
    ),
    "fidelity": Stage(  # without rankings, whose seconds are in a table
        "Fidelity",
        (
            "measure",
            "--config=configs/fidelity/quick.yaml",
            "--model.checkpoints=SHARED/classifier",
            "--model.tests=[Permutation, Perturbation, SingleToken]",
        ),
        "Data ready",
    ),
}


class Process(NamedTuple):
    """A process of a run: `rank 0` …, `job` for one of submitit's, or `sweeper`."""

    role: str
    pid: int


@dataclass
class Run:
    """A command in a folder of its own, which is given until it has results."""

    stage: Stage
    ranks: int
    folder: Path
    shared: Path  # stores and a classifier
    slurm: Slurm | None
    partition: str = "low"
    process: subprocess.Popen[bytes] | None = None
    jobs: list[str] = field(default_factory=list)
    spent: dict[int, float] = field(default_factory=dict)  # seconds of CPU of each process

    @property
    def _submits(self) -> bool:
        return self.slurm is not None and not self.stage.sweeps

    def __post_init__(self) -> None:
        if not self.stage.sweeps:
            finished = self.folder / "runs" / self.stage.module / "version_0" / "results.json"
            finished.parent.mkdir(parents=True)
            finished.write_text("{}")

    def start(self) -> None:
        """Give the command."""
        cache = self.folder / "stores" if self.stage.extracts else self.shared / "stores"
        environment = self.slurm.environment if self.slurm else dict(os.environ)
        own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PROBING_CACHE": str(cache), "COLUMNS": "200"}
        environment = {**environment, **own}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        several = ["--trainer.strategy=ddp"] if self.ranks > 1 else []
        devices = ["--trainer.num_nodes=1", f"--trainer.devices={self.ranks}"]
        if self.stage.sweeps:
            executor = ["--jobs=2"]
            if self.slurm:
                limits = f"--slurm.cpus_per_task={self.ranks}", f"--slurm.array_parallelism={2 // self.ranks}"
                executor = ["--executor=slurm", f"--slurm.partition={self.partition}", *limits]
            options = [*PROBE, "--trainer.accelerator=cpu", "--trainer.max_epochs=8", *devices, *several]
            command = [
                "train.py",
                "sweep",
                "SHARED/sweep.yaml",
                f"--out={self.folder / 'runs'}",
                *executor,
                "--",
                *options,
            ]
        else:
            verb, *options = self.stage.command
            command = [verb, *options] if self.slurm else [verb, "--config=configs/trainer/slurm.yaml", *options]
            command += ["--trainer.accelerator=cpu", f"--trainer.default_root_dir={self.folder / 'runs'}", *several]
        command = [word.replace("SHARED", str(self.shared)) for word in command]
        if self.slurm is not None and self._submits:
            options = [f"--output={self.folder}/%j.log", f"--ntasks-per-node={self.ranks}"]
            options.append(f"--partition={self.partition}")
            script = str(ROOT / "configs/trainer/slurm.sh")
            submit = ["sbatch", "--parsable", f"--chdir={ROOT}", *options, script, *command]
            done = subprocess.run(submit, env=environment, capture_output=True, text=True, check=True)
            self.jobs.append(done.stdout.strip())
            return
        command = command if self.stage.sweeps else ["train.py", *command, *devices]
        with (self.folder / "here.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def ended(self) -> str | None:
        """How the command ended; None while it goes on, or waits for SLURM."""
        if self.slurm is not None and self._submits:
            state = self.slurm.state(self.jobs[-1])
            return state if state in ENDED else None
        assert self.process is not None
        code = self.process.poll()
        return None if code is None else f"exit {code}"

    def said(self) -> str:
        """What the command has said so far."""
        logs = sorted(self.folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
        return "".join(log.read_text(errors="replace") for log in logs)

    def processes(self) -> Iterator[Process]:
        """Those that belong to the run and are no shells."""
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (path / "cmdline").read_text(errors="replace").split("\0")
                if "python" not in words[0] or str(self.folder) not in " ".join(words):
                    continue
                known = (path / "environ").read_text(errors="replace").split("\0")
                at = dict(word.split("=", 1) for word in known if "=" in word)
                role = f"rank {at.get('LOCAL_RANK') or at.get('SLURM_PROCID') or 0}"
                if words[2:3] == ["sweep"] or not words[1].endswith("train.py"):
                    role = "sweeper" if words[2:3] == ["sweep"] else "job"
                yield Process(role, int(path.name))

    def cpu(self) -> float:
        """Seconds of CPU that all its processes have spent, which other programs on the machine do not change."""
        for process in self.processes():
            with suppress(OSError):
                fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
                self.spent[process.pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return sum(self.spent.values())

    def wait(self, seconds: float = HANGS) -> str:
        """Wait for the end of the command; return how it ended, or `hangs`."""
        end = time.monotonic() + seconds
        while (how := self.ended()) is None:
            if time.monotonic() > end:
                return "hangs"
            self.cpu()
            time.sleep(0.1)
        return how

    def wait_for(self, text: str) -> bool:
        """Wait until it has said something; False if it ended before."""
        end = time.monotonic() + HANGS
        while text not in self.said():
            if self.ended() is not None or time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def stop(self) -> None:
        """End all that is left of it."""
        for job in self.jobs if self.slurm else ():
            subprocess.run(["scancel", job], env=self.slurm.environment if self.slurm else None, check=False)
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def done(self) -> bool:
        """Whether it has all its results."""
        if self.stage.sweeps:
            return self.ended() == "exit 0"
        return any(self.folder.glob("runs/*/version_1/results.json")) and not any(self.folder.glob("runs/*/*/state-*"))


def send(run: Run, number: signal.Signals, draw: random.Random) -> str:
    """Send a signal to some process, or by SLURM's means; return to whom, or nothing where there was nobody.

    SIGUSR2 stands for a preemption by a job of a higher partition.
    """
    found = sorted(run.processes())
    roles = sorted({process.role for process in found})
    if run.slurm is not None:
        roles += ["SLURM"]
    elif len(found) > 1 and number != signal.SIGTERM:
        roles += ["all"]
    if number == PREEMPTION and run.slurm is not None:
        run.slurm.wait(run.slurm.submit("sleep 1", "--partition=high", "--ntasks=2"))
        return f"job in {run.partition}"
    role = draw.choice(roles)
    if role == "SLURM" and run.slurm is not None:
        shown = run.slurm.run("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i").split()
        if not shown:
            return ""
        job = draw.choice(shown)
        subprocess.run(["scancel", f"--signal={number.name}", job], env=run.slurm.environment, check=False)
        return f"scancel {job}" if run.stage.sweeps else "scancel"
    chosen = [process for process in found if role in (process.role, "all")]
    if role != "all":
        chosen = [draw.choice(chosen)]
    for process in chosen:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
    return role


def outcome(folder: Path) -> dict[str, object]:
    """What a run has left, by file and entry: all names, and the content of what holds numbers."""
    found: dict[str, object] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if re.search(r"\.log$|tensorboard|^slurm\.sh$|^runs/jobs/|/(job|output|errors|ended)\.txt$|/lock$", name):
            continue
        found[name] = None
        if path.name == "results.json":
            content = json.loads(path.read_text().replace(str(folder), ""))
            content.pop("versions", None)
            found |= {f"{name}: {key} {one}": value for key, of in content.items() for one, value in _items(of)}
        elif path.suffix in (".csv", ".parquet", ".tex", ".yaml") or path.name == "manifest.json":
            found[name] = path.read_bytes().replace(str(folder).encode(), b"")
        elif path.suffix == ".ckpt":
            content = torch.load(path, map_location="cpu", weights_only=True)
            weights = content.get("state_dict", content.get("state", {}))
            found |= {f"{name}: {key}": value.tolist() for key, value in weights.items()}
    return found


def _items(value: object) -> Iterator[tuple[str, object]]:
    yield from value.items() if isinstance(value, Mapping) else [("", value)]


def differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """What is not the same in both."""
    texts = [{key: json.dumps(value, sort_keys=True, default=repr) for key, value in of.items()} for of in (one, other)]
    return sorted(key for key in one.keys() | other.keys() if texts[0].get(key) != texts[1].get(key))


@dataclass
class Reference:
    """A run that was left alone: what it left, and the seconds of CPU in which a signal may come."""

    outcome: dict[str, object]
    window: float
    seconds: float


def reference(run: Run) -> Reference:
    """Run a command and leave it alone.

    Raises:
        RuntimeError: it fails.
    """
    began = time.monotonic()
    run.start()
    if not run.wait_for(run.stage.begins):
        raise RuntimeError(run.said()[-3000:])
    since = run.cpu()
    if run.stage.ends:
        run.wait_for(run.stage.ends)
        window = run.cpu() - since
    run.wait()
    if not run.stage.ends:
        window = run.cpu() - since
    if not run.done():
        raise RuntimeError(run.said()[-3000:])
    return Reference(outcome(run.folder), window, time.monotonic() - began)


def trial(run: Run, number: signal.Signals, left_alone: Reference, draw: random.Random) -> dict[str, object] | None:
    """Send one signal; None where it came too late."""
    began = time.monotonic()
    run.start()
    if not run.wait_for(run.stage.begins):
        raise RuntimeError(run.said()[-3000:])
    moment = run.cpu() + draw.uniform(0, left_alone.window)
    while run.cpu() < moment and run.ended() is None:
        time.sleep(0.05)
    at = time.monotonic() - began
    if run.done() or not (to := send(run, number, draw)):
        run.stop()
        return None
    ways = [run.wait()]
    lost = number == PREEMPTION and not run.done()
    while not run.done() and ways[-1] != "hangs" and len(ways) < 4:
        run.start()
        ways.append(run.wait())
    end = time.monotonic() + 60
    while (alive := list(run.processes())) and time.monotonic() < end:
        time.sleep(0.1)
    said = run.said()
    if alive:
        ways.append(f"{alive} never end")
    if "Traceback" in said:
        ways.append("traceback")
    differ = differences(left_alone.outcome, outcome(run.folder)) if run.done() else ["no results"]
    run.stop()
    kept = re.findall(r"(\d+ of \d+ shards)|(λ = \S+) of .*: found", said)
    return {
        "signal": "preemption" if number == PREEMPTION else number.name.removeprefix("SIG"),
        "to": to,
        "at_s": f"{at:.1f}",
        "ended": ", then ".join(ways),
        "continued": "; ".join(
            filter(None, sum(kept, ("continued" if "Continues the unfinished run" in said else "",)))
        ),
        "seconds": f"{time.monotonic() - began:.0f}",
        "undisturbed_s": f"{left_alone.seconds:.0f}",
        "outcome": "equal" if not differ else f"{len(differ)} differ: {'; '.join(differ[:3])}",
        "fault": bool(differ or lost or alive or "hangs" in ways or "Traceback" in said),
    }


def prepare(shared: Path) -> None:
    """Make the stores, the classifier and the plan that the trials share."""
    for split, path in write_sample_treebank(shared / "sample").items():
        first_sentences([path], shared / f"{split}.conllu", 600 if split == "train" else 100)
    environment = {**os.environ, "PROBING_CACHE": str(shared / "stores"), "OMP_NUM_THREADS": "1"}
    probe, classifier = (
        str(ROOT / "configs" / f"{name}.yaml") for name in ("clark2019/attention_only", "demo_classifier")
    )
    for config, options in ((probe, [f"--data.corpus={shared}/{{split}}.conllu"]), (classifier, [])):
        root = f"--trainer.default_root_dir={shared / ('classifier' if config == classifier else 'probe')}"
        command = ["train.py", "fit", f"--config={config}", root, "--trainer.accelerator=cpu", "--trainer.max_epochs=2"]
        subprocess.run([sys.executable, *command, *options], cwd=ROOT, env=environment, check=True, capture_output=True)
    (shared / "sweep.yaml").write_text(PLAN.replace("CONFIG", probe), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.interruptions", description=__doc__)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--schedulers", nargs="+", choices=("none", "slurm"), default=["none", "slurm"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--signals", type=int, default=5, help="of each stage, scheduler and number of ranks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preemptions", type=int, default=1, help="of each stage and number of ranks, by partition")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what is in its background ignore it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # SLURM is to end with this program
    rows: list[dict[str, object]] = []
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="interruptions-")))
        (work / "slurm").mkdir()
        slurm = stack.enter_context(running_slurm(work / "slurm")) if "slurm" in given.schedulers else None
        (work / "shared").mkdir()
        prepare(work / "shared")

        def new(stage: str, ranks: int, cluster: Slurm | None, partition: str = "low") -> Run:
            folder = Path(tempfile.mkdtemp(prefix=f"{stage}-", dir=work))
            run = Run(STAGES[stage], ranks, folder, work / "shared", cluster, partition)
            stack.callback(run.stop)
            return run

        for stage, ranks in ((stage, ranks) for stage in given.stages for ranks in given.ranks):
            left_alone = reference(run := new(stage, ranks, None))
            shutil.rmtree(run.folder)
            for scheduler in given.schedulers:
                cluster = slurm if scheduler == "slurm" else None
                draw = random.Random(f"{given.seed} {stage} {ranks} {scheduler}")
                planned = [(SIGNALS[place % len(SIGNALS)], "low") for place in range(given.signals)]
                if cluster is not None:
                    planned += [(PREEMPTION, partition) for partition in ("low", "sudden")] * given.preemptions
                for number, partition in planned:
                    row = None
                    while row is None:
                        run = new(stage, ranks, cluster, partition)
                        row = trial(run, number, left_alone, draw)
                        if row is None:
                            shutil.rmtree(run.folder)
                    rows.append({"stage": stage, "scheduler": scheduler, "ranks": ranks, **row})
                    print(*rows[-1].values(), sep=" | ", flush=True)
                    shutil.rmtree(run.folder)
    faults = sum(bool(row["fault"]) for row in rows)
    print(f"{len(rows)} signals and preemptions, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
