"""Train, validate, test or measure, or write predictions: the commands with configs."""

import json
import os
import sys
from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    """Run fit, validate, test, predict or measure with the words of `sys.argv`, and return the exit code.

    `--check` alone reads command lines as JSON from standard input, and prints the fault of each one; a sweep asks for
    them.
    """
    if checks := words[0] == "--check":
        answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # what libraries print is no answer
    from commands.lightning import check_all, run

    if checks:
        for fault in check_all(json.load(sys.stdin)):
            print(json.dumps(fault), file=answers, flush=True)
        return 0
    return run()  # LightningCLI warns of words that are not those of sys.argv
