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

import yaml
from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.text import Text

from attention_probing.commands import parser_of
from attention_probing.commands.shorthand import config_file
from attention_probing.commands.sweep_jobs import SEED, Executor, Processes, SlurmJobs
from attention_probing.commands.sweep_languages import Corpora, read_languages
from attention_probing.commands.sweep_options import options_of
from attention_probing.commands.sweep_plan import Plan, make_sweep, read_plan, with_languages
from attention_probing.commands.sweep_rows import Sweep
from attention_probing.commands.sweep_run import PROGRAM, Check, Sweeper
from attention_probing.commands.sweep_table import collect
from attention_probing.commands.sweep_transfer import Languages, compare_languages
from attention_probing.results import Provenance, Result, Table, UserError
from attention_probing.results.errors import list_first, near, pluralize
from attention_probing.results.files import check_writable, write_atomically
from attention_probing.results.settings import read_yaml
from attention_probing.results.tables import LEGEND, data_table, needed_width
from attention_probing.results.writer import write

OPTIONS_FILE = "options.json"
"""File in the folder of a sweep with the options of every run, which `--table` reads."""
LANGUAGES_FILE = "languages.json"
"""File in the folder of a sweep of languages with these and the source language, which `--table` reads."""
COMPARED = "compared"
"""Folder, in that of a sweep of languages, of their comparison."""


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
    path = Path(config_file(options.plan))
    plan = read_plan(path)
    # Absolute, because the runs receive it.
    out = (options.out or Path("runs") / plan.name).resolve()
    extra = options_of(words_of_runs or [])
    languages, source = _languages_of(options, plan, out)
    if options.table and words_of_runs is None:
        extra = _read_options(out)
        if extra:
            words = [f"--{name}={value}" for name, value in extra.items()]
            console.print(Text(f"Options of the runs, as last given: {shlex.join(words)}"), soft_wrap=True)
    plan = with_languages(plan, path, languages, source)
    sweep = make_sweep(plan, path, extra)
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
            check = check or partial(check_all, named=list(extra.values()), reads_files=bool(plan.languages))
            sweeper.check(options.row, check)
            _write_json(out / OPTIONS_FILE, extra)
            if plan.languages:
                _write_json(out / LANGUAGES_FILE, {"source": plan.source, "languages": plan.languages})
            sweeper.run(options.row)
        elif not sweeper.records:
            raise _no_run_error(sweeper, out)
    except KeyboardInterrupt:
        of_jobs = " The jobs on SLURM go on; scancel ends them." if options.executor == "slurm" else ""
        console.print(Text(f"Stopped.{of_jobs} The same command goes on from here.", "yellow"))
        return 130
    _write_plan(path, plan, out)
    return 1 if _report(sweep, sweeper, out, options.row) else 0


