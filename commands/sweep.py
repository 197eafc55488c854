"""Run the rows of a table, on this machine or on SLURM."""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.text import Text

from attention_probing.commands import parser_of
from attention_probing.commands.shorthand import config_file
from attention_probing.commands.sweep_jobs import Processes, SlurmJobs
from attention_probing.commands.sweep_plan import Sweep, options_of, read_sweep
from attention_probing.commands.sweep_run import PROGRAM, Sweeper
from attention_probing.commands.sweep_table import collect
from attention_probing.results import UserError
from attention_probing.results.errors import near, pluralize
from attention_probing.results.files import check_writable
from attention_probing.results.tables import LEGEND, data_table
from attention_probing.results.writer import write

SEED = "PL_GLOBAL_SEED"
"""Variable of the environment in which Lightning keeps the seed of a run."""


def main(
    args: Sequence[str],
    *,
    program: Sequence[str] = PROGRAM,
    console: Console | None = None,
    check: Callable[[Iterable[list[str]]], Iterable[str | None]] | None = None,
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
    place = list(args).index("--") if "--" in args else len(args)
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
    options = parser.parse_args(list(args[:place]))
    extra = options_of(args[place + 1 :])
    plan = Path(config_file(options.plan))
    sweep = read_sweep(plan, extra)
    names = [row.name for row in sweep.rows]
    if strange := [name for name in options.row if name not in names]:
        there = near(strange[0], names) or f"; it has {', '.join(names)}"
        raise UserError(f"--row: the plan has no row {strange[0]!r}{there}")
    # Absolute, because the runs receive it. Sweeps without --out share runs.
    out = (options.out or Path("runs") / sweep.name).resolve()
    check_writable(out, "--out")
    beside = [] if options.out else sorted(folder for folder in out.parent.glob("*") if folder != out)
    on_slurm = options.executor == "slurm"
    jobs = SlurmJobs(out / "jobs", options.slurm) if on_slurm else Processes(options.jobs)
    sweeper = Sweeper(sweep, out, jobs, program, console, beside)
    try:
        sweeper.read()
        if options.table and not sweeper.records:
            raise UserError(f"{out}: no run of this plan has finished. Leave out --table to start the runs")
        if not options.table:
            sweeper.run(options.row, check or partial(check_all, named=list(extra.values())))
    except KeyboardInterrupt:
        on = " The jobs on SLURM go on; scancel ends them." if on_slurm else ""
        console.print(Text(f"Stopped.{on} The same command goes on from here.", "yellow"))
        return 130
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(plan, out / "config.yaml")
    return 1 if _report(sweep, sweeper, out, options.row) else 0


def check_all(lines: Iterable[list[str]], named: Iterable[object] = ()) -> Iterable[str | None]:
    """Return the fault of each command line, or None; run nothing.

    Args:
        lines: The command lines, made from a plan, which somebody else may have written.
        named: Values that the user gives for every run. Besides the config of a line, they alone may name a file of
            settings.
    """
    from attention_probing.commands.launch import check  # takes seconds
    from attention_probing.models.configs import only_named_files

    seed = os.environ.pop(SEED, None)
    faults = list[str | None]()
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
    console, known = sweeper.console, sweeper.records
    result, provenance = collect(sweep, known, out)
    audit = cast(Mapping[str, list[str]], result.audit)
    faults = [*(f"failed: {sweeper.title(key)}" for key in sweeper.failed), *audit["faults"]]
    faults += [f"not begun, because others failed: {sweeper.title(key)}" for key in sweeper.left]
    counts = {"runs": len(sweeper.runs), "done": len(known), **result.audit, "faults": faults}
    unwritten = write(out, replace(result, audit=counts), provenance)
    console.print(Text(f"\n{result.answer}\n", "bold"))
    whole = result.tables[sweep.name]
    chosen = [not rows or row.name in rows for row in sweep.rows]
    shown = {sweep.name: replace(whole, frame=whole.frame[chosen])}
    differences = f"{sweep.name}_differences"
    if differences in result.tables and not rows:
        shown[differences] = result.tables[differences]
    for name, table in shown.items():
        console.print(data_table(name, table, f"{name}.csv", console.width))
        console.print()
    console.print(Text(LEGEND))
    for warning in (*audit["warnings"], *(f"{name}: {fault}" for name, fault in unwritten.items())):
        console.print(Text(f"Warning: {warning}", "yellow"), soft_wrap=True)
    for fault in faults:
        console.print(Text(fault, "red"), soft_wrap=True)
    done = f"{len(known)} done ({sweeper.begun} begun now), {len(sweeper.failed)} failed"
    console.print(Text(f"{pluralize(len(sweeper.runs), 'run')}: {done}"))
    console.print(Text(f"Written to {out}"), soft_wrap=True)
    return faults
