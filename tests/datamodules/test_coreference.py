import logging
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer

from attention import AlignmentError, EncoderSpec, Options
from corpora.conll2012 import read_documents
from corpora.document import MENTION_TYPES, Documents
from corpora.sentence import CorpusError
from datamodules import AntecedentBatch, CoreferenceDataModule, VectorError
from datamodules.base import SPLITS
from datamodules.batch import Split
from datamodules.coreference import parted
from datamodules.vectors import VectorSpec
from tests.documents import corpus, document, write

LENGTHS = ((3, 1, 2), (4, 6, 2, 5, 8), (7, 7, 7, 7), (2,), (5, 5, 9, 1), (3, 9, 8, 9, 9), (8, 2, 2, 9))


def named(documents: Documents, genres: tuple[str, ...]) -> Documents:
    """The documents under names from which the reader takes their genre."""
    texts = tuple(
        document(
            f"GUM_{genres[number % len(genres)]}_{number}",
            [" ".join(words) for words in text.sentences],
            [(m.sentence, m.start, m.end, m.head, m.cluster) for m in text.mentions],
        )
        for number, text in enumerate(documents.documents)
    )
    return Documents(texts, {})


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven documents of two genres in one file."""
    folder = tmp_path_factory.mktemp("single")
    return write(folder / "all.conll", named(corpus(LENGTHS, seed=1), ("news", "fiction")))


@pytest.fixture(scope="module")
def by_split(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three files, of seven, four and three documents."""
    folder = tmp_path_factory.mktemp("splits")
    for seed, (split, count) in enumerate({"train": 7, "dev": 4, "test": 3}.items()):
        write(folder / f"{split}.conll", named(corpus(LENGTHS[:count], seed), ("news",)))
    return str(folder / "{split}.conll")


def test_windows_that_stand_in_train_are_counted_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    documents = named(corpus(LENGTHS, seed=1), ("news",))
    for split, own in {"train": slice(4), "dev": slice(4, 6), "test": slice(3, 7)}.items():
        write(tmp_path / f"{split}.conll", Documents(documents.documents[own], {}))
    module = CoreferenceDataModule(str(tmp_path / "{split}.conll"), encoder=None, cache=str(tmp_path))
    module.setup("fit")
    module.setup("test")
    audit = cast(dict[str, dict[str, int]], module.provenance.audit)
    assert (audit["dev"]["also_in_train"], audit["test"]["also_in_train"], audit["test"]["also_in_dev"]) == (0, 1, 2)
    assert [message.partition(":")[0] for message in caplog.messages if "stand in" in message] == [
        "1 of 4 windows of test (25%) also stand in train",
        "2 of 4 windows of test (50%) also stand in dev",
    ]


@pytest.fixture(params=["mentions", "words"])
def data(request: pytest.FixtureRequest, bert: Path, by_split: str, cache: str) -> CoreferenceDataModule:
    module = CoreferenceDataModule(by_split, candidates=request.param, encoder=EncoderSpec(str(bert)), cache=cache)
    module.setup("fit")
    module.setup("test")
    return module


def halved(single: Path, cache: str, encoder: EncoderSpec | None = None, seed: int = 0) -> CoreferenceDataModule:
    module = CoreferenceDataModule(str(single), encoder=encoder, cache=cache, split_seed=seed)
    module.setup("test")
    return module


def ids(module: CoreferenceDataModule, split: Split) -> tuple[str, ...]:
    return module.splits[split].documents


# Batches


HALVES: tuple[Split, ...] = ("dev", "test")


def batches(module: CoreferenceDataModule) -> Iterator[tuple[Split, AntecedentBatch]]:
    for split, loader in zip(HALVES, module.test_dataloader(), strict=True):
        for batch in loader:
            yield split, batch


