import csv
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from attention_probing.corpora.labelled import Columns, LabelledText, read_labelled
from attention_probing.corpora.sentence import CorpusError
from tests.corpora.conftest import writer

TSV = 'label\ttext\n1\tA "fine" film .\n0\t  Dull , dull .  \n'
LINES = ("multiline_records", "longest_record_lines", "longest_record_line")
WITH_ALL = Columns("text", "label", "pair", "id", "rationale")
ALL = "id\ttext\tpair\tlabel\trationale\textra\n"
FIRST = ALL + "first\tone\ttwo\t0\t0\t\n"


write = writer("corpus.tsv")


def test_texts_and_labels_of_a_tsv_are_read_and_double_quotes_are_text(tmp_path: Path) -> None:
    found = read_labelled(write(tmp_path, TSV))
    assert found.texts == (
        LabelledText(id="2", text='A "fine" film .', label="1", line=2),
        LabelledText(id="3", text="Dull , dull .", label="0", line=3),
    )
    assert len(found) == 2
    assert found.audit == {"texts": 2, "duplicates": 0, "conflicting": 0, "empty": 0}
    # A reader with quoting would join these two lines.
    lone = read_labelled(write(tmp_path, 'label\ttext\n1\t"So\n0\tsaid" he\n'))
    assert [text.text for text in lone.texts] == ['"So', 'said" he']


def quoted(
    rows: list[tuple[str, str]], path: Path, quoting: Literal[0, 1] = csv.QUOTE_MINIMAL, end: str = "\n"
) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t", quoting=quoting, lineterminator=end).writerows(rows)
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_texts_that_are_quoted_as_in_csv_are_counted(tmp_path: Path, end: str) -> None:
    path, texts = tmp_path / "corpus.tsv", ['"Hm" , she said .', "plain", 'a "fine" film', '"']
    found = read_labelled(quoted([("text", "label"), *((text, "1") for text in texts)], path, end=end))
    assert found.audit["quoted_texts"] == 3
    assert [text.text for text in found.texts] == ['"""Hm"" , she said ."', "plain", '"a ""fine"" film"', '""""']
    # Every field of a row, with a header that is not quoted.
    path = quoted([(text, "1") for text in texts], path, csv.QUOTE_ALL, end)
    assert read_labelled(path, columns=Columns("1", "2")).audit["quoted_texts"] == 4
    # A text that is itself in quotes, a title and a lone quote are none.
    path = write(tmp_path, 'text\tlabel\n"So it is ."\t1\n"A" and "B"\t0\n"\t0\n""A""\t0\n')
    assert "quoted_texts" not in read_labelled(path).audit
    path = tmp_path / "corpus.csv"
    path.write_text('text,label\n"""Hm"" , she",1\n"""So it is .""",1\n', encoding="utf-8")
    assert "quoted_texts" not in read_labelled(path).audit
    # Of CSV: a text that was quoted twice, and quotes behind white space that is no blank.
    rows = ['1,"""""""Hm"""" , she said ."""', '1,\t"plain"', '1,\u00a0"plain" ', "1,plain"]
    path.write_text("label,text\n" + "\n".join(rows), encoding="utf-8")
    found = read_labelled(path)
    assert found.audit["quoted_texts"] == 3
    assert [text.text for text in found.texts] == ['"""Hm"" , she said ."', '"plain"', '"plain"', "plain"]
    # A text that begins with a line break, and is rightly quoted.
    path.write_text('text,label\n"\n""I see,"" he said. ""Bye.""",1\n', encoding="utf-8")
    found = read_labelled(path)
    assert [text.text for text in found.texts] == ['"I see," he said. "Bye."']
    assert "quoted_texts" not in found.audit


def test_blanks_after_a_comma_of_csv_are_dropped_before_quotes(tmp_path: Path) -> None:
    path = tmp_path / "corpus.csv"
    path.write_text('label, "text"\n1, "warm, ""good"" bread"\n 0,  plain  \n1, ""\n', encoding="utf-8")
    found = read_labelled(path, skip=("empty",))
    assert [(text.label, text.text) for text in found.texts] == [("1", 'warm, "good" bread'), ("0", "plain")]
    assert found.audit == {"texts": 2, "duplicates": 0, "conflicting": 0, "empty": 1}