def _split(args: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return the words of the sweep itself, and those of every run, which follow `--`; None without `--`.

    Raises:
        UserError: An option of the languages is among those of every run, or `--dry` is given.
    """
    words = list(args)
    if "--dry" in words:
        raise UserError(
            "--dry is an option of one command, and a sweep has many. Predict the costs of one of its measurements, "
            "for example with `probing measure clark2019/heads --corpus my/tb-{split}.conllu --dry`, or try one of its "
            "trainings with `--trainer.fast_dev_run true`"
        )
    if "--" not in words:
        return words, None
    place = words.index("--")
    own_words = words[:place]
    words_of_runs = words[place + 1 :]
    for option in ("--languages", "--source"):
        if any(word.partition("=")[0] == option for word in words_of_runs):
            raise UserError(f"{option} is an option of the sweep itself. Write it before `--`")
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
    use = "languages and their corpora, in place of those of the plan; a path has {split} for train, dev and test"
    parser.add_argument("--languages", nargs="+", default=[], metavar="NAME=CORPUS", help=use)
    use = "language whose heads and probe are transferred to the others (the first)"
    parser.add_argument("--source", default="", metavar="NAME", help=use)
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


def _languages_of(options: Any, plan: Plan, out: Path) -> tuple[Corpora | None, str]:  # noqa: ANN401 # a namespace
    """Return the languages and the source language to take in place of those of the plan; None and empty for neither.

    Without any on the command line, `--table` takes those of the last command that started runs.
    """
    if options.languages or options.source:
        return read_languages(options.languages) or None, options.source
    path = out / LANGUAGES_FILE
    if not options.table or not plan.languages or not path.is_file():
        return None, ""
    remedy = "Give --languages and --source again"
    content = _read_json(path, remedy)
    if not isinstance(content, dict) or not isinstance(content.get("languages"), dict):
        raise UserError(f"{path} has no `languages`. {remedy}")
    return content["languages"], str(content.get("source", ""))


def _no_run_error(sweeper: Sweeper, out: Path) -> UserError:
    """Return the error for the table of a sweep of which no run has finished, with the reasons of those that failed."""
    message = f"{out}: no run of this plan has finished. Leave out --table to start the runs"
    faults = _list_failures("failed before", sweeper.failed_before, sweeper)
    return UserError("\n".join([message, *faults]))


def _write_plan(path: Path, plan: Plan, out: Path) -> None:
    """Write the plan of a sweep into its folder, with the languages that the command line gave."""
    out.mkdir(parents=True, exist_ok=True)
    copy = out / "config.yaml"
    if not plan.languages:
        shutil.copyfile(path, copy)
        return
    content: Any = read_yaml(path)
    given = {"source": plan.source, "languages": plan.languages}
    if all(content.get(name) == value for name, value in given.items()):
        shutil.copyfile(path, copy)
        return
    text = yaml.safe_dump({**content, **given}, sort_keys=False, allow_unicode=True)
    write_atomically(copy, text)


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a file into the folder of a sweep."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _read_json(path: Path, remedy: str) -> Any:  # noqa: ANN401 # whatever the file holds
    """Read a file from the folder of a sweep; the remedy stands in the message of a damaged one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}). {remedy}") from None


def _read_options(out: Path) -> dict[str, str]:
    """Return the options that every run of a sweep was given; none if its folder does not say.

    Raises:
        UserError: The file is damaged.
    """
    path = out / OPTIONS_FILE
    if not path.is_file():
        return {}
    extra = _read_json(path, "Give the options of the runs after `--`")
    if not isinstance(extra, dict) or not all(isinstance(value, str) for value in extra.values()):
        raise UserError(f"{path} has no texts by the names of options. Give the options of the runs after `--`")
    return extra


def check_all(
    lines: Iterable[list[str]], named: Iterable[object] = (), *, reads_files: bool = False
) -> list[str | None]:
    """Return the fault of each command line, or None; run nothing.

    Args:
        lines: The command lines, made from a plan, which somebody else may have written.
        named: Values that the user gives for every run. Besides the config of a line, they alone may name a file of
            settings.
        reads_files: True to read the corpus files too, each once, so that a damaged one is a fault.
    """
    from attention_probing.commands.launch import check  # takes seconds
    from attention_probing.commands.sweep_files import FileInspector
    from attention_probing.models.configs import only_named_files

    inspect = FileInspector() if reads_files else None
    seed = os.environ.pop(SEED, None)
    faults = []
    try:
        for line in lines:
            _, config, *_ = line
            with only_named_files([config.removeprefix("--config="), *named]):
                faults.append(check(line, inspect))
        return faults
    finally:  # a check sets the seed of its run, and a sweep has none
        os.environ.pop(SEED, None)
        if seed is not None:
            os.environ[SEED] = seed


