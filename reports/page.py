"""The page of a run or a sweep: `python -m reports.page RUN [--out page.html]` prints its path."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from reports.run_page import write_page
from results import command


def main(args: Sequence[str]) -> int:
    """Run the command line `args`: write a page and print its path. Raises UserError where there are no results."""
    parser = argparse.ArgumentParser(prog="python -m reports.page", description="Write the page of a run or a sweep.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run or of a sweep, or its results.json")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the page goes (RUN/page.html)")
    options = parser.parse_args(args)
    print(write_page(options.run, options.out))
    return 0


if __name__ == "__main__":
    command.run(main)