def test_batches_hold_the_mentions_of_the_file(data: CoreferenceDataModule, by_split: str) -> None:
    seen: Counter[tuple[str, str, int]] = Counter()
    for split, batch in batches(data):
        gold = read_documents(Path(by_split.replace("{split}", split))).documents
        assert batch.window is not None
        [number] = batch.document.tolist()
        text, first = gold[number], batch.window.first
        sentences = text.sentences[first : first + len(batch.window.text.sentences)]
        assert batch.window.text.id == text.id
        assert batch.window.words == tuple(word for sentence in sentences for word in sentence)
        mentions = [m for m in text.mentions if first <= m.sentence < first + len(sentences)]
        starts = [sum(map(len, sentences[:place])) for place in range(len(sentences))]
        assert batch.head_words.tolist() == [starts[m.sentence - first] + m.head for m in mentions]
        assert batch.clusters.tolist() == [m.cluster for m in mentions]
        assert [MENTION_TYPES[code] for code in batch.types.tolist()] == [m.type for m in mentions]
        for place, _ in enumerate(sentences):
            seen[split, text.id, first + place] += 1
    wanted = {
        (split, text.id, m.sentence)
        for split in HALVES
        for text in read_documents(Path(by_split.replace("{split}", split))).documents
        for m in text.mentions
    }
    assert wanted <= set(seen)
    assert set(seen.values()) == {1}


def test_weights_are_those_of_the_store(data: CoreferenceDataModule) -> None:
    for split, batch in batches(data):
        [index] = batch.index.tolist()
        assert batch.window is not None
        assert batch.window == data.splits[split].windows[index]
        stored = data.stores[split].read("antecedent", index)
        assert torch.equal(batch.weights, stored)
        assert batch.weights.dtype == torch.float32
        between = len(set(batch.head_words.tolist()))
        shape = (2, 2, 4, between, len(batch.window)) if data.candidates == "words" else (2, 4, between, between)
        assert batch.weights.shape == shape


def test_a_batch_is_its_receivers_own(data: CoreferenceDataModule) -> None:
    batch = data.splits["dev"][[0]]
    before = batch.weights.clone()
    batch.weights.zero_()
    assert torch.equal(data.splits["dev"][[0]].weights, before)


@pytest.mark.parametrize("world", [2, 3])
def test_devices_share_the_windows_without_repetition(data: CoreferenceDataModule, world: int) -> None:
    seen: Counter[int] = Counter()
    for rank in range(world):
        data.trainer = cast(Any, SimpleNamespace(global_rank=rank, world_size=world))
        for batch in data.val_dataloader():
            seen.update(batch.index.tolist())
    assert seen == Counter(range(len(data.splits["dev"])))


def test_a_device_without_a_window_has_an_empty_batch(data: CoreferenceDataModule) -> None:
    data.trainer = cast(Any, SimpleNamespace(global_rank=98, world_size=99))
    [batch] = data.val_dataloader()
    assert batch.window is None
    assert batch.index.shape == batch.document.shape == batch.head_words.shape == batch.clusters.shape == (0,)
    assert batch.weights.shape == ((2, 2, 4, 0, 0) if data.candidates == "words" else (2, 4, 0, 0))


def test_loaders_start_their_workers_with_the_mapped_store(bert: Path, by_split: str, cache: str) -> None:
    encoder = EncoderSpec(str(bert))
    module = CoreferenceDataModule(by_split, encoder=encoder, cache=cache, workers=1)
    alone = CoreferenceDataModule(by_split, encoder=encoder, cache=cache)
    for each in (module, alone):
        each.setup("validate")
    for batch, other in zip(module.val_dataloader(), alone.val_dataloader(), strict=True):
        assert torch.equal(batch.weights, other.weights)
        assert batch.window == other.window
    copy = pickle.loads(pickle.dumps(module.splits["dev"]))
    assert torch.equal(copy[[1]].weights, module.splits["dev"][[1]].weights)


def test_without_an_encoder_each_document_is_a_window_without_weights(by_split: str, tmp_path: Path) -> None:
    module = CoreferenceDataModule(by_split, encoder=None, cache=str(tmp_path))
    module.setup("test")
    [_, loader] = module.test_dataloader()
    for batch in loader:
        assert batch.window is not None
        between = len(batch.window.head_words)
        assert batch.weights.shape == (0, 0, between, between)
    assert module.encoder_identity is None
    gold = read_documents(Path(by_split.replace("{split}", "test"))).documents
    assert [window.text for window in module.splits["test"].windows] == [text for text in gold if text.mentions]


def test_train_is_a_split_like_another(data: CoreferenceDataModule) -> None:
    assert len(data.splits["train"].documents) == 6  # of seven, one without mentions
    assert data.stores["train"].folder != data.stores["dev"].folder


