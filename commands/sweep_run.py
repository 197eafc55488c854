"""Execution of a sweep: its unfinished runs, those first that others read. docs/sweeps.md describes the folders."""

import json
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

import attention_probing
from attention_probing.commands.sweep_jobs import Call, Executor, results_of
from attention_probing.commands.sweep_rows import Need, Row, Run, Sweep
from attention_probing.commands.sweep_scores import missing_scores
from attention_probing.results import UserError
from attention_probing.results.errors import list_first
from attention_probing.results.files import checkpoints_in
from attention_probing.results.record import Record, RecordError, read_record
from attention_probing.results.tables import DASH, format_number

PROGRAM = (sys.executable, str(Path(attention_probing.__file__).with_name("__main__.py")))

FAILED_FILE = "failed.txt"
"""File in the folder of a run that failed, or that could not begin, with the reason; it goes when the run is begun."""

Check = Callable[[Iterable[list[str]]], Iterable[str | None]]
"""Function that returns the fault of each command line, or None."""


class Sweeper:
    """Scheduler that executes the unfinished runs of a sweep and reports how each one ended.

    Args:
        sweep: The sweep.
        out: Folder of the sweep.
        executor: Place where the runs are executed.
        program: Command that starts the program.
        console: Console that prints the progress.
        beside: Folders of other sweeps; runs in them with the same key are reused.

    Attributes:
        records: Results of the finished runs, by key.
        failed: Reason why a run failed, by key of the run.
        failed_before: Reason why a run failed that an earlier call began and this one did not, by key of the run.
        left: Keys of the runs that are not begun because a run that they read failed.
        begun: Number of runs begun.
    """

    def __init__(
        self,
        sweep: Sweep,
        out: Path,
        executor: Executor,
        program: Sequence[str],
        console: Console,
        beside: Sequence[Path] = (),
    ) -> None:
        self.executor = executor
        self.program = program
        self.console = console
        self.source = sweep.source
        self.runs: dict[str, Run] = {}
        self.rows: dict[str, dict[str, Row]] = defaultdict(dict)  # by key of the run and name of the row
        for row in sweep.rows:
            for run_of_row in row.all_runs():
                for run in run_of_row.with_needed():
                    self.runs[run.key] = run
                    self.rows[run.key][row.name] = row
        self.folders = {key: _folder_of(key, out, beside) for key in self.runs}
        self.records: dict[str, Record] = {}
        self.failed: dict[str, str] = {}
        self.failed_before: dict[str, str] = {}
        self.left: list[str] = []
        self.begun = 0
        self._reported: set[str] = set()  # messages about scores that runs do not have

    def read(self) -> None:
        """Read the results of all finished runs of the sweep from their folders, and why the others failed."""
        for key, folder in self.folders.items():
            reason = folder / FAILED_FILE
            if results_of(folder) is not None:
                self._finish(key, "done before")
            elif reason.is_file():
                self.failed_before[key] = reason.read_text(encoding="utf-8").strip()

    def check(self, rows: Sequence[str], check: Check) -> None:
        """Report how many runs are to be executed, and check them.

        Args:
            rows: Names of the rows whose runs are executed; empty for all.
            check: Function that returns the fault of each command line, or None. Runs that read other runs are not
                checked; of runs that differ only in the seed, one is checked. In a plan of languages, an invalid run
                fails without being begun, unless it is one of the source language.

        Raises:
            UserError: A command line is invalid, or a row names a score that its finished runs do not have.
        """
        waiting = self._unfinished(rows)
        if waiting:
            log = self.folders[waiting[0]] / "output.txt"
            self.console.print(Text(f"Runs to do: {len(waiting)}. Log of the first: {log}"), soft_wrap=True)
        self._check_scores(waiting)
        self._check_lines(waiting, check)

    def run(self, rows: Sequence[str]) -> None:
        """Execute the unfinished runs of the sweep; a failed run leaves out only the runs that read it.

        Args:
            rows: Names of the rows whose runs are executed; empty for all.
        """
        waiting = self._unfinished(rows)
        started: dict[str, float] = {}  # start time of each run that is going, by key
        try:
            while waiting or started:
                self.executor.refresh()
                for key in list(started):
                    if not self.executor.is_going(self.folders[key]):
                        self._end(key, time.monotonic() - started.pop(key))
                for key in self._begin(waiting, self.executor.limit - len(started)):
                    started[key] = time.monotonic()
                settled = {*started, *self.records, *self.failed, *self.left}
                waiting = [key for key in waiting if key not in settled]
                if started:
                    time.sleep(self.executor.interval)
        finally:
            self.executor.stop()

    def _unfinished(self, rows: Sequence[str]) -> list[str]:
        """Return the keys of the runs of some rows, or of all, that are to be executed."""
        keys = []
        for key, rows_of_run in self.rows.items():
            is_chosen = not rows or any(name in rows for name in rows_of_run)
            if is_chosen and key not in self.records and key not in self.failed:
                keys.append(key)
        return keys

    def _check_scores(self, keys: Sequence[str]) -> None:
        """Raise UserError if a row with runs to do names a score that its finished runs do not have."""
        rows: dict[str, Row] = {}
        for key in keys:
            rows |= self.rows[key]
        faults = []
        for row in rows.values():
            faults += missing_scores(row, self.records)
        if faults:
            raise UserError("\n".join(["no run was started, because finished runs do not have the scores:", *faults]))

    def _check_lines(self, keys: Sequence[str], check: Check) -> None:
        """Raise UserError if the command line of a run is invalid; of another language than the source, it fails."""
        groups: dict[object, list[Run]] = defaultdict(list)  # of runs that differ only in the seed
        for key in keys:
            run = self.runs[key]
            if not run.needs:
                groups[(run.command, run.digest, run.options)].append(run)
        faults = check([runs[0].arguments for runs in groups.values()])
        rows: dict[str, list[str]] = defaultdict(list)  # by the fault
        spared: dict[str, str] = {}
        for runs, fault in zip(groups.values(), faults, strict=True):
            if fault is None:
                continue
            if _may_fail(self.rows[runs[0].key].values(), self.source):
                spared |= {run.key: fault for run in runs}
            else:
                rows[fault] += self.rows[runs[0].key]
        if rows:
            lines = [f"{', '.join(names)}: {fault}" for fault, names in rows.items()]
            raise UserError("\n".join(["no run was started, because some command lines are invalid:", *lines]))
        for key, fault in spared.items():
            _write_reason(self.folders[key], fault)
            self._fail(key, fault, f"not begun: {fault}")

    def _begin(self, waiting: Sequence[str], most: int) -> list[str]:
        """Start the runs that can start now, and return the keys of the runs that are going from now on."""
        begun_before: list[str] = []
        ready: list[str] = []
        for key in waiting:
            needed = [run.key for run in self.runs[key].needed]
            if any(other in self.failed or other in self.left for other in needed):
                self.left.append(key)
            elif results_of(self.folders[key]) is not None:
                self._finish(key, "done by another process")
                self._report_missing_scores(key)
            elif self.executor.is_going(self.folders[key]):  # a job of an earlier call on SLURM
                begun_before.append(key)
            elif len(ready) < most and all(other in self.records for other in needed):
                ready.append(key)
        if ready:
            self.executor.start([self._call(key) for key in ready])
        self.begun += len(ready)
        for key in begun_before:
            self._say(key, "begun before")
        for key in ready:
            self._say(key, "begun")
        return [*begun_before, *ready]

    def _call(self, key: str) -> Call:
        """Return the call of the program for a run; the runs that it reads are finished."""
        run = self.runs[key]
        folder = self.folders[key]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FAILED_FILE).unlink(missing_ok=True)
        verb, config, *options = run.arguments
        quiet = "--trainer.enable_progress_bar=false"  # options of the run come later and override it
        command = [*self.program, verb, config, quiet, *options, f"--trainer.default_root_dir={folder}"]
        first = ""
        for need in run.needs:
            made_by = [self.records[other.key].path.parent for other in need.runs]
            command.append(f"--{need.option}={_value_of(need, made_by)}")
            if need.option == "encoder":
                first = _export_command(self.program, made_by[0])
        return Call(folder, run.config, run.digest, command, run.identity, self.executor.threads, first)

    def _end(self, key: str, seconds: float) -> None:
        """Read the results of a run that has ended, or report that it failed."""
        folder = self.folders[key]
        took = f"{seconds:.0f} s"
        if results_of(folder) is not None:
            self._finish(key, took)
            self._report_missing_scores(key)
            return
        log = folder / "output.txt"
        last = "no output"
        if log.is_file():
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            if lines:
                last = lines[-1]
        reason = f"{self.executor.ending(folder)}: {last}"
        _write_reason(folder, reason)
        self._fail(key, reason, f"no results after {took}, {reason} ({log})")

    def _finish(self, key: str, how: str) -> None:
        """Read the results of a finished run, and report how it ended with its scores."""
        path = results_of(self.folders[key])
        assert path is not None
        try:
            record = read_record(path)
        except RecordError as error:
            self._fail(key, str(error), f"{error}. To run it again, remove {self.folders[key]} and repeat the command")
            return
        self.records[key] = record
        self.failed_before.pop(key, None)
        parts = [how]
        for name in _scores_of(self.rows[key].values()):
            if name in record.scores:
                score = record.scores[name]
                parts.append(f"{name} {format_number(score.value, score.unit, missing=DASH)}")
        self._say(key, "; ".join(parts))

    def _report_missing_scores(self, key: str) -> None:
        """Report at once, not only in the table, which scores of its rows a finished run does not have."""
        for row in self.rows[key].values():
            for message in missing_scores(row, self.records):
                if message not in self._reported:
                    self._reported.add(message)
                    self.console.print(Text(message, "red"), soft_wrap=True)

    def _fail(self, key: str, reason: str, message: str) -> None:
        self.failed[key] = reason
        self.failed_before.pop(key, None)
        self._say(key, message, "red")

    def title(self, key: str) -> str:
        """Return the name of a run in messages: its number, first rows, config and seed.

        Args:
            key: Key of the run.
        """
        run = self.runs[key]
        total = len(self.runs)
        place = list(self.runs).index(key) + 1
        rows = list_first(list(self.rows[key]))
        return f"[{place:{len(str(total))}}/{total}] {rows}, {run.config.stem}, seed {run.seed}"

    def _say(self, key: str, what: str, style: str = "") -> None:
        self.console.print(Text(f"{self.title(key)}: {what}", style), soft_wrap=True)


