from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from attention_probing.attention import Encoder
from attention_probing.attention.alignment import AlignmentError
from attention_probing.attention.extraction import extract, shapes
from attention_probing.attention.source import EncoderSpec, resolve
from attention_probing.attention.specification import Candidates, Extraction, Items, Options
from attention_probing.corpora.conll2012 import read_documents
from attention_probing.corpora.document import (
    MENTION_TYPES,
    Document,
    Documents,
    Window,
    cut_window,
    windows_from_table,
)
from attention_probing.corpora.sentence import CorpusError, RunningText, Sentence
from attention_probing.corpora.splits import SPLITS, Split
from attention_probing.datamodules import AntecedentBatch, CoreferenceDataModule
from attention_probing.datamodules.coreference import cut_documents, divide_documents
from attention_probing.datamodules.vectors import VectorSpec
from attention_probing.results.errors import UserError
from tests import tiny
from tests.attention import reference
from tests.datamodules.conftest import LENGTHS, named, trainer
from tests.documents import corpus, document, write


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven documents of two genres in one file."""
    folder = tmp_path_factory.mktemp("single")
    return write(folder / "all.conll", named(corpus(LENGTHS, seed=1), "news", "fiction"))


@pytest.fixture(scope="module", params=["mentions", "words"])
def data(request: pytest.FixtureRequest, bert: Path, by_split: str, cache: str) -> CoreferenceDataModule:
    module = CoreferenceDataModule(by_split, candidates=request.param, encoder=EncoderSpec(str(bert)), cache=cache)
    module.setup("fit")
    module.setup("test")
    return module


def ids(module: CoreferenceDataModule, split: Split) -> tuple[str, ...]:
    return module.splits[split].documents


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
        stored = data.stores[split].read("antecedent", index).clone()
        assert torch.equal(batch.weights, stored)
        batch.weights.zero_()  # a batch is its receiver's own
        assert torch.equal(data.stores[split].read("antecedent", index), stored)
        assert batch.weights.dtype == torch.float32
        between = len(set(batch.head_words.tolist()))
        shape = (2, 2, 4, between, len(batch.window)) if data.candidates == "words" else (2, 4, between, between)
        assert batch.weights.shape == shape


def test_a_device_without_a_window_has_an_empty_batch(data: CoreferenceDataModule) -> None:
    data.trainer = trainer(98, 99)
    [batch] = data.val_dataloader()
    data.trainer = None
    assert batch.window is None
    assert batch.index.shape == batch.document.shape == batch.head_words.shape == batch.clusters.shape == (0,)
    assert batch.weights.shape == ((2, 2, 4, 0, 0) if data.candidates == "words" else (2, 4, 0, 0))


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


VECTORS = {"the": (1, 2, 3), "fox": (4, 5, 6), "dogs": (7, 8, 9), "jumpsuit": (-1, 0, 1), "unlazy": (2, 0, 2)}


def test_batches_hold_the_vectors_of_the_head_words(by_split: str, bert: Path, cache: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("".join(f"{word} {a} {b} {c}\n" for word, (a, b, c) in VECTORS.items()), encoding="utf-8")
    module = CoreferenceDataModule(by_split, encoder=EncoderSpec(str(bert)), cache=cache, vectors=VectorSpec(str(path)))
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


@pytest.fixture(scope="module")
def parts(single: Path, bert: Path, tmp_path_factory: pytest.TempPathFactory) -> CoreferenceDataModule:
    cache = str(tmp_path_factory.mktemp("parts"))
    module = CoreferenceDataModule(str(single), encoder=EncoderSpec(str(bert)), cache=cache)
    module.setup("test")
    return module


def test_one_file_is_extracted_once_and_split_by_documents(parts: CoreferenceDataModule, single: Path) -> None:
    assert parts.stores["dev"] is parts.stores["test"]
    assert len(list(parts.cache.rglob("manifest.json"))) == 1
    every = [text.id for text in read_documents(single).documents if text.mentions]
    dev, test = ids(parts, "dev"), ids(parts, "test")
    assert sorted(dev + test) == sorted(every)
    assert list(dev) == [name for name in every if name in dev]  # in the order of the file
    windows = [window for split in parts.splits.values() for window in split.windows]
    assert len(set(windows)) == len(windows) == len(parts.stores["dev"])
    order = sorted(windows, key=lambda window: (window.number, window.first))
    for split, batch in batches(parts):
        assert batch.window is not None
        assert ids(parts, split)[int(batch.document)] == batch.window.text.id
        assert torch.equal(batch.weights, parts.stores["dev"].read("antecedent", order.index(batch.window)))


def test_provenance_of_parts_says_what_is_in_each(parts: CoreferenceDataModule) -> None:
    audit = cast(dict[str, dict[str, int]], parts.provenance.audit)
    assert set(audit) == {"dev", "test", "file"}
    for name in ("windows", "mentions", "links", "lost_links"):
        assert audit["dev"][name] + audit["test"][name] == audit["file"][name]
        assert audit["dev"][name] > 0
    data = cast(dict[str, dict[str, Any]], parts.provenance.data)
    for split in HALVES:
        assert data[split]["ids"] == list(ids(parts, split))
        assert data[split]["documents"] == len(data[split]["ids"]) == audit[split]["documents"]
        assert data[split]["windows"] == audit[split]["windows"]


SIZES = [(8, 8, 8, 8, 8), (1, 1, 1, 1), (3, 5, 2, 7), (1, 4, 9), (2,), (1,)]


def of_genres(sizes: tuple[int, ...]) -> Mapping[int, str]:
    """As many documents of each genre, numbered through."""
    return dict(enumerate(f"g{place}" for place, size in enumerate(sizes) for _ in range(size)))


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
    assert divide_documents(genres, (0.5, 0.5), 3) == (frozenset(first), frozenset(genres) - first)


@pytest.mark.parametrize("shares", [(0.5, 0.25, 0.25), (0.8, 0.1, 0.1), (0.6, 0.2, 0.2), (1 / 3, 1 / 3, 1 / 3)])
@pytest.mark.parametrize("sizes", SIZES)
def test_every_part_has_its_share_over_all(shares: tuple[float, ...], sizes: tuple[int, ...]) -> None:
    genres = of_genres(sizes)
    parts = divide_documents(genres, shares, 0)
    assert sorted(number for part in parts for number in part) == sorted(genres)
    for part, share in zip(parts, shares, strict=True):
        assert abs(len(part) - share * len(genres)) < 1
        if shares == (0.5, 0.25, 0.25) and set(sizes) == {8}:
            assert set(Counter(genres[number] for number in part).values()) == {8 * share}


THIRDS = (1 / 3, 1 / 3, 1 / 3)


@pytest.mark.parametrize("parts", [(1.0,), (0.5, 0.4), (0.5, 0.5, 0.0), (0.4, 0.2, 0.2, 0.2)])
def test_shares_that_cannot_be_are_named(parts: tuple[float, ...]) -> None:
    with pytest.raises(CorpusError, match=r"must be the shares of dev and test.*such as \[0.5,0.25,0.25\]"):
        CoreferenceDataModule(encoder=None, parts=parts)


@pytest.mark.parametrize(
    ("count", "stage", "options", "message"),
    [
        (7, "fit", {}, r"no train split.*Split its documents into three parts: `parts=\[0.5, 0.25, 0.25\]`"),
        (
            1,
            "test",
            {},
            r"few.conll: one document with mentions is too few to be split into dev and test.*'dev': 'b.con",
        ),
        (2, "test", {"parts": THIRDS}, r"2 documents with .* split into train, dev and test .*'train': 'a.con"),
        (
            9,
            "test",
            {"parts": (0.9, 0.05, 0.05), "limit": 5},
            r"documents with .* are too few .* \(`parts`\) within `limit=5`\. Raise the limit, or give one file",
        ),
        (5, "test", {"parts": (0.9, 0.05, 0.05), "limit": 5}, r"are too few .* \(`parts`\)\. Give one file per split"),
    ],
)
def test_what_cannot_be_parted_is_refused(
    count: int, stage: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "few.conll", named(corpus([(4, 4)] * count), "news"))
    module = CoreferenceDataModule(str(path), encoder=None, cache=str(tmp_path), **options)
    with pytest.raises(CorpusError, match=message):
        module.setup(stage)


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

    def module() -> CoreferenceDataModule:
        made = CoreferenceDataModule({"dev": str(path)}, encoder=None, cache=str(tmp_path / "stores"))
        made.setup("validate")
        return made

    def heads(made: CoreferenceDataModule) -> list[int]:
        return [mention.head for window in made.splits["dev"].windows for mention in window.text.mentions]

    alone = module()
    assert "parses_sha256" not in cast(Any, alone.provenance.data["dev"])
    (tmp_path / "a.conllu").write_text(TREE + "\n", encoding="utf-8")
    beside = module()
    assert heads(beside) == [0, 0] != heads(alone)  # every word hangs on the one before it
    assert beside.stores["dev"].folder != alone.stores["dev"].folder
    described = cast(Any, beside.provenance.data["dev"])
    assert described["parses_sha256"] == beside.stores["dev"].manifest.identity["companion_sha256"]


def test_running_text_comes_from_the_treebank_beside_the_documents(encoder: Encoder, tmp_path: Path) -> None:
    text = document("d", ["t he fox", "the dogs ."], [(0, 0, 3, 2, 0), (1, 0, 2, 1, 0)])
    path = write(tmp_path / "a.conll", Documents((text,), {}))
    with pytest.raises(CorpusError, match=r"a\.conll: the format does not say .*Put the treebank .* beside the file"):
        read_documents(path, texts=True)
    without = ["SpaceAfter=No", "_", "_"], ["_", "SpaceAfter=No", "_"]  # the blank after these words
    columns = (0, 1, 2), ("root", "dep", "dep"), ("X",) * 3, ("X",) * 3
    trees = zip((Sentence("s", words, *columns) for words in text.sentences), without, strict=True)
    (tmp_path / "a.conllu").write_text("".join(tree.conllu("the fox", misc) for tree, misc in trees), encoding="utf-8")
    [read] = read_documents(path, texts=True).documents
    assert read.texts == (RunningText("the fox", (0, 1, 4)), RunningText("the dogs.", (0, 4, 8), unlike_comment=True))
    items, _ = cut_up(encoder, read)
    assert encoder.tokenizer.convert_ids_to_tokens(items.inputs[0].ids.tolist())[1:-1] == [
        "the",
        "fox",
        "the",
        "dogs",
        ".",
    ]
    assert items.inputs[0].positions.tolist() == [0, 1, 3, 4, 5, 6, 7]
    assert (items.audit["words_without_own_piece"], items.audit["spelled_with_others"]) == (1, 2)
    assert items.audit["texts_unlike_comment"] == 1
    assert read_documents(path).documents[0].texts == ()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """It takes fourteen pieces at once: twelve words of one piece, and the delimiters."""
    return Encoder(resolve(EncoderSpec(str(tiny.save_bert(tmp_path_factory.mktemp("short"), max_length=14)))))


def of_lengths(*lengths: int, mentions: bool = True) -> Document:
    """Sentences of so many words of one piece; the first word of each is a mention, all of one cluster."""
    spans = [(sentence, 0, 1, 0, 0) for sentence in range(len(lengths))] if mentions else []
    return document("d", [" ".join(["the"] * n) for n in lengths], spans)


def cut_up(
    encoder: Encoder | None,
    *documents: Document,
    candidates: Candidates = "mentions",
    **options: Any,  # noqa: ANN401 # those of the extraction
) -> tuple[Items, tuple[Window, ...]]:
    """What is extracted, and its windows."""
    extraction = Extraction(Path("corpus"), {}, None, Options(precision="float32", **options), candidates=candidates)
    items = cut_documents(extraction, Documents(documents, {"documents": len(documents)}), encoder)
    return items, windows_from_table(items.labels)


LONG = document(
    "bn/long",
    ["the fox", " ".join(["the"] * 9 + ["dogs"] * 4)],
    [(0, 0, 2, 1, 0), (1, 7, 12, 9, 0), (1, 0, 1, 0, 1)],
)
SPARSE = document("d", [" ".join(["the"] * 12)] * 4, [(1, 2, 3, 2, 0), (3, 0, 2, 1, 0)])
SILENT = of_lengths(3, mentions=False)
JOINER = "\u200d"
UNKNOWN = document("d", [f"the {JOINER}", JOINER, " ".join([JOINER] * 13)], [(0, 0, 1, 0, 0), (2, 0, 1, 0, 0)])


@pytest.mark.parametrize(
    ("documents", "expected", "audit"),
    [
        ([of_lengths(5, 7)], [(0, 0, 2)], {"links": 1}),  # exactly full
        ([of_lengths(5, 8)], [(0, 0, 1), (0, 1, 2)], {"lost_links": 1}),  # one piece over
        # The first mention of every window but the first has lost its link.
        ([of_lengths(5, 7, 1, 12, 6)], [(0, 0, 2), (0, 2, 3), (0, 3, 4), (0, 4, 5)], {"links": 4, "lost_links": 3}),
        ([of_lengths(*[1] * 13)], [(0, 0, 12), (0, 12, 13)], {"lost_links": 1}),
        ([of_lengths(2, 3), of_lengths(4, 4, 5)], [(0, 0, 2), (1, 0, 2), (1, 2, 3)], {"lost_links": 1}),
        ([SILENT, SPARSE], [(1, 1, 2), (1, 3, 4)], {"windows_without_mentions": 3, "links": 1, "lost_links": 1}),
        (
            [of_lengths(2, 3, 13, 14, 4, 1, 13)],
            [(0, 0, 2), (0, 4, 6)],
            {"skipped_too_long": 3, "skipped_mentions": 3, "skipped_links": 3, "links": 6, "lost_links": 1},
        ),
        ([LONG], [(0, 0, 1)], {"skipped_mentions": 2, "skipped_links": 1}),
        ([UNKNOWN], [(0, 0, 2)], {"words_without_piece": 2, "words_with_unknown_token": 2}),
    ],
)
def test_sentences_are_joined_as_long_as_they_fit(
    documents: list[Document], expected: list[tuple[int, int, int]], audit: dict[str, int], encoder: Encoder
) -> None:
    items, windows = cut_up(encoder, *documents, too_long="skip")
    assert windows == tuple(cut_window(number, documents[number], start, stop) for number, start, stop in expected)
    for pieces, window in zip(items.inputs, windows, strict=True):
        assert pieces.words == len(window.words)
        assert len(pieces) <= 14
    assert items.audit["windows"] == len(items) == len(expected)
    assert {name: items.audit[name] for name in audit} == audit


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (
            [LONG],
            {},
            r"^document bn/long: sentence 2 of 13 words has 15 pieces and 2 mentions, .* 14\. .*too_long='skip'`\.",
        ),
        ([SILENT, SILENT], {}, r": no mention in 2 documents\. Check that coreference is annotated"),
        (
            [of_lengths(13)],
            {"too_long": "skip"},
            ": all mentions are in sentences of more than 14 pieces, which were skipped",
        ),
        ([of_lengths(2)], {"layers": (3,)}, "^`layers` contains 3, but 2 layers have"),
    ],
)
def test_what_cannot_be_cut(texts: list[Document], options: dict[str, Any], message: str, encoder: Encoder) -> None:
    with pytest.raises((AlignmentError, UserError), match=message):
        cut_up(encoder, *texts, **options)


@pytest.mark.parametrize("seed", range(3))
def test_links_add_up_and_the_lost_ones_are_those_of_a_count_by_brute_force(seed: int, encoder: Encoder) -> None:
    documents = corpus([(3, 1, 2, 5, 20, 2, 1, 3)] * 6, seed)
    items, windows = cut_up(encoder, *documents.documents, too_long="skip")
    window_of = {
        (text.number, text.first + place): item
        for item, text in enumerate(windows)
        for place in range(len(text.text.sentences))
    }
    links = lost = skipped = inside = 0
    for number, text in enumerate(documents.documents):
        for place, mention in enumerate(text.mentions):
            earlier = [other for other in text.mentions[:place] if other.cluster == mention.cluster]
            links += bool(earlier)
            own = window_of.get((number, mention.sentence))
            if own is None:
                skipped += bool(earlier)
            elif any(window_of.get((number, other.sentence)) == own for other in earlier):
                inside += 1
            else:
                lost += bool(earlier)
    assert (items.audit["links"], items.audit["lost_links"], items.audit["skipped_links"]) == (links, lost, skipped)
    assert links == inside + lost + skipped
    assert lost > 0
    assert skipped > 0


@pytest.mark.parametrize("candidates", ["mentions", "words"])
@pytest.mark.parametrize("taken", [{}, {"layers": (2,), "heads": (1, 4)}], ids=["all", "some heads"])
def test_stored_blocks_are_slices(candidates: Candidates, taken: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    folder = tiny.save_bert(tmp_path, max_length=40)
    encoder = Encoder(resolve(EncoderSpec(str(folder))))
    documents = corpus([(4, 3, 6), (2, 5, 3, 1), (7, 7, 2, 3)]).documents
    items, windows = cut_up(encoder, *documents, candidates=candidates, **taken)
    found = {name: tensor for _, name, tensor in extract(encoder, items, [0])}
    assert list(shapes(items, 0).items()) == [(name, tuple(tensor.shape)) for name, tensor in found.items()]
    assert found.keys() == {f"antecedent.{item}" for item in range(len(items))}
    assert len(items) > 2
    for item, text in enumerate(windows):
        pieces, positions = reference.split(encoder.tokenizer, text.words, "")
        whole = reference.reduced(reference.attention(folder, pieces), positions, len(text))
        whole = whole[np.ix_(items.layers, items.heads)]
        heads = sorted({sum(map(len, text.text.sentences[: m.sentence])) + m.head for m in text.text.mentions})
        shape = (len(items.layers), len(items.heads), len(heads))
        if candidates == "mentions":
            expected = np.empty((*shape, len(heads)))
            for row, source in enumerate(heads):
                for column, target in enumerate(heads):
                    expected[..., row, column] = whole[..., source + 1, target + 1]
        else:
            expected = np.empty((2, *shape, len(text)))
            for row, head in enumerate(heads):
                for word in range(len(text)):
                    expected[0, ..., row, word] = whole[..., head + 1, word + 1]
                    expected[1, ..., row, word] = whole[..., word + 1, head + 1]
        np.testing.assert_allclose(found[f"antecedent.{item}"].numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "dev", "test"), [("ontogum", 20, 20), ("litbank", 10, 10)])
def test_public_corpora_by_name(
    name: str, dev: int, test: int, tmp_path: Path, public_data: Callable[..., Path]
) -> None:
    module = CoreferenceDataModule(name, root=str(public_data()), encoder=None, cache=str(tmp_path))
    module.setup("test")
    assert (len(ids(module, "dev")), len(ids(module, "test"))) == (dev, test)
    if name == "ontogum":
        for split in HALVES:
            genres = Counter(window.text.genre for window in module.splits[split].windows)
            assert genres == dict.fromkeys(("academic", "bio", "interview", "news", "voyage"), 4)