# Training


def order(module: CoreferenceDataModule, epoch: int = 0) -> list[int]:
    loader = module.train_dataloader()
    cast(Any, loader.sampler).set_epoch(epoch)
    return [index for batch in loader for index in batch.index.tolist()]


def training(by_split: str, cache: str, seed: int | None = None) -> CoreferenceDataModule:
    module = CoreferenceDataModule(by_split, encoder=None, cache=cache, seed=seed)
    module.setup("fit")
    return module


def test_every_epoch_reads_each_window_once_in_an_order_of_its_own(data: CoreferenceDataModule) -> None:
    orders = [order(data, epoch) for epoch in range(4)]
    assert len(orders[0]) > 5
    assert all(sorted(found) == list(range(len(data.splits["train"]))) for found in orders)
    assert len(set(map(tuple, orders))) > 2
    assert order(data, 2) == orders[2]


def test_the_seed_of_the_order_is_the_runs_own_unless_given(
    by_split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    given = {seed: order(training(by_split, str(tmp_path), seed)) for seed in (0, 1, 2)}
    assert order(training(by_split, str(tmp_path))) == given[0]
    monkeypatch.setenv("PL_GLOBAL_SEED", "2")
    assert order(training(by_split, str(tmp_path))) == given[2] != given[0]
    assert order(training(by_split, str(tmp_path), 1)) == given[1]


def in_training(rank: int = 0, world: int = 1, limit: float = 1.0, ready: int = 0) -> Trainer:
    """What the loader asks of a trainer that has read `ready` batches."""
    progress = SimpleNamespace(current=SimpleNamespace(ready=ready))
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress))
    trainer = SimpleNamespace(
        global_rank=rank, world_size=world, limit_train_batches=limit, current_epoch=0, fit_loop=loop
    )
    return cast(Trainer, trainer)


