import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from attention_probing.attention import Encoder, EncoderSpec, resolve
from attention_probing.corpora.labelled import Columns, LabelledText
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import ClassificationDataModule, TextBatch, VectorSpec
from attention_probing.datamodules.classification import class_counts
from attention_probing.datamodules.labels import find_labels, label_numbers
from tests.datamodules.conftest import DEV, ROWS, TRAIN, Row, rows, write_rows

RATIONALE = Columns(rationale="rationale")


def opened(
    folder: Path,
    records: Mapping[Split, tuple[Row, ...]] = ROWS,
    **options: Any,  # noqa: ANN401 # those of the datamodule
) -> ClassificationDataModule:
    corpus, cache = write_rows(folder, records), str(folder / "cache")
    module = ClassificationDataModule(corpus, columns=RATIONALE, cache=cache, **options)
    module.setup("fit")
    module.setup("test")
    return module


def audit(module: ClassificationDataModule, split: Split) -> dict[str, Any]:
    return cast(dict[str, Any], module.provenance.audit[split])


def test_batches_hold_what_the_files_say(tmp_path: Path) -> None:
    module = opened(tmp_path, delimiters=True, batch_size=2)
    loaders = {"train": module.train_dataloader(), "dev": module.val_dataloader(), "test": module.test_dataloader()[1]}
    vocabulary = module.vocabulary
    for split, loader in loaders.items():
        seen = []
        for batch, row, index in rows(loader):
            seen.append(index)
            label, text, rationale = ROWS[cast(Split, split)][index]
            words = text.lower().split()
            n = len(words) + 2
            assert int(batch.lengths[row]) == n
            assert batch.tokens[row, :n].tolist() == [3, *vocabulary.numbers(words), 4]
            assert (batch.tokens[row, n:] == vocabulary.pad).all()
            assert batch.special[row].nonzero()[:, 0].tolist() == [0, n - 1]
            assert batch.mask[row].tolist() == [True] * n + [False] * (batch.tokens.size(1) - n)
            assert batch.words[row].nonzero()[:, 0].tolist() == list(range(1, n - 1))
            ended = [place for place, word in enumerate(words) if word in {".", "!"}]
            sentences = [sum(end < place for end in ended) for place in range(len(words))]
            assert batch.sentences[row].tolist() == [-1, *sentences, -1, *[-1] * (batch.tokens.size(1) - n)]
            assert batch.rationale[row].nonzero()[:, 0].tolist() == [1 + int(place) for place in rationale.split()]
            assert module.labels[batch.labels[row]] == label
            assert not batch.segments.any()
        assert sorted(seen) == list(range(len(ROWS[cast(Split, split)])))


def test_a_device_without_a_text_gets_a_batch_of_none(tmp_path: Path) -> None:
    split = opened(tmp_path).splits["dev"]
    batch, full = split[[]], split[[0, 1]]
    for name in (field.name for field in fields(TextBatch) if field.name != "split"):
        assert getattr(full, name).dtype == (torch.bool if name in {"special", "rationale"} else torch.int64)
        assert getattr(batch, name).shape == ((0,) if name in {"index", "lengths", "labels"} else (0, 0))
    assert (batch.mask.shape, batch.words.shape) == ((0, 0), (0, 0))


def test_vocabulary_and_labels_are_those_of_train_whatever_stage_comes_first(tmp_path: Path) -> None:
    path = write_rows(tmp_path)
    identities = []
    for stages in (("fit", "test"), ("test",), ("predict", "validate")):
        module = ClassificationDataModule(path, cache=str(tmp_path))
        for stage in stages:
            module.setup(stage)
        identities.append(json.dumps(module.identity))
        assert "unseen" not in module.vocabulary.words
        assert (module.labels, module.positive) == (("0", "1"), 1)
        assert class_counts(module).tolist() == [2, 3]
        assert set(module.splits) == {"train", *(["dev", "test"] if "test" in stages else ["test", "dev"])}
    assert len(set(identities)) == 1


