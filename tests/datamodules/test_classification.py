import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from attention import Encoder, EncoderError, EncoderSpec, resolve
from corpora.labelled import Columns, read_labelled
from corpora.sentence import CorpusError
from datamodules import ClassificationDataModule, TextBatch, VectorSpec
from datamodules.batch import Split
from datamodules.sampling import BatchLoader

Row = tuple[str, str, str]

TRAIN: tuple[Row, ...] = (
    ("1", "A good fox . The fox sleeps .", "1"),
    ("0", "a BAD fox", "1 2"),
    ("1", "good good coffee", "0 1"),
    ("0", "the guests drink bad coffee", "3"),
    ("1", "The dogs !", ""),
)
DEV: tuple[Row, ...] = (("0", "a bad cat", "1"), ("1", "good Good coffee", "0"))
TEST: tuple[Row, ...] = (("1", "unseen words <pad>", ""), ("0", "a bad fox", "1"), ("0", "A bad cat", "1"))
ROWS: Mapping[Split, tuple[Row, ...]] = {"train": TRAIN, "dev": DEV, "test": TEST}
RATIONALE = Columns(rationale="rationale")


TENSORS = [field for field in fields(TextBatch) if field.name != "split"]


def write(folder: Path, rows: Mapping[Split, tuple[Row, ...]] = ROWS) -> str:
    """Write the splits; returns their path with `{split}` in it."""
    folder.mkdir(exist_ok=True)
    for split, records in rows.items():
        lines = "".join("\t".join(record) + "\n" for record in (("label", "text", "rationale"), *records))
        (folder / f"{split}.tsv").write_text(lines, encoding="utf-8")
    return str(folder / "{split}.tsv")


def opened(
    folder: Path,
    rows: Mapping[Split, tuple[Row, ...]] = ROWS,
    **options: Any,  # noqa: ANN401 # those of the datamodule
) -> ClassificationDataModule:
    module = ClassificationDataModule(write(folder, rows), columns=RATIONALE, cache=str(folder / "cache"), **options)
    module.setup("fit")
    module.setup("test")
    return module


def audit(module: ClassificationDataModule, split: Split) -> dict[str, Any]:
    return cast(dict[str, Any], module.provenance.audit[split])


def rows(loader: BatchLoader[TextBatch]) -> Iterator[tuple[TextBatch, int, int]]:
    """Batch, row and text of everything a loader yields."""
    for batch in loader:
        for row, index in enumerate(batch.index.tolist()):
            yield batch, row, index


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


def test_every_field_has_its_type_and_moves(tmp_path: Path) -> None:
    batch = next(iter(opened(tmp_path).val_dataloader()))
    moved = batch.to(torch.device("meta"))
    assert (batch.split, moved.split) == ("dev", "dev")
    for field in TENSORS:
        here, there = getattr(batch, field.name), getattr(moved, field.name)
        assert here.dtype == (torch.bool if field.name in {"special", "rationale"} else torch.int64), field.name
        assert there.device.type == "meta"
        assert (there.shape, there.dtype) == (here.shape, here.dtype)


def test_a_device_without_a_text_gets_a_batch_of_none(tmp_path: Path) -> None:
    batch = opened(tmp_path).splits["dev"][[]]
    for field in TENSORS:
        shape = (0,) if field.name in {"index", "lengths", "labels"} else (0, 0)
        assert getattr(batch, field.name).shape == shape
    assert (batch.mask.shape, batch.words.shape) == ((0, 0), (0, 0))


def test_vocabulary_and_labels_are_those_of_train_whatever_stage_comes_first(tmp_path: Path) -> None:
    path = write(tmp_path)
    identities = []
    for stages in (("fit", "test"), ("test",), ("predict", "validate")):
        module = ClassificationDataModule(path, cache=str(tmp_path))
        for stage in stages:
            module.setup(stage)
        identities.append(json.dumps(module.identity))
        assert "unseen" not in module.vocabulary.words
        assert (module.labels, module.positive) == (("0", "1"), 1)
        assert module.class_counts.tolist() == [2, 3]
        assert set(module.splits) == {"train", *(["dev", "test"] if "test" in stages else ["test", "dev"])}
    assert len(set(identities)) == 1


def test_identity_changes_with_what_parameters_depend_on(tmp_path: Path, bert: Path) -> None:
    variants = [
        opened(tmp_path),
        opened(tmp_path, lowercase=False),
        opened(tmp_path, delimiters=True),
        opened(tmp_path, tokenizer=EncoderSpec(str(bert))),
        opened(tmp_path, {**ROWS, "train": (*TRAIN, ("2", "a", ""))}),
    ]
    assert len({json.dumps(module.identity) for module in variants}) == len(variants)


