"""A classification datamodule that plants shortcuts in its texts."""

from pathlib import Path
from typing import Any

import pytest

from attention_probing.attention import EncoderSpec
from attention_probing.corpora.labelled import Columns
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.shortcuts import Planting
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.datamodules.classification import class_counts
from tests.models.corpora import write_texts
from tests.tiny import save_gpt2


def planted(folder: Path, kind: Any = "token", corpus: str = "", **options: Any) -> ClassificationDataModule:  # noqa: ANN401
    rule = Planting(kind, options.pop("share", 0.5), options.pop("seed", 0))
    made: dict[str, Any] = {"positive": "good", "cache": str(folder / "c"), "shortcut": rule}
    return ClassificationDataModule(corpus or write_texts(folder), **made | options)


def marked(data: ClassificationDataModule, split: Split, item: int) -> list[str]:
    """Words of a text, joined from pieces, that belong to its rationale."""
    own, places, forms = data.splits[split], data.splits[split].places(item), data.splits[split].forms(item)
    flags = own[[item]].rationale[0].tolist()
    return [str(form) for _, form in sorted({(p, f) for p, f, flag in zip(places, forms, flags, strict=True) if flag})]


@pytest.mark.parametrize("kind", ["token", "pair", "context"])
@pytest.mark.parametrize("pieces", [False, True])
def test_planted_words_reach_the_batches_with_their_labels(kind: str, pieces: bool, tmp_path: Path, bert: Path) -> None:
    options: dict[str, Any] = {"tokenizer": EncoderSpec(str(bert))} if pieces else {"punctuation": "apart"}
    data = planted(tmp_path, kind, **options)
    data.setup("fit")
    for split, some in data.splits.items():
        audit: Any = data.provenance.audit[split]
        assert audit["rationale_words_cut"] == 0
        with_words = [item for item in range(len(some)) if marked(data, split, item)]
        assert len(with_words) == audit["planted"]
        assert audit["planted"] == len(some) if split == "test" else 0 < audit["planted"] < len(some)
        for item in with_words:
            words = [word for word in marked(data, split, item) if word != "contexta"]
            assert some.labels[item] == ("zeroa", "onea").index(words[0])
    assert class_counts(data).tolist() == [int((data.splits["train"].labels == label).sum()) for label in (0, 1)]


def test_what_is_planted_identifies_the_data(tmp_path: Path) -> None:
    corpus = write_texts(tmp_path)
    identities: list[str] = []
    files: list[Any] = []
    for options in ({}, {"seed": 1}, {"kind": "pair"}, {"share": 0.4}, {"shortcut": None}):
        data = planted(tmp_path, corpus=corpus, **options)
        data.setup("test")
        identities.append(repr(data.identity))
        files.append(data.provenance.data["test"])
    assert len(set(identities)) == 5
    assert files[0]["shortcut"] == {"kind": "token", "share": 0.5, "seed": 0}
    assert "shortcut" not in files[-1]


def test_words_are_planted_where_nothing_is_cut_as_before(tmp_path: Path) -> None:
    data, plain = planted(tmp_path, "context"), ClassificationDataModule(str(tmp_path / "{split}.tsv"), positive="good")
    data.setup("test")
    path = tmp_path / "test.tsv"
    for item, text in enumerate(Planting("context").plant(path, plain.read(path), "test", data.labels).texts):
        assert data.splits["test"].forms(item) == text.text.lower().split()


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *(("token", way) for way in ("words", "apart", "pairs")),
        *(("context", way) for way in ("sentences", "pieces")),
        ("pair", "byte pieces"),
    ],
)
def test_no_text_keeps_a_label_that_no_word_explains(kind: str, way: str, tmp_path: Path, bert: Path) -> None:
    """Words are planted in what `max_length` leaves of a text, anywhere in it."""
    text = "It wasn't (at all) the dullest-looking film / of the well-known director's unforgettable year. " * 3
    paired = "\tand a second text of nine words or so" if way == "pairs" else ""
    for split, count in (("train", 200), ("dev", 10), ("test", 200)):
        rows = [f"{('good', 'bad')[row % 2]}\t{text[row:]}{paired}\n" for row in range(count)]
        head = "label\ttext" + ("\tsecond" if paired else "") + "\n"
        (tmp_path / f"{split}.tsv").write_text(head + "".join(rows), "utf-8")
    options: dict[str, Any] = {"corpus": str(tmp_path / "{split}.tsv"), "max_length": 12, "share": 0.9}
    if paired:
        options["columns"] = Columns(text="text", label="label", pair="second")
    if "pieces" in way:
        options["tokenizer"] = EncoderSpec(str(bert) if way == "pieces" else str(save_gpt2(tmp_path / "gpt2")))
        options["max_length"] = 40
    options |= {"apart": {"punctuation": "apart"}, "sentences": {"sentence_separator": "/"}}.get(way, {})
    data = planted(tmp_path, kind, **options)
    data.setup("test")
    audit: Any = data.provenance.audit["test"]
    assert audit["truncated_texts"] > 100
    assert audit["rationale_words_cut"] == 0
    size, places = 1 if kind == "token" else 2, set[int]()
    for item in range(200):
        words = marked(data, "test", item)
        assert len(words) == size
        (decisive,) = [word for word in words if word != "contexta"][:1]
        assert data.splits["test"].labels[item] == ("zeroa", "onea").index(decisive)
        flags = data.splits["test"][[item]].rationale[0].tolist()
        places |= {place for place, flag in zip(data.splits["test"].places(item), flags, strict=True) if flag}
    assert places >= set(range(4))
    if way == "words":
        assert places == set(range(12))  # the last word that is read, too


def test_a_limit_without_room_for_the_planted_words_is_refused(tmp_path: Path) -> None:
    planted(tmp_path, "pair", max_length=2).setup("test")
    with pytest.raises(
        CorpusError,
        match=r"train\.tsv:\d+: `max_length` leaves no room for the planted words\. Raise",
    ):
        planted(tmp_path, "pair", max_length=1).setup("test")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_count": 25}, r"train\.tsv: the planted word 'zeroa' is not in the vocabulary\. Raise .*share"),
        ({"share": 0.001}, r"the planted word 'zeroa' is not in the vocabulary"),
    ],
)
def test_planted_words_outside_the_vocabulary_are_refused(options: Any, message: str, tmp_path: Path) -> None:  # noqa: ANN401
    with pytest.raises(CorpusError, match=message):
        planted(tmp_path, **options).setup("test")


def test_words_that_a_tokenizer_cannot_tell_apart_are_refused(
    tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planting, "words", lambda *_: ("ǂa", "ǂb"))
    with pytest.raises(
        CorpusError, match=r"the planted word 'ǂa' is not in the vocabulary\. Choose another .*tokenizer"
    ):
        planted(tmp_path, tokenizer=EncoderSpec(str(bert))).setup("test")


def test_a_regression_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="a shortcut decides between classes"):
        planted(tmp_path, regression=True)
