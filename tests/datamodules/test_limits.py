"""Options `limit` and `limit_by` of all datamodules: which items are used, what a store is called, what is counted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attention_probing.attention import EncoderSpec
from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import (
    ClassificationDataModule,
    CoreferenceDataModule,
    DependencyDataModule,
    TextDataModule,
)
from attention_probing.datamodules.limits import Limit
from attention_probing.results.errors import UserError


def test_a_draw_is_uniform_ordered_and_nested() -> None:
    times = np.zeros(10)
    for seed in range(2000):
        places = Limit(3, seed=seed).choose(10)
        assert places == sorted(set(places))
        assert set(places) <= set(Limit(6, seed=seed).choose(10))
        times[places] += 1
    assert times.sum() == 6000
    # 600 ± 20.5 (one standard deviation of a binomial)
    assert np.abs(times - 600).max() < 82


def test_the_first_items_and_all_items() -> None:
    assert Limit(3, "first", seed=5).choose(10) == [0, 1, 2]
    assert Limit(10).choose(10) == list(range(10))
    assert Limit(None).choose(4) == list(range(4))


Make = Callable[..., DependencyDataModule]


@pytest.fixture
def make(corpus: str, bert: Path, tmp_path: Path) -> Make:
    def datamodule(**options: Any) -> DependencyDataModule:  # noqa: ANN401
        data = DependencyDataModule(corpus, encoder=EncoderSpec(str(bert)), cache=str(tmp_path), **options)
        data.setup("fit")
        data.setup("test")
        return data

    return datamodule


def data_of(data: DependencyDataModule | CoreferenceDataModule | ClassificationDataModule | TextDataModule) -> Any:  # noqa: ANN401
    """Return what the results say of the files, by split or corpus."""
    return data.provenance.data


def audit_of(data: DependencyDataModule | CoreferenceDataModule | ClassificationDataModule) -> Any:  # noqa: ANN401
    """Return what the results count of each split."""
    return data.provenance.audit


def words_of(data: DependencyDataModule, split: Split) -> list[tuple[str, ...]]:
    return [tuple(data.splits[split].words(item)) for item in range(len(data.splits[split]))]


@pytest.mark.parametrize("store", ["disk", "stream"])
@pytest.mark.parametrize("by", ["random", "first"])
def test_sentences_of_each_split_are_those_of_the_file(by: Any, store: str, make: Make, corpus: str) -> None:  # noqa: ANN401
    data = make(limit=5, limit_by=by, seed=2, store=store)
    whole = make(store=store)
    counts: dict[Split, int] = {"train": 41, "dev": 13, "test": 17}
    for split, count in counts.items():
        sentences = read_treebank(Path(corpus.replace("{split}", split))).sentences
        assert len(sentences) == count
        places = Limit(5, by, 2).choose(count)
        assert words_of(data, split) == [sentences[place].words for place in places]
        # The attention of a sentence does not depend on the others.
        (limited,) = data.batches(split, [3])
        (same,) = whole.batches(split, [places[3]])
        torch.testing.assert_close(limited.attention, same.attention, atol=1e-3, rtol=0)
        assert audit_of(data)[split]["left_out_by_limit"] == count - 5
        assert data_of(data)[split]["sentences"] == 5


def test_a_limit_is_part_of_the_name_of_a_store_and_of_the_results(make: Make) -> None:
    stores = set()
    for options in ({}, {"limit": 5}, {"limit": 5, "seed": 1}, {"limit": 6}, {"limit": 5, "limit_by": "first"}):
        data = make(**options)
        stores.add(data.stores["test"].manifest.key)
    assert len(stores) == 5
    # The first do not depend on the seed, which also orders the batches.
    assert make(limit=5, limit_by="first", seed=9).stores["test"].manifest.key in stores
    assert data.provenance.audit["limit"] == "the first 5 sentences of each split"
    assert data_of(data)["test"].items() >= {"limit": 5, "limit_by": "first"}.items()
    assert make(limit=5, seed=1).provenance.audit["limit"] == "5 sentences of each split, drawn with seed 1"
    whole = make()
    assert "limit" not in whole.provenance.audit
    assert "limit" not in data_of(whole)["test"]
    assert "left_out_by_limit" not in audit_of(whole)["test"]


def test_a_limit_above_the_corpus_leaves_nothing_out(make: Make) -> None:
    data = make(limit=1000)
    assert len(data.splits["train"]) == 41
    assert audit_of(data)["train"]["left_out_by_limit"] == 0
    with pytest.raises(UserError, match="limit is 0, but must be at least 1"):
        make(limit=0)


def test_runs_that_differ_in_the_seed_of_the_run_read_the_same(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    key = make(limit=5).stores["test"].manifest.key
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    assert make(limit=5).stores["test"].manifest.key == key


def test_documents_of_coreference_are_limited(tmp_path: Path) -> None:
    options: dict[str, Any] = {"encoder": None, "cache": str(tmp_path), "limit": 3}
    data = CoreferenceDataModule("sample", **options)
    data.setup("test")
    whole = CoreferenceDataModule("sample", encoder=None, cache=str(tmp_path))
    for split in ("dev", "test"):
        documents = whole.read(whole.files()[split]).documents
        drawn = [documents[place] for place in Limit(3).choose(len(documents))]
        with_mentions = [document.id for document in drawn if document.mentions]
        assert list(data.splits[split].documents) == with_mentions
        assert audit_of(data)[split]["left_out_by_limit"] == len(documents) - 3
    assert data.provenance.audit["limit"] == "3 documents of each split, drawn with seed 0"
    # One file for all splits: the largest has the limit, the others their share.
    file = data.files()["train"]
    for shares, sizes in {(0.5, 0.5): [3, 3], (0.6, 0.2, 0.2): [3, 1, 1]}.items():
        divided = CoreferenceDataModule(str(file), parts=shares, **options)
        divided.setup("test")
        if len(shares) == 3:
            divided.setup("fit")
        used = [len(split.documents) for split in divided.splits.values()]
        assert sorted(used) == sorted(sizes)


def test_labelled_texts_are_limited_after_their_labels_are_found(tmp_path: Path) -> None:
    # Sorted by label, as many files are: the first ten have one label alone.
    lines = ["label\ttext", *(f"{number // 50}\tword{number} and more" for number in range(100))]
    path = tmp_path / "texts.tsv"
    path.write_text("\n".join(lines) + "\n")
    corpus = dict.fromkeys(("train", "dev", "test"), str(path))
    data = ClassificationDataModule(corpus, cache=str(tmp_path), limit=10, limit_by="first")
    data.setup("fit")
    assert data.labels == ("0", "1")
    assert set(data.splits["train"].labels.tolist()) == {0}
    assert len(data.splits["train"]) == len(data.splits["dev"]) == 10
    assert audit_of(data)["train"]["left_out_by_limit"] == 90
    drawn = ClassificationDataModule(corpus, cache=str(tmp_path), limit=10)
    drawn.setup("fit")
    assert set(drawn.splits["train"].labels.tolist()) == {0, 1}
    assert drawn.provenance.audit["limit"] == "10 texts of each split, drawn with seed 0"


def test_a_limit_of_texts_holds_for_corpora_without_their_own(bert: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("".join(f"some words {number}\n" for number in range(20)))
    corpora = [str(tmp_path / "a.txt"), {"corpus": str(tmp_path / "b.txt"), "limit": 7}]
    data = TextDataModule(corpora, encoder=EncoderSpec(str(bert)), cache=str(tmp_path), limit=4)
    data.setup("test")
    (loader,) = data.test_dataloader()
    counts = {"a": 0, "b": 0}
    for batch in loader:
        counts[batch.corpus] += len(batch.index)
    assert counts == {"a": 4, "b": 7}
    assert {name: data_of(data)[name]["limit"] for name in counts} == counts
    assert data.provenance.audit["limit"] == "the first 4 segments of each corpus without a limit of its own"