def test_the_audit_counts_what_is_unknown_cut_and_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = opened(tmp_path, max_length=3)
    assert audit(module, "train") == {
        **{"texts": 5, "duplicates": 0, "conflicting": 0, "empty": 0, "labels": {"0": 2, "1": 3}},
        **{"tokens": 15, "unknown_tokens": 0, "texts_all_unknown": 0, "texts_without_tokens": 0},
        **{"truncated_texts": 2, "tokens_cut": 7, "rationale_words_cut": 1, "reserved_words": 0},
    }
    test = audit(module, "test")
    assert (test["unknown_tokens"], test["texts_all_unknown"], test["reserved_words"]) == (4, 1, 1)
    assert (test["also_in_train"], test["also_in_dev"]) == (1, 1)  # whatever their case
    assert audit(module, "dev")["also_in_train"] == 1
    assert module.provenance.audit["vocabulary"] == len(module.vocabulary)
    assert [message.partition(":")[0] for message in caplog.messages if "stand in" in message] == [
        "1 of 2 texts of dev (50%) also stand in train",
        "1 of 3 texts of test (33%) also stand in train",
        "1 of 3 texts of test (33%) also stand in dev",
    ]
    unknown = [message.partition(", ")[0] for message in caplog.messages if "unknown" in message]
    assert unknown[-2:] == [
        f"{tmp_path / 'test.tsv'}: in 1 of 3 texts (33%) every token is unknown",
        f"{tmp_path / 'test.tsv'}: 4 of 9 tokens (44%) are unknown",
    ]
    caplog.clear()
    trained = opened(tmp_path, max_length=3, min_count=2)  # rare words of train are unknown
    assert audit(trained, "train")["unknown_tokens"] > 0
    assert not [message for message in caplog.messages if "not trained" in message]


def test_many_words_that_train_has_too_seldom_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frequent = ("0", "good bad " * 8, "")
    few = (("1", "fine", ""), ("0", "poor", ""))
    texts: dict[Split, tuple[Row, ...]] = {"train": (frequent, *few), "dev": DEV, "test": (frequent, *few, *few)}
    # 2 of 18 tokens of train, 4 of 20 of test are unknown; of dev, 3 of 6.
    module = opened(tmp_path / "test", texts, min_count=2)
    told = [message for message in caplog.messages if "fewer than" in message]
    assert told == [
        f"{tmp_path / 'test/dev.tsv'}: 3 of 6 tokens (50%) are unknown, because they occur fewer than 2 times in "
        "train, so a classifier cannot tell them apart. Train on more texts, lower `min_count`, or read the pieces of "
        "a tokenizer: `tokenizer`."
    ]
    assert audit(module, "test")["unknown_tokens"] == 4  # a fifth, and not more
    caplog.clear()
    many = {**texts, "train": (("0", "good bad " * 3, ""), *few)}
    opened(tmp_path / "train", many, min_count=2)
    told = [message.partition(" ")[0] for message in caplog.messages if "fewer than" in message]
    assert told == [f"{tmp_path / 'train/train.tsv'}:"]


def test_pairs_are_told_apart(tmp_path: Path) -> None:
    for split in ROWS:
        lines = "label\ttext\tother\n0\ta b .\tc d\n1\te\tf\n"
        (tmp_path / f"{split}.tsv").write_text(lines, encoding="utf-8")
    module = ClassificationDataModule(str(tmp_path / "{split}.tsv"), columns=Columns(pair="other"), cache=str(tmp_path))
    module.setup("validate")
    batch = module.splits["dev"][[0, 1]]
    assert module.text("dev", 0) == ("2", ("a", "b", ".", "<sep>", "c", "d"))
    assert batch.segments.tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 1, 0, 0, 0]]
    assert batch.sentences.tolist() == [[0, 0, 0, -1, 1, 1], [0, -1, 1, -1, -1, -1]]
    assert batch.special.sum(1).tolist() == [1, 1]
    assert audit(module, "dev")["also_in_train"] == 2