def _report(sweep: Sweep, sweeper: Sweeper, out: Path, rows: Sequence[str]) -> list[str]:
    """Write the table, print all of it or some rows, and return its faults."""
    console = sweeper.console
    result, provenance = collect(sweep, sweeper.records, out)
    compared = None
    if sweep.source:
        compared = compare_languages(Languages.from_sweep(sweep, sweeper.records))
    if compared is not None and compared[0].answer:  # its own comparison says more than a range of scores
        result = replace(result, answer=compared[0].answer)
    audit = cast(Mapping[str, list[str]], result.audit)
    faults = _list_failures("failed", sweeper.failed, sweeper)
    faults += _list_failures("failed before", sweeper.failed_before, sweeper)
    faults += audit["faults"]
    faults += [f"not begun, because others failed: {sweeper.title(key)}" for key in _list_left(sweeper)]
    counts = {"runs": len(sweeper.runs), "done": len(sweeper.records), **result.audit, "faults": faults}
    unwritten = write(out, replace(result, audit=counts), provenance)
    console.print(Text(f"\n{result.answer}\n", "bold"))
    for name, table in _tables_to_print(sweep, result.tables, rows).items():
        console.print(data_table(name, table, f"{name}.csv", console.width))
        console.print()
    warnings = [*audit["warnings"]]
    if compared is not None:
        unwritten |= _write_comparison(*compared, sweep.source, out, console)
        warnings += cast(list[str], compared[0].audit["warnings"])
    console.print(Text(LEGEND))
    warnings += [f"{name}: {fault}" for name, fault in unwritten.items()]
    for warning in warnings:
        console.print(Text(f"Warning: {warning}", "yellow"))
    for fault in faults:
        console.print(Text(fault, "red"), soft_wrap=True)
    console.print(Text(_count_runs(sweeper)))
    console.print(Text(f"Written to {out}"), soft_wrap=True)
    return faults


def _list_failures(when: str, reasons: Mapping[str, str], sweeper: Sweeper) -> list[str]:
    """Return a message for each reason for which runs failed, with their titles."""
    titles: dict[str, list[str]] = {}
    for key, reason in reasons.items():
        titles.setdefault(reason, []).append(sweeper.title(key))
    return [f"{when}: {list_first(of_reason)}: {reason}" for reason, of_reason in titles.items()]


def _list_left(sweeper: Sweeper) -> list[str]:
    """Return the keys of the runs that cannot begin because a run that they read failed, in this call or before."""
    failed = {*sweeper.failed, *sweeper.failed_before}
    left: list[str] = []
    for key, run in sweeper.runs.items():  # a run after those that it reads
        is_open = key not in sweeper.records and key not in failed
        if is_open and any(other.key in failed or other.key in left for other in run.needed):
            left.append(key)
    return left


def _count_runs(sweeper: Sweeper) -> str:
    """Return how many runs are done, failed, and not finished."""
    total = len(sweeper.runs)
    done = len(sweeper.records)
    text = f"{pluralize(total, 'run')}: {done} done ({sweeper.begun} begun now), {len(sweeper.failed)} failed"
    before = len(sweeper.failed_before)
    if before:
        text += f", {before} failed before"
    unfinished = total - done - len(sweeper.failed) - before
    if unfinished:
        text += f", {unfinished} not finished"
    return text


def _write_comparison(
    result: Result, provenance: Provenance, source: str, out: Path, console: Console
) -> dict[str, str]:
    """Write and print the comparison of the languages of a sweep; return faults of its files."""
    unwritten = write(out / COMPARED, result, provenance)
    for name, table in result.tables.items():
        if not table.main:
            continue
        title = _TITLES[name].format(source=source)
        parts = divide_languages(table, console.width) if name in ("own", "transfer") else [table]
        for part in parts:
            console.print(data_table(title, part, f"{name}.csv", console.width))
            console.print()
    for sentence in cast(list[str], result.audit["blank"]):
        console.print(Text(sentence), soft_wrap=True)
    console.print(Text(f"Comparison of the languages: {out / COMPARED}"), soft_wrap=True)
    return unwritten


def divide_languages(table: Table, width: int) -> list[Table]:
    """Return a table with a column for each language as tables that fit beside each other into a width.

    Args:
        table: Table of texts, whose first column names the rows.
        width: Width of the terminal in characters.
    """
    relation, *languages = table.frame.columns
    groups: list[list[str]] = [[relation]]
    left = width
    for language in languages:
        needed = needed_width(language, table.frame[language])
        if needed > left and len(groups[-1]) > 1:
            groups.append([relation])
        if len(groups[-1]) == 1:
            left = width + 2 - needed_width(relation, table.frame[relation])
        groups[-1].append(language)
        left -= needed
    return [Table(table.frame[names], main=names) for names in groups]


_TITLES = {
    "probes": "probes: UAS of the own probe, and of that of {source}",
    "shared": "shared: the head of most languages, and that of {source}",
    "own": "own: best heads, ↑ above offsets",
    "transfer": "transfer: {source} minus own, ↓↑ p < .05",
}
"""Titles of the printed tables of the comparison of languages."""


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
