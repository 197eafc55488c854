"""Write the page of a run or a sweep."""

from collections.abc import Sequence
from pathlib import Path

from commands import parser_of
from results.page import write_page


def main(args: Sequence[str]) -> int:
    """Run the command: write a page, print its path, and return the exit code.

    Raises:
        UserError: There are no results in the folder.
    """
    parser = parser_of("page")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run or of a sweep, or its results.json")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the page goes (RUN/page.html)")
    options = parser.parse_args(args)
    print(write_page(options.run, options.out))
    return 0
