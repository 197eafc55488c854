"""The coreference column of CoNLL-2012: brackets with the number of a cluster → spans."""

import re
from collections import defaultdict

_BRACKET = re.compile(r"\(([0-9]+)\)?|([0-9]+)\)")


class Brackets:
    """The mentions of one sentence as (start, end, cluster): those that are closed, and by cluster those still open."""

    def __init__(self) -> None:
        self.closed: list[tuple[int, int, int]] = []
        self._open: dict[int, list[tuple[int, int]]] = defaultdict(list)  # first word and line of each

    def read(self, cell: str, word: int, line: int) -> tuple[str, str] | None:
        """Take in the cell of one word, from left to right; return what is wrong with it and the remedy, if anything.

        A bracket closes the mention of its cluster that was opened last.
        """
        for bracket in cell.split("|"):
            found = _BRACKET.fullmatch(bracket)
            if found is None:
                remedy = (
                    "Write (5 where a mention of cluster 5 begins, 5) where it ends, (5) for one word, | between them"
                )
                return f"the coreference {cell!r} is malformed", remedy
            cluster = int(found[1] or found[2])
            if found[1]:
                self._open[cluster].append((word, line))
            if bracket.endswith(")"):
                if not self._open[cluster]:
                    wrong = f"{bracket} closes a mention of cluster {cluster}, but none is open in the sentence"
                    return wrong, f"Write ({cluster} at its first word"
                start, _ = self._open[cluster].pop()
                self.closed.append((start, word + 1, cluster))
        return None

    def left_open(self) -> list[tuple[int, int]]:
        """Return cluster and line of every mention still open, the first opened first."""
        return sorted(
            ((cluster, line) for cluster, opened in self._open.items() for _, line in opened), key=lambda pair: pair[1]
        )
