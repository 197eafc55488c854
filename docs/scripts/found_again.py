"""Heads that are chosen again on resamples of dev, in several models; and how often they are the best on test too.

    python docs/scripts/found_again.py RUN RUN RUN RUN
    python docs/scripts/found_again.py --simulate

For docs/stability_of_heads.md. A RUN is the folder of a run of `measure clark2019/heads`, such as
runs/SingleHeads/version_0; the script reads its tables `best_heads` and `heads`. Relations with fewer than 20 words on
dev or test are left out, and so are the two rows of all words. The simulation draws words for heads of which none is
better than the others, and for one that is: how often the head is chosen again on resamples, and how often on other
words.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from attention_probing.metrics.attachment import ALL, PLAIN
from attention_probing.metrics.stability import HALF, choose_again
from attention_probing.results import Floats
from attention_probing.results.estimates import FEW
from attention_probing.results.record import read_record
from attention_probing.results.sentences import LEVEL
from attention_probing.results.tables import ARROWS, format_markdown

CLASSES = ((95, 100), (75, 94), (50, 74), (0, 49))
CERTAIN = 95  # resamples on which the same head is chosen
FREQUENT = 700  # words on dev
ROUNDS = 1000
PREDICTORS = 144  # of all-MiniLM-L6-v2 and gemma-3-270m: heads in two directions
MOST_PREDICTORS = 540  # of smollm2-135m
WORDS = 6  # of a relation in each document


def read_relations(run: Path) -> pd.DataFrame:
    """Return the best head of each relation with enough words, by relation, and the head that is best on test."""
    chosen = pd.read_csv(run / "best_heads.csv", keep_default_na=False, na_values=[""])
    heads = pd.read_csv(run / "tables" / "heads.csv").dropna(subset="test")
    best = heads.loc[heads.groupby("relation")["test"].idxmax()].set_index("relation")
    enough = (chosen["n"] >= FEW) & (chosen["n_dev"] >= FEW) & ~chosen["relation"].isin([ALL, PLAIN])
    rows = chosen[enough & chosen["chosen"].notna()].set_index("relation")
    on_test = best.loc[rows.index]
    rows["same_on_test"] = (rows["head"] == on_test["head"]) & (rows["direction"] == on_test["direction"])
    rows["lost"] = on_test["test"] - rows["test"]
    rows["is_above"] = (rows["p_holm"] < LEVEL) & (rows["over_offset"] > 0)
    return rows


def print_classes(rows: pd.DataFrame) -> None:
    """Print how many relations have, on test, the best head of dev, by how often this head is chosen again."""
    for low, high in CLASSES:
        here = rows["chosen"].between(low, high)
        print(
            f"chosen in {low}–{high}: {here.sum()} relations, best on test too {rows['same_on_test'][here].sum()}, "
            f"points below the best of test {100 * rows['lost'][here].mean():.1f}"
        )
    if "random_init_chosen" in rows:
        random = rows["random_init_chosen"]
        print(f"random weights: median {random.median():.0f}, 50 or more in {(random >= 50).sum()} of {len(random)}")


def compare_models(models: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the best head of each frequent relation in each model, with `chosen`; then counts of relations.

    Raises:
        SystemExit: The models did not read the same words.
    """
    first, *others = models.values()
    for other in others:
        if not first["n_dev"].equals(other["n_dev"]):
            raise SystemExit("the runs have other numbers of words on dev, so their counts cannot be compared")
    table = pd.DataFrame()
    frequent = first["n_dev"] >= FREQUENT
    words = first["n_dev"][frequent].sort_values(ascending=False)
    table["words on dev"] = words.map("{:,}".format)
    for name, rows in models.items():
        arrows = rows["direction"].map(ARROWS)
        cells = rows["head"] + arrows + " " + rows["chosen"].astype(int).astype(str)
        table[name] = cells
    count = f"of {frequent.sum()}"
    for name, rows in models.items():
        certain = rows["chosen"] >= CERTAIN
        counts = {
            f"{CERTAIN} or more, {count}": certain & frequent,
            f"and above the offset, {count}": certain & frequent & rows["is_above"],
            f"{CERTAIN} or more, of the {(~frequent).sum()} rarer": certain & ~frequent,
            f"below 50, of all {len(rows)}": rows["chosen"] < HALF,
        }
        for row, is_counted in counts.items():
            table.loc[row, name] = str(is_counted.sum())
        table.loc[f"median, {count}", name] = f"{rows['chosen'][frequent].median():g}"
    return table.fillna("").rename_axis("relation").reset_index()


def print_simulation(documents: int, better: float, predictors: int = PREDICTORS) -> None:
    """Print how often the best head is chosen again, and on other words, if one head finds so many more words."""
    rng = np.random.default_rng(0)
    accuracies = np.full(predictors, 0.2)
    accuracies[0] += better
    counted = np.full(documents, float(WORDS))

    def draw() -> Floats:
        return rng.binomial(WORDS, accuracies, size=(documents, predictors)).astype(np.float64)

    times = np.zeros(ROUNDS)
    found_again = 0
    for place in range(ROUNDS):
        found = draw()
        best = int(found.sum(axis=0).argmax())
        times[place] = choose_again(found, counted, seed=place).times[best]
        found_again += int(draw().sum(axis=0).argmax()) == best
    low, middle, high = np.percentile(times, (5, 50, 95))
    print(
        f"{documents} documents, {predictors} heads, one better by {100 * better:.0f} points: chosen in {middle:.0f} "
        f"({low:.0f} to {high:.0f}) of 100, in 50 or more {100 * (times >= 50).mean():.1f} %, "
        f"on other words {100 * found_again / ROUNDS:.1f} %"
    )


def main() -> None:
    """Print the numbers of runs, or those of the simulation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN")
    parser.add_argument("--simulate", action="store_true")
    options = parser.parse_args()
    models = {}
    for run in options.runs:
        name = read_record(run / "results.json").encoder["name"].rpartition("/")[2]
        models[name] = read_relations(run)
        print(f"{name}:")
        print_classes(models[name])
    if len(models) > 1:
        print("All models:")
        print_classes(pd.concat(models.values()).drop(columns="random_init_chosen", errors="ignore"))
        print(format_markdown(compare_models(models)))
    if options.simulate:
        for documents in (10, 50, 300):
            for better in (0.0, 0.05, 0.1, 0.2):
                print_simulation(documents, better)
        print_simulation(300, 0.05, MOST_PREDICTORS)


if __name__ == "__main__":
    main()