def test_records_over_several_lines_are_counted_by_split(tmp_path: Path) -> None:
    path = tmp_path / "corpus.csv"
    rows = [
        'train,1,one,""',
        'dev,0,"two\nlines",',
        '\ntrain,1,"3\n\nlines",',
        'train,0,four,"a\nnote"',
        "test,1,five,",
    ]
    path.write_text("part,label,text,note\n" + "\n".join(rows) + "\n", encoding="utf-8")
    columns = Columns(split="part")
    counts = [
        [read_labelled(path, columns=columns, split=split).audit.get(name, 0) for name in LINES]
        for split in ("train", "dev", "test")
    ]
    assert counts == [[2, 3, 6], [1, 2, 3], [0, 0, 0]]


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl"])
def test_a_mark_without_a_width_makes_no_other_label_or_column(tmp_path: Path, suffix: str) -> None:
    rows = [
        ("la\u200bbel", "id", "text"),
        ("0", "a\u2060", "one"),
        ("0\ufeff", "b", "two"),
        ("\ufeff1", "c", "\ufeffthree"),
    ]
    rows += [("\u200e1\u200d", "d", "fo\u200bur"), ("می\u200cشود", "e", "five"), ("no\u200cne", "f", "six")]
    path = tmp_path / f"corpus.{suffix}"
    separator = "\t" if suffix == "tsv" else ","
    lines = [separator.join(row) for row in rows]
    if suffix == "jsonl":
        lines = [json.dumps(dict(zip(rows[0], row, strict=True)), ensure_ascii=False) for row in rows[1:]]
    path.write_text("\n".join(lines), encoding="utf-8")
    found = read_labelled(path, columns=Columns(id="id", leave_out=("none",)))
    assert [(text.label, text.id) for text in found.texts] == [
        ("0", "a"), ("0", "b"), ("1", "c"), ("1", "d"), ("می\u200cشود", "e"),
    ]  # fmt: skip
    assert [text.text for text in found.texts] == ["one", "two", "three", "fo\u200bur", "five"]
    # Of six records of JSONL each names its keys.
    assert found.audit["invisible_characters"] == 7 + (6 if suffix == "jsonl" else 1)
    assert found.audit["labels_left_out"] == 1


@pytest.mark.parametrize("quote", ["", '"'])
def test_files_that_were_joined_with_their_byte_order_marks(tmp_path: Path, quote: str) -> None:
    part = f"\ufeff{quote}one{quote},1\n{quote}two{quote},0\n"
    path = tmp_path / "corpus.csv"
    path.write_text(part + part.replace("o", "0"), encoding="utf-8")
    found = read_labelled(path, columns=Columns("1", "2"))
    assert [text.text for text in found.texts] == ["one", "two", "0ne", "tw0"]
    assert found.audit["invisible_characters"] == 1  # the mark of the first is as usual


def test_labels_are_left_out_and_counted(tmp_path: Path) -> None:
    content = "text\tlabel\na\t-\nb\tyes\n\t-\nc\tno majority\nd\t-1 \na\tno\n"
    found = read_labelled(write(tmp_path, content), columns=Columns(leave_out=("-", -1, "no majority")))
    assert [(text.text, text.label) for text in found.texts] == [("b", "yes"), ("a", "no")]
    assert found.audit == {"texts": 2, "duplicates": 0, "conflicting": 0, "empty": 0, "labels_left_out": 4}
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "a", "label": -1}\n{"text": "b", "label": 1}\n', encoding="utf-8")
    found = read_labelled(path, columns=Columns(leave_out=("-1",)))
    assert [text.label for text in found.texts] == ["1"]
    assert found.audit["labels_left_out"] == 1
    with pytest.raises(
        CorpusError, match=r"columns\.leave_out is \['-'\], but columns\.label is null\. Name its column\."
    ):
        Columns(label=None, leave_out=("-",))


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    found = read_labelled(write(tmp_path, "label\ttext\n1\ta\u2028b\x0bc\x85d\n\n1\te\n"))
    assert [(text.id, text.text) for text in found.texts] == [("2", "a\u2028b\x0bc\x85d"), ("4", "e")]


def test_pairs_ids_and_rationales_are_read_from_the_named_columns(tmp_path: Path) -> None:
    content = ALL + "a\tnot at all good\tIt is bad.\tno\t3 0\tx\nb\tso  so\tMaybe.\tno\t\tx\n"
    assert read_labelled(write(tmp_path, content), columns=WITH_ALL).texts == (
        LabelledText("a", "not at all good", "no", 2, "It is bad.", (0, 3)),
        LabelledText("b", "so  so", "no", 3, "Maybe.", ()),
    )
    assert read_labelled(write(tmp_path, content)).texts[0] == LabelledText("2", "not at all good", "no", 2)


def test_without_a_header_columns_are_numbers_from_one(tmp_path: Path) -> None:
    path = write(tmp_path, "gj04\t1\t\tThey drank the pub.\ngj04\t0\t*\tThe Bill slept.\n")
    for columns in (Columns(text="4", label="2"), Columns(text=4, label=2)):
        assert read_labelled(path, columns=columns).texts == (
            LabelledText("1", "They drank the pub.", "1", 1),
            LabelledText("2", "The Bill slept.", "0", 2),
        )