def test_pieces_come_with_their_own_numbers_delimiters_and_limit(tmp_path: Path, bert: Path) -> None:
    long = ("1", " ".join(["foxglove", *["fox"] * 70]), "0 70")
    module = opened(tmp_path, {**ROWS, "dev": (*DEV, long)}, tokenizer=EncoderSpec(str(bert)))
    batch = module.splits["dev"][[2]]
    assert batch.tokens.shape == (1, 64)
    tokens = module.text("dev", 2)[1]
    assert tokens[:9] == ("[CLS]", "fox", "##g", "##l", "##o", "##v", "##e", "fox", "fox")
    assert tokens[-1] == "[SEP]"
    assert module.splits["dev"].readable(2) == list(tokens)
    assert batch.rationale[0].nonzero()[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    counts = audit(module, "dev")
    assert (counts["truncated_texts"], counts["tokens_cut"], counts["rationale_words_cut"]) == (1, 14, 1)
    assert "reserved_words" not in counts
    expected = Encoder(resolve(EncoderSpec(str(bert)))).tokenizer("a bad cat")["input_ids"]
    assert module.splits["dev"][[0]].tokens.tolist() == [expected]
    assert module.provenance.encoder["name"] == bert.name
    assert module.tokenizer_source is not None
    shorter = opened(tmp_path, {**ROWS, "dev": (*DEV, long)}, tokenizer=EncoderSpec(str(bert)), max_length=10)
    assert shorter.splits["dev"][[2]].tokens.shape == (1, 10)


def test_word_vectors_stand_beside_the_words_of_the_vocabulary(tmp_path: Path) -> None:
    words = enumerate(("good", "<pad>", "bad", "unseen", "fox", ".", "a", "coffee", "the"))
    lines = {word: [number + 0.5, -number - 0.25] for number, word in words}
    path = tmp_path / "vectors.txt"
    path.write_text("".join(f"{word} {x} {y}\n" for word, (x, y) in lines.items()), encoding="utf-8")
    module = opened(tmp_path, vectors=VectorSpec(str(path)))
    found = module.word_vectors()
    assert found is not None
    matrix, known = found
    assert matrix.shape == (len(module.vocabulary), 2)
    assert matrix.dtype == torch.float32
    for word, vector, is_known in zip(module.vocabulary.words, matrix.tolist(), known.tolist(), strict=True):
        has = word in lines and not word.startswith("<")
        assert is_known == has, word
        assert vector == (lines[word] if has else [0, 0])
    coverage = cast(dict[str, Any], module.provenance.audit["vectors"])
    tokens = [word for _, text, _ in TRAIN for word in text.lower().split()]
    assert (coverage["tokens"], coverage["tokens_covered"]) == (len(tokens), sum(word in lines for word in tokens))
    assert cast(dict[str, Any], module.provenance.data["vectors"])["file"] == "vectors.txt"
    assert opened(tmp_path).word_vectors() is None


def test_training_batches_are_bounded_in_texts_and_evaluation_batches_in_tokens(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    texts = (" ".join(random.choice(["a", "b"], random.integers(1, 60))) for _ in range(500))
    many = tuple((str(number % 2), text, "") for number, text in enumerate(texts))
    module = opened(tmp_path, {**ROWS, "train": many}, batch_size=16)
    module.eval_tokens = 20
    loader = module.train_dataloader()
    found = list(loader)
    assert max(len(batch.index) for batch in found) == 16
    assert sum(int(batch.lengths.sum()) for batch in found) > 0.85 * sum(batch.tokens.numel() for batch in found)
    longest = int(module.splits["train"].lengths.argmax())
    neighbours = set()
    for epoch in range(5):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined] # Lightning does it
        neighbours |= {frozenset(batch.index.tolist()) for batch in loader if longest in batch.index}
    assert len(neighbours) == 5
    assert all(batch.tokens.numel() <= 20 for loader in module.test_dataloader() for batch in loader)
    assert [len(batch.index) for batch in module.val_dataloader()] == [2]
    assert [batch.index.tolist() for batch in module.predict_dataloader()] == [[0, 1, 2]]


def test_what_the_cut_leaves_of_train_is_the_vocabulary(tmp_path: Path) -> None:
    long = ("1", " ".join(f"w{number % 977}" for number in range(100_000)), "99999")
    module = opened(tmp_path, {**ROWS, "train": (*TRAIN, long)})
    counts = audit(module, "train")
    assert (counts["truncated_texts"], counts["tokens_cut"], counts["rationale_words_cut"]) == (1, 99_000, 1)
    assert module.splits["train"].lengths.max() == 1000
    assert "coffee" in opened(tmp_path, max_length=3).vocabulary.words
    assert "coffee" not in opened(tmp_path, max_length=2).vocabulary.words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positive": "yes"}, r"train.tsv: the labels are '0' and '1', but `positive` is 'yes'"),
        (
            {"max_length": 2, "delimiters": True},
            r"^`max_length` is 2, which leaves no room for a word beside 2 delimiters\. Give 3 or more",
        ),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        opened(tmp_path, **options)


def test_texts_that_a_program_has_quoted_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    quoted: dict[Split, tuple[Row, ...]] = {**ROWS, "train": (*TRAIN, ("1", '"He said ""good"" twice"', "2"))}
    module = opened(tmp_path, quoted)
    [message] = [message for message in caplog.messages if "quotes" in message]
    assert message.startswith(
        f"{tmp_path / 'train.tsv'}: 1 text in double quotes, as in CSV, but these quotes were read as words. TSV "
        "is read without quoting; "
    )
    assert message.endswith("Save it as CSV, in pandas to_csv('my.csv', index=False).")
    assert (audit(module, "train")["quoted_texts"], "quoted_texts" in audit(module, "dev")) == (1, False)


def test_records_that_a_quote_joins_and_marks_in_labels_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = "\n".join(f"the fox is number {number} ,{number % 2}" for number in range(20))
    swallowed = rows.replace("the fox is number 3 ", '"the fox is number 3 ').replace("number 13 ", 'number 13 "')
    for split, content in {"train": swallowed, "dev": rows, "test": rows.replace(" ,1", " ,1\u200b")}.items():
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{content}\n", encoding="utf-8")
    module = ClassificationDataModule(str(tmp_path / "{split}.csv"), cache=str(tmp_path / "cache"))
    module.setup("fit")
    module.setup("test")
    assert module.labels == ("0", "1")
    lines = {"multiline_records": 1, "longest_record_lines": 11, "longest_record_line": 5}
    assert audit(module, "train").items() >= {"texts": 10, **lines}.items()
    assert lines.keys().isdisjoint(audit(module, "dev"))
    assert audit(module, "test")["invisible_characters"] == 10
    [joined] = [message for message in caplog.messages if "over several lines" in message]
    assert joined.startswith(
        f"{tmp_path / 'train.csv'}: 1 record over several lines; the longest has 11, from line 5. If texts have no"
    )
    [marked] = [message for message in caplog.messages if "without a width" in message]
    assert marked.startswith(f"{tmp_path / 'test.csv'}: 10 characters without a width, such as a byte-order mark, drop")


@pytest.mark.parametrize("mark", ["-", "-1"])
def test_labels_of_texts_without_a_label_are_told_and_left_out(
    mark: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = {"train": f"{mark} a b c {mark} a b", "dev": f"{mark} a b", "test": f"c {mark}"}
    records = {split: tuple((label, "a bad fox", "") for label in of.split()) for split, of in labels.items()}
    module = opened(tmp_path, cast(Any, records))
    assert module.labels == (mark, "a", "b", "c")
    [message] = [message for message in caplog.messages if "class like any other" in message]
    assert message.startswith(f"{tmp_path / 'train.tsv'}: the label {mark} is")
    assert message.endswith(f"leave such texts out: `leave_out=['{mark}']`.")
    caplog.clear()
    columns = Columns(leave_out=(mark,))
    module = ClassificationDataModule(str(tmp_path / "{split}.tsv"), columns=columns, cache=str(tmp_path / "cache"))
    module.setup("fit")
    assert module.labels == ("a", "b", "c")
    assert not [message for message in caplog.messages if "class like any other" in message]
    counts = [(len(data), audit(module, split)["labels_left_out"]) for split, data in module.splits.items()]
    assert counts == [(5, 2), (2, 1)]
    find_labels(Path("some.tsv"), labelled("1 -1"), "1")  # of two classes neither can be missing
    assert not [message for message in caplog.messages if "class like any other" in message]


def labelled(labels: str) -> list[LabelledText]:
    return [LabelledText(str(line), "a", label, line) for line, label in enumerate(labels.split(), start=2)]


def test_labels_that_cannot_be_are_refused() -> None:
    many = " ".join(f"l{min(number, 20)}" for number in range(40))  # of another column, nearly one per text
    for labels, wrong in (("1 1 1", "every text has the label '1'"), (many, "21 different labels in 40 texts")):
        with pytest.raises(CorpusError, match=rf"some.tsv: {wrong}.*`label`"):
            find_labels(Path("some.tsv"), labelled(labels), "1")


def test_a_label_that_train_lacks_is_named_with_some_that_it_has() -> None:
    many = tuple(f"label{number}" for number in range(1000))  # as when the column of the labels is that of the texts
    with pytest.raises(
        CorpusError, match=r"some.tsv:3: no text of train has the label 'x'; .*, label19 and 980 more\."
    ):
        label_numbers(Path("some.tsv"), labelled("label7 x"), many)


@pytest.mark.parametrize(
    ("name", "shared", "coverage", "classes"),
    [("sst2", (0, 2, 0), 0.851, 2), ("ag_news", (0, 0, 0), 0.814, 4), ("trec", (0, 0, 0), 0.900, 6)],
)
def test_public_corpora_come_with_their_audit(
    name: str, shared: tuple[int, ...], coverage: float, classes: int, tmp_path: Path, public_data: Callable[..., Path]
) -> None:
    public_data("cls", name)
    module = ClassificationDataModule(name, root=str(public_data()), vectors=VectorSpec(), cache=str(tmp_path))
    module.setup("test")
    test = audit(module, "test")
    assert (audit(module, "dev")["also_in_train"], test["also_in_train"], test["also_in_dev"]) == shared
    assert sum(test["labels"].values()) == test["texts"] == len(module.splits["test"])
    assert len(module.labels) == classes
    known = cast(dict[str, Any], module.provenance.audit["vectors"])["coverage"]
    assert known == pytest.approx(coverage, abs=5e-4)
    assert audit(module, "train")["unknown_tokens"] == 0


QUESTIONS = """paragraph,question,answer,exp_split
"Mary went home, then out.",where is Mary ?,garden,train
John is in the hall .,where is John ?,hall,train
John is in the hall .,where is John ?,hall,dev
Ann took the milk .,where is Ann ?,kitchen,test
"""
OF_QUESTIONS = Columns("paragraph", "answer", "question", split="exp_split")


def test_one_file_of_questions_holds_all_splits_and_its_answers_are_the_labels(tmp_path: Path) -> None:
    path = tmp_path / "babi.csv"
    path.write_text(QUESTIONS, encoding="utf-8")
    module = ClassificationDataModule(str(path), columns=OF_QUESTIONS, cache=str(tmp_path / "stores"))
    module.setup("fit")
    module.setup("test")
    assert [module.splits[split].ids for split in ("train", "dev", "test")] == [["2", "3"], ["4"], ["5"]]
    assert module.labels == ("garden", "hall", "kitchen")  # the last one is not in train
    assert class_counts(module).tolist() == [1, 1, 0]
    assert audit(module, "train")["labels"] == {"garden": 1, "hall": 1, "kitchen": 0}
    assert audit(module, "dev")["also_in_train"] == 1  # though it is the same file
    assert module.splits["dev"][[0]].segments[0].any()
    assert not set(module.vocabulary.words) & {"kitchen", "milk"}


def test_rows_of_another_split_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "babi.csv"
    path.write_text(QUESTIONS.replace(",dev", ",valid"), encoding="utf-8")
    module = ClassificationDataModule(str(path), columns=OF_QUESTIONS, cache=str(tmp_path / "stores"))
    with pytest.raises(CorpusError, match=rf"^{path}:4: the split \(column 'exp_split'\) is 'valid'\. Write one of"):
        module.setup("fit")
    path.write_text("\n".join(QUESTIONS.splitlines()[:3]), encoding="utf-8")
    with pytest.raises(CorpusError, match="the file holds no text of dev"):
        module.setup("fit")


def test_columns_may_be_a_mapping_in_python() -> None:
    mapping = {"text": "review", "label": "stars"}
    assert ClassificationDataModule(columns=mapping).columns == Columns(**mapping)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="txt"):
        ClassificationDataModule(columns={"txt": "review"})  # type: ignore[arg-type]
