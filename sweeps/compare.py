"""Compare runs on the same items: `python -m sweeps.compare RUN RUN … [--score NAME] [--common] [--json FILE]`.

RUN is the folder of a run, its `results.json`, or `DIR:ROW`, all seeds of a row of the sweep in DIR. docs/sweeps.md
describes the tests.
"""

from reports.comparison import main
from results import command

if __name__ == "__main__":
    command.run(main)
