from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from attention.alignment import AlignmentError, join_sentences, split_words
from attention.digest import Digests
from attention.encoder import Encoder, EncoderSpec, resolve
from attention.extraction import make_store, open_store
from attention.forward import extract, shapes
from attention.specification import Candidates, Extraction, Items, Options
from attention.store import StoreError, write_shard
from corpora.document import Document, Documents, Window, cut, windows_from_table
from datamodules.coreference import cut_documents
from tests import tiny
from tests.attention import reference
from tests.attention.extractions import small_shards
from tests.documents import corpus, document

LIMIT = 14
FLOAT32 = Options(precision="float32")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """It takes fourteen pieces at once: twelve words of one piece, and the delimiters."""
    return Encoder(resolve(EncoderSpec(str(tiny.save_bert(tmp_path_factory.mktemp("short"), max_length=LIMIT)))))


def of_lengths(*lengths: int, name: str = "d", mentions: bool = True) -> Document:
    """Sentences of so many words of one piece; the first word of each is a mention, all of one cluster."""
    spans = [(sentence, 0, 1, 0, 0) for sentence in range(len(lengths))] if mentions else []
    return document(name, [" ".join(["the"] * n) for n in lengths], spans)


def items_of(
    encoder: Encoder | None,
    documents: Documents,
    options: Options = FLOAT32,
    candidates: Candidates = "mentions",
) -> Items:
    return cut_documents(Extraction(Path("corpus"), {}, None, options, candidates=candidates), documents, encoder)


def cut_up(encoder: Encoder | None, *documents: Document, options: Options = FLOAT32) -> Items:
    return items_of(encoder, Documents(documents, {"documents": len(documents)}), options)


def windows(items: Items) -> tuple[Window, ...]:
    return windows_from_table(items.labels)


def bounds(items: Items) -> list[tuple[int, int, int]]:
    """Document, first sentence and the one behind the last of every window."""
    return [(each.number, each.first, each.first + len(each.text.sentences)) for each in windows(items)]


# Windows


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ((12,), [(0, 1)]),
        ((5, 7), [(0, 2)]),  # exactly full
        ((5, 8), [(0, 1), (1, 2)]),  # one piece over
        ((5, 7, 1, 12, 6, 6, 6), [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]),
        ((1,) * 13, [(0, 12), (12, 13)]),
        ((3, 3, 3, 3, 1, 11, 1), [(0, 4), (4, 6), (6, 7)]),
    ],
)
def test_sentences_are_joined_as_long_as_they_fit(
    lengths: tuple[int, ...], expected: list[tuple[int, int]], encoder: Encoder
) -> None:
    text = of_lengths(*lengths)
    items = cut_up(encoder, text)
    assert bounds(items) == [(0, *pair) for pair in expected]
    assert windows(items) == tuple(cut(0, text, *pair) for pair in expected)
    for [pieces], (start, stop) in zip(items.inputs, expected, strict=True):
        assert len(pieces) == sum(lengths[start:stop]) + 2 <= LIMIT
    assert (items.audit["windows"], items.audit["windows_without_mentions"]) == (len(expected), 0)
    assert items.audit["links"] == len(lengths) - 1
    assert items.audit["lost_links"] == len(expected) - 1  # the first mention of every window but the first


def test_windows_end_with_their_document(encoder: Encoder) -> None:
    items = cut_up(encoder, of_lengths(2, 3), of_lengths(2), of_lengths(4, 4, 5))
    assert bounds(items) == [(0, 0, 2), (1, 0, 1), (2, 0, 2), (2, 2, 3)]
    assert items.audit["lost_links"] == 1


def test_windows_without_a_mention_are_left_out_and_counted(encoder: Encoder) -> None:
    text = document("d", [" ".join(["the"] * 12)] * 4, [(1, 2, 3, 2, 0), (3, 0, 2, 1, 0)])
    items = cut_up(encoder, of_lengths(3, mentions=False), text)
    assert bounds(items) == [(1, 1, 2), (1, 3, 4)]
    assert len(items) == len(items.inputs) == 2
    assert (items.audit["windows"], items.audit["windows_without_mentions"]) == (2, 3)
    assert (items.audit["links"], items.audit["lost_links"]) == (1, 1)


def test_without_an_encoder_every_document_is_one_window() -> None:
    documents = of_lengths(50, 40), of_lengths(3, mentions=False), of_lengths(2)
    items = cut_up(None, *documents, options=Options(layers=(99,)))
    assert bounds(items) == [(0, 0, 2), (2, 0, 1)]
    assert (items.inputs, items.layers, items.heads, items.shards) == ((), (), (), [])
    assert [text.text for text in windows(items)] == [documents[0], documents[2]]
    assert items.audit["lost_links"] == 0