def test_the_audit_counts_what_is_unknown_cut_and_repeated(tmp_path: Path) -> None:
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


def test_a_split_that_repeats_train_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(tmp_path, {**ROWS, "test": TRAIN[:4]})
    assert [message.partition(":")[0] for message in caplog.messages if "stand in" in message] == [
        "1 of 2 texts of dev (50%) also stand in train",
        "4 of 4 texts of test (100%) also stand in train",
        "1 of 4 texts of test (25%) also stand in dev",
    ]


def test_a_training_reads_test_as_the_test_will(tmp_path: Path) -> None:
    long = ("1", "one more than the ten tokens that there may be", "")
    module = ClassificationDataModule(
        write(tmp_path, {**ROWS, "test": (long,)}), cache=str(tmp_path), max_length=9, too_long="error"
    )
    module.trainer = cast(Any, SimpleNamespace(limit_val_batches=1.0))
    with pytest.raises(CorpusError, match=r"test\.tsv:2: text '2' has 10 tokens, and the limit is 9"):
        module.setup("fit")


def test_words_that_are_cut_from_all_of_train_are_unknown(tmp_path: Path) -> None:
    assert "coffee" in opened(tmp_path, max_length=3).vocabulary.words
    assert "coffee" not in opened(tmp_path, max_length=2).vocabulary.words


def test_a_text_of_a_hundred_thousand_words_is_cut(tmp_path: Path) -> None:
    long = ("1", " ".join(f"w{number % 977}" for number in range(100_000)), "99999")
    module = opened(tmp_path, {**ROWS, "train": (*TRAIN, long)})
    counts = audit(module, "train")
    assert (counts["truncated_texts"], counts["tokens_cut"], counts["rationale_words_cut"]) == (1, 99_000, 1)
    assert module.splits["train"].lengths.max() == 1000


def test_a_text_that_is_too_long_is_refused_where_that_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"train.tsv:2: text '2' has 8 tokens, and the limit is 6.*too_long truncate"):
        opened(tmp_path, max_length=6, too_long="error")


def test_a_length_that_delimiters_fill_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"max_length: 2 tokens leave no room for a token beside 2 delimiters"):
        opened(tmp_path, max_length=2, delimiters=True)


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


def vectors_file(folder: Path, words: str) -> Path:
    path = folder / "vectors.txt"
    lines = [f"{word} {number}.5 {-number}.25" for number, word in enumerate(words.split())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_word_vectors_stand_beside_the_words_of_the_vocabulary(tmp_path: Path) -> None:
    path = vectors_file(tmp_path, "good <pad> bad unseen fox . a coffee the")
    module = opened(tmp_path, vectors=VectorSpec(str(path)))
    found = module.word_vectors()
    assert found is not None
    matrix, known = found
    assert matrix.shape == (len(module.vocabulary), 2)
    assert matrix.dtype == torch.float32
    lines = dict(line.split(" ", 1) for line in path.read_text("utf-8").splitlines())
    for word, vector, is_known in zip(module.vocabulary.words, matrix.tolist(), known.tolist(), strict=True):
        has = word in lines and not word.startswith("<")
        assert is_known == has, word
        assert vector == ([float(value) for value in lines[word].split()] if has else [0, 0])
    coverage = cast(dict[str, Any], module.provenance.audit["vectors"])
    tokens = [word for _, text, _ in TRAIN for word in text.lower().split()]
    assert (coverage["tokens"], coverage["tokens_covered"]) == (len(tokens), sum(word in lines for word in tokens))
    assert cast(dict[str, Any], module.provenance.data["vectors"])["file"] == "vectors.txt"
    assert opened(tmp_path).word_vectors() is None


def test_labels_are_those_of_train(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"train.tsv: the labels are '0' and '1', and neither is .* 'yes'"):
        opened(tmp_path, positive="yes")
    assert opened(tmp_path, positive="0").positive == 0
    three = opened(tmp_path, {**ROWS, "train": (*TRAIN, ("10", "a", ""))})
    assert (three.labels, three.positive) == (("0", "1", "10"), None)


def test_a_label_that_train_lacks_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"test.tsv:5: no text of train has the label '2'; there are 0, 1\..*train"):
        opened(tmp_path, {**ROWS, "test": (*TEST, ("2", "a", ""))})


