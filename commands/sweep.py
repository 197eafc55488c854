"""Run the rows of a table, on this machine or on SLURM."""

import json
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.text import Text

from attention_probing.commands import parser_of
from attention_probing.commands.shorthand import config_file
from attention_probing.commands.sweep_jobs import SEED, Executor, Processes, SlurmJobs
from attention_probing.commands.sweep_options import options_of
from attention_probing.commands.sweep_plan import read_plan, read_sweep
from attention_probing.commands.sweep_rows import Sweep
from attention_probing.commands.sweep_run import PROGRAM, Check, Sweeper
from attention_probing.commands.sweep_table import collect
from attention_probing.results import Table, UserError
from attention_probing.results.errors import near, pluralize
from attention_probing.results.files import check_writable, write_atomically
from attention_probing.results.tables import LEGEND, data_table
from attention_probing.results.writer import write

OPTIONS_FILE = "options.json"
"""File in the folder of a sweep with the options of every run, which `--table` reads."""


def main(
    args: Sequence[str],
    *,
    program: Sequence[str] = PROGRAM,
    console: Console | None = None,
    check: Check | None = None,
) -> int:
    """Run the command.

    Args:
        args: Words of the command line.
        program: Command that starts the program.
        console: Console that prints the progress and the table; None for standard output.
        check: Function that returns the fault of each command line, or None; None for that of the program.

    Returns:
        The exit code: 1 if a run failed or a cell of the table is empty, 130 after Ctrl-C, else 0.

    Raises:
        UserError: The sweep cannot be run.
    """
    console = console or Console()
    own_words, words_of_runs = _split(args)
    options = _parse(own_words)
    plan = Path(config_file(options.plan))
    # Absolute, because the runs receive it.
    out = (options.out or Path("runs") / read_plan(plan).name).resolve()
    extra = options_of(words_of_runs or [])
    if options.table and words_of_runs is None:
        extra = _read_options(out)
        if extra:
            words = [f"--{name}={value}" for name, value in extra.items()]
            console.print(Text(f"Options of the runs, as last given: {shlex.join(words)}"), soft_wrap=True)
    sweep = read_sweep(plan, extra)
    _check_rows(sweep, options.row)
    check_writable(out, "--out")
    beside = []  # sweeps without --out share runs
    if options.out is None:
        beside = sorted(folder for folder in out.parent.glob("*") if folder != out)
    executor: Executor = Processes(options.jobs)
    if options.executor == "slurm":
        executor = SlurmJobs(out / "jobs", options.slurm)
    sweeper = Sweeper(sweep, out, executor, program, console, beside)
    try:
        sweeper.read()
        if not options.table:
            sweeper.check(options.row, check or partial(check_all, named=list(extra.values())))
            _write_options(out, extra)
            sweeper.run(options.row)
        elif not sweeper.records:
            raise UserError(f"{out}: no run of this plan has finished. Leave out --table to start the runs")
    except KeyboardInterrupt:
        of_jobs = " The jobs on SLURM go on; scancel ends them." if options.executor == "slurm" else ""
        console.print(Text(f"Stopped.{of_jobs} The same command goes on from here.", "yellow"))
        return 130
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(plan, out / "config.yaml")
    return 1 if _report(sweep, sweeper, out, options.row) else 0