@pytest.mark.parametrize("seed", range(3))
def test_links_add_up_and_the_lost_ones_are_those_of_a_count_by_brute_force(seed: int, encoder: Encoder) -> None:
    documents = corpus([(3, 1, 2, 5, 20, 2, 1, 3)] * 6, seed)
    items = items_of(encoder, documents, Options(too_long="skip"))
    window_of = {
        (text.number, text.first + place): item
        for item, text in enumerate(windows(items))
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


# Pieces


@pytest.mark.parametrize(
    ("save", "blank"),
    [(tiny.save_bert, ""), (tiny.save_roberta, " "), (tiny.save_gpt2, " "), (tiny.save_llama, "")],
)
def test_pieces_of_joined_sentences_are_those_of_one_long_sentence(
    save: Callable[[Path], Path], blank: str, tmp_path: Path
) -> None:
    tokenizer = Encoder(resolve(EncoderSpec(str(save(tmp_path))))).tokenizer
    for sentences in ([["the", "fox"]], [["foxglove"], ["the", "unlazy", "dogs"], [",", "overdrinks", "."]]):
        words = [word for sentence in sentences for word in sentence]
        pieces = join_sentences(split_words(tokenizer, sentences))
        [whole] = split_words(tokenizer, [words])
        ids, positions = reference.split(tokenizer, words, blank)
        assert (pieces.ids.tolist(), pieces.positions.tolist(), pieces.words, pieces.first) == (
            ids,
            positions,
            len(words),
            0,
        )
        np.testing.assert_array_equal(pieces.ids, whole.ids)
        assert pieces.ids.dtype == pieces.positions.dtype == np.dtype(np.int32)


def test_unknown_words_are_counted_in_what_is_kept(encoder: Encoder) -> None:
    joiner = "\u200d"
    text = document("d", [f"the {joiner}", joiner, " ".join([joiner] * 13)], [(0, 0, 1, 0, 0), (2, 0, 1, 0, 0)])
    silent = document("e", [joiner])
    assert cut_up(encoder, text, silent, options=Options(too_long="skip")).audit["words_without_piece"] == 2
    pieces = join_sentences(split_words(encoder.tokenizer, text.sentences[:2]))
    assert (pieces.unknown, pieces.with_unknown) == (2, 2)


# What is stored


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_bert(tmp_path_factory.mktemp("bert"), max_length=40)


def full(folder: Path, items: Items, item: int) -> reference.Floats:
    """All attention of a window, the slow way: `[layers, heads, n+2, n+2]`."""
    ids, positions = reference.split(
        Encoder(resolve(EncoderSpec(str(folder)))).tokenizer, windows(items)[item].words, ""
    )
    return reference.reduced(reference.attention(folder, ids), positions, len(windows(items)[item]))


@pytest.mark.parametrize("candidates", ["mentions", "words"])
@pytest.mark.parametrize("taken", [{}, {"layers": (2,), "heads": (1, 4)}], ids=["all", "some heads"])
def test_stored_blocks_are_slices_of_the_full_attention(
    candidates: Candidates, taken: dict[str, tuple[int, ...]], folder: Path
) -> None:
    encoder = Encoder(resolve(EncoderSpec(str(folder))))
    options = Options(precision="float32", layers=taken.get("layers"), heads=taken.get("heads"))
    items = items_of(encoder, corpus([(4, 3, 6), (2, 5, 3, 1), (7, 7, 2, 3)]), options, candidates)
    found = {name: tensor for _, name, tensor in extract(encoder, items, [0])}
    assert list(shapes(items, 0).items()) == [(name, tuple(tensor.shape)) for name, tensor in found.items()]
    assert found.keys() == {f"antecedent.{item}" for item in range(len(items))}
    assert len(items) > 2
    for item, text in enumerate(windows(items)):
        whole = full(folder, items, item)[np.ix_(items.layers, items.heads)]
        heads = sorted(
            {sum(map(len, text.text.sentences[: m.sentence])) + m.head for m in text.text.mentions}
        )  # fmt: skip
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


@pytest.mark.parametrize("candidates", ["mentions", "words"])
def test_the_estimate_is_the_size_on_disk(candidates: Candidates, tmp_path: Path) -> None:
    encoder = Encoder(resolve(EncoderSpec(str(tiny.save_bert(tmp_path / "bert", max_length=512)))))
    items = items_of(encoder, corpus([(8,) * 40] * 4), FLOAT32, candidates)
    announced = shapes(items, 0)
    zeros = ((name, torch.zeros(shape)) for name, shape in announced.items())
    write_shard(tmp_path / "shard", announced, torch.float32, zeros)
    size = (tmp_path / "shard").stat().st_size
    assert size <= items.bytes(0) <= 1.01 * size


# Sentences over the limit


LONG = document(
    "bn/long",
    ["the fox", " ".join(["the"] * 9 + ["dogs"] * 4)],
    [(0, 0, 2, 1, 0), (1, 7, 12, 9, 0), (1, 0, 1, 0, 1)],
)


def test_too_long_is_an_error_that_names_document_sentence_and_longest_mention(encoder: Encoder) -> None:
    with pytest.raises(AlignmentError) as error:
        cut_up(encoder, LONG)
    assert str(error.value) == (
        "document bn/long, sentence 2: 13 words, 15 pieces, over the limit of 14; its longest mention has 5 words "
        "('the the dogs dogs dogs'). --data.init_args.options.too_long skip leaves such sentences out, and counts "
        "them, their mentions and links."
    )


def test_a_mention_longer_than_the_window_is_named_shortened(encoder: Encoder) -> None:
    text = document("d", [" ".join(f"word{n}" for n in range(40))], [(0, 1, 40, 3, 0), (0, 0, 1, 0, 0)])
    with pytest.raises(AlignmentError, match=r"its longest mention has 39 words \('word1 word2 .{30,50} …'\)"):
        cut_up(encoder, text)
    with pytest.raises(AlignmentError, match="it has no mention"):
        cut_up(encoder, of_lengths(13, mentions=False))


def test_window_is_refused_because_coreference_does_not_cut_sentences(encoder: Encoder) -> None:
    with pytest.raises(AlignmentError, match=r"bn/long, sentence 2.*does not cut sentences.*too_long skip"):
        cut_up(encoder, LONG, options=Options(too_long="window"))
    assert len(cut_up(encoder, of_lengths(5, 7), options=Options(too_long="window"))) == 1


def test_skipped_sentences_part_windows_and_are_counted_with_what_is_in_them(encoder: Encoder) -> None:
    items = cut_up(encoder, of_lengths(2, 3, 13, 14, 4, 1, 13), options=Options(too_long="skip"))
    assert bounds(items) == [(0, 0, 2), (0, 4, 6)]
    counts = {name: items.audit[name] for name in items.audit if name.startswith("skipped")}
    assert counts == {"skipped_too_long": 3, "skipped_mentions": 3, "skipped_links": 3}
    assert (items.audit["links"], items.audit["lost_links"]) == (6, 1)
    assert bounds(cut_up(encoder, LONG, options=Options(too_long="skip"))) == [(0, 0, 1)]


def test_a_corpus_of_which_nothing_is_left_makes_no_store(encoder: Encoder) -> None:
    with pytest.raises(StoreError, match=r"No mention in 2 windows of 2 documents\. Is coreference annotated"):
        cut_up(encoder, of_lengths(3, mentions=False), of_lengths(5, mentions=False))
    with pytest.raises(StoreError, match=r"1 sentences over 14 pieces, with 1 mentions, were skipped"):
        cut_up(encoder, of_lengths(13), options=Options(too_long="skip"))


def test_what_the_encoder_lacks_is_refused(encoder: Encoder) -> None:
    with pytest.raises(StoreError, match="layers: 3 is asked for, and the encoder has"):
        cut_up(encoder, of_lengths(2), options=Options(layers=(3,)))


# The store


@pytest.mark.parametrize("candidates", ["mentions", "words", None])
def test_a_store_gives_windows_and_weights_back(candidates: Candidates | None, bert: Path, tmp_path: Path) -> None:
    """Also without an encoder: the windows alone."""
    (tmp_path / "corpus").write_text("c")
    lengths = ((5, 9, 3), (7, 8, 12, 4), (6, 8, 9), (9, 2), (3, 1, 8, 10, 6), (4, 11), (7, 7, 7, 7, 7))
    encoder = Encoder(resolve(EncoderSpec(str(bert)))) if candidates else None
    source = encoder.source if encoder else None
    extraction = Extraction(tmp_path / "corpus", {"name": "r"}, source, candidates=candidates or "mentions")
    items = cut_documents(extraction, corpus(lengths), encoder)
    with small_shards():
        digests = Digests(tmp_path)
        make_store(items, tmp_path, digests, encoder)
        store = open_store(extraction, tmp_path, digests)
        assert store is not None
        assert windows_from_table(store.labels) == windows(items)
        assert len(store) == len(items) >= len(lengths)
        assert store.manifest.audit == items.audit
        assert len(store.manifest.shards) == (3 if candidates else 0)
        for item in range(len(items) if candidates else 0):
            stored = store.read("antecedent", item)
            assert (tuple(stored.shape), stored.dtype) == (items.shapes(item)["antecedent"], torch.float32)
            assert stored.any()
