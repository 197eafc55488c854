import json
import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attention_probing.attention import Encoder
from attention_probing.attention.alignment import SPELLED, AlignmentError, FromPieces
from attention_probing.attention.extraction import shapes
from attention_probing.attention.source import EncoderSpec, resolve
from attention_probing.attention.specification import Extraction, Items, Options, Precision
from attention_probing.attention.store import HiddenLayers, store_key, write_shard
from attention_probing.corpora.sentence import RunningText, Sentence, Treebank, to_table
from attention_probing.results.digests import Digests
from attention_probing.results.errors import UserError
from tests import tiny
from tests.attention.extractions import LENGTHS, items_of
from tests.measures import passes

LIMIT = 14

# Options


@pytest.mark.parametrize("name", ["layers", "heads"])
@pytest.mark.parametrize("chosen", [(), (0,), (-1, 2), (2, 1), (1, 1)])
def test_numbers_that_mean_nothing_are_refused(name: str, chosen: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=rf"^`{name}` is .*from 1 on in ascending order"):
        Options(**{name: chosen})  # type: ignore[arg-type]


@pytest.fixture
def extraction(bert: Path, tmp_path: Path) -> Extraction:
    corpus = tmp_path / "corpus.conllu"
    corpus.write_text("1\tthe\n")
    return Extraction(corpus, {"format": "conllu", "version": 1}, resolve(EncoderSpec(str(bert))))


@pytest.fixture
def digests(tmp_path: Path) -> Digests:
    return Digests(tmp_path / "stores")


def test_every_ingredient_changes_the_key(extraction: Extraction, digests: Digests, bert: Path, tmp_path: Path) -> None:
    (other := tmp_path / "other.conllu").write_text("1\ta\n")
    specs = [EncoderSpec(str(tiny.save_bert(tmp_path / "other", seed=1)))]
    specs += [EncoderSpec(str(bert), weights="random", seed=seed) for seed in (0, 1)]
    options: list[dict[str, Any]] = [
        *({"layers": (1,)}, {"layers": (2,)}, {"heads": (1,)}, {"precision": "float32"}),
        *({"too_long": "skip"}, {"from_pieces": "first"}, {"spacing": "text"}),
    ]
    ways: list[dict[str, Any]] = [
        *({}, {"corpus": other}, {"reader": {"format": "conllu", "version": 2}}, {"encoder": None}),
        *({"companion": other}, {"candidates": "mentions"}, {"candidates": "words"}, {"hidden": (1,)}),
        {"hidden": (0, 1)},
        *({"encoder": resolve(spec)} for spec in specs),
        *({"options": Options(**each)} for each in options),
    ]
    keys = [store_key(replace(extraction, **way).identity(digests)) for way in ways]
    assert len(set(keys)) == len(keys) == 19
    assert all(len(bytes.fromhex(key)) == 12 for key in keys)