def _split(args: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return the words of the sweep itself, and those of every run, which follow `--`; None without `--`."""
    words = list(args)
    if "--" not in words:
        return words, None
    place = words.index("--")
    own_words = words[:place]
    words_of_runs = words[place + 1 :]
    if "--table" in words_of_runs:  # added to the end of an earlier command
        words_of_runs.remove("--table")
        own_words.append("--table")
    return own_words, words_of_runs


def _parse(words: Sequence[str]) -> Any:  # noqa: ANN401 # a namespace of jsonargparse
    """Return the options of the sweep itself."""
    parser = parser_of("sweep")
    parser.add_argument("plan", help="plan of the sweep: a file, or its name below configs/; see docs/sweeps.md")
    parser.add_argument("--out", type=Path, help="folder of the runs and the table (runs/NAME)")
    parser.add_argument("--executor", choices=("local", "slurm"), default="local", help="this machine or SLURM (local)")
    parser.add_argument("--jobs", type=PositiveInt, default=1, help="runs at a time here, which share the cores (1)")
    parser.add_argument("--row", action="append", default=[], help="start only the runs of this row; may be repeated")
    parser.add_argument("--table", action="store_true", help="start no run; make the table of the finished runs")
    use = "options of the SLURM jobs, such as --slurm.partition gpu; see docs/cluster.md"
    parser.add_argument("--slurm", type=dict[str, Any], default={}, metavar="MAPPING", help=use)
    parser.usage = "%(prog)s PLAN [options] [-- options of every run]"
    parser.epilog = "Options after -- are those of `probing fit` and `test`, for example --encoder NAME."
    return parser.parse_args(list(words))


def _check_rows(sweep: Sweep, names: Sequence[str]) -> None:
    """Raise UserError if the plan has no row of a name."""
    known = [row.name for row in sweep.rows]
    for name in names:
        if name not in known:
            hint = near(name, known) or f"; it has {', '.join(known)}"
            raise UserError(f"--row: the plan has no row {name!r}{hint}")


def _write_options(out: Path, extra: Mapping[str, str]) -> None:
    """Write the options of every run into the folder of a sweep."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / OPTIONS_FILE, json.dumps(extra, indent=2, ensure_ascii=False) + "\n")


def _read_options(out: Path) -> dict[str, str]:
    """Return the options that every run of a sweep was given; none if its folder does not say.

    Raises:
        UserError: The file is damaged.
    """
    path = out / OPTIONS_FILE
    if not path.is_file():
        return {}
    try:
        extra = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}). Give the options of the runs after `--`") from None
    if not isinstance(extra, dict) or not all(isinstance(value, str) for value in extra.values()):
        raise UserError(f"{path} has no texts by the names of options. Give the options of the runs after `--`")
    return extra


def check_all(lines: Iterable[list[str]], named: Iterable[object] = ()) -> list[str | None]:
    """Return the fault of each command line, or None; run nothing.

    Args:
        lines: The command lines, made from a plan, which somebody else may have written.
        named: Values that the user gives for every run. Besides the config of a line, they alone may name a file of
            settings.
    """
    from attention_probing.commands.launch import check  # takes seconds
    from attention_probing.models.configs import only_named_files

    seed = os.environ.pop(SEED, None)
    faults = []
    try:
        for line in lines:
            _, config, *_ = line
            with only_named_files([config.removeprefix("--config="), *named]):
                faults.append(check(line))
        return faults
    finally:  # a check sets the seed of its run, and a sweep has none
        os.environ.pop(SEED, None)
        if seed is not None:
            os.environ[SEED] = seed


def _report(sweep: Sweep, sweeper: Sweeper, out: Path, rows: Sequence[str]) -> list[str]:
    """Write the table, print all of it or some rows, and return its faults."""
    console = sweeper.console
    result, provenance = collect(sweep, sweeper.records, out)
    audit = cast(Mapping[str, list[str]], result.audit)
    faults = [f"failed: {sweeper.title(key)}" for key in sweeper.failed]
    faults += audit["faults"]
    faults += [f"not begun, because others failed: {sweeper.title(key)}" for key in sweeper.left]
    counts = {"runs": len(sweeper.runs), "done": len(sweeper.records), **result.audit, "faults": faults}
    unwritten = write(out, replace(result, audit=counts), provenance)
    console.print(Text(f"\n{result.answer}\n", "bold"))
    for name, table in _tables_to_print(sweep, result.tables, rows).items():
        console.print(data_table(name, table, f"{name}.csv", console.width))
        console.print()
    console.print(Text(LEGEND))
    warnings = [*audit["warnings"], *(f"{name}: {fault}" for name, fault in unwritten.items())]
    for warning in warnings:
        console.print(Text(f"Warning: {warning}", "yellow"), soft_wrap=True)
    for fault in faults:
        console.print(Text(fault, "red"), soft_wrap=True)
    done = f"{len(sweeper.records)} done ({sweeper.begun} begun now), {len(sweeper.failed)} failed"
    console.print(Text(f"{pluralize(len(sweeper.runs), 'run')}: {done}"))
    console.print(Text(f"Written to {out}"), soft_wrap=True)
    return faults


def _tables_to_print(sweep: Sweep, tables: Mapping[str, Table], rows: Sequence[str]) -> dict[str, Table]:
    """Return all rows of the table of a sweep with the table of differences, or the chosen rows alone."""
    table = tables[sweep.name]
    if rows:
        is_chosen = [row.name in rows for row in sweep.rows]
        return {sweep.name: replace(table, frame=table.frame[is_chosen])}
    printed = {sweep.name: table}
    differences = f"{sweep.name}_differences"
    if differences in tables:
        printed[differences] = tables[differences]
    return printed
