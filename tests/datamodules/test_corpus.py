"""What all datamodules share, each kind on a small corpus of its own."""

import logging
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from attention_probing.attention.source import EncoderSpec
from attention_probing.corpora.files import files_by_split
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.splits import corpus_of
from attention_probing.datamodules import ClassificationDataModule, CoreferenceDataModule, DependencyDataModule
from tests.datamodules.conftest import Kind, Module

Make = Callable[..., Module]
over_attention = pytest.mark.parametrize("kind", [DependencyDataModule, CoreferenceDataModule], indirect=True)


def test_a_template_and_a_mapping_name_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = files_by_split("a/{split}-{split}.conllu")
    assert template == {split: Path(f"a/{split}-{split}.conllu") for split in ("train", "dev", "test")}
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "b.conllu").touch()
    assert files_by_split({"dev": "~/b.conllu"}) == {"dev": tmp_path / "b.conllu"}


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("ud/en_ewt-ud-dev.conllu", {"corpus": "en_ewt-ud", "split": "dev"}),
        ("cls/sst2/test.tsv", {"corpus": "sst2", "split": "test"}),
        ("litbank.train.conll", {"corpus": "litbank", "split": "train"}),
        ("ontogum.train40.conll2012", {"corpus": "ontogum.train40"}),
        ("latest.txt", {"corpus": "latest"}),
    ],
)
def test_a_file_names_its_corpus_and_split(path: str, known: dict[str, str], tmp_path: Path) -> None:
    assert corpus_of(tmp_path / path) == known


def test_a_file_that_a_mapping_names_must_be_there(tmp_path: Path) -> None:
    """Also that of a split which is not read yet; of a template, splits may be absent."""
    (tmp_path / "train.tsv").touch()
    with pytest.raises(CorpusError, match=r"nope.tsv: there is no such file. Check the path, or leave test out of the"):
        files_by_split({"train": str(tmp_path / "train.tsv"), "test": str(tmp_path / "nope.tsv")})


@pytest.mark.parametrize(
    ("kind", "remedies"),
    [
        (DependencyDataModule, ["If it is the test split, give ", "transfer_from"]),
        (ClassificationDataModule, ["a column that says train, dev or test of each text, name that column: ", "split"]),
    ],
)
def test_one_file_for_all_splits_has_its_remedies(
    kind: type[DependencyDataModule | ClassificationDataModule], remedies: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "one.csv"
    file.touch()
    with pytest.raises(CorpusError) as caught:
        kind(str(file)).files()
    message = str(caught.value)
    assert message.startswith(f"{file}: this is one file, but a corpus has a file for each split. Give a path with")
    assert all(remedy in message for remedy in remedies)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            "no_such_corpus",
            r"no_such_corpus: no corpus has this name\..* a path with `\{split\}` in the place of train",
        ),
        ({"training": "a"}, r"unknown splits \['training'\]\. The splits are train, dev, test"),
        ("absent/{split}", r"absent/(dev|train)\."),
    ],
)
def test_a_wrong_corpus_is_named(kind: Kind, make: Make, wrong: str | dict[str, str], message: str) -> None:
    corpus = f"{wrong}.{kind.suffix}" if wrong == "absent/{split}" else wrong
    with pytest.raises(CorpusError, match=message):
        make("validate", corpus=corpus)


def test_a_missing_split_is_named_first(kind: Kind, make: Make, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "read", None)
    for stage, there, missing in (("test", ("train", "dev"), "test"), ("fit", ("dev",), "train")):
        files = {split: given.replace("{split}", split) for split in there}
        name_it = f"Name its file: `corpus={{'train': 'a.{kind.suffix}'"
        remedy = f"no {missing} split, but the command needs one; it has {' and '.join(there)}. {name_it}"
        with pytest.raises(CorpusError, match=remedy):
            make(stage, corpus=files)


def test_the_sample_is_written_once(kind: Kind, tmp_path: Path) -> None:
    module = kind("sample", cache=str(tmp_path))
    first = {split: path.stat().st_mtime_ns for split, path in module.files().items()}
    assert {split: path.stat().st_mtime_ns for split, path in module.files().items()} == first
    assert list(first) == ["train", "dev", "test"]


