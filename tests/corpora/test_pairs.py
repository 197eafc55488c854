"""Minimal pairs in the format of BLiMP, and what is wrong with them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from corpora.pairs import MinimalPair, PairColumns, read_pairs
from corpora.sentence import CorpusError
from results.errors import command_line

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
            r":2: there is no key 'field'; the keys are UID, .* one with `columns\.field`, or null if there is none\.$",
        ),
        (
            {**PAIR, "sentence_bad": " "},
            r":2: the value of 'sentence_bad' is ' '\. Give each pair a text for `columns\.bad`\.$",
        ),
        ({**PAIR, "pairID": 7.5}, r":2: the value of 'pairID' is 7\.5\. Give each pair a text"),
        ({**PAIR, "pairID": True}, r":2: the value of 'pairID' is True\. Give each pair a text"),
        ({**PAIR, "sentence_bad": 7}, r":2: the value of 'sentence_bad' is 7\. Give each pair a text"),
        (
            PAIR,
            r":2: the pair 0 of anaphor is also in line 1\. Give every pair of a paradigm a `pairID` of its own",
        ),
        ([PAIR], r":2: the line is a list, not an object\."),
    ],
)
def test_a_line_that_is_no_pair_is_refused(second: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        read_pairs(write(tmp_path, PAIR, second))


OTHER = PairColumns(good="grammatical", bad="ungrammatical", paradigm="rule", field=None, id=None)
"""Of a project that names neither fields nor pairs."""


def test_columns_of_another_project_are_named(tmp_path: Path) -> None:
    pair = {"rule": 3, "grammatical": "The fox sleeps.", "ungrammatical": "The fox sleep.", "note": None}
    expected = [MinimalPair("3", str(line), "all", "The fox sleeps.", "The fox sleep.", line) for line in (1, 2)]
    assert list(read_pairs(write(tmp_path, pair, pair), OTHER)) == expected
    with pytest.raises(
        CorpusError, match=r":1: there is no key 'sentence_good'; the keys are rule, .*columns\.good`\.$"
    ):
        read_pairs(write(tmp_path, pair))
    wrong = r"Name the right one with `--model\.pair_columns\.good`\.$"
    with command_line(), pytest.raises(CorpusError, match=wrong):
        read_pairs(write(tmp_path, pair), option="--model.pair_columns")


@pytest.mark.parametrize(("suffix", "between"), [("tsv", "\t"), ("csv", ",")])
def test_a_table_holds_pairs_too(tmp_path: Path, suffix: str, between: str) -> None:
    rows = [["rule", "grammatical", "ungrammatical"], ["a", "The fox sleeps.", "The fox sleep."]]
    path = tmp_path / f"pairs.{suffix}"
    path.write_text("".join(f"{between.join(row)}\n" for row in rows), encoding="utf-8")
    assert read_pairs(path, OTHER) == (MinimalPair("a", "2", "all", "The fox sleeps.", "The fox sleep.", 2),)
    path.write_text(between.join(["rule", "rule", "bad"]), encoding="utf-8")
    with pytest.raises(CorpusError, match=r":1: the header has several columns 'rule'\. Rename all but one\."):
        read_pairs(path, OTHER)


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
