"""Run the rows of a table: `python -m sweeps.run SPEC.yaml [--out DIR] [--jobs N] [-- options of train.py]`.

Each run is a call of train.py, in a folder of its own under `DIR/runs`. What is done is not run again: a killed sweep
goes on from where it was when the same command is given again (a run that was cut off begins anew, on the attention
that is stored by then), and a sweep with more rows or seeds runs these alone. Two runs are the same when the bytes of
their configs, the options and the seed are. A corpus or a program that was changed does not make them others: that
takes another DIR.

Before the first run all that are not done are checked: that configs, options and classes are valid, and that the files
of the data are there; none is begun where one cannot be. When runs of two rows end in the same fault no other is
begun, and when two runs of one row do, no other of that row.

At the end the table is printed, and DIR has it as CSV and LaTeX, with `results.json` and a copy of SPEC, `config.yaml`.
`sweeps.plan` says what stands in SPEC.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from metrics.progress import counted
from reports.tables import DASH, data_table, number
from reports.writer import write
from results import Estimate
from sweeps.collect import Outcome, collect, read_outcome
from sweeps.plan import Row, Run, Sweep, SweepError, read_sweep

PATIENCE = 10.0
"""Seconds that a run has to end by itself before it is killed."""

_TAIL = 20
"""Lines of a failed run's errors that are shown."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run.

    Attributes:
        run: What is to be run.
        path: `<sweep>/runs/<key>`: what was asked in `run.json`, what the run said in `output.txt` and `errors.txt`,
            and the folders that train.py makes.
    """

    run: Run
    path: Path

    def results(self) -> Path | None:
        """The run's `results.json`, written when scores and tables are; None as long as the run is not done."""
        return next(iter(sorted(self.path.glob("*/version_*/results.json"))), None)

    def start(self, program: Sequence[str], environment: Mapping[str, str]) -> "Process | None":
        """Begin the run, from the beginning; None when another process is at it, or has meanwhile finished it.

        Raises:
            SweepError: The config was changed since the sweep was read.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if self.results() is not None:
                return None
            if hashlib.sha256(self.run.config.read_bytes()).hexdigest() != self.run.digest:
                raise SweepError(f"{self.run.config} was changed after the sweep had begun; begin the sweep again")
            for left in self.path.iterdir():
                if left.is_dir():  # of an attempt that did not end
                    shutil.rmtree(left)
            command = [*program, *self._arguments()]
            asked = {**self.run.identity, "config": str(self.run.config), "arguments": command}
            (self.path / "run.json").write_text(
                json.dumps(asked, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
            with (self.path / "output.txt").open("wb") as output, (self.path / "errors.txt").open("wb") as errors:
                # A session of its own: an interrupt at the terminal is for the sweep, which then stops its runs.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    env=dict(environment),
                    pass_fds=(lock,),
                    start_new_session=True,
                )
            return Process(self, process, time.monotonic())
        finally:
            os.close(lock)

    def _arguments(self) -> list[str]:
        quiet = ["--trainer.enable_progress_bar=false"]  # nobody watches a log; what the run itself says comes later
        command, config, *others = self.run.arguments
        return [command, config, *quiet, *others, f"--trainer.default_root_dir={self.path}"]

    def why(self) -> str:
        """The last lines of what the run said went wrong."""
        name, lines = self._said()
        if not lines:
            return f"it said nothing; its folder is {self.path}"
        return "\n".join([f"the end of {self.path / name}:", *(f"    {line}" for line in lines)])

    def fault(self) -> str:
        """The last line that names a fault, of train.py or of a traceback, without this folder; empty without one."""
        told, in_traceback = "", False
        for line in _lines(self.path / "errors.txt"):
            if line.startswith("Traceback (most recent call last)"):
                in_traceback = True
            elif line.lower().startswith("error:") or (in_traceback and not line.startswith(" ")):
                told, in_traceback = line, False
        return told.replace(str(self.path), "")

    def _said(self) -> tuple[str, list[str]]:
        for name in ("errors.txt", "output.txt"):
            if lines := _last_lines(self.path / name):
                return name, lines
        return "", []


@dataclass(frozen=True)
class Process:
    """A run that goes on."""

    folder: RunFolder
    process: "subprocess.Popen[bytes]"
    begun: float

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return time.monotonic() - self.begun

    def ended(self) -> str | None:
        """How it ended, in words; None while it goes on."""
        code = self.process.poll()
        if code is None:
            return None
        if code < 0:
            killed = " (often: out of memory)" if code == -signal.SIGKILL else ""
            return f"killed by {signal.Signals(-code).name}{killed}"
        return f"exit code {code}"

    def fault(self) -> str:
        """The fault that it ended with; empty where it told none, or was killed: its last lines then say nothing."""
        return "" if (self.process.poll() or 0) < 0 else self.folder.fault()


def stop(processes: Sequence[Process]) -> None:
    """End runs, with all processes that they have begun."""
    for sign, patience in ((signal.SIGTERM, PATIENCE), (signal.SIGKILL, None)):
        going = [one.process for one in processes if one.process.poll() is None]
        for process in going:
            os.killpg(process.pid, sign)
        end = None if patience is None else time.monotonic() + patience
        for process in going:
            try:
                process.wait(None if end is None else max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue


def _lines(path: Path) -> list[str]:
    """The end of a log, without empty lines; of a line that progress was drawn over, what was drawn last."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 14)))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return [line for line in lines if line]


