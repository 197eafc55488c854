"""Files of ERASER that are written out, and its scores on spans and soft scores of its own code."""

import json
from pathlib import Path
from typing import Any

import pytest

from attention_probing.corpora.eraser import ERASER_COLUMNS, read_eraser
from attention_probing.corpora.labelled import Columns, LabelledText
from attention_probing.corpora.sentence import CorpusError
from attention_probing.datamodules import ClassificationDataModule


def piece(docid: str, first: int, end: int) -> dict[str, Any]:
    return {"docid": docid, "start_token": first, "end_token": end, "text": "…", "start_sentence": -1}


def annotation(name: str, *groups: list[dict[str, Any]], label: str = "NEG", query: str | None = "") -> dict[str, Any]:
    return {"annotation_id": name, "classification": label, "query": query, "evidences": groups, "query_type": None}


def write(folder: Path, rows: list[dict[str, Any]], split: str = "train", **documents: str) -> Path:
    (folder / "docs").mkdir(exist_ok=True)
    for name, text in documents.items():
        (folder / "docs" / name).write_text(text, encoding="utf-8")
    path = folder / f"{split}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_the_words_of_all_evidence_groups_are_the_rationale_and_the_query_is_the_pair(tmp_path: Path) -> None:
    rows = [
        annotation("1", [piece("a", 1, 3)], [piece("a", 2, 4), piece("a", 5, 6)]),
        annotation("b", label="POS", query="Is it ?"),  # without evidence the document has the name of the annotation
        annotation("3", [piece("c", 1, 2)], query=None),
    ]
    # Sentences are lines; a token with a blank of another kind is two words.
    path = write(tmp_path, rows, a="it is  bad .\n\nso dull .\n", b="fine", c="a\u00a0b c d")
    read = read_eraser(path)
    assert read.texts == (
        LabelledText("1", "it is bad . so dull .", "NEG", 1, None, (1, 2, 3, 5)),
        LabelledText("b", "fine", "POS", 2, "Is it ?", ()),
        LabelledText("3", "a b c d", "NEG", 3, None, (2,)),
    )
    assert read.audit["joined_documents"] == 0
    without = read_eraser(path, Columns("evidences", "classification", id="annotation_id"))
    assert [text.pair for text in without.texts] == [None] * 3


def test_documents_of_one_file_count_their_empty_tokens_and_several_are_joined(tmp_path: Path) -> None:
    row = annotation("x", [piece("x_hypothesis", 0, 1), piece("x_premise", 2, 4)])
    path = write(tmp_path, [row])
    documents = {"x_hypothesis": "sleeping dog", "x_premise": "a\n\ndog runs"}  # tokens: a, nothing, dog, runs
    lines = [json.dumps({"docid": name, "document": text}) for name, text in documents.items()]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    read = read_eraser(path)
    assert read.texts == (LabelledText("x", "a dog runs sleeping dog", "NEG", 1, None, (1, 2, 3)),)
    assert read.audit["joined_documents"] == 1
    # Evidence in the hypothesis alone: `docids` names the premise.
    only = {**annotation("x", [piece("x_hypothesis", 1, 2)]), "docids": ["x_hypothesis", "x_premise"]}
    assert read_eraser(write(tmp_path, [only])).texts[0].rationale == (4,)
    write(tmp_path, [annotation("y")])
    with pytest.raises(CorpusError, match=r"train.jsonl:1: .*docs.jsonl has no document 'y'"):
        read_eraser(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (annotation("x", [piece("a", 1, 4)]), r"tokens 1 to 4 of document 'a', which has 3 tokens.*Count from 0"),
        (annotation("x", [piece("a", -1, -1)]), "tokens -1 to -1 of document 'a'"),
        (annotation("x", [piece("a", 2, 2)]), "tokens 2 to 2"),
        (annotation("x", [piece("b", 0, 1)]), r"no document 'b' in .*docs, and no .*docs.jsonl"),
        (annotation("x", [{"docid": "a"}]), "not a list of lists of objects with docid, start_token and end_token"),
        ({**annotation("x"), "evidences": {}}, "not a list of lists"),
        ({**annotation("x"), "docids": "a"}, "docids is not a list.*leave it out"),
        ({"annotation_id": "x"}, r"no key 'evidences'; its keys are annotation_id"),
        (annotation("good", label="POS"), "the id 'good' is also that of line 1"),
    ],
)
def test_malformed_annotations_are_refused_with_their_line(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path, [annotation("good"), row], a="one two three", good="fine")
    with pytest.raises(CorpusError, match=rf"^{path}:2: .*{message}"):
        read_eraser(path)


@pytest.mark.parametrize("docid", ["../../outside", "{folder}/../outside", "link", "linked/outside", "a\0b", "x" * 999])
@pytest.mark.parametrize("named", ["evidence", "docids", "annotation_id"])
def test_a_docid_that_leads_out_of_the_folder_is_refused(docid: str, named: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "eraser", tmp_path / "outside"
    outside.write_text("my secret", encoding="utf-8")
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "link").symlink_to(outside)
    (folder / "docs" / "linked").symlink_to(tmp_path)
    docid = docid.replace("{folder}", str(folder))
    row = annotation(docid if named == "annotation_id" else "1", *[[piece(docid, 0, 1)]] * (named == "evidence"))
    path = write(folder, [row | ({"docids": [docid]} if named == "docids" else {})])
    with pytest.raises(CorpusError, match=rf"^{path}:1: the docid cannot name a document: .* Name a file in docs\.$"):
        read_eraser(path)


def test_a_folder_of_eraser_is_a_corpus(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        rows = [annotation(f"{split}{label}", [piece("a", 1, 2)], label=label) for label in ("NEG", "POS")]
        write(tmp_path, rows, split, a="so good .")
    module = ClassificationDataModule(str(tmp_path), format="eraser", positive="POS", cache=str(tmp_path / "stores"))
    module.setup("fit")
    module.setup("test")
    assert module.columns == ERASER_COLUMNS
    assert module.labels == ("NEG", "POS")
    assert module.splits["dev"].ids == ["valNEG", "valPOS"]
    assert module.splits["test"][[1]].rationale.tolist() == [[False, True, False]]
    assert module.provenance.data["dev"]["split"] == "dev"  # type: ignore[index]
