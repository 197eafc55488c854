"""Reader of minimal pairs: an acceptable sentence, and an unacceptable one that differs from it as little as possible.

The format is that of BLiMP (Warstadt et al. 2020), one JSON object a line.
"""

from dataclasses import dataclass
from pathlib import Path

from corpora.labelled import numbered_objects
from corpora.sentence import CorpusError

_KEYS = ("UID", "pairID", "field", "sentence_good", "sentence_bad")


@dataclass(frozen=True)
class MinimalPair:
    """An acceptable and an unacceptable sentence.

    Attributes:
        paradigm: Name of the paradigm, such as `anaphor_gender_agreement`; all pairs of one are made by one template.
        id: Name of the pair in its paradigm.
        field: Field of grammar of the paradigm. BLiMP writes one of them in two ways; a `/` is read as `_`.
        good: The acceptable sentence.
        bad: The unacceptable sentence. It may equal the other: two of BLiMP's 13,400 do.
        line: Line of the file, from 1.
    """

    paradigm: str
    id: str
    field: str
    good: str
    bad: str
    line: int


def read_pairs(path: Path) -> tuple[MinimalPair, ...]:
    """Return the minimal pairs of a JSONL file with the keys `UID`, `pairID`, `field`, `sentence_good`, `sentence_bad`.

    Args:
        path: The file, in UTF-8.

    Raises:
        CorpusError: The file is missing, in another encoding, or holds no pair with two different sentences; a line
            is no JSON object, or lacks a key; a value is empty or no string; or a pair is given twice.
    """
    pairs: dict[tuple[str, str], MinimalPair] = {}
    for line, found in numbered_objects(path):
        for key in _KEYS:
            if not isinstance(value := found.get(key), str) or not value.strip():
                wrong = f"the object has no key {key!r}" if key not in found else f"the value of {key!r} is {value!r}"
                remedy = "Give each pair a text for each of the keys " + ", ".join(_KEYS)
                raise CorpusError.at(path, line, wrong, remedy)
        paradigm, name, field, good, bad = (found[key].strip() for key in _KEYS)
        pair = MinimalPair(paradigm, name, field.replace("/", "_"), good, bad, line)
        first = pairs.setdefault((pair.paradigm, pair.id), pair)
        if first is not pair:
            wrong = f"the pair {pair.id} of {pair.paradigm} is also in line {first.line}"
            raise CorpusError.at(path, line, wrong, "Give every pair of a paradigm a `pairID` of its own")
    if all(pair.good == pair.bad for pair in pairs.values()):
        wrong = "the two sentences of every pair are equal" if pairs else "the file holds no pair"
        raise CorpusError.at(path, None, wrong, "Check that it is the file you meant")
    return tuple(pairs.values())