def _last_lines(path: Path) -> list[str]:
    last = _lines(path)[-_TAIL:]
    # train.py tells its faults in this form; what stands before is how it is used, or what happened until then.
    told = [place for place, line in enumerate(last) if line.lower().startswith("error:")]
    return last[told[-1] :] if told else last


PROGRAM = (sys.executable, str(Path(__file__).resolve().parent.parent / "train.py"))
INTERVAL = 0.2
"""Seconds between two looks at what has ended."""


class Sweeper:
    """Runs what is not done, some at a time, and says how it goes.

    Args:
        sweep: what to run.
        out: the sweep's folder.
        jobs: how many runs at a time; they share the cores evenly.
        program: the command before the arguments of train.py.
        console: where progress is told.

    Attributes:
        outcomes: what the runs that are done left behind, by their keys.
        failed: titles of those that failed.
        begun: how many were begun.
        left: titles of those that were not begun, since the same fault had come twice in their row, or in two rows.
    """

    def __init__(self, sweep: Sweep, out: Path, *, jobs: int, program: Sequence[str], console: Console) -> None:
        self.jobs, self.program, self.console = jobs, program, console
        self.rows: dict[str, list[Row]] = {}
        self.folders: dict[str, RunFolder] = {}
        for row in sweep.rows:
            for run in dict.fromkeys(run for runs in row.runs.values() for run in runs):
                self.folders.setdefault(run.key, RunFolder(run, out / "runs" / run.key))
                self.rows.setdefault(run.key, []).append(row)
        self.outcomes: dict[str, Outcome] = {}
        self.failed: list[str] = []
        self.begun = 0
        self.left: list[str] = []
        self._faults: dict[str, list[set[str]]] = defaultdict(list)  # the rows of each run that ended in it
        self._given_up: set[str] = set()
        self._again = False
        self._waiting = deque(self.folders)
        self._going: dict[str, tuple[Process, TaskID]] = {}
        self._elsewhere: set[str] = set()
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def check(self) -> None:
        """Ask the program about all runs that are not done, in one process; seeds alone make no difference.

        Raises:
            SweepError: Some cannot be run; the message says why, and of which rows.
        """
        asked: dict[tuple[object, ...], str] = {}
        for key, folder in self.folders.items():
            if folder.results() is None:
                asked.setdefault((folder.run.command, folder.run.config, folder.run.options), key)
        if not asked:
            return
        with self._bars:
            self._bars.add_task(f"{counted(len(asked), 'config is', 'configs are')} checked", total=None)
            text = json.dumps([self.folders[key].run.arguments for key in asked.values()])
            command, environment = [*self.program, "--check"], _environment(1)
            found = subprocess.run(
                command, input=text, capture_output=True, encoding="utf-8", env=environment, check=False
            )
        if found.returncode:
            last = "\n".join(found.stderr.splitlines()[-20:])
            raise SweepError(f"the rows cannot be checked: {' '.join(command)} ends with {found.returncode}:\n{last}")
        faults: dict[str, list[str]] = {}
        for key, fault in zip(asked.values(), json.loads(found.stdout.splitlines()[-1]), strict=True):
            if fault is not None:
                faults.setdefault(fault, []).extend(row.name for row in self.rows[key])
        if faults:
            why = [f"{', '.join(dict.fromkeys(rows))}: {fault}" for fault, rows in faults.items()]
            raise SweepError("\n".join(["no run was begun, for some cannot be run as they are written:", *why]))

    def run(self) -> None:
        """Run all; those that fail are told, and the others go on, unless two rows fail alike."""
        with self._bars:
            try:
                while self._waiting or self._going:
                    self._reap()
                    # Once around: what another process is at goes back into the queue.
                    for _ in range(len(self._waiting)):
                        if len(self._going) < self.jobs:
                            self._begin(self._waiting.popleft())
                    if self._waiting or self._going:
                        time.sleep(INTERVAL)
            finally:
                stop([process for process, _ in self._going.values()])

    def _begin(self, key: str) -> None:
        folder, title = self.folders[key], self._title(key)
        if folder.results() is not None:
            self._finish(key, "done by another process" if key in self._elsewhere else "done before")
            return
        if self._again or self._given_up.issuperset(row.name for row in self.rows[key]):
            self.left.append(title)
            return
        try:
            process = folder.start(self.program, _environment(self.jobs))
        except (SweepError, OSError) as error:
            self._fail(key, f"not begun: {error}")
            return
        if process is not None:
            self._say(f"{title}: begun")
            self._going[key] = process, self._bars.add_task(title, total=None)
            self.begun += 1
        else:
            self._waiting.append(key)
            if key not in self._elsewhere:
                self._elsewhere.add(key)
                self._say(f"{title}: another process is at it; its end is waited for")

    def _reap(self) -> None:
        for key, (process, task) in list(self._going.items()):
            how = process.ended()
            if how is None:
                continue
            del self._going[key]
            self._bars.remove_task(task)
            took = f"{process.seconds:.0f} s"
            if self.folders[key].results() is not None:
                # Scores and tables are written whole, before the figures: what happened after them cannot touch them.
                self._finish(key, took if how == "exit code 0" else f"{took}, then {how}, after its results")
            else:
                self._fail(key, f"no results after {took}: {how}; {self.folders[key].why()}")
                if fault := process.fault():
                    self._note(fault, {row.name for row in self.rows[key]})

    def _note(self, fault: str, rows: set[str]) -> None:
        for others in self._faults[fault]:
            if others & rows:
                self._given_up |= others & rows
            else:
                self._again = True
        self._faults[fault].append(rows)

    def _finish(self, key: str, how: str) -> None:
        path = self.folders[key].results()
        try:
            outcome = read_outcome(path) if path is not None else None
        except SweepError as error:
            self._fail(key, f"{error}; remove {self.folders[key].path} to run it again")
            return
        if outcome is not None:
            self.outcomes[key] = outcome
            names = dict.fromkeys(name for row in self.rows[key] for name in row.scores.values())
            shown = [_shown(name, outcome.scores[name]) for name in names if name and name in outcome.scores]
            self._say("; ".join([f"{self._title(key)}: {how}", *shown]))

    def _fail(self, key: str, why: str) -> None:
        self.failed.append(self._title(key))
        self._say(f"{self._title(key)}: {why}", "red")

    def _title(self, key: str) -> str:
        place, run = list(self.folders).index(key) + 1, self.folders[key].run
        rows = ", ".join(dict.fromkeys(row.name for row in self.rows[key]))
        return f"[{place:{len(str(len(self.folders)))}}/{len(self.folders)}] {rows}, {run.config.stem}, seed {run.seed}"

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style), soft_wrap=True)


