"""Start a command: `probing COMMAND …`, or `python -m attention_probing COMMAND …`."""

import os
import sys
from contextlib import suppress

if not __package__:  # started by its path, as the runs of a sweep
    # This folder, which Python has put first, offers `models`, `results` …: only the package is found by its parent.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    import attention_probing  # noqa: F401

    parent = sys.path.pop(0)
with suppress(OSError):  # of a working folder that was deleted
    sys.path.append(os.getcwd())  # modules of one's own, which `--trust` names
if not __package__:
    sys.path.append(parent)  # for the processes that this one starts

from attention_probing import commands


def main() -> int:
    """Run the command of the command line, and return the exit code."""
    return commands.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
