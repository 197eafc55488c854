"""How often a head that is chosen on dev is the best on test too, by how often it is chosen again on resamples of dev.

    python docs/scripts/found_again.py runs/SingleHeads/version_0

For docs/stability_of_heads.md. It reads the tables `best_heads` and `heads` of a run of `measure clark2019/heads`.
Relations with fewer than 20 words on dev or test are left out, and so are the two rows of all words. Then the same on
simulated words, for heads of which none is better than the others, and for one that is: how often the head is chosen
again on resamples, and how often on other words.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from attention_probing.metrics.attachment import ALL, PLAIN
from attention_probing.metrics.stability import choose_again
from attention_probing.results import Floats
from attention_probing.results.estimates import FEW

CLASSES = ((95, 100), (75, 94), (50, 74), (0, 49))
ROUNDS = 1000
PREDICTORS = 144  # of all-MiniLM-L6-v2
WORDS = 6  # of a relation in each document


def print_run(folder: Path) -> None:
    """Print how many relations have, on test, the best head of dev, by how often this head is chosen again."""
    chosen = pd.read_csv(folder / "best_heads.csv")
    heads = pd.read_csv(folder / "tables" / "heads.csv").dropna(subset="test")
    best = heads.loc[heads.groupby("relation")["test"].idxmax()].set_index("relation")
    enough = (chosen["n"] >= FEW) & (chosen["n_dev"] >= FEW) & ~chosen["relation"].isin([ALL, PLAIN])
    rows = chosen[enough & chosen["chosen"].notna()].set_index("relation")
    on_test = best.loc[rows.index]
    same = (rows["head"] == on_test["head"]) & (rows["direction"] == on_test["direction"])
    lost = on_test["test"] - rows["test"]
    for low, high in CLASSES:
        here = rows["chosen"].between(low, high)
        print(
            f"chosen in {low}–{high}: {here.sum()} relations, best on test too {same[here].sum()}, "
            f"points below the best of test {100 * lost[here].mean():.1f}"
        )
    random = rows["random_init_chosen"]
    print(f"random weights: median {random.median():.0f}, 50 or more in {(random >= 50).sum()} of {len(random)}")


def print_simulation(documents: int, better: float) -> None:
    """Print how often the best head is chosen again, and on other words, if one head finds so many more words."""
    rng = np.random.default_rng(0)
    accuracies = np.full(PREDICTORS, 0.2)
    accuracies[0] += better
    counted = np.full(documents, float(WORDS))

    def draw() -> Floats:
        return rng.binomial(WORDS, accuracies, size=(documents, PREDICTORS)).astype(np.float64)

    times = np.zeros(ROUNDS)
    found_again = 0
    for place in range(ROUNDS):
        found = draw()
        best = int(found.sum(axis=0).argmax())
        times[place] = choose_again(found, counted, seed=place).times[best]
        found_again += int(draw().sum(axis=0).argmax()) == best
    low, middle, high = np.percentile(times, (5, 50, 95))
    print(
        f"{documents} documents, one head better by {100 * better:.0f} points: chosen in {middle:.0f} "
        f"({low:.0f} to {high:.0f}) of 100, in 50 or more {100 * (times >= 50).mean():.1f} %, "
        f"on other words {100 * found_again / ROUNDS:.1f} %"
    )


def main() -> None:
    """Print the numbers of a run, and those of the simulation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    print_run(parser.parse_args().run)
    for documents in (10, 50, 300):
        for better in (0.0, 0.05, 0.1, 0.2):
            print_simulation(documents, better)


if __name__ == "__main__":
    main()