def test_csv_fields_hold_commas_quotes_and_line_ends(tmp_path: Path) -> None:
    rows = [("good", 'He said "yes", twice.'), ("bad", "One\n\ntwo, three"), ("good", "plain")]
    path = tmp_path / "corpus.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\r\n").writerows([("label", "text"), *rows])
    found = read_labelled(path).texts
    assert [(text.label, text.text) for text in found] == rows
    assert [(text.id, text.line) for text in found] == [("2", 2), ("3", 3), ("6", 6)]


def test_a_csv_field_may_be_as_long_as_a_book(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    words = "word " * 100_000
    path = write(tmp_path, f'label,text\n1,"{words}"\n', "corpus.csv")
    assert read_labelled(path).texts[0].text == words.strip()
    assert csv.field_size_limit() == before  # of the caller, who may read other files


def test_jsonl_labels_may_be_strings_integers_or_truth_values(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "a b", "label": "pos", "id": "x", "rationale": [1], "pair": "c"},
        {"text": "b", "label": 3, "id": 7, "rationale": "0", "pair": "c", "more": {"deep": 1.5}},
        {"text": "c", "label": True, "id": "y", "rationale": None, "pair": "c"},
        {"text": "\u00e9\n", "label": False, "id": "z", "rationale": [], "pair": " c"},
    ]
    path = write(tmp_path, "\n\n".join(map(json.dumps, rows)), "corpus.jsonl")
    assert read_labelled(path, columns=WITH_ALL).texts == (
        LabelledText("x", "a b", "pos", 1, "c", (1,)),
        LabelledText("7", "b", "3", 3, "c", (0,)),
        LabelledText("y", "c", "true", 5, "c", None),
        LabelledText("z", "é", "false", 7, "c", ()),
    )


def test_repeated_texts_are_counted_and_kept_and_those_with_another_label_told_apart(tmp_path: Path) -> None:
    content = "label\ttext\n" + "1\tyes\n" * 3 + "0\tyes\n0\tno\n1\tno \n1\tYes\n"
    found = read_labelled(write(tmp_path, content))
    assert found.audit == {"texts": 7, "duplicates": 4, "conflicting": 2, "empty": 0}


def test_of_pairs_both_texts_count_and_those_with_an_empty_one_are_skipped_on_request(tmp_path: Path) -> None:
    content = "text\tpair\tlabel\na\tb\t1\n \tb\t1\na\t\t0\na\tc\t0\na\tb\t1\n"
    found = read_labelled(write(tmp_path, content), columns=Columns(pair="pair"), skip=("empty",))
    assert [text.id for text in found.texts] == ["2", "5", "6"]
    assert found.audit == {"texts": 3, "duplicates": 1, "conflicting": 0, "empty": 2}


