"""Start a command: `probing COMMAND …`, or `python -m attention_probing COMMAND …`."""

import os
import sys

if not __package__:  # started by its path, as the runs of a sweep: its folder would offer `models`, `results` …
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from attention_probing import commands


def main() -> int:
    """Run the command of the command line, and return the exit code."""
    sys.path.append(os.getcwd())  # modules of one's own, which `--trust` names, lie in the working folder
    return commands.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