def test_where_the_folder_of_stores_is(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROBING_CACHE", raising=False)
    assert kind().cache == Path("stores")
    monkeypatch.setenv("PROBING_CACHE", str(tmp_path))
    assert kind().cache == tmp_path
    assert kind(cache="other").cache == Path("other")


@over_attention
def test_a_stage_opens_its_own_splits(kind: Kind, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    module = make("validate")
    assert list(module.stores) == ["dev"]
    dev = module.stores["dev"]
    module.setup("test")
    assert module.stores.keys() == {"dev", "test"}
    assert module.stores["dev"] is dev
    monkeypatch.setattr(
        "attention_probing.datamodules.attention.Encoder", None
    )  # a second setup extracts and parses nothing
    monkeypatch.setattr(kind, "read", None)
    again = make("test")
    assert {split: len(store) for split, store in again.stores.items()} == {
        split: len(store) for split, store in module.stores.items()
    }


@pytest.mark.parametrize(("unknown", "warned"), [(1, False), (2, True)])
def test_many_words_with_the_unknown_token_are_warned_of(
    unknown: int, warned: bool, bert: Path, cache: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = tmp_path / "ja.conllu"
    words = ["日本"] * unknown + ["fox"] * (100 - unknown)
    rows = [f"{1 + n % 50}\t{word}\t_\t_\t_\t_\t{n % 50}\tdep\t_\t_\n" for n, word in enumerate(words)]
    corpus.write_text("".join([*rows[:50], "\n", *rows[50:], "\n"]), encoding="utf-8")
    for _ in range(2):  # a second run, which extracts nothing, says it too
        caplog.clear()
        module = DependencyDataModule({"dev": str(corpus)}, encoder=EncoderSpec(str(bert)), cache=cache)
        module.setup("validate")
        assert module.stores["dev"].manifest.audit["words_with_unknown_token"] == unknown
        messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        found = [message for message in messages if "unknown token" in message]
        assert len(found) == warned
        for message in found:
            assert f"{corpus}: 2 of 100 words (2%) contain the unknown token of {bert}, such as '日本'" in message
            assert message.endswith("on this language, such as `encoder='intfloat/multilingual-e5-small'`.")


@pytest.mark.parametrize(("marked", "warned"), [(5, False), (6, True)])
def test_many_words_that_the_tokenizer_normalises_away_are_warned_of(
    marked: int, warned: bool, bert: Path, cache: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = tmp_path / "fr.conllu"
    # Letter case and composition are no loss, so that only the accents count.
    words = ["fóx"] * (marked - 2) + ["dög"] * 2 + ["FOX", "ﬁx"] * 10
    words += ["fox"] * (100 - len(words))
    rows = [f"{1 + n % 50}\t{word}\t_\t_\t_\t_\t{n % 50}\tdep\t_\t_\n" for n, word in enumerate(words)]
    corpus.write_text("".join([*rows[:50], "\n", *rows[50:], "\n"]), encoding="utf-8")
    module = DependencyDataModule({"dev": str(corpus)}, encoder=EncoderSpec(str(bert)), cache=cache)
    module.setup("validate")
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    found = [message for message in messages if "lose letters or marks" in message]
    assert len(found) == warned
    for message in found:
        assert f"{corpus}: 6 of 100 words (6%) lose letters or marks to the tokenizer of {bert}" in message
        assert "which reads 'fóx' as 'fox', so the encoder cannot tell some words apart" in message
        assert message.endswith("on this language, such as `encoder='intfloat/multilingual-e5-small'`.")


def test_several_roots_are_warned_of(bert: Path, cache: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus = tmp_path / "roots.conllu"
    tree = "1\tfox\t_\tX\t_\t_\t0\troot\t_\t_\n2\tfox\t_\tX\t_\t_\t{}\troot\t_\t_\n\n"
    corpus.write_text(tree.format(0) + tree.format(1), encoding="utf-8")
    module = DependencyDataModule({"dev": str(corpus)}, encoder=EncoderSpec(str(bert)), cache=cache)
    module.setup("validate")
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    found = [message for message in messages if "root" in message]
    assert [message.partition(": a tree")[0] for message in found] == [f"{corpus}: 1 sentence with more than one root"]


def test_every_tensor_of_a_batch_moves_and_nothing_else(make: Make) -> None:
    batch = make("fit").splits["dev"][[0]]
    moved = batch.to(torch.device("meta"))
    for field in fields(batch):
        here, there = getattr(batch, field.name), getattr(moved, field.name)
        if isinstance(here, torch.Tensor):
            assert there.device.type == "meta"
            assert (there.shape, there.dtype) == (here.shape, here.dtype)
        else:
            assert there is here
    assert moved.split == "dev"


def test_single_items_are_refused_with_the_remedy(make: Make) -> None:
    with pytest.raises(TypeError, match="use_distributed_sampler=False"):
        make("fit").splits["dev"][0]


def order(module: Module, epoch: int = 0) -> list[int]:
    loader = module.train_dataloader()
    loader.sampler.set_epoch(epoch)
    return [index for batch in loader for index in batch.index.tolist()]


def test_every_epoch_trains_on_each_item_once_in_an_order_of_its_own(make: Make) -> None:
    module = make("fit")
    orders = [order(module, epoch) for epoch in range(4)]
    assert all(sorted(found) == list(range(len(module.splits["train"]))) for found in orders)
    assert len(set(map(tuple, orders))) > 2
    assert order(module, 2) == orders[2]


def test_the_seed_of_the_order_is_the_runs_own_unless_given(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    assert order(make("fit")) == order(make("fit", seed=7)) != order(make("fit", seed=8))
    monkeypatch.delenv("PL_GLOBAL_SEED")
    assert order(make("fit")) == order(make("fit", seed=0))
