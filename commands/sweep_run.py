"""Execution of a sweep: `python train.py sweep PLAN.yaml [--executor local|slurm] … [-- options of train.py]`.

docs/sweeps.md describes plans, folders and tables, docs/cluster.md the jobs on SLURM.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryFile

from rich.console import Console
from rich.text import Text

from commands.sweep_jobs import PATIENCE, Attempt, Jobs, environment, results_of
from commands.sweep_plan import Row, Run, Sweep
from results import UserError
from results.errors import counted, near
from results.files import checkpoints_in
from results.progress import Progress
from results.reader import Record, RecordError, read_record
from results.tables import DASH, number

PROGRAM = (sys.executable, str(Path(__file__).resolve().parent.parent / "train.py"))

TAIL = 20
"""Number of lines shown of a log."""


class Sweeper:
    """Scheduler that executes the unfinished runs of a sweep and reports their progress.

    Args:
        sweep: The sweep.
        out: Folder of the sweep.
        jobs: Jobs on this machine or on SLURM, in which the runs are executed.
        program: Command that starts train.py.
        console: Console that prints the progress.
        beside: Folders of other sweeps; runs in them with the same key are reused.
    """

    def __init__(
        self, sweep: Sweep, out: Path, jobs: Jobs, program: Sequence[str], console: Console, beside: Sequence[Path] = ()
    ) -> None:
        self.jobs, self.program, self.console = jobs, program, console
        self.runs: dict[str, Run] = {}
        self.rows: dict[str, dict[str, Row]] = defaultdict(dict)  # by key of the run and name of the row
        for row in sweep.rows:
            for run in (needed for own in row.all_runs() for needed in own.needed()):
                self.runs[run.key] = run
                self.rows[run.key][row.name] = row
        self.folders: dict[str, Path] = {}
        for key in self.runs:
            own, *others = (folder / "runs" / key for folder in (out, *beside))
            self.folders[key] = next((folder for folder in (own, *others) if folder.is_dir()), own)
        self.records: dict[str, Record] = {}  # results of finished runs, by key
        self.failed: list[str] = []
        self.left: list[str] = []  # keys of runs that are not begun because others failed
        self.begun = 0
        self._going: dict[str, tuple[str, float]] = {}  # id and start time of the job of each run that is going
        self._faults: dict[str, list[set[str]]] = defaultdict(list)  # rows of failed runs, by error message
        self._given_up: set[str] = set()  # names of rows
        self._named = {row.name: row for row in sweep.rows}
        self._chosen = list(self.runs)

    @property
    def waiting(self) -> list[str]:
        """Keys of the runs that have not begun, without runs that are given up after failures of others."""
        known = (self.records, self.failed, self.left, self._going)
        return [key for key in self._chosen if not any(key in of for of in known)]

    def restrict(self, rows: Sequence[str]) -> None:
        """Leave out the waiting runs that none of some rows needs; their rows stay in the table.

        Args:
            rows: Names of the rows; empty for all.

        Raises:
            UserError: There is no such row.
        """
        if strange := [name for name in rows if name not in self._named]:
            there = near(strange[0], self._named) or f"; it has {', '.join(self._named)}"
            raise UserError(f"--row: the plan has no row {strange[0]!r}{there}")
        self._chosen = [key for key, needing in self.rows.items() if not rows or needing.keys() & set(rows)]

    def read(self) -> None:
        """Read the results of all finished runs of the sweep from their folders."""
        for key in self.runs:
            if results_of(self.folders[key]) is not None:
                self._finish(key, "done before")

    def check(self, keys: Iterable[str]) -> dict[str, list[str]]:
        """Check the command lines of some runs, in one process and without executing them.

        Args:
            keys: Keys of the runs.

        Returns:
            For each error message, the keys of the runs whose command line has this error. Of runs that
            differ only in the seed, only the first is checked.

        Raises:
            UserError: The check itself fails.
        """
        asked: dict[object, str] = {}
        for key, run in ((key, self.runs[key]) for key in keys):
            # One check for all seeds of a row.
            asked.setdefault((run.command, run.digest, run.options, run.trained, run.reads), key)
        if not asked:
            return {}
        faults: dict[str, list[str]] = defaultdict(list)
        lines = [self._arguments(key) for key in asked.values()]
        for key, fault in zip(asked.values(), _faults_of(self.program, lines), strict=True):
            if fault is not None:
                faults[fault].append(key)
        return faults

    def run(self) -> None:
        """Execute all unfinished runs of the sweep, and report failures.

        After two failures with the same error message, fewer runs are begun: if both failed runs are of one
        row, no more of this row; if they have no row in common, no more at all.

        Raises:
            UserError: The command line of a run is invalid; no run is begun then.
        """
        # Runs that test checkpoints of other runs are checked after these.
        if faults := self.check(key for key in self.waiting if self._is_ready(key)):
            why = [f"{', '.join(row for key in keys for row in self.rows[key])}: {why}" for why, keys in faults.items()]
            raise UserError("\n".join(["no run was started, because some command lines are invalid:", *why]))
        left = set(self.waiting)
        rows = [(row.minutes, row.all_runs()) for row in self._named.values()]
        if hours := sum(minutes * sum(run.key in left for run in runs) / len(runs) for minutes, runs in rows) / 60:
            time_of = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
            said = f"{counted(len(self.waiting), 'run')} to start: about {time_of} on 2 cores, by the plan."
            self.console.print(Text(said), soft_wrap=True)
        for key in self._chosen:
            self.folders[key].mkdir(parents=True, exist_ok=True)  # other sweeps find the runs there
        try:
            while self.waiting or self._going:
                states = self.jobs.states()
                self._reap(states)
                self._begin(states)
                if self.waiting or self._going:
                    time.sleep(self.jobs.interval)
        finally:
            self.jobs.stop()

    def _is_ready(self, key: str) -> bool:
        return all(run.key in self.records for run in self.runs[key].trained)

    def _begin(self, states: Mapping[str, str]) -> None:
        """Submit all runs that can start now, and adopt jobs submitted earlier."""
        ready: list[str] = []
        for key in self.waiting:
            job = _text(self.folders[key] / "job.txt")
            lost = any(run.key in (*self.failed, *self.left) for run in self.runs[key].trained)
            if results_of(self.folders[key]) is not None:
                self._finish(key, "done by another process")
            elif lost or self._given_up.issuperset(self.rows[key]):
                self.left.append(key)
            elif self.jobs.slurm and job in states:
                self._going[key] = job, time.monotonic()
                self._say(key, f"job {job} is running it")
            elif self._is_ready(key) and len(self._going) + len(ready) < self.jobs.limit:
                ready.append(key)
        self._check_readers(ready)
        ready = [key for key in ready if key not in self.failed]
        names = self.jobs.submit([self._attempt(key) for key in ready]) if ready else []
        for key, name in zip(ready, names, strict=True):
            self.begun += 1
            self._going[key] = name, time.monotonic()
            self._say(key, f"begun{f' as job {name}' if self.jobs.slurm else ''}")

    def _check_readers(self, keys: Sequence[str]) -> None:
        """Check runs that read trained models: export the encoders that they read, and check their command lines."""
        for key in keys:
            if self.runs[key].reads == "encoder" and (
                fault := export(self.records[self.runs[key].trained[0].key].path.parent)
            ):
                self._fail(key, f"its encoder cannot be exported: {fault}")
        for fault, faulty in self.check(k for k in keys if self.runs[k].trained and k not in self.failed).items():
            for key in faulty:
                self._fail(key, f"invalid command line: {fault}")

    def _arguments(self, key: str) -> list[str]:
        run = self.runs[key]
        folders = [self.records[one.key].path.parent for one in run.trained]  # of the earlier runs that it reads
        if not folders:
            return run.arguments
        if run.reads == "checkpoints":
            trained = [f"{folder}/checkpoints" for folder in folders]
            return [*run.arguments, f"--model.init_args.checkpoints={json.dumps(trained)}"]
        if run.reads == "ablation":
            return [*run.arguments, f"--model.init_args.ablation={folders[0]}"]
        if run.reads == "checkpoint":
            return [*run.arguments, f"--model.init_args.checkpoint={checkpoint_of(folders[0])}"]
        return [*run.arguments, f"--data.init_args.encoder.name={folders[0] / 'exported'}"]

    def _attempt(self, key: str) -> Attempt:
        run, folder = self.runs[key], self.folders[key]
        (folder / "ended.txt").unlink(missing_ok=True)  # of an earlier attempt
        verb, config, *options = self._arguments(key)
        quiet = "--trainer.enable_progress_bar=false"  # options of the run come later and override it
        command = [*self.program, verb, config, quiet, *options, f"--trainer.default_root_dir={folder}"]
        changes: dict[str, str | None] = {}
        if not self.jobs.slurm:
            # submitit hides the devices of this machine from jobs that ask for none.
            changes["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES")
            if self.jobs.limit > 1 and "OMP_NUM_THREADS" not in os.environ:
                cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
                changes["OMP_NUM_THREADS"] = str(max(1, cores // self.jobs.limit))
        patience = 0 if self.jobs.slurm else PATIENCE
        return Attempt(folder, run.config, run.digest, command, run.identity, changes, patience, self.jobs.alive)

    def _reap(self, states: Mapping[str, str]) -> None:
        for key, (name, begun) in list(self._going.items()):
            hopeless = states.get(name) == "PENDING" and self._given_up.issuperset(self.rows[key])
            if name in states and not hopeless:
                continue
            del self._going[key]
            if hopeless:
                self.jobs.cancel(name)
                self.left.append(key)
                continue
            took, ended = f"{time.monotonic() - begun:.0f} s", _text(self.folders[key] / "ended.txt")
            if results_of(self.folders[key]) is not None:
                # Scores and tables are complete before the figures are drawn.
                self._finish(key, f"{took}, then {ended}, after its results" if ended else took)
                continue
            log, fault = end_of_log(self.folders[key], self.jobs.log(name))
            self._fail(key, f"no results after {took}: {ended or self.jobs.why(name)}; {log}")
            if fault and not ended.startswith("killed"):
                rows = set(self.rows[key])
                for others in self._faults[fault]:  # give up a row with two such runs; all rows if two rows have one
                    self._given_up |= (others & rows) or {row for of_run in self.rows.values() for row in of_run}
                self._faults[fault].append(rows)

    def _finish(self, key: str, how: str) -> None:
        path = results_of(self.folders[key])
        assert path is not None
        try:
            record = self.records[key] = read_record(path)
        except RecordError as error:
            self._fail(key, f"{error}. To run it again, remove {self.folders[key]} and repeat the command")
            return
        names = dict.fromkeys(name for row in self.rows[key].values() for name in row.scores.values())
        scores = {name: record.scores[name] for name in names if name in record.scores}
        shown = [f"{name} {number(one.value, one.unit, missing=DASH)}" for name, one in scores.items()]
        if key in self._chosen:
            self._say(key, "; ".join([how, *shown]))

    def _fail(self, key: str, why: str) -> None:
        self.failed.append(key)
        self._say(key, why, "red")

    def title(self, key: str) -> str:
        """Return the name of a run in messages: its number, rows, config and seed.

        Args:
            key: Key of the run.
        """
        place, run, total = list(self.runs).index(key) + 1, self.runs[key], len(self.runs)
        return f"[{place:{len(str(total))}}/{total}] {', '.join(self.rows[key])}, {run.config.stem}, seed {run.seed}"

    def _say(self, key: str, what: str, style: str = "") -> None:
        self.console.print(Text(f"{self.title(key)}: {what}", style), soft_wrap=True)


def _faults_of(program: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str | None]:
    """Yield the fault of each command line, None for a valid one; one process checks all."""
    command, own = [*program, "--check"], environment({"OMP_NUM_THREADS": "1"})
    with TemporaryFile("w+", encoding="utf-8") as asked, TemporaryFile("w+", encoding="utf-8") as said:
        json.dump(lines, asked)
        asked.seek(0)
        process = subprocess.Popen(command, stdin=asked, stdout=PIPE, stderr=said, encoding="utf-8", env=own)
        assert process.stdout is not None
        with process:
            progress = None
            for found in process.stdout:
                progress = progress or Progress("Checking, command lines", len(lines))  # once the process has started
                progress.advance()
                yield json.loads(found)
        if process.returncode:
            said.seek(0)
            last = "\n".join(said.read().splitlines()[-TAIL:])
            code = process.returncode
            raise UserError(
                f"the check of the command lines failed: {' '.join(command)} ended with exit code {code}:\n{last}"
            )


def export(run: Path) -> str | None:
    """Write the transformer of a finished run to its folder `exported`, unless it exists; return an error message."""
    if (run / "exported").is_dir():
        return None
    words = [*PROGRAM, "export", str(checkpoint_of(run)), str(run / "exported")]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", check=False)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else None


def checkpoint_of(run: Path) -> Path:
    """Return the path of the best checkpoint of a finished run, or of the folder of its checkpoints if it is empty."""
    return next(iter(checkpoints_in(run)), run / "checkpoints")


def end_of_log(folder: Path, job: Path) -> tuple[str, str]:
    """Return the last lines of a failed run's log, and its last error message.

    The log is the first of `errors.txt`, `output.txt` and the log of the job that is not empty. The path
    of the run's folder is removed from the error message, so that messages of different runs can be
    equal. The error message is empty if the log has none.

    Args:
        folder: Folder of the run.
        job: Log file of the job that executed the run.
    """
    for log in (folder / "errors.txt", folder / "output.txt", job):
        # Keep the last text of overwritten lines, and drop empty lines.
        lines = [line.rpartition("\r")[2].rstrip() for line in _text(log).replace("\r\n", "\n").split("\n")]
        if lines := [line for line in lines if line]:
            last = lines[-TAIL:]
            starts = [place for place, line in enumerate(last) if line.lower().startswith("error:")]
            shown = last[starts[-1] :] if starts else last  # the usage precedes the error message
            trace = r"Traceback \(most recent call last\):\n(?: .*\n)*(\S.*)"
            faults = re.findall(rf"(?im)^(?:{trace}|(error:.*))$", "\n".join(lines))
            fault = "".join(faults[-1]).replace(str(folder), "") if faults else ""
            return "\n".join([f"the end of {log}:", *(f"    {line}" for line in shown)]), fault
    return f"its logs are empty; its folder is {folder}", ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