@pytest.mark.parametrize("world", [2, 4])
def test_devices_train_on_equally_many_windows(data: CoreferenceDataModule, world: int) -> None:
    orders = []
    for rank in range(world):
        data.trainer = in_training(rank, world)
        orders.append(order(data))
    assert {len(found) for found in orders} == {-(-len(data.splits["train"]) // world)}
    assert {index for found in orders for index in found} == set(range(len(data.splits["train"])))


@pytest.mark.parametrize(("limit", "ready", "skipped"), [(1.0, 3, 3), (2, 2, 0), (2, 1, 1), (10**6, 1, 1)])
def test_a_resumed_run_skips_what_its_epoch_has_seen(
    limit: float, ready: int, skipped: int, data: CoreferenceDataModule
) -> None:
    whole = list(data.train_dataloader().sampler)
    data.trainer = in_training(limit=limit, ready=ready)
    assert list(data.train_dataloader().sampler) == whole[skipped:]


def test_another_seed_cannot_resume_the_order(by_split: str, tmp_path: Path) -> None:
    loader = cast(Any, training(by_split, str(tmp_path), 7).train_dataloader())
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=r"with seed 3, this one with 7: go on with --data.init_args.seed 3"):
        loader.load_state_dict({"seed": 3})


# Word vectors


VECTORS = {"the": (1, 2, 3), "fox": (4, 5, 6), "dogs": (7, 8, 9), "jumpsuit": (-1, 0, 1), "unlazy": (2, 0, 2)}


@pytest.fixture
def vectors(tmp_path: Path) -> str:
    lines = [f"{word} {' '.join(map(str, values))}" for word, values in VECTORS.items()]
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_batches_hold_the_vectors_of_the_head_words(by_split: str, vectors: str, bert: Path, cache: str) -> None:
    module = CoreferenceDataModule(
        by_split, encoder=EncoderSpec(str(bert)), cache=cache, vectors=VectorSpec(vectors, min_coverage=0.1)
    )
    module.setup("fit")
    module.setup("test")
    known = unknown = 0
    for split in SPLITS:
        for index, window in enumerate(module.splits[split].windows):
            batch = module.splits[split][[index]]
            forms = [window.words[place] for place in sorted(set(batch.head_words.tolist()))]
            expected = [VECTORS.get(form.lower(), (0, 0, 0)) for form in forms]
            assert batch.vectors.tolist() == [list(values) for values in expected]
            assert batch.vectors.dtype == torch.float32
            known += sum(form.lower() in VECTORS for form in forms)
            unknown += sum(form.lower() not in VECTORS for form in forms)
    assert min(known, unknown) > 10
    assert module.splits["dev"][[]].vectors.shape == (0, 3)
    provenance = module.provenance
    assert cast(dict[str, Any], provenance.data["vectors"])["file"] == "vectors.txt"
    assert 0.1 < cast(dict[str, Any], provenance.audit["vectors"])["coverage"] < 0.9
    assert {"train", "dev", "test"} <= provenance.audit.keys() & provenance.data.keys()


def test_without_vectors_their_size_is_zero(data: CoreferenceDataModule) -> None:
    batch = data.splits["dev"][[0]]
    assert batch.vectors.shape == (batch.weights.size(-2), 0)
    assert data.vectors_size == 0


def test_vectors_that_know_too_few_words_are_refused(by_split: str, vectors: str, tmp_path: Path) -> None:
    module = CoreferenceDataModule(by_split, encoder=None, cache=str(tmp_path), vectors=VectorSpec(vectors))
    with pytest.raises(VectorError, match="min_coverage"):
        module.setup("test")


# Halves


def test_one_file_is_halved_within_each_genre(single: Path, tmp_path: Path) -> None:
    module = halved(single, str(tmp_path))
    every = [text.id for text in read_documents(single).documents if text.mentions]
    dev, test = ids(module, "dev"), ids(module, "test")
    assert not set(dev) & set(test)
    assert sorted(dev + test) == sorted(every)
    assert list(dev) == [name for name in every if name in dev]  # in the order of the file
    for genre in ("news", "fiction"):
        sizes = [sum(genre in name for name in names) for names in (dev, test)]
        assert abs(sizes[0] - sizes[1]) <= 1
    assert abs(len(dev) - len(test)) <= 1
    for split in module.splits.values():
        numbers = {int(split[[index]].document) for index in range(len(split))}
        assert numbers == set(range(len(split.documents)))


def test_one_file_is_extracted_once_and_split_by_items(
    single: Path, bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pytorch_lightning.utilities.rank_zero"):
        module = halved(single, str(tmp_path), EncoderSpec(str(bert)))
    assert module.stores["dev"] is module.stores["test"]
    assert len(list(tmp_path.rglob("manifest.json"))) == 1
    whole = len(module.stores["dev"])
    assert len(module.splits["dev"]) + len(module.splits["test"]) == whole
    assert f"after entering setup: dev and test {whole} windows." in caplog.text
    windows = {window: item for item, window in enumerate(w for s in module.splits.values() for w in s.windows)}
    assert len(windows) == whole
    order = sorted(windows, key=lambda window: (window.number, window.first))
    for _, batch in batches(module):
        assert batch.window is not None
        stored = module.stores["dev"].read("antecedent", order.index(batch.window))
        assert torch.equal(batch.weights, stored)


def test_the_seed_decides(single: Path, tmp_path: Path) -> None:
    found = [ids(halved(single, str(tmp_path), seed=seed), "dev") for seed in (0, 0, 1, 2, 3)]
    assert found[0] == found[1]
    assert len(set(found)) > 1
    assert len(list(tmp_path.rglob("manifest.json"))) == 1  # the seed is no part of the store's key


def test_the_encoder_does_not_change_the_halves(single: Path, bert: Path, tmp_path: Path) -> None:
    without = halved(single, str(tmp_path))
    assert ids(halved(single, str(tmp_path), EncoderSpec(str(bert))), "test") == ids(without, "test")


SIZES = [(8, 8, 8, 8, 8), (1, 1, 1, 1), (3, 5, 2, 7), (1, 4, 9), (2,), (1,)]


def of_genres(sizes: tuple[int, ...]) -> Mapping[int, str]:
    """As many documents of each genre, numbered through."""
    return dict(enumerate(f"g{place}" for place, size in enumerate(sizes) for _ in range(size)))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", [0, 7])
def test_halves_are_even_in_every_genre_and_over_all(sizes: tuple[int, ...], seed: int) -> None:
    genres = of_genres(sizes)
    first, second = parted(genres, (0.5, 0.5), seed)
    assert first | second == set(genres)
    assert not first & second
    assert len(first) - len(second) == sum(sizes) % 2
    for genre in set(genres.values()):
        one, other = (sum(genres[number] == genre for number in half) for half in (first, second))
        assert abs(one - other) <= 1
    assert parted(genres, (0.5, 0.5), seed) == (first, second)


@pytest.mark.parametrize("sizes", SIZES)
def test_halves_are_those_of_the_rule_that_published_figures_rest_on(sizes: tuple[int, ...]) -> None:
    genres = of_genres(sizes)
    random = np.random.default_rng(3)
    first: set[int] = set()
    odd = 1  # whose turn it is to get the odd document: 1 the first half's, 0 the second's
    for genre in sorted(set(genres.values())):
        numbers = random.permutation([number for number in genres if genres[number] == genre])
        first.update(numbers[: (len(numbers) + odd) // 2].tolist())
        odd = (odd + len(numbers)) % 2
    assert parted(genres, (0.5, 0.5), 3) == (frozenset(first), frozenset(genres) - first)


@pytest.mark.parametrize("shares", [(0.5, 0.25, 0.25), (0.8, 0.1, 0.1), (0.6, 0.2, 0.2), (1 / 3, 1 / 3, 1 / 3)])
@pytest.mark.parametrize("sizes", SIZES)
def test_every_part_has_its_share_over_all(shares: tuple[float, ...], sizes: tuple[int, ...]) -> None:
    genres = of_genres(sizes)
    parts = parted(genres, shares, 0)
    assert sorted(number for part in parts for number in part) == sorted(genres)
    for part, share in zip(parts, shares, strict=True):
        assert abs(len(part) - share * len(genres)) < 1


def test_every_part_has_its_share_of_every_genre() -> None:
    genres = of_genres((8, 8, 8, 8, 8))
    for part, size in zip(parted(genres, (0.5, 0.25, 0.25), 1), (4, 2, 2), strict=True):
        assert Counter(genres[number] for number in part) == dict.fromkeys(set(genres.values()), size)


THIRDS = (1 / 3, 1 / 3, 1 / 3)


def test_one_file_is_parted_in_three_for_training(single: Path, bert: Path, tmp_path: Path) -> None:
    module = CoreferenceDataModule(
        str(single), parts=THIRDS, encoder=EncoderSpec(str(bert)), cache=str(tmp_path), split_seed=2
    )
    module.setup("fit")
    module.setup("test")
    every = [text.id for text in read_documents(single).documents if text.mentions]
    assert sorted(name for split in SPLITS for name in ids(module, split)) == sorted(every)
    sizes = [len(ids(module, split)) for split in SPLITS]
    assert max(sizes) - min(sizes) <= 1
    assert len(list(tmp_path.rglob("manifest.json"))) == 1
    described = cast(dict[str, dict[str, Any]], module.provenance.data)
    assert [described[split]["ids"] for split in SPLITS] == [list(ids(module, split)) for split in SPLITS]
    audit = cast(dict[str, dict[str, int]], module.provenance.audit)
    assert sum(audit[split]["links"] for split in SPLITS) == audit["file"]["links"]


def test_training_on_one_file_in_halves_is_refused_with_the_remedy(single: Path, tmp_path: Path) -> None:
    module = CoreferenceDataModule(str(single), encoder=None, cache=str(tmp_path))
    with pytest.raises(CorpusError, match=r"no train split.*Part its documents in three: --data.init_args.parts"):
        module.setup("fit")


@pytest.mark.parametrize("parts", [(1.0,), (0.5, 0.4), (0.5, 0.5, 0.0), (0.4, 0.2, 0.2, 0.2), (1.5, -0.5)])
def test_shares_that_cannot_be_are_named(parts: tuple[float, ...]) -> None:
    with pytest.raises(CorpusError, match=r"are no shares of dev and test.*parts \[0.5,0.25,0.25\]"):
        CoreferenceDataModule(encoder=None, parts=parts)


def test_few_documents_cannot_be_parted_in_three(tmp_path: Path) -> None:
    path = write(tmp_path / "two.conll", named(corpus([(4, 4), (6, 6, 6)]), ("news",)))
    module = CoreferenceDataModule(str(path), encoder=None, cache=str(tmp_path), parts=THIRDS)
    with pytest.raises(
        CorpusError, match=r"2 documents with mentions cannot be parted into train, dev and test\..*train: train"
    ):
        module.setup("fit")


def test_one_document_cannot_be_halved(tmp_path: Path) -> None:
    path = write(tmp_path / "one.conll", named(corpus([(4, 4)]), ("news",)))
    with pytest.raises(CorpusError, match=r"one.conll: one document with mentions cannot be parted.*dev: dev.conll"):
        halved(path, str(tmp_path))


# Stores


def test_a_second_setup_extracts_and_parses_nothing(
    bert: Path, by_split: str, cache: str, data: CoreferenceDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datamodules.base.Encoder", None)
    monkeypatch.setattr("datamodules.coreference.read_documents", None)
    again = CoreferenceDataModule(by_split, candidates=data.candidates, encoder=EncoderSpec(str(bert)), cache=cache)
    again.setup("test")
    assert again.splits["dev"].windows == data.splits["dev"].windows


TREE = "\n".join(
    "\n".join(
        f"{place}\t{word}\t_\tX\t_\t_\t{place - 1}\t{'dep' if place > 1 else 'root'}\t_\t_"
        for place, word in enumerate(words.split(), start=1)
    )
    + "\n"
    for words in ("the fox sleeps", "the fox and dogs")
)


def test_parses_give_the_heads_and_are_part_of_the_key(tmp_path: Path) -> None:
    text = document("d", ["the fox sleeps", "the fox and dogs"], [(0, 0, 2, 1, 0), (1, 0, 4, 3, 0)])
    path = write(tmp_path / "a.conll", Documents((text,), {}))

    def module(parses: str | None = None) -> CoreferenceDataModule:
        made = CoreferenceDataModule({"dev": str(path)}, parses=parses, encoder=None, cache=str(tmp_path / "stores"))
        made.setup("validate")
        return made

    def heads(made: CoreferenceDataModule) -> list[int]:
        return [mention.head for window in made.splits["dev"].windows for mention in window.text.mentions]

    alone = module()
    assert "parses_sha256" not in cast(Any, alone.provenance.data["dev"])
    elsewhere = tmp_path / "trees-dev.conllu"
    elsewhere.write_text(TREE + "\n", encoding="utf-8")
    given = module(str(tmp_path / "trees-{split}.conllu"))
    assert heads(given) == [0, 0] != heads(alone)  # every word hangs on the one before it
    (tmp_path / "a.conllu").write_text(TREE + "\n", encoding="utf-8")
    beside = module()
    assert heads(beside) == [0, 0]
    assert beside.stores["dev"].folder == given.stores["dev"].folder != alone.stores["dev"].folder
    described = cast(Any, beside.provenance.data["dev"])
    assert described["parses_sha256"] == beside.stores["dev"].manifest.identity["companion_sha256"]


def test_absent_parses_are_named(by_split: str, tmp_path: Path) -> None:
    module = CoreferenceDataModule(by_split, parses=str(tmp_path / "no.conllu"), encoder=None, cache=str(tmp_path))
    with pytest.raises(CorpusError, match=r"no\.conllu"):
        module.setup("test")


def test_parses_that_do_not_match_are_named(by_split: str, tmp_path: Path) -> None:
    (tmp_path / "other.conllu").write_text(TREE + "\n", encoding="utf-8")
    module = CoreferenceDataModule(by_split, parses=str(tmp_path / "other.conllu"), encoder=None, cache=str(tmp_path))
    with pytest.raises(CorpusError, match=r"other\.conllu"):
        module.setup("test")


def test_too_long_sentences_follow_the_policy(bert: Path, tmp_path: Path) -> None:
    long = document("long", ["the fox", " ".join(["fox"] * 100)], [(0, 0, 1, 0, 0), (1, 2, 90, 2, 0), (1, 3, 4, 3, 1)])
    path = write(tmp_path / "a.conll", Documents((long,), {}))

    def module(options: Options) -> CoreferenceDataModule:
        made = CoreferenceDataModule(
            {"dev": str(path)}, encoder=EncoderSpec(str(bert)), options=options, cache=str(tmp_path)
        )
        made.setup("validate")
        return made

    with pytest.raises(
        AlignmentError, match=r"document long, sentence 2: 100 words.*limit of 64.*mention has 88 words"
    ):
        module(Options())
    with pytest.raises(AlignmentError, match="does not cut sentences"):
        module(Options(too_long="window"))
    assert not list(tmp_path.rglob("manifest.json"))
    audit = cast(Any, module(Options(too_long="skip")).provenance.audit)["dev"]
    assert (audit["skipped_too_long"], audit["skipped_mentions"], audit["skipped_links"]) == (1, 2, 1)


# Provenance


def test_provenance_counts_documents_and_windows_of_every_split(data: CoreferenceDataModule, by_split: str) -> None:
    provenance = data.provenance
    assert provenance.encoder["layers"] == 2
    described = cast(dict[str, dict[str, Any]], provenance.data)
    for split in SPLITS:
        gold = read_documents(Path(by_split.replace("{split}", split)))
        assert described[split]["file"] == f"{split}.conll"
        assert described[split]["documents"] == sum(bool(text.mentions) for text in gold.documents)
        audit = cast(dict[str, int], provenance.audit[split])
        assert described[split]["windows"] == audit["windows"] == len(data.splits[split])
        assert {name: audit[name] for name in gold.audit} == gold.audit
        counts = data.splits[split].counts
        assert (audit["links"], audit["lost_links"]) == (counts["links"], counts["lost_links"])
        assert audit["mentions"] == counts["mentions"]


def test_provenance_of_halves_says_what_is_in_each(single: Path, bert: Path, tmp_path: Path) -> None:
    module = halved(single, str(tmp_path), EncoderSpec(str(bert)))
    provenance = module.provenance
    audit = cast(dict[str, dict[str, int]], provenance.audit)
    assert set(audit) == {"dev", "test", "file"}
    for name in ("windows", "mentions", "links", "lost_links"):
        assert audit["dev"][name] + audit["test"][name] == audit["file"][name]
        assert audit["dev"][name] > 0
    data = cast(dict[str, dict[str, Any]], provenance.data)
    for split in HALVES:
        assert data[split]["ids"] == list(ids(module, split))
        assert data[split]["documents"] == len(data[split]["ids"]) == audit[split]["documents"]
        assert data[split]["windows"] == audit[split]["windows"]
        assert data[split]["split_seed"] == 0


# Errors


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("no_such_corpus", r"no_such_corpus: neither a corpus of the registry \(.*ontogum.*nor a file.*\{split\}"),
        ({"training": "a.conll"}, r"unknown splits \['training'\].*train, dev, test"),
        ("absent/{split}.conll", r"absent/dev.conll"),
    ],
)
def test_a_wrong_corpus_is_named_with_the_remedy(given: str | dict[str, str], message: str, tmp_path: Path) -> None:
    module = CoreferenceDataModule(given, encoder=None, cache=str(tmp_path))
    with pytest.raises(CorpusError, match=message):
        module.setup("validate")


@pytest.mark.parametrize(("stage", "missing"), [("test", "test"), ("fit", "train")])
def test_a_missing_split_is_named_before_anything_is_read(
    stage: str, missing: str, by_split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datamodules.coreference.read_documents", None)
    module = CoreferenceDataModule({"dev": by_split.replace("{split}", "dev")}, encoder=None, cache=str(tmp_path))
    with pytest.raises(CorpusError, match=f"no {missing} split.*--data.init_args.corpus"):
        module.setup(stage)


def test_single_items_are_refused_with_the_remedy(data: CoreferenceDataModule) -> None:
    with pytest.raises(TypeError, match="use_distributed_sampler=False"):
        data.splits["dev"][0]  # type: ignore[index]


# Public corpora


@pytest.mark.parametrize(("name", "dev", "test"), [("ontogum", 20, 20), ("litbank", 10, 10)])
def test_public_corpora_are_read_by_name(
    name: str, dev: int, test: int, tmp_path: Path, public_data: Callable[..., Path]
) -> None:
    module = CoreferenceDataModule(name, root=str(public_data()), encoder=None, cache=str(tmp_path))
    module.setup("test")
    assert (len(ids(module, "dev")), len(ids(module, "test"))) == (dev, test)
    if name == "ontogum":
        for split in HALVES:
            genres = Counter(window.text.genre for window in module.splits[split].windows)
            assert genres == dict.fromkeys(("academic", "bio", "interview", "news", "voyage"), 4)
