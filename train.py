"""Run a command from a checkout: `python train.py COMMAND …` is the same as `probing COMMAND …`."""

import sys

from attention_probing.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
