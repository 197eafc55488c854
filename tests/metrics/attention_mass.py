"""Surface statistics of one head in one input, by loops over tokens."""

import math
from collections.abc import Sequence

from attention_probing.metrics.attention_mass import NOTHING

KINDS = ("start", "end", "punctuation")


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan


def statistics(
    rows: list[list[float]], kinds: dict[str, list[bool]], smoothed: bool = False, epsilon: float = 0.3
) -> dict[str, float]:
    """Of the rows of the real tokens over the real tokens, by name."""
    n = len(rows)
    received = [sum(row[column] for row in rows) for column in range(n)]
    heaviest = max(range(n), key=lambda column: received[column])
    to_ends = [received[column] / n for column in range(n) if kinds["end"][column]]
    found = {
        "first": received[0] / n,
        "heaviest": received[heaviest] / n,
        "heaviest_end": max(to_ends, default=math.nan),
        "sink": float(received[0] / n > epsilon),
    }
    for variant, sink in (("", None), ("_without_first", 0), ("_without_heaviest", heaviest)):
        for name, number in without(rows, kinds, sink, smoothed).items():
            found[name + variant] = number
    return found


def without(
    rows: list[list[float]], kinds: dict[str, list[bool]], sink: int | None, smoothed: bool
) -> dict[str, float]:
    """With one column removed, and what remains of each row divided by its sum."""
    n = len(rows)
    others = [column for column in range(n) if column != sink]
    kept: dict[int, list[float]] = {}
    entropies: dict[int, float] = {}
    for place, row in enumerate(rows):
        total = sum(row[column] for column in others)
        if total <= NOTHING:
            continue
        kept[place] = [row[column] / total if column in others else 0.0 for column in range(n)]
        smooth = [0.9999 * row[column] + 0.0001 / n if smoothed else row[column] for column in others]
        shares = [share / sum(smooth) for share in smooth]
        entropies[place] = -sum(share * math.log(share) for share in shares if share > 0)

    def mass(kind: str, place: int) -> float:
        return sum(share for share, there in zip(kept[place], kinds[kind], strict=True) if there)

    def offset(by: int) -> float:
        return mean([row[place + by] if 0 <= place + by < n else 0.0 for place, row in kept.items()])

    found = {"self": offset(0), "previous": offset(-1), "next": offset(1)}
    for kind in KINDS:
        found[kind] = mean([mass(kind, place) for place in kept]) if any(kinds[kind]) else math.nan
    named = [place == 0 or any(kinds[kind][place] for kind in KINDS) for place in range(n)]
    found["rest"] = mean([sum(share for share, of in zip(row, named, strict=True) if not of) for row in kept.values()])
    for name, of_end in (("end_to_end", True), ("other_to_end", False)):
        chosen = [mass("end", place) for place in kept if kinds["end"][place] == of_end]
        found[name] = mean(chosen) if any(kinds["end"]) else math.nan
    found["entropy"] = mean(list(entropies.values()))
    found["start_entropy"] = mean([entropies[place] for place in kept if kinds["start"][place]])
    return found
