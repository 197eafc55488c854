"""Tables of docs/languages.md: `python -m studies.languages RUNS` prints them as Markdown.

RUNS is the folder of the finished sweep `configs/languages.yaml`, whose comparison of the languages
(`commands.sweep_transfer`) is written here as that page has it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from attention_probing.commands.sweep_plan import read_plan
from attention_probing.commands.sweep_transfer import Languages, compare_languages, widen
from attention_probing.results import Result, UserError, command
from attention_probing.results.reader import find_runs
from attention_probing.results.record import Record, find_record
from attention_probing.results.sentences import LEVEL
from attention_probing.results.tables import DASH, format_cells, format_markdown


def read_runs(folder: Path) -> Languages:
    """Return the finished runs of the first seed of a sweep of languages, by language and kind.

    Raises:
        RecordError: The sweep is not finished.
    """
    runs: dict[str, dict[str, Record]] = {}
    for row, of_seeds in find_runs(folder).items():
        language, _, kind = row.partition(" × ")
        first = next(iter(of_seeds.values()))
        runs.setdefault(language, {})[kind] = find_record(first[-1])
    return Languages(read_plan(folder / "config.yaml").source, runs)


def format_page(result: Result, source: str) -> str:
    """Return the tables of the page: own heads, transferred heads, shared heads, and probes.

    Args:
        result: Result of `compare_languages`.
        source: Source language, which has its head in the place of a difference.
    """
    table = result.tables["heads"]
    best = table.frame
    heads = pd.DataFrame(format_cells(table, missing=DASH))
    own = heads["head"] + " " + heads["test"].str.partition(" ")[0] + " (" + heads["offset"] + ")"
    own = own.mask(best["head"].isna(), DASH)
    transfer = heads["difference"].mask(best["p_holm"] < LEVEL, "**" + heads["difference"] + "**")
    transfer = transfer.mask(best["language"] == source, heads["source_head"])
    blocks = [widen(best, cells).fillna(DASH).reset_index() for cells in (own, transfer)]
    for name in ("shared", "probes"):
        blocks.append(pd.DataFrame(format_cells(result.tables[name], missing=DASH)))
    return "\n\n".join(format_markdown(block) for block in blocks)


def main(args: Sequence[str]) -> int:
    """Print the tables of docs/languages.md, and return the exit code.

    Raises:
        UserError: The sweep is not finished.
    """
    parser = argparse.ArgumentParser(prog="python -m studies.languages", description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder of the sweep")
    folder = parser.parse_args(list(args)).runs
    languages = read_runs(folder)
    compared = compare_languages(languages)
    if compared is None:
        raise UserError(f"{folder}: no run of the plan `languages` has finished. Run `probing sweep languages`")
    result, _ = compared
    print(format_page(result, languages.source))
    return 0


if __name__ == "__main__":
    command.run(main)