@pytest.mark.parametrize("name", ["min_count", "max_words", "max_length", "batch_size", "eval_tokens"])
def test_options_out_of_range_are_named(name: str) -> None:
    wrong: dict[str, Any] = {name: 0}
    with pytest.raises(CorpusError, match=rf"{name}: 0 is less than 1.*--data.init_args.{name}"):
        ClassificationDataModule(**wrong)


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    module = ClassificationDataModule({"train": path.replace("{split}", "train")}, cache=str(tmp_path))
    module.setup("fit")
    with pytest.raises(CorpusError, match="has no dev split, and it is needed"):
        module.setup("test")
    with pytest.raises(CorpusError, match="has no train split, and it is needed"):
        ClassificationDataModule({"dev": path.replace("{split}", "dev")}, cache=str(tmp_path)).setup("validate")


def test_a_tokenizer_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "no_such").mkdir()
    with pytest.raises(EncoderError, match=r"no_such: a folder without config.json"):
        opened(tmp_path, tokenizer=EncoderSpec(str(tmp_path / "no_such")))


def test_training_batches_are_alike_in_length_and_bounded_in_texts(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    many = tuple(
        (str(number % 2), " ".join(random.choice(["a", "b"], random.integers(1, 60))), "") for number in range(500)
    )
    module = opened(tmp_path, {**ROWS, "train": many}, batch_size=16)
    loader = module.train_dataloader()
    found = list(loader)
    assert sorted(index for batch in found for index in batch.index.tolist()) == list(range(500))
    assert max(len(batch.index) for batch in found) == 16
    assert sum(int(batch.lengths.sum()) for batch in found) > 0.85 * sum(batch.tokens.numel() for batch in found)
    longest = int(module.splits["train"].lengths.argmax())
    neighbours = set()
    for epoch in range(5):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined] # Lightning does it
        [own] = [batch.index.tolist() for batch in loader if longest in batch.index]
        neighbours.add(frozenset(own))
    assert len(neighbours) == 5


def test_evaluation_batches_are_bounded_in_tokens(tmp_path: Path) -> None:
    module = opened(tmp_path, eval_tokens=20)
    for loader in (module.val_dataloader(), *module.test_dataloader()):
        assert all(batch.tokens.numel() <= 20 for batch in loader)
    assert [len(batch.index) for batch in module.val_dataloader()] == [2]
    assert [batch.index.tolist() for batch in module.predict_dataloader()] == [[0, 1, 2]]


def test_devices_share_the_texts(tmp_path: Path) -> None:
    module = opened(tmp_path, eval_tokens=6)
    seen = []
    for rank in range(2):
        module.trainer = SimpleNamespace(global_rank=rank, world_size=2)  # type: ignore[assignment]
        seen += [index for batch in module.val_dataloader() for index in batch.index.tolist()]
    assert sorted(seen) == [0, 1]


def test_a_resumed_run_skips_what_its_epoch_has_seen(tmp_path: Path) -> None:
    module = opened(tmp_path, batch_size=1)
    whole = list(module.train_dataloader().sampler)
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=SimpleNamespace(current=SimpleNamespace(ready=2))))
    module.trainer = SimpleNamespace(  # type: ignore[assignment]
        global_rank=0, world_size=1, limit_train_batches=1.0, current_epoch=0, fit_loop=loop
    )
    assert list(module.train_dataloader().sampler) == whole[2:]


def test_splits_travel_to_workers(tmp_path: Path) -> None:
    data = opened(tmp_path).splits["train"]
    copy = pickle.loads(pickle.dumps(data))
    for field in TENSORS:
        assert torch.equal(getattr(copy[[3, 0]], field.name), getattr(data[[3, 0]], field.name))


def test_single_items_are_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="use_distributed_sampler=False"):
        opened(tmp_path).splits["dev"][0]  # type: ignore[index]


def test_the_sample_is_written_once_and_brings_its_rationale(tmp_path: Path) -> None:
    module = ClassificationDataModule("sample", positive="positive", cache=str(tmp_path))
    first = {split: path.stat().st_mtime_ns for split, path in module.files().items()}
    module.setup("test")
    assert {split: path.stat().st_mtime_ns for split, path in module.files().items()} == first
    assert (module.labels, module.positive) == (("negative", "positive"), 1)
    assert set(module.class_counts.tolist()) == {1500}
    text = read_labelled(module.files()["test"], columns=RATIONALE).texts[7]
    batch = module.splits["test"][[7]]
    assert text.rationale
    assert tuple(batch.rationale[0].nonzero()[:, 0].tolist()) == text.rationale
    assert module.text("test", 7) == (text.id, tuple(text.text.lower().split()))


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