def _shown(name: str, value: Estimate) -> str:
    return f"{name} {number(value.value, value.unit, missing=DASH)}"


def _environment(jobs: int) -> dict[str, str]:
    """The environment of a run: its share of the cores, where there are several, unless the user says otherwise."""
    # A seed that this process was given is not the run's, and its words are read as UTF-8.
    environment = {name: value for name, value in os.environ.items() if name != "PL_GLOBAL_SEED"} | {"PYTHONUTF8": "1"}
    if jobs > 1:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // jobs)))
    return environment


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Turn what ends a process into an exception, so that its runs are stopped with it."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signals = (signal.SIGTERM, signal.SIGHUP)
    before = {one: signal.getsignal(one) for one in signals}
    for one in signals:
        if before[one] is not signal.SIG_IGN:  # as under nohup
            signal.signal(one, end)
    try:
        yield
    finally:
        for one in signals:
            signal.signal(one, before[one])


def main(args: Sequence[str], *, program: Sequence[str] = PROGRAM, console: Console | None = None) -> int:
    """Run the command line `args`; returns the exit code, 1 when a run failed or a cell of the table stays empty.

    Raises:
        SweepError: The sweep cannot be run as it is written.
    """
    console = console or Console()
    own, extra = _parted(args)
    parser = argparse.ArgumentParser(prog="python -m sweeps.run", description="Run the rows of a table.")
    parser.add_argument("spec", type=Path, metavar="SPEC.yaml", help="what to run; sweeps/plan.py says how")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the runs and the table (runs/NAME)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time; they share the cores (1)")
    parser.epilog = "Behind -- stand options for each of the runs, such as --data.init_args.cache=DIR."
    options = parser.parse_args(own)
    if options.jobs < 1:
        raise SweepError(f"--jobs {options.jobs}: at least one run at a time")
    sweep = read_sweep(options.spec, extra)
    # Runs are told the folder, and it must be the same wherever they are begun.
    out = (options.out or Path("runs") / sweep.name).resolve()
    out.mkdir(parents=True, exist_ok=True)
    sweeper = Sweeper(sweep, out, jobs=options.jobs, program=program, console=console)
    sweeper.check()
    with _ending_in_order():
        try:
            sweeper.run()
        except KeyboardInterrupt:
            console.print(Text("Stopped. The same command goes on from here.", "yellow"))
            return 130
    collected = collect(sweep, sweeper.outcomes)
    (out / "results.json").unlink(missing_ok=True)  # it must not vouch for another sweep
    shutil.copyfile(options.spec, out / "config.yaml")
    write(out, collected.result, collected.provenance)
    console.print()
    console.print(data_table(sweep.name, collected.result.tables[sweep.name], f"{sweep.name}.csv"))
    console.print()
    for warning in collected.warnings:
        console.print(Text(f"Warning: {warning}", "yellow"), soft_wrap=True)
    faults = [*(f"failed: {title}" for title in sweeper.failed), *collected.faults]
    if sweeper.left:
        faults.append(
            f"runs ended in the same fault: {counted(len(sweeper.left), 'other was', 'others were')} not begun"
        )
    for fault in faults:
        console.print(Text(fault, "red"), soft_wrap=True)
    runs, done = len(sweeper.folders), len(sweeper.outcomes)
    console.print(
        Text(f"{counted(runs, 'run')}: {done} done ({sweeper.begun} begun now), {len(sweeper.failed)} failed")
    )
    console.print(Text(f"Written to {out}"), soft_wrap=True)
    return 1 if faults else 0


def _parted(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before and behind `--`."""
    place = args.index("--") if "--" in args else len(args)
    return list(args[:place]), list(args[place + 1 :])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (SweepError, OSError) as error:
        Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(1)
