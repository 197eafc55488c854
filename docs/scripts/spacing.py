"""Best heads of each language with blanks between words, and in text as it was written (docs/languages.md).

Differences are paired by sentence, bold if p < .05 after Holm's correction over the languages.

PYTHONPATH=. python docs/scripts/spacing.py runs/languages runs/languages-text
"""

import sys
from pathlib import Path

import pandas as pd

from attention_probing.commands.sweep_transfer import LEAST, OWN, compare_transfer
from attention_probing.metrics.p_values import holm
from attention_probing.results.record import Record
from attention_probing.results.sentences import LEVEL
from attention_probing.results.tables import DASH, format_markdown
from studies.languages import read_runs

RELATIONS = ("all", "nsubj", "obj", "det", "case")


def own_heads(folder: Path) -> dict[str, Record]:
    """Return the run of each language with its own heads."""
    return {language: kinds[OWN] for language, kinds in read_runs(folder).runs.items() if OWN in kinds}


def main(blanks: Path, text: Path) -> None:
    """Print the table."""
    before, after = own_heads(blanks), own_heads(text)
    rows: dict[str, dict[str, str]] = {}
    for language, record in after.items():
        counts = record.audit["test"]
        share = 100 * counts["words_without_own_piece"] / counts["words"]
        rows[language] = {"language": language, "words without own piece, %": f"{share:.1f}"}
    for relation in RELATIONS:
        cells, p = dict[str, str](), dict[str, float]()
        for language, record in after.items():
            old, new = (
                one.table("best_heads").set_index("relation").T.get(relation) for one in (before[language], record)
            )
            if old is not None and new is not None and old["n"] >= LEAST:
                shown = (f"{one['head']} {100 * one['test']:.1f}" for one in (old, new))
                cells[language] = f"{' → '.join(shown)} ({100 * old['offset']:.1f})"
                p[language] = compare_transfer(before[language], record, f"heads.{relation}")["p"]
        for (language, cell), least in zip(cells.items(), holm([*p.values()]), strict=True):
            rows[language][relation] = f"**{cell}**" if least < LEVEL else cell
    print(format_markdown(pd.DataFrame(rows.values()).fillna(DASH)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
