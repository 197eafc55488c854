"""Minimal pairs in the format of BLiMP, and what is wrong with them."""

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from attention_probing.corpora.pairs import MinimalPair, PairColumns, read_pairs
from attention_probing.corpora.sentence import CorpusError
from attention_probing.results.errors import command_line

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
            r":2: there is no key 'field'; the keys are UID, .* one with `field`, or null if there is none\.$",
        ),
        (
            {**PAIR, "sentence_bad": " "},
            r":2: the value of 'sentence_bad' is ' '\. Give each pair a text for `bad`\.$",
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
    with pytest.raises(CorpusError, match=r":1: there is no key 'sentence_good'; the keys are rule, .*`good`\.$"):
        read_pairs(write(tmp_path, pair))
    wrong = r"Name the right one with --model\.pair_columns\.good\.$"
    with command_line(), pytest.raises(CorpusError, match=wrong):
        read_pairs(write(tmp_path, pair), option="model.pair_columns")


@pytest.mark.parametrize(("suffix", "between"), [("tsv", "\t"), ("csv", ",")])
def test_a_table_holds_pairs_too(tmp_path: Path, suffix: str, between: str) -> None:
    rows = [["rule", "grammatical", "ungrammatical"], ["a", "The fox sleeps.", "The fox sleep."]]
    path = tmp_path / f"pairs.{suffix}"
    path.write_text("".join(f"{between.join(row)}\n" for row in rows), encoding="utf-8")
    assert read_pairs(path, OTHER) == (MinimalPair("a", "2", "all", "The fox sleeps.", "The fox sleep.", 2),)
    path.write_text(between.join(["rule", "rule", "bad"]), encoding="utf-8")
    with pytest.raises(CorpusError, match=r":1: the header has several columns 'rule'\. Rename all but one\."):
        read_pairs(path, OTHER)


SENTENCES = PairColumns("good", "bad", None, None, None)


def test_a_quote_too_many_that_joins_pairs_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    rows = "".join(f"The fox {number} sleeps.,The fox {number} sleep.\n" for number in range(5))
    joined = rows.replace("The fox 1 sleeps", '"The fox 1 sleeps').replace("3 sleeps.", '3 sleeps."')
    audit = Counter[str]()
    path.write_text(f"good,bad\n{rows}", encoding="utf-8")
    assert len(read_pairs(path, SENTENCES, audit=audit)) == 5
    assert not audit
    path.write_text(f"good,bad\n{joined}", encoding="utf-8")
    assert [pair.line for pair in read_pairs(path, SENTENCES, audit=audit)] == [2, 3, 6]
    assert audit == {"multiline_records": 1, "longest_record_lines": 3, "longest_record_line": 3}


def test_quotes_of_csv_in_a_table_with_tabs_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    pairs = [
        ('He said "hi" to me.', 'He say "hi" to me.'),
        ("I sleep.", "I sleeps."),
        ('"Go," he said.', '"Go," he say.'),
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows([("good", "bad"), *pairs])
    audit = Counter[str]()
    assert read_pairs(path, SENTENCES, audit=audit)[0].good == '"He said ""hi"" to me."'
    assert audit == {"quoted_texts": 2}
    path.write_text("good\tbad\n" + "".join(f"{good}\t{bad}\n" for good, bad in pairs), encoding="utf-8")
    audit.clear()
    assert [(pair.good, pair.bad) for pair in read_pairs(path, SENTENCES, audit=audit)] == pairs
    assert not audit


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl"])
def test_characters_without_a_width_do_not_hide_a_column_or_split_a_paradigm(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"pairs.{suffix}"
    rows = [["UID", "\u200bgood", "bad"], ["a", "\ufeffI sleep.", "I sleeps."], ["a\u200b", "We go.", "We goes."]]
    between = "," if suffix == "csv" else "\t"
    lines = [between.join(row) for row in rows]
    if suffix == "jsonl":
        lines = [json.dumps(dict(zip(rows[0], row, strict=True))) for row in rows[1:]]
    path.write_text("\n".join(lines), encoding="utf-8")
    audit = Counter[str]()
    pairs = read_pairs(path, PairColumns("good", "bad", "UID", None, None), audit=audit)
    assert [(pair.paradigm, pair.good, pair.bad) for pair in pairs] == [
        ("a", "I sleep.", "I sleeps."),
        ("a", "We go.", "We goes."),
    ]
    assert audit == {"invisible_characters": 4 if suffix == "jsonl" else 3}  # of JSONL each object has the keys


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