@pytest.mark.parametrize("version", ["STORE_FORMAT", "ALIGNMENT_VERSION"])
def test_every_version_changes_the_key(
    version: str, extraction: Extraction, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store_key(extraction.identity(digests))
    monkeypatch.setattr(f"attention_probing.attention.specification.{version}", 99)
    assert store_key(extraction.identity(digests)) != before


def test_names_and_times_do_not_change_the_key(extraction: Extraction, digests: Digests, tmp_path: Path) -> None:
    before = store_key(extraction.identity(digests))
    moved = extraction.corpus.rename(tmp_path / "moved.conllu")
    os.utime(moved, (1, 1))
    encoder = resolve(EncoderSpec(str(tiny.save_bert(tmp_path / "copy"))))
    assert store_key(replace(extraction, corpus=moved, encoder=encoder).identity(digests)) == before


def test_labels_alone_do_not_depend_on_what_is_taken_from_an_encoder(extraction: Extraction, digests: Digests) -> None:
    alone = replace(extraction, encoder=None)
    for other in (replace(alone, options=Options(layers=(1,))), replace(alone, hidden=(1,))):
        assert other.identity(digests) == alone.identity(digests)


def test_identity_is_plain_json(extraction: Extraction, digests: Digests) -> None:
    identity = replace(extraction, options=Options(layers=(1, 2)), hidden=(0, 2)).identity(digests)
    again = json.loads(json.dumps(identity))
    assert store_key(again) == store_key(identity)
    assert again["corpus_sha256"] == digests.of_file(extraction.corpus)
    assert (again["quantities"], again["hidden"]) == (["attention", "hidden"], [0, 2])
    of_words = replace(extraction, candidates="words").identity(digests)
    assert (of_words["quantities"], of_words["candidates"]) == (["antecedent"], "words")


def test_the_key_of_a_treebank_is_what_it_was(tmp_path: Path) -> None:
    """Stores that lie about stay valid, until STORE_FORMAT rises."""
    identity = {"format": 5, "corpus_sha256": "c", "reader": {"name": "r"}, "encoder": None}
    corpus = tmp_path / "corpus"
    corpus.write_text("c")
    found = Extraction(corpus, {"name": "r"}, None).identity(Digests(tmp_path))
    assert found == identity | {"corpus_sha256": found["corpus_sha256"]}
    assert store_key(identity) == "51c240ee4273eaea9abcb1ab"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """It takes fourteen pieces at once."""
    return Encoder(resolve(EncoderSpec(str(tiny.save_bert(tmp_path_factory.mktemp("short"), max_length=LIMIT)))))


def of_words(*words: str, name: str = "s") -> Sentence:
    """The words in a chain, each the head of the next."""
    n = len(words)
    return Sentence(name, words, tuple(range(n)), ("dep",) * n, ("X",) * n, ("_",) * n)


def treebank(*sentences: Sentence) -> Treebank:
    return Treebank(sentences, {"sentences": len(sentences), "multiple_roots": 3})


def holds(items: Items, *sentences: Sentence) -> bool:
    labels = items.labels.drop_columns([name for name in ("reach",) if name in items.labels.column_names])
    return len(items) == len(sentences) and bool(labels.equals(to_table(sentences)))


@pytest.mark.parametrize("from_pieces", ["mean", "first"])
@pytest.mark.parametrize(
    ("kind", "layers"), [*product(passes.ENCODERS, [None]), ("gemma3", (1,)), ("modernbert", (2,))]
)
def test_the_reach_of_a_word_is_that_of_its_pieces(
    kind: str, layers: tuple[int, ...] | None, from_pieces: FromPieces, tmp_path: Path
) -> None:
    one = Encoder(str(passes.ENCODERS[kind](tmp_path)))
    sentences = [tiny.treebank((9, 4, 14)).sentences[place] for place in range(3)]
    items = items_of(treebank(*sentences), one, Options(layers=layers, from_pieces=from_pieces))
    chosen = [layer - 1 for layer in layers or (1, 2)]
    if kind == "bert":
        assert "reach" not in items.labels.column_names
        return
    for sentence, pieces, found in zip(sentences, items.inputs, items.labels["reach"].to_pylist(), strict=True):
        expected = list[list[list[int]]]()  # of each layer
        for layer in chosen:
            ends = []
            for word in range(1, len(sentence) + 1):
                own = np.flatnonzero(pieces.positions == word).tolist()[: 1 if from_pieces == "first" else None]
                seen = [
                    int(pieces.positions[column])
                    for row, column in product(own, np.flatnonzero(pieces.inside).tolist())
                    if passes.sees(kind, layer, row, column)
                ]
                assert sorted(set(seen)) == list(range(min(seen), max(seen) + 1))
                ends.append([min(seen), max(seen)])
            expected.append(ends)
        assert np.array(found).reshape(len(sentence), -1, 2).swapaxes(0, 1).tolist() == expected


def test_a_word_without_a_piece_reaches_as_far_as_the_piece_before_it(tmp_path: Path) -> None:
    one = Encoder(str(passes.ENCODERS["gpt2"](tmp_path)))
    text = replace(of_words("t", "he", "fox"), running=RunningText("the fox", (0, 1, 4)))
    items = items_of(treebank(text), one, Options(layers=(1,), spacing="text"))
    assert items.inputs[0].pieceless.tolist() == [2]
    assert items.labels["reach"].to_pylist() == [[1, 2, 1, 2, 1, 3]]
    counts = {"pieces_across_words": 1, "words_without_own_piece": 1, "words_respelled": 0, "spelled_with_others": 2}
    assert items.audit.items() >= counts.items()


@pytest.mark.parametrize("kind", ["gemma3", "modernbert"])
def test_the_reach_of_a_word_does_not_depend_on_what_the_encoder_read_before(kind: str, tmp_path: Path) -> None:
    one = Encoder(str(passes.ENCODERS[kind](tmp_path)))
    for lengths in ((1, 1), (2, 14)):
        sentences = tiny.treebank(lengths)
        fresh = items_of(sentences, Encoder(one.source), Options()).labels
        one.allowed(torch.ones(1, 20, dtype=torch.bool))
        assert items_of(sentences, one, Options()).labels.equals(fresh)


SHORT, EXACT, LONG = of_words("the", "fox"), of_words(*["the"] * 12), of_words(*["the"] * 13, name="long")


def test_without_an_encoder_every_sentence_is_kept() -> None:
    items = items_of(treebank(SHORT, LONG), None, Options(layers=(99,)), (0, 99))
    assert holds(items, SHORT, LONG)
    assert (items.inputs, items.layers, items.heads) == ((), (), ())
    assert (items.shards, items.hidden) == ([], HiddenLayers((), 0))
    assert items.audit == {"sentences": 2, "multiple_roots": 3}
    assert items.delimiters == {"start": False, "end": False}


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [("bert", True, True), ("roberta", True, True), ("gpt2", False, False), ("llama", True, False)],
)
def test_delimiters_are_what_the_tokenizer_writes(name: str, start: bool, end: bool, folders: dict[str, Path]) -> None:
    items = items_of(treebank(SHORT), Encoder(resolve(EncoderSpec(str(folders[name])))))
    assert items.delimiters == {"start": start, "end": end}


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_a_sentence_that_just_fits_is_kept(policy: str, encoder: Encoder) -> None:
    items = items_of(treebank(SHORT, EXACT), encoder, Options(too_long=policy))  # type: ignore[arg-type]
    assert holds(items, SHORT, EXACT)
    assert [len(pieces) for pieces in items.inputs] == [4, LIMIT]
    counts = {"words_without_piece", "words_with_unknown_token", "words_cut_apart"}
    counts |= {"skipped_too_long", *SPELLED}
    audit = {"sentences": 2, "multiple_roots": 3} | dict.fromkeys(counts, 0) | {"spelled_as_written": LIMIT}
    assert items.audit == audit


