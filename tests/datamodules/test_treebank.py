from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from attention import EncoderSpec
from datamodules import DependencyDataModule, VectorSpec
from datamodules.dependency import FIELDS, Field


@pytest.fixture(scope="module")
def data(bert: Path, corpus: str, cache: str) -> DependencyDataModule:
    module = DependencyDataModule(
        corpus, encoder=EncoderSpec(str(bert)), cache=cache, hidden=(0, 2), vectors=VectorSpec("encoder"), seed=3
    )
    module.setup("fit")
    return module


def last(words: Sequence[str]) -> list[int]:
    return [len(words)] * len(words)


def test_hidden_states_are_those_of_the_store_and_zero_behind_it(data: DependencyDataModule) -> None:
    split = data.splits["dev"]
    items = [0, int(split.lengths.argmax()), int(split.lengths.argmin())]
    batch = split[items]
    assert data.hidden_layers == (0, 2)
    assert batch.hidden.shape == (3, 2, int(split.lengths[items].max()), data.hidden_size)
    for row, item in enumerate(items):
        n = int(split.lengths[item])
        assert torch.equal(batch.hidden[row, :, :n], split.store.read("hidden", item))
        assert (batch.hidden[row, :, n:] == 0).all()


def test_every_word_has_its_own_vector(data: DependencyDataModule) -> None:
    split, vectors = data.splits["dev"], data.vectors
    assert vectors is not None
    batch = split[[3, 5]]
    for row, item in enumerate([3, 5]):
        words = split.words(item)
        assert np.array_equal(batch.vectors[row, : len(words)].numpy(), vectors.matrix[vectors.rows(words)])
        assert (batch.vectors[row, len(words) :] == 0).all()
    assert batch.vectors.any(-1)[batch.mask].all()


@pytest.mark.parametrize("field", ["attention", "hidden", "vectors"])
def test_what_is_not_read_has_no_size(data: DependencyDataModule, field: Field) -> None:
    module = data.variant()
    module.setup("fit")
    module.read_only(FIELDS - {field})
    batch, whole = module.splits["dev"][[0, 1]], data.splits["dev"][[0, 1]]
    for name in ("attention", "hidden", "vectors"):
        found = getattr(batch, name)
        if name == field:
            assert found.numel() == 0
            assert found.size(0) == 2
        else:
            assert torch.equal(found, getattr(whole, name))


def test_a_variant_has_other_heads_in_every_split_and_the_same_stores(data: DependencyDataModule) -> None:
    changed = data.variant(heads=last)
    changed.setup("fit")
    for split in ("train", "dev"):
        assert changed.stores[split] is data.stores[split]
        batch, before = changed.splits[split][[0, 1, 2]], data.splits[split][[0, 1, 2]]
        assert torch.equal(batch.heads, torch.where(before.mask, before.lengths[:, None], -1))
        assert torch.equal(batch.punctuation, before.punctuation)
        assert torch.equal(batch.attention, before.attention)
    again = changed.variant(train=[1])
    again.setup("fit")
    assert torch.equal(again.splits["dev"][[4]].heads, changed.splits["dev"][[4]].heads)


def test_heads_for_more_or_fewer_words_are_refused(data: DependencyDataModule) -> None:
    with pytest.raises(ValueError, match="heads_of gives 41 heads to"):
        data.variant(heads=lambda words: [0]).setup("fit")


def test_a_variant_trains_on_the_sentences_it_is_given(data: DependencyDataModule) -> None:
    some = [7, 3, 20, 40]
    changed = data.variant(train=some)
    changed.setup("fit")
    loader = changed.train_dataloader()
    loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
    assert sorted(i for batch in loader for i in batch.index.tolist()) == sorted(some)
    assert sum(len(batch.index) for batch in data.train_dataloader()) == len(data.splits["train"])


def test_some_sentences_of_a_split_come_once_each(data: DependencyDataModule) -> None:
    some = [12, 0, 5]
    assert sorted(i for batch in data.batches("dev", some) for i in batch.index.tolist()) == sorted(some)
    assert sum(len(batch.index) for batch in data.batches("dev")) == len(data.splits["dev"])


def test_the_order_follows_the_seed_of_the_run_where_none_is_given(
    bert: Path, corpus: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def order(seed: int | None) -> list[int]:
        module = DependencyDataModule(corpus, encoder=EncoderSpec(str(bert)), cache=cache, max_sentences=3, seed=seed)
        module.setup("fit")
        return [i for batch in module.train_dataloader() for i in batch.index.tolist()]

    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    assert order(None) == order(7)
    assert order(None) != order(8)
    monkeypatch.delenv("PL_GLOBAL_SEED")
    assert order(None) == order(0)


def test_provenance_names_the_vectors_and_their_coverage(data: DependencyDataModule) -> None:
    vectors = data.vectors
    assert vectors is not None
    assert data.provenance.data["vectors"] == dict(vectors.identity)
    assert data.provenance.audit["vectors"] == dict(vectors.audit)
    assert "train" in data.provenance.audit
