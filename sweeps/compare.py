"""Compare runs on the same items: `python -m sweeps.compare RUN RUN … [--score NAME] [--common] [--json FILE]`.

RUN is the folder of a run, its `results.json`, or `DIR:ROW`, all seeds of a row of the sweep in DIR. docs/sweeps.md
describes the tests.
"""

import sys

from rich.console import Console
from rich.text import Text

from reports.comparison import main
from results.errors import UserError

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (UserError, OSError) as error:
        Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(1)
