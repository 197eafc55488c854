"""Gold that is exchanged between items: who gets whose, and that nothing else changes."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attention_probing.attention import EncoderSpec
from attention_probing.datamodules import (
    ClassificationDataModule,
    CoreferenceDataModule,
    DependencyDataModule,
    PairDataModule,
)
from attention_probing.datamodules.attention import AttentionDataModule
from attention_probing.datamodules.gold import classes_of_length, other_of_class
from attention_probing.results import UserError
from tests.tiny import save_gpt2


def slow_others(classes: list[Any], others: list[int]) -> None:
    """Check one by one that items of a class exchange places, and that only an item that is alone keeps its own."""
    assert sorted(others) == list(range(len(classes)))
    for item, other in enumerate(others):
        assert classes[item] == classes[other]
        alone = sum(one == classes[item] for one in classes) == 1
        assert (item == other) == alone


@pytest.mark.parametrize("items", [0, 1, 2, 3, 40])
@pytest.mark.parametrize("keys", [1, 2])
def test_items_of_a_class_exchange_places(items: int, keys: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        classes = rng.integers(0, 4, (items, keys))
        slow_others([tuple(row) for row in classes.tolist()], other_of_class(classes, rng).tolist())


def test_each_exchange_is_equally_likely() -> None:
    """Of four items of a class there are six ways in which each gets the next one of a circle."""
    drawn = Counter(tuple(other_of_class([7] * 4, np.random.default_rng(seed)).tolist()) for seed in range(6000))
    assert len(drawn) == 6
    assert min(drawn.values()) > 850


@pytest.mark.parametrize(("items", "classes"), [(0, 0), (5, 1), (39, 1), (40, 2), (1000, 10)])
def test_classes_of_length_have_twenty_items_or_more(items: int, classes: int) -> None:
    lengths = np.random.default_rng(0).permutation(items)
    numbers = classes_of_length(lengths)
    assert len(set(numbers.tolist())) == classes
    if items >= 40:
        assert np.bincount(numbers).min() >= 20
        order = np.argsort(lengths)
        assert (np.diff(numbers[order]) >= 0).all()


def words_of(data: DependencyDataModule, split: str) -> list[tuple[tuple[int, ...], ...]]:
    """Heads, relations and punctuation of every sentence of a split."""
    sentences: dict[int, tuple[tuple[int, ...], ...]] = {}
    for loader in data.test_dataloader()[:2]:
        for batch in loader:
            if batch.split != split:
                continue
            for row, index in enumerate(batch.index.tolist()):
                n = int(batch.lengths[row])
                columns = (batch.heads, batch.relations, batch.punctuation.long())
                sentences[index] = tuple(tuple(column[row, :n].tolist()) for column in columns)
    return [sentences[index] for index in sorted(sentences)]


def test_sentences_get_all_gold_of_another_of_their_length(
    make_data: Callable[..., DependencyDataModule],
) -> None:
    own = make_data()
    foreign = make_data(gold="shuffled")
    for data in (own, foreign):
        data.setup("test")
    assert {split: store.manifest.key for split, store in own.stores.items()} == {
        split: store.manifest.key for split, store in foreign.stores.items()
    }
    for split in ("dev", "test"):
        before = words_of(own, split)
        after = words_of(foreign, split)
        assert Counter(before) == Counter(after)
        lengths = [len(heads) for heads, _, _ in before]
        assert [len(heads) for heads, _, _ in after] == lengths
        alone = [lengths.count(length) == 1 for length in lengths]
        gold = foreign.provenance.audit["gold"]
        assert gold[split] == {"items": len(lengths), "kept": sum(alone)}  # type: ignore[index]
        moved = [one != other for one, other, only in zip(before, after, alone, strict=True) if not only]
        assert np.mean(moved) > 0.7  # some sentences have one word
    again = make_data(gold="shuffled")
    again.setup("test")
    assert words_of(again, "test") == words_of(foreign, "test")
    other_seed = make_data(gold="shuffled", seed=1)
    other_seed.setup("test")
    assert words_of(other_seed, "test") != words_of(foreign, "test")
    assert foreign.provenance.data["gold"] == "with shuffled gold"
    assert "gold" not in own.provenance.data


def test_attention_stays_that_of_the_sentence(make_data: Callable[..., DependencyDataModule]) -> None:
    batches = []
    for gold in ("given", "shuffled"):
        data = make_data(gold=gold)
        data.setup("test")
        batches.append(list(data.batches("test")))
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one.attention, other.attention)
        assert torch.equal(one.documents, other.documents)


def test_many_that_keep_their_own_are_told_once(tmp_path: Path, bert: Path, cache: str, logged: Path) -> None:
    """Four sentences of four lengths have nothing to exchange."""
    for split in ("dev", "test"):
        rows = []
        for length in range(2, 6):
            for word in range(1, length + 1):
                rows.append(f"{word}\tfox\t_\tX\t_\t_\t{word - 1}\t{'root' if word == 1 else 'dep'}\t_\t_\n")
            rows.append("\n")
        (tmp_path / f"{split}.conllu").write_text("".join(rows), encoding="utf-8")
    data = DependencyDataModule(
        str(tmp_path / "{split}.conllu"), encoder=EncoderSpec(str(bert)), cache=cache, gold="shuffled"
    )
    data.setup("test")
    data.setup("test")
    said = logged.read_text(encoding="utf-8")
    assert said.count("4 of 4 sentences of test keep their own gold under `gold='shuffled'`, for lack of others") == 1


def test_mentions_get_the_cluster_of_another_of_their_type(by_split: str, bert: Path, cache: str) -> None:
    windows = []
    for gold in ("given", "shuffled"):
        data = CoreferenceDataModule(by_split, encoder=EncoderSpec(str(bert)), cache=cache, gold=gold)
        data.setup("test")
        windows.append(data.splits["test"].windows)
    changed = 0
    for own, foreign in zip(*windows, strict=True):
        pairs = list(zip(own.text.mentions, foreign.text.mentions, strict=True))
        for one, other in pairs:
            assert (one.sentence, one.start, one.end, one.type) == (other.sentence, other.start, other.end, other.type)
        for kind in {one.type for one, _ in pairs}:
            before = Counter(one.cluster for one, _ in pairs if one.type == kind)
            after = Counter(other.cluster for _, other in pairs if other.type == kind)
            assert before == after
        changed += sum(one.cluster != other.cluster for one, other in pairs)
    assert changed


def test_texts_get_the_label_of_another(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "dev", "test"):
        rows = ["label\ttext\n"]
        for _ in range(200):
            length = int(rng.integers(1, 30))
            # Long texts are praised: what length tells of a label stays.
            label = int(rng.random() < length / 30)
            rows.append(f"{label}\t{' '.join(rng.choice(list('abcdef'), length))}\n")
        (tmp_path / f"{split}.tsv").write_text("".join(rows), encoding="utf-8")
    labels = []
    for gold in ("given", "shuffled"):
        data = ClassificationDataModule(str(tmp_path / "{split}.tsv"), cache=str(tmp_path), gold=gold)
        data.setup("test")
        labels.append(data.splits["test"].labels)
    own, foreign = labels
    lengths = data.splits["test"].lengths
    assert Counter(own.tolist()) == Counter(foreign.tolist())
    assert 0.2 < (own != foreign).mean() < 0.6
    assert np.corrcoef(lengths, foreign)[0, 1] > 0.4
    assert data.provenance.audit["gold"]["test"] == {"items": 200, "kept": 0}  # type: ignore[index]


def test_a_coin_swaps_the_sentences_of_a_pair(tmp_path: Path) -> None:
    model = save_gpt2(tmp_path / "model")
    pairs = [
        {"UID": "p", "field": "f", "pairID": str(place), "sentence_good": f"the fox {place}", "sentence_bad": "fox the"}
        for place in range(200)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, pairs)), encoding="utf-8")
    own, foreign = (
        PairDataModule(str(path), EncoderSpec(str(model)), cache=str(tmp_path), gold=gold).read()
        for gold in ("given", "shuffled")
    )
    swapped = [(one.good, one.bad) == (other.bad, other.good) for one, other in zip(own, foreign, strict=True)]
    same = [(one.good, one.bad) == (other.good, other.bad) for one, other in zip(own, foreign, strict=True)]
    assert all(np.logical_xor(swapped, same))
    assert 70 < sum(swapped) < 130


def test_data_without_gold_refuse_to_shuffle_it() -> None:
    class Own(AttentionDataModule[Any]):
        """Data without gold."""

    with pytest.raises(UserError, match=r"Own has no gold that could be shuffled. Compare .*`weights='redrawn'`"):
        Own("sample", gold="shuffled")  # type: ignore[abstract]
