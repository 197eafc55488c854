"""What every datamodule over attention shares, seen through the one of dependencies."""

import logging
from pathlib import Path

import pytest

from attention.encoder import EncoderSpec
from corpora.sentence import CorpusError
from datamodules import DependencyDataModule
from datamodules.base import files_by_split


def test_a_template_and_a_mapping_name_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = files_by_split("a/{split}-{split}.conllu")
    assert template == {split: Path(f"a/{split}-{split}.conllu") for split in ("train", "dev", "test")}
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "b.conllu").touch()
    assert files_by_split({"dev": "~/b.conllu"}) == {"dev": tmp_path / "b.conllu"}


def test_a_file_that_a_mapping_names_must_be_there(tmp_path: Path) -> None:
    """Also that of a split which is not read yet; of a template, splits may be absent."""
    (tmp_path / "train.tsv").touch()
    with pytest.raises(CorpusError, match=r"nope.tsv: there is no such file. Check the path, or leave test out of the"):
        files_by_split({"train": str(tmp_path / "train.tsv"), "test": str(tmp_path / "nope.tsv")})


def test_a_split_of_another_name_is_refused() -> None:
    with pytest.raises(CorpusError, match=r"unknown splits \['valid'\]. They are named train, dev, test"):
        files_by_split({"train": "a", "valid": "b"})


def test_the_folder_of_stores_is_given_or_from_the_environment_or_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROBING_CACHE", raising=False)
    assert DependencyDataModule().cache == Path("stores")
    monkeypatch.setenv("PROBING_CACHE", str(tmp_path))
    assert DependencyDataModule().cache == tmp_path
    assert DependencyDataModule(cache="other").cache == Path("other")


def test_a_stage_opens_its_own_splits_and_keeps_those_that_are_open(corpus: str, bert: Path, cache: str) -> None:
    module = DependencyDataModule(corpus, encoder=EncoderSpec(str(bert)), cache=cache)
    module.setup("validate")
    assert list(module.stores) == ["dev"]
    dev = module.stores["dev"]
    module.setup("test")
    assert module.stores.keys() == {"dev", "test"}
    assert module.stores["dev"] is dev


@pytest.mark.parametrize("weights", ["pretrained", "random"])
def test_provenance_says_what_of_the_file_was_used(weights: str, corpus: str, bert: Path, cache: str) -> None:
    module = DependencyDataModule(corpus, encoder=EncoderSpec(str(bert), weights=weights), cache=cache)  # type: ignore[arg-type]
    module.setup("validate")
    told = module.provenance.encoder
    assert told["weights"] == weights
    assert ("weights_sha256" in told, "embeddings_of_sha256" in told) == (weights == "pretrained", weights == "random")


@pytest.mark.parametrize(("unknown", "warned"), [(1, False), (2, True)])
def test_many_words_with_the_unknown_token_are_warned_of(
    unknown: int, warned: bool, bert: Path, cache: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = tmp_path / "ja.conllu"
    words = ["日本"] * unknown + ["fox"] * (100 - unknown)
    rows = [f"{place}\t{word}\t_\t_\t_\t_\t{place - 1}\tdep\t_\t_" for place, word in enumerate(words[:50], 1)]
    rows += ["", *(f"{place}\t{word}\t_\t_\t_\t_\t{place - 1}\tdep\t_\t_" for place, word in enumerate(words[50:], 1))]
    corpus.write_text("\n".join(rows) + "\n\n", encoding="utf-8")
    for _ in range(2):  # a second run, which extracts nothing, says it too
        caplog.clear()
        module = DependencyDataModule({"dev": str(corpus)}, encoder=EncoderSpec(str(bert)), cache=cache)
        module.setup("validate")
        assert module.stores["dev"].manifest.audit["words_with_unknown_token"] == unknown
        messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        found = [message for message in messages if "unknown token" in message]
        assert len(found) == warned
        assert all(f"{corpus}: 2 of 100 words (2%) contain the unknown token of " in message for message in found)
