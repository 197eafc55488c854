"""Run the rows of a table: `python -m sweeps.run SPEC.yaml [--out DIR] [--jobs N] [-- options of train.py]`.

Each run is a call of train.py, in a folder of its own under `DIR/runs`. Finished runs are not repeated: the same
command continues a killed sweep (interrupted runs start again, with the attention stored so far), and a sweep with new
rows or seeds runs only these. Two runs are the same when the bytes of their configs, their options and their seeds are
equal. After a change of a corpus or of the program, use another DIR.

Before the first run, all unfinished runs are checked for valid configs, options and classes and for the files of the
data; if one is invalid, none starts. When runs of two rows end in the same fault, no other run starts; when two runs of
one row do, no other run of that row.

At the end the table is printed and written to DIR as CSV and LaTeX, with `results.json` and a copy of SPEC as
`config.yaml`. `sweeps.plan` documents SPEC.
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
from sweeps.collect import Outcome, collect, read_outcome
from sweeps.plan import Row, Run, Sweep, SweepError, read_sweep

PATIENCE = 10.0
"""Seconds between SIGTERM and SIGKILL."""

_TAIL = 20
"""Lines of the log of a failed run that are shown."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run.

    Attributes:
        run: The run.
        path: `<sweep>/runs/<key>`, with the request in `run.json`, the output in `output.txt` and `errors.txt`, and the
            folders that train.py makes.
    """

    run: Run
    path: Path

    def results(self) -> Path | None:
        """The run's `results.json`, which holds its scores and tables; None while the run is unfinished."""
        return next(iter(sorted(self.path.glob("*/version_*/results.json"))), None)

    def start(self, program: Sequence[str], environment: Mapping[str, str]) -> "Process | None":
        """Start the run; None if another process runs it or has finished it.

        Raises:
            SweepError: The config has changed since the sweep was read.
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
                if left.is_dir():  # of an interrupted attempt
                    shutil.rmtree(left)
            verb, config, *others = self.run.arguments
            quiet = "--trainer.enable_progress_bar=false"  # the options of the run come later and override it
            command = [*program, verb, config, quiet, *others, f"--trainer.default_root_dir={self.path}"]
            asked = {**self.run.identity, "config": str(self.run.config), "arguments": command}
            (self.path / "run.json").write_text(
                json.dumps(asked, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
            with (self.path / "output.txt").open("wb") as output, (self.path / "errors.txt").open("wb") as errors:
                # A new session: an interrupt at the terminal reaches the sweep alone, which then stops its runs.
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

    def why(self) -> str:
        """The last lines of the errors, or else of the output, of a failed run."""
        for log in (self.path / "errors.txt", self.path / "output.txt"):
            if lines := _last_lines(log):
                return "\n".join([f"the end of {log}:", *(f"    {line}" for line in lines)])
        return f"it said nothing; its folder is {self.path}"

    def fault(self) -> str:
        """The last error message of train.py or of a traceback, without the name of this folder; empty without one."""
        fault, in_traceback = "", False
        for line in _lines(self.path / "errors.txt"):
            if line.startswith("Traceback (most recent call last)"):
                in_traceback = True
            elif line.lower().startswith("error:") or (in_traceback and not line.startswith(" ")):
                fault, in_traceback = line, False
        return fault.replace(str(self.path), "")


@dataclass(frozen=True)
class Process:
    """A started run."""

    folder: RunFolder
    process: "subprocess.Popen[bytes]"
    begun: float

    @property
    def seconds(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.begun

    def ended(self) -> str | None:
        """How it ended, in words; None while it is running."""
        code = self.process.poll()
        if code is None:
            return None
        if code < 0:
            killed = " (often: out of memory)" if code == -signal.SIGKILL else ""
            return f"killed by {signal.Signals(-code).name}{killed}"
        return f"exit code {code}"

    def fault(self) -> str:
        """Its error message; empty without one, and for killed runs, whose last lines are unrelated."""
        return "" if (self.process.poll() or 0) < 0 else self.folder.fault()


def stop(processes: Sequence[Process]) -> None:
    """End runs and all of their processes."""
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
    """The end of a log without empty lines; of an overwritten line only the last text."""
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
    # Before the error message of train.py stand its usage or earlier output.
    errors = [place for place, line in enumerate(last) if line.lower().startswith("error:")]
    return last[errors[-1] :] if errors else last


PROGRAM = (sys.executable, str(Path(__file__).resolve().parent.parent / "train.py"))
INTERVAL = 0.2
"""Seconds between two checks for finished runs."""


class Sweeper:
    """Executes the unfinished runs of a sweep and reports their progress.

    Args:
        sweep: The sweep.
        out: Its folder.
        jobs: Number of concurrent runs, which share the cores evenly.
        program: The command before the arguments of train.py.
        console: Where progress is printed.

    Attributes:
        outcomes: Results of the finished runs, by their keys.
        failed: Titles of the failed runs.
        begun: Number of started runs.
        left: Titles of the runs that were not started because of a repeated fault.
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
        self._faults: dict[str, list[set[str]]] = defaultdict(list)  # rows of the runs that ended in each fault
        self._given_up: set[str] = set()
        self._again = False
        self._waiting = deque(self.folders)
        self._going: dict[str, tuple[Process, TaskID]] = {}
        self._elsewhere: set[str] = set()
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def check(self) -> None:
        """Check all unfinished runs in one process; runs that differ in the seed alone are checked once.

        Raises:
            SweepError: Some cannot be run; the message names their rows and the reasons.
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
        """Execute all runs; failures are reported, and stop the sweep only when two rows fail in the same way."""
        with self._bars:
            try:
                while self._waiting or self._going:
                    self._reap()
                    # Each once: runs of other processes return to the queue.
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
                # Scores and tables are complete before the figures are drawn.
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
            scores = {name: outcome.scores[name] for name in names if name and name in outcome.scores}
            shown = [f"{name} {number(one.value, one.unit, missing=DASH)}" for name, one in scores.items()]
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


def _environment(jobs: int) -> dict[str, str]:
    """The environment of a run: its share of the cores, unless the user sets OMP_NUM_THREADS."""
    # Without the seed of this process; output in UTF-8.
    environment = {name: value for name, value in os.environ.items() if name != "PL_GLOBAL_SEED"} | {"PYTHONUTF8": "1"}
    if jobs > 1:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // jobs)))
    return environment


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Turn signals that end the process into an exception, so that its runs are stopped too."""

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
    """Run the command line `args`; return the exit code, 1 when a run failed or a cell is empty.

    Raises:
        SweepError: The sweep cannot be run.
    """
    console = console or Console()
    place = args.index("--") if "--" in args else len(args)
    own, extra = args[:place], args[place + 1 :]
    parser = argparse.ArgumentParser(prog="python -m sweeps.run", description="Run the rows of a table.")
    parser.add_argument("spec", type=Path, metavar="SPEC.yaml", help="what to run; sweeps/plan.py says how")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the runs and the table (runs/NAME)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time; they share the cores (1)")
    parser.epilog = "Behind -- stand options for each of the runs, such as --data.init_args.cache=DIR."
    options = parser.parse_args(own)
    if options.jobs < 1:
        raise SweepError(f"--jobs {options.jobs}: at least one run at a time")
    sweep = read_sweep(options.spec, extra)
    # Absolute, because the runs receive it.
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
    (out / "results.json").unlink(missing_ok=True)  # of the sweep before
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


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (SweepError, OSError) as error:
        Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(1)