def test_too_long_is_an_error_that_names_the_sentence_and_the_remedy(encoder: Encoder) -> None:
    with pytest.raises(
        AlignmentError,
        match=r"sentence long of 13 words has 15 pieces, but the encoder takes at most 14\. .*too_long='skip'`",
    ):
        items_of(treebank(SHORT, LONG), encoder)


def test_too_long_is_skipped_and_counted(encoder: Encoder) -> None:
    items = items_of(treebank(LONG, SHORT, LONG, EXACT), encoder, Options(too_long="skip"))
    assert holds(items, SHORT, EXACT)
    assert len(items.inputs) == items.audit["skipped_too_long"] == 2
    with pytest.raises(UserError, match=r"^every sentence has more than 14 pieces"):
        items_of(treebank(LONG, LONG), encoder, Options(too_long="skip"))


def test_words_without_their_text_are_refused_as_running_text(encoder: Encoder) -> None:
    with pytest.raises(AlignmentError, match=r"`spacing: text` needs CoNLL-U.*Leave the option out"):
        items_of(treebank(SHORT), encoder, Options(spacing="text"))


def test_unknown_words_are_counted_in_what_is_kept(encoder: Encoder) -> None:
    joiner = "\u200d"
    skipped = of_words(*[joiner] * 13)
    items = items_of(treebank(of_words("the", joiner, joiner), SHORT, skipped), encoder, Options(too_long="skip"))
    assert items.audit["words_without_piece"] == items.audit["words_with_unknown_token"] == 2


@pytest.mark.parametrize(
    ("options", "which"),
    [(Options(layers=(1, 3)), "`layers` contains 3"), (Options(heads=(9,)), "`heads` contains 9")],
)
def test_what_the_encoder_lacks_is_refused(options: Options, which: str, encoder: Encoder) -> None:
    with pytest.raises(UserError, match=f"{which}, but . (layers|heads) have attention"):
        items_of(treebank(SHORT), encoder, options)


@pytest.mark.parametrize("hidden", [(3,), (0, 3), (-1, 2), (2, 1), (1, 1)])
def test_hidden_states_of_layers_that_there_are_not_are_refused(hidden: tuple[int, ...], encoder: Encoder) -> None:
    with pytest.raises(
        UserError, match=r"^`hidden` is \[.*\], but must be .*, from 0 \(the embeddings\) to 2 \(the last"
    ):
        items_of(treebank(SHORT), encoder, Options(), hidden)


@pytest.mark.parametrize("hidden", [(), (0, 1, 2)])
@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_the_estimate_is_the_size_on_disk(
    precision: Precision,
    hidden: tuple[int, ...],
    bert: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("attention_probing.attention.specification.SHARDS", 1)
    options = Options(precision=precision)
    items = items_of(tiny.treebank(LENGTHS), Encoder(str(bert)), options, hidden)
    announced = shapes(items, 0)
    zeros = ((name, torch.zeros(shape, dtype=options.dtype)) for name, shape in announced.items())
    write_shard(tmp_path / "shard", announced, options.dtype, zeros)
    size = (tmp_path / "shard").stat().st_size
    assert size <= items.bytes(0) <= 1.01 * size
