"""Half the width of the 95 % intervals of UAS and of relations, by the number of sentences (docs/howto/corpus.md).

Usage, from the top of the checkout, with a treebank whose train split is read in place of test, to have more sentences:

python docs/scripts/interval_widths.py "$PROBING_DATA"/ud/en_ewt-ud-{dev,train}.conllu
"""

import argparse

from attention_probing import SingleHeads, measure
from attention_probing.datamodules import DependencyDataModule

RELATIONS = ("nsubj", "obj", "acl:relcl", "iobj")


def half_width(low: float, high: float) -> float:
    """Return half the width of an interval of fractions, in points of a hundred."""
    return 50 * (high - low)


def widths(dev: str, test: str, limit: int) -> dict[str, object]:
    """Return a row of the table: number of words and half-widths, of heads that are chosen on dev.

    Args:
        dev: Treebank on which heads are chosen.
        test: Treebank on which they are scored.
        limit: Largest number of sentences of each.
    """
    data = DependencyDataModule({"dev": dev, "test": test}, limit=limit, store="stream")
    result = measure(data, None, SingleHeads())
    uas = result.scores["heads.uas"]
    row: dict[str, object] = {"sentences": limit, "UAS": f"{half_width(uas.low, uas.high):.1f}"}
    best = result.tables["best_heads"].frame.set_index("relation")
    for relation in RELATIONS:
        line = best.loc[relation]
        row[relation] = f"{half_width(line['low'], line['high']):.1f} ({line['n']:,})"
    return row


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dev")
    parser.add_argument("test")
    parser.add_argument("--limits", type=int, nargs="+", default=[100, 300, 1000, 3000])
    given = parser.parse_args()
    for limit in given.limits:
        for name, value in widths(given.dev, given.test, limit).items():
            print(f"{name} {value}", end=" | ")
        print(flush=True)


if __name__ == "__main__":
    main()