def _folder_of(key: str, out: Path, beside: Sequence[Path]) -> Path:
    """Return the folder of a run in that of its sweep, or of another sweep if it is there."""
    for sweep in (out, *beside):
        folder = sweep / "runs" / key
        if folder.is_dir():
            return folder
    return out / "runs" / key


def _write_reason(folder: Path, reason: str) -> None:
    """Write into the folder of a run why it failed or could not begin."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILED_FILE).write_text(f"{reason}\n", encoding="utf-8")


def _may_fail(rows: Iterable[Row], source: str) -> bool:
    """Return True if a run is of languages that are not the source, without which the other rows can go on.

    Args:
        rows: Rows of the run.
        source: Source language; empty in a plan without languages.
    """
    return bool(source) and all(row.labels[0] != source for row in rows)


def _scores_of(rows: Iterable[Row]) -> list[str]:
    """Return the names of the scores that some rows show, each once."""
    names: list[str] = []
    for row in rows:
        names += row.scores.values()
    return list(dict.fromkeys(names))


def _value_of(need: Need, folders: Sequence[Path]) -> str:
    """Return the value of an option that needs what finished runs made.

    Args:
        need: The option, and the runs that it reads.
        folders: Folders of the finished runs.
    """
    if need.is_list:
        return json.dumps([f"{folder}/checkpoints" for folder in folders])
    (folder,) = folders
    if need.option == "encoder":
        return f"{folder}/exported"
    if need.option == "model.ablation":
        return str(folder)
    return str(_checkpoint_of(folder))


def _export_command(program: Sequence[str], run: Path) -> str:
    """Return the shell command that writes the transformer of a finished run to its folder `exported`."""
    there = shlex.join(["test", "-d", f"{run}/exported"])  # asked twice: two runs may export it at once
    export = shlex.join([*program, "export", str(_checkpoint_of(run)), f"{run}/exported"])
    return f"{there} || {export} || {there}"


def _checkpoint_of(run: Path) -> Path:
    """Return the path of the best checkpoint of a finished run; without any, the folder where it should be."""
    for checkpoint in checkpoints_in(run):
        return checkpoint
    return run / "checkpoints"
