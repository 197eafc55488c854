"""Execution of a sweep: its unfinished runs, those first that others read. docs/sweeps.md describes the folders."""

import json
import os
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

import attention_probing
from attention_probing.commands.sweep_jobs import Call, Processes, SlurmJobs, results_of
from attention_probing.commands.sweep_plan import Row, Run, Sweep
from attention_probing.results import UserError
from attention_probing.results.errors import list_first
from attention_probing.results.files import checkpoints_in
from attention_probing.results.record import Record, RecordError, read_record
from attention_probing.results.tables import DASH, format_number

PROGRAM = (sys.executable, str(Path(attention_probing.__file__).with_name("__main__.py")))


class Sweeper:
    """Scheduler that executes the unfinished runs of a sweep and reports how each one ended.

    Args:
        sweep: The sweep.
        out: Folder of the sweep.
        jobs: Place where the runs are executed.
        program: Command that starts the program.
        console: Console that prints the progress.
        beside: Folders of other sweeps; runs in them with the same key are reused.

    Attributes:
        records: Results of the finished runs, by key.
        failed: Keys of the runs that failed.
        left: Keys of the runs that are not begun because a run that they read failed.
        begun: Number of runs begun.
    """

    def __init__(
        self,
        sweep: Sweep,
        out: Path,
        jobs: Processes | SlurmJobs,
        program: Sequence[str],
        console: Console,
        beside: Sequence[Path] = (),
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
        self.records: dict[str, Record] = {}
        self.failed: list[str] = []
        self.left: list[str] = []
        self.begun = 0

    def read(self) -> None:
        """Read the results of all finished runs of the sweep from their folders."""
        for key, folder in self.folders.items():
            if results_of(folder) is not None:
                self._finish(key, "done before")

    def run(self, rows: Sequence[str], check: Callable[[Iterable[list[str]]], Iterable[str | None]]) -> None:
        """Execute the unfinished runs of the sweep; a failed run leaves out only the runs that read it.

        Args:
            rows: Names of the rows whose runs are executed; empty for all.
            check: Function that returns the fault of each command line, or None. Runs that read other runs are not
                checked; of runs that differ only in the seed, one is checked.

        Raises:
            UserError: A command line is invalid; no run is begun then.
        """
        chosen = [key for key, needing in self.rows.items() if not rows or needing.keys() & set(rows)]
        waiting = [key for key in chosen if key not in self.records and key not in self.failed]
        if waiting:
            log = self.folders[waiting[0]] / "output.txt"
            self.console.print(Text(f"Runs to do: {len(waiting)}. Log of the first: {log}"), soft_wrap=True)
        self._check(waiting, check)
        going: dict[str, float] = {}  # start time of each run that is going, by key
        try:
            while waiting or going:
                self.jobs.refresh()
                for key in [key for key in going if not self.jobs.is_going(self.folders[key])]:
                    self._end(key, time.monotonic() - going.pop(key))
                begun = self._begin(waiting, self.jobs.limit - len(going))
                going |= dict.fromkeys(begun, time.monotonic())
                known = {*going, *self.records, *self.failed, *self.left}
                waiting = [key for key in waiting if key not in known]
                if going:
                    time.sleep(self.jobs.interval)
        finally:
            self.jobs.stop()

    def _check(self, keys: Sequence[str], check: Callable[[Iterable[list[str]]], Iterable[str | None]]) -> None:
        asked: dict[object, Run] = {}
        for run in (self.runs[key] for key in keys if not self.runs[key].trained):
            asked.setdefault((run.command, run.digest, run.options), run)
        faults: dict[str, list[str]] = defaultdict(list)
        for run, fault in zip(asked.values(), check([run.arguments for run in asked.values()]), strict=True):
            if fault is not None:
                faults[fault] += self.rows[run.key]
        if faults:
            why = [f"{', '.join(rows)}: {fault}" for fault, rows in faults.items()]
            raise UserError("\n".join(["no run was started, because some command lines are invalid:", *why]))

    def _begin(self, waiting: Sequence[str], most: int) -> list[str]:
        """Start the runs that can start now, and return the keys of the runs that are going from now on."""
        found: list[str] = []
        ready: list[str] = []
        for key in waiting:
            folder, needed = self.folders[key], [run.key for run in self.runs[key].trained]
            if any(one in self.failed or one in self.left for one in needed):
                self.left.append(key)
            elif results_of(folder) is not None:
                self._finish(key, "done by another process")
            elif self.jobs.is_going(folder):  # a job of an earlier call on SLURM
                found.append(key)
            elif len(ready) < most and all(one in self.records for one in needed):
                ready.append(key)
        if ready:
            self.jobs.start([self._call(key) for key in ready])
        self.begun += len(ready)
        for key in (*found, *ready):
            self._say(key, "begun" if key in ready else "begun before")
        return [*found, *ready]

    def _trained(self, key: str) -> list[Path]:
        """Return the folders of the runs that a run reads."""
        return [self.records[run.key].path.parent for run in self.runs[key].trained]

    def _call(self, key: str) -> Call:
        run, folder, trained = self.runs[key], self.folders[key], self._trained(key)
        folder.mkdir(parents=True, exist_ok=True)
        verb, config, *options = run.arguments
        quiet = "--trainer.enable_progress_bar=false"  # options of the run come later and override it
        command = [*self.program, verb, config, quiet, *options, f"--trainer.default_root_dir={folder}"]
        if trained:
            reads = {
                "checkpoints": ("model", json.dumps([f"{one}/checkpoints" for one in trained])),
                "checkpoint": ("model", checkpoint_of(trained[0])),
                "ablation": ("model", trained[0]),
                "encoder": ("data", trained[0] / "exported"),
            }
            group, value = reads[run.reads]
            option = f"{group}.init_args.{run.reads}{'.name' if run.reads == 'encoder' else ''}"
            # A trained model is tested itself; other models have an option for the checkpoint that they read.
            option = "ckpt_path" if (run.command, run.reads) == ("test", "checkpoint") else option
            command.append(f"--{option}={value}")
        shared = isinstance(self.jobs, Processes) and self.jobs.limit > 1
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = max(1, cores // self.jobs.limit) if shared else None
        first = self._export(trained[0]) if run.reads == "encoder" else ""
        return Call(folder, run.config, run.digest, command, run.identity, threads, first)

    def _export(self, run: Path) -> str:
        """Return the shell command that writes the transformer of a finished run to its folder `exported`."""
        there = shlex.join(["test", "-d", f"{run}/exported"])  # asked twice: two runs may export it at once
        export = shlex.join([*self.program, "export", str(checkpoint_of(run)), f"{run}/exported"])
        return f"{there} || {export} || {there}"

    def _end(self, key: str, seconds: float) -> None:
        folder, took = self.folders[key], f"{seconds:.0f} s"
        if results_of(folder) is not None:
            self._finish(key, took)
            return
        log = folder / "output.txt"
        text = log.read_text(encoding="utf-8", errors="replace").strip() if log.is_file() else ""
        last = text.splitlines()[-1] if text else "no output"
        self._fail(key, f"no results after {took}, {self.jobs.ending(folder)}: {last} ({log})")

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
        shown = [f"{name} {format_number(one.value, one.unit, missing=DASH)}" for name, one in scores.items()]
        self._say(key, "; ".join([how, *shown]))

    def _fail(self, key: str, why: str) -> None:
        self.failed.append(key)
        self._say(key, why, "red")

    def title(self, key: str) -> str:
        """Return the name of a run in messages: its number, first rows, config and seed.

        Args:
            key: Key of the run.
        """
        place, run, total = list(self.runs).index(key) + 1, self.runs[key], len(self.runs)
        rows = list_first(list(self.rows[key]))
        return f"[{place:{len(str(total))}}/{total}] {rows}, {run.config.stem}, seed {run.seed}"

    def _say(self, key: str, what: str, style: str = "") -> None:
        self.console.print(Text(f"{self.title(key)}: {what}", style), soft_wrap=True)


def checkpoint_of(run: Path) -> Path:
    """Return the path of the best checkpoint of a finished run; without any, the folder where it should be."""
    return next(iter(checkpoints_in(run)), run / "checkpoints")
