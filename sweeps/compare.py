"""Compare runs on the same items: `python -m sweeps.compare RUN RUN … [--score NAME] [--common] [--json FILE]`.

RUN is the folder of a run, its `results.json`, or `DIR:ROW`, all seeds of a row of the sweep in DIR. docs/sweeps.md
describes the tests.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from reports.comparison import DRAWS, Scored, compare, grouped, on_same_items, scored, warnings
from reports.reader import RecordError, find_record
from reports.runs import rows_of
from reports.tables import data_table
from reports.writer import plain
from results.errors import UserError, near

EXPECTED = "the folder of a run, its results.json, or DIR:ROW, a row of the sweep in DIR,"
"""Forms of RUN."""


def read_runs(name: str, score: str | None) -> list[Scored]:
    """Read the run, or the runs of a row of a sweep, that a RUN of the command line names.

    Raises:
        RecordError: There is no such run or row, or a run cannot be read.
    """
    folder, _, row = name.partition(":")
    if Path(name).exists() or not Path(folder).is_dir():
        if (Path(name) / "runs").is_dir():
            raise RecordError(f"{name} is a sweep; name a row of it, {name}:ROW: {', '.join(rows_of(Path(name)))}")
        return [_read([Path(name)], score)]
    rows = rows_of(Path(folder))
    if row not in rows:
        raise RecordError(f"{folder} has no row {row!r}{near(row, rows)}; there are: {', '.join(rows)}")
    found: list[Scored] = []
    for runs in rows[row].values():
        found.append(_read(runs, score, f"{Path(folder).resolve().name}:{row}"))
        score = found[0].name
    return found


def _read(runs: Sequence[Path], score: str | None, label: str = "") -> Scored:
    """The first run of a row and seed that has the score, as in the table of the sweep."""
    for run in runs[:-1]:
        with suppress(RecordError):
            return scored(find_record(run), score, label)
    try:
        return scored(find_record(runs[-1]), score, label)
    except RecordError as error:
        raise RecordError(f"{error}; {EXPECTED} is expected") from None


def main(args: Sequence[str], *, console: Console | None = None) -> int:
    """Run the command line `args`; returns the exit code.

    Raises:
        UserError: The runs cannot be compared.
    """
    console = console or Console()
    parser = argparse.ArgumentParser(prog="python -m sweeps.compare", description="Compare runs on the same items.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help=f"{EXPECTED} all its seeds")
    parser.add_argument("--score", help="what to compare them by (the first that has counts: uas, accuracy)")
    parser.add_argument("--common", action="store_true", help="leave out the items that are not in all of the runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to FILE as well")
    options = parser.parse_args(args)
    runs = read_runs(options.runs[0], options.score)
    runs += [run for name in options.runs[1:] for run in read_runs(name, runs[0].name)]
    folders = [run.folder.resolve() for run in runs]
    if twice := [run.folder for run in runs if folders.count(run.folder.resolve()) > 1]:
        raise RecordError(f"{twice[-1]} is named twice")
    groups = grouped(runs)
    runs, cautions = on_same_items([run for group in groups for run in group], options.common)
    cautions += warnings(runs)
    rest = iter(runs)
    groups = [[next(rest) for _ in group] for group in groups]
    table = compare(groups)
    score, items, names = runs[0].name, len(runs[0].counts), " and ".join(map(str, runs[0].counts.index.names))
    console.print(data_table(f"{score}, against the first", table, "the output of --json", console.width))
    console.print()
    console.print(Text(f"{items} items, matched by {names}; {DRAWS} draws a test."), soft_wrap=True)
    for warning in cautions:
        console.print(Text(f"Warning: {warning}", "yellow"), soft_wrap=True)
    if options.json is not None:
        lines = [
            {**line, "runs": [{"folder": str(run.folder), "score": run.value} for run in group]}
            for line, group in zip(table.frame.to_dict("records"), groups, strict=True)
        ]
        content = plain({"score": score, "items": items, "draws": DRAWS, "lines": lines, "warnings": cautions})
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        options.json.write_text(text, encoding="utf-8")
        console.print(Text(f"Written to {options.json}"), soft_wrap=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (UserError, OSError) as error:
        Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(1)