# What is wrong, the name of the file, its content, the line at which it is found, and words of the message.
NO_COLUMN = (
    r"the header has no column 'text'; its columns are label, sentence\. Name the right column with "
    r"`text`; "
    r"if the file has no header, give all columns their numbers"
)
BAD: list[tuple[str, str, str | bytes, int | None, str]] = [
    ("empty file", "x.tsv", "", None, "the file holds no text"),
    ("header alone", "x.tsv", "label\ttext\n\n", None, "the file holds no text"),
    ("UTF-16 without a mark", "x.tsv", TSV.encode("utf-16-le"), 1, "NUL byte.*UTF-16"),
    ("missing column", "x.tsv", "label\tsentence\n1\ta\n", 1, NO_COLUMN),
    (
        "index",
        "x.csv",
        ",text,gold\n0,a,b\n",
        1,
        r"'label'; its columns are '' \(an index of pandas, which to_csv\(ind",
    ),
    ("missing header", "x.tsv", f"1\t{'long ' * 20}\n0\tb\n", 1, r"no column 'text'; its columns are 1, [long ]{40}…"),
    ("column twice", "x.csv", "text,label,text\na,1,b\n", 1, "has 2 columns 'text'"),
    ("too few fields", "x.tsv", TSV + "1\n", 4, "has 1 field, but the first row has 2.*exactly one tab"),
    (
        "unquoted comma",
        "x.csv",
        'label,text\n1,"a\nb"\n0,c, d\n',
        4,
        "has 3 fields, but the first row has 2.*double quotes",
    ),
    (
        "open quote",
        "x.csv",
        'label,text\n1,a\n0,"b\nc\nd\n',
        3,
        r"row that starts here is not valid CSV \(unexpected end",
    ),
    ("empty text", "x.tsv", TSV + "1\t \n", 4, r"the text \(column 'text'\) is empty\. Fill the field"),
    (
        "no JSON",
        "x.jsonl",
        '{"text": "a", "label": 1}\n{"text": \n',
        2,
        "the line is not valid JSON.*one object per line",
    ),
    ("a list", "x.jsonl", '["a", 1]\n', 1, "the line is a list, not an object"),
    ("deep JSON", "x.jsonl", "[" * 100_000, 1, "the line has brackets that are nested too deeply"),
    ("broken JSON", "x.jsonl", '{"text": "a",}\n', 1, r"the line is not valid JSON \(.* at character 1[34]\)"),
    ("long number", "x.jsonl", f'{{"text": {"1" * 5000}}}\n', 1, "the line has a number with too many digits"),
    ("empty object", "x.jsonl", "{}\n", 1, "no key 'text', because it is empty"),
    (
        "a fraction for a label",
        "x.jsonl",
        '{"text": "a", "label": 0.5}\n',
        1,
        "is a decimal number, but must be a string",
    ),
    ("missing key", "x.jsonl", '{"review": "a", "label": 1}\n', 1, "no key 'text'; its keys are review, label"),
    ("a number for a text", "x.jsonl", '{"text": 1, "label": 1}\n', 1, r"the text \(column 'text'\) is a number"),
    ("null for a label", "x.jsonl", '{"text": "a", "label": null}\n', 1, r"the label .* is null"),
    ("empty pair", "x.tsv", FIRST + "a\tb\t\t1\t\t\n", 3, r"the pair \(column 'pair'\) is empty"),
    ("empty label", "x.tsv", TSV + " \ta\n", 4, r"the label \(column 'label'\) is empty\. Fill it"),
    ("id twice", "x.tsv", FIRST + "first\tb\tc\t1\t\t\n", 3, r"the id 'first' is also that of line 2.*`id`"),
    (
        "behind the text",
        "x.tsv",
        FIRST + "a\tb c\tc\t1\t0 2\t\n",
        3,
        "contains the word index 2, but the text has 2 words.*from 0",
    ),
    (
        "a negative place",
        "x.tsv",
        FIRST + "a\tb c\tc\t1\t-1\t\n",
        3,
        r"the rationale \(.*\) contains '-1'.*separated by spaces",
    ),
    ("a foreign digit", "x.tsv", FIRST + "a\tb c\tc\t1\t²\t\n", 3, r"the rationale \(.*\) contains '²'"),
    (
        "half a character",
        "x.jsonl",
        '{"text": "a\\ud83d", "label": 1}\n',
        1,
        r"character 2 of the text \(column 'text'\) is \\ud83d, half of a surrogate pair",
    ),
]


@pytest.mark.parametrize(("name", "content", "line", "words"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_malformed_files_are_refused_with_place_and_remedy(
    tmp_path: Path, name: str, content: str | bytes, line: int | None, words: str
) -> None:
    path = write(tmp_path, content, name)
    place = f"{path}:{line}: " if line else f"{path}: "
    if "nested too deeply" in words:
        gc.collect()  # what earlier tests left, whose finalizers would fail at the recursion limit
    with pytest.raises(CorpusError, match=words) as caught:
        read_labelled(path, columns=WITH_ALL if str(content).startswith(ALL) else Columns())
    assert str(caught.value).startswith(place)
    assert str(caught.value).endswith(".")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("rationale", [[True], ["x"], {"0": 1}, [1]])
def test_bad_rationales_of_jsonl_are_refused(tmp_path: Path, rationale: object) -> None:
    record = {"text": "one", "label": 1, "rationale": rationale}
    path = write(tmp_path, json.dumps(record), "x.jsonl")
    with pytest.raises(CorpusError, match=f"^{path}:1: .*rationale .*(index|indices)"):
        read_labelled(path, columns=Columns(rationale="rationale"))


def test_a_wrong_number_without_a_header_names_those_there_are(tmp_path: Path) -> None:
    path = write(tmp_path, "a\t1\nb\t0\n")
    with pytest.raises(
        CorpusError,
        match=rf"^{path}:1: the columns are numbered from 1 to 2, and none is 3\..*`label` the number",
    ):
        read_labelled(path, columns=Columns("1", "3"))


# Texts and texts that repeat an earlier one, by an independent count of the files (`sort -u | wc -l`).
SIZES = {
    "sst2": {"train": (6920, 9), "dev": (872, 0), "test": (1821, 0)},
    "ag_news": {"train": (5600, 0), "dev": (1000, 0), "test": (1000, 0)},
    "trec": {"train": (4865, 0), "dev": (500, 0), "test": (500, 0)},
}


@pytest.mark.parametrize("name", SIZES)
def test_real_files_have_the_texts_that_their_description_says(name: str, public_data: Callable[..., Path]) -> None:
    for split, (texts, duplicates) in SIZES[name].items():
        found = read_labelled(public_data("cls", name, f"{split}.tsv"))
        assert found.audit == {"texts": texts, "duplicates": duplicates, "conflicting": 0, "empty": 0}
