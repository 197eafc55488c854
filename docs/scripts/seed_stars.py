"""Set the stars of docs/papers/explanations.md: differences to the first classifier that exceed the variation of seeds.

    python docs/scripts/seed_stars.py [--page docs/papers/explanations.md] [--seeds 3]

A cell `61.3 [59.7, 62.9] (6.2)` has a mean over seeds, its interval over texts and the standard deviation over seeds.
Each cell is compared with the first one of its row by Welch's test over the seeds; a star marks p < .05 after Holm's
correction over the cells of the row. Tables without any star, and rows whose first cell has no standard deviation, are
left as they are.
"""

import argparse
import re
from itertools import groupby
from pathlib import Path

from scipy.stats import ttest_ind_from_stats

from attention_probing.metrics.p_values import holm

CELL = re.compile(r"^(?P<mean>−?[\d.]+) (?P<ends>\[[^\]]+\])\*? \((?P<sd>[\d.]+)\)$")


def starred(line: str, seeds: int) -> str:
    """Return a row of a table with a star at each cell that differs from the first one."""
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    found = [(place, match) for place, cell in enumerate(cells) if (match := CELL.match(cell))]
    if len(found) < 2 or re.match(r"−?[\d.]+$", cells[found[0][0] - 1]):
        return line
    numbers = [(float(one["mean"].replace("−", "-")), float(one["sd"])) for _, one in found]
    p = []
    for mean, sd in numbers[1:]:
        test = ttest_ind_from_stats(mean, sd, seeds, *numbers[0], seeds, equal_var=False)
        p.append(float(test.pvalue))
    for (place, one), corrected in zip(found[1:], holm(p).tolist(), strict=True):
        star = "*" if corrected < 0.05 else ""
        cells[place] = f"{one['mean']} {one['ends']}{star} ({one['sd']})"
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def main() -> None:
    """Rewrite the page, and print how many stars it had and has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=Path("docs/papers/explanations.md"))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    text = options.page.read_text(encoding="utf-8")
    lines = []
    for is_table, block in groupby(text.split("\n"), key=lambda line: line.startswith("|")):
        rows = list(block)
        if is_table and any("]*" in row for row in rows):
            rows = [starred(row, options.seeds) for row in rows]
        lines += rows
    options.page.write_text("\n".join(lines), encoding="utf-8")
    print(f"stars: {text.count(']*')} before, {sum(line.count(']*') for line in lines)} after")


if __name__ == "__main__":
    main()
