"""Minimal pairs in the format of BLiMP, and what is wrong with them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from corpora.pairs import MinimalPair, read_pairs
from corpora.sentence import CorpusError

PAIR = {
    "UID": "anaphor",
    "pairID": "0",
    "field": "syntax/semantics",
    "sentence_good": "The fox sleeps.",
    "sentence_bad": " The fox sleep. ",
    "simple_LM_method": True,
}


def write(folder: Path, *pairs: object) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), encoding="utf-8")
    return path


def test_a_pair_has_its_sentences_and_one_name_for_each_field(tmp_path: Path) -> None:
    equal = {**PAIR, "pairID": "1", "field": "syntax_semantics", "sentence_bad": "The fox sleeps."}
    assert read_pairs(write(tmp_path, PAIR, equal)) == (
        MinimalPair("anaphor", "0", "syntax_semantics", "The fox sleeps.", "The fox sleep.", 1),
        MinimalPair("anaphor", "1", "syntax_semantics", "The fox sleeps.", "The fox sleeps.", 2),
    )


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            {key: value for key, value in PAIR.items() if key != "field"},
            r":2: the object has no key 'field'\. Give each",
        ),
        ({**PAIR, "sentence_bad": " "}, r":2: the value of 'sentence_bad' is ' '\. Give each pair a text for each of"),
        ({**PAIR, "pairID": 7}, r":2: the value of 'pairID' is 7\. Give each pair a text"),
        (PAIR, r":2: the pair 0 of anaphor is also in line 1\. Give every pair of a paradigm a `pairID` of its own\.$"),
        ([PAIR], r":2: the line is a list, not an object\."),
    ],
)
def test_a_line_that_is_no_pair_is_refused(second: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        read_pairs(write(tmp_path, PAIR, second))


def test_pairs_of_equal_sentences_alone_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {**PAIR, "sentence_bad": "The fox sleeps."})
    with pytest.raises(CorpusError, match=r"jsonl: the two sentences of every pair are equal\. Check that it is"):
        read_pairs(path)
    with pytest.raises(CorpusError, match=r"jsonl: the file holds no pair\."):
        read_pairs(write(tmp_path))


def test_the_public_pairs_are_67_paradigms_of_4_fields(public_data: Callable[..., Path]) -> None:
    pairs = read_pairs(public_data("blimp", "pairs.jsonl"))
    assert (len(pairs), len({pair.paradigm for pair in pairs})) == (13400, 67)
    assert {pair.field for pair in pairs} == {"morphology", "semantics", "syntax", "syntax_semantics"}
    assert [pair.line for pair in pairs if pair.good == pair.bad] == [8163, 8822]
