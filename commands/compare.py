"""Compare runs on the same items."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from commands import parser_of
from commands.comparison import DRAWS, compare, grouped, on_same_items, read_runs, warnings
from results.reader import RecordError
from results.tables import LEGEND, data_table
from results.writer import plain


def main(args: Sequence[str], *, console: Console | None = None) -> int:
    """Run the command, and return the exit code.

    Raises:
        UserError: The runs cannot be compared.
    """
    console = console or Console()
    parser = parser_of("compare")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, its results.json, or SWEEP_DIR:ROW")
    parser.add_argument("--score", help="compared score (default: the first with counts, such as uas or accuracy)")
    parser.add_argument("--common", action="store_true", help="leave out the items that are not in all of the runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to FILE as well")
    options = parser.parse_args(args)
    runs = read_runs(options.runs[0], options.score)
    runs += [run for name in options.runs[1:] for run in read_runs(name, runs[0].name)]
    folders = [run.folder.resolve() for run in runs]
    if twice := [run.folder for run in runs if folders.count(run.folder.resolve()) > 1]:
        raise RecordError(f"{twice[-1]} is named twice. Name each run once")
    groups = grouped(runs)
    runs, cautions = on_same_items([run for group in groups for run in group], options.common)
    cautions += warnings(runs)
    rest = iter(runs)
    groups = [[next(rest) for _ in group] for group in groups]
    table = compare(groups)
    score, items, names = runs[0].name, len(runs[0].counts), " and ".join(map(str, runs[0].counts.index.names))
    console.print(data_table(f"{score}, against the first", table, "the output of --json", console.width))
    console.print()
    console.print(Text(LEGEND))
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
