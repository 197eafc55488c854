import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import BertTokenizer, PreTrainedTokenizerFast, RobertaTokenizer

from attention_probing.attention.alignment import (
    LONG,
    SHARED,
    SPELLED,
    AlignedPieces,
    AlignmentError,
    FromPieces,
    count_words,
    join_sentences,
    readable,
    reduction,
    spell_normalised,
    split_words,
)
from attention_probing.corpora.sentence import RunningText
from tests import tiny
from tests.attention import reference

TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "bert": tiny.bert_tokenizer,
    "roberta": tiny.roberta_tokenizer,
    "gpt2": tiny.gpt2_tokenizer,
    "llama": tiny.llama_tokenizer,
}

SENTENCES = {
    "plain": ("the", "fox", "jumps", "over", "the", "dogs", "."),
    "in pieces": ("unlazy", "foxglove", "the", "overdrinks", "smallest", "dogged"),
    "one word": ("coffee",),
    "accents": ("naïve", "café", "nai\u0308ve", "CAFÉ", "łódź", "Ö"),
    "other scripts": ("日本語", "кофе", "👩\u200d💻", "e\u0301"),
    "inner blanks": ("1 000", "the fox", "a  b"),
    "special tokens": ("[SEP]", "the", "<s>", "[CLS]", "</s>", "<|endoftext|>", "[UNK]", "<unk>", "[PAD]"),
    "punctuation": ("...", "--", "``", "o'clock", "www.fox.org/~dogs", "$1.50"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_words_are_cut_as_each_alone(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    batch = split_words(tokenizer, list(SENTENCES.values()))
    for pieces, sentence in zip(batch, SENTENCES.values(), strict=True):
        ids, positions = reference.split(tokenizer, sentence, reference.ENCODERS[name][1])
        assert pieces.ids.tolist() == ids
        assert pieces.positions.tolist() == positions
        assert (pieces.words, len(pieces)) == (len(sentence), len(ids))


def bpe(*words: str, **options: Any) -> PreTrainedTokenizerFast:  # noqa: ANN401
    """BPE with all letters, and with these words as pieces; options are steps of the tokenizer."""
    letters = dict.fromkeys("▁ abcdefghijklmnopqrstuvwxyz0123456789.")
    vocabulary = dict.fromkeys(["<unk>", *letters, *(word[:end] for word in words for end in range(1, len(word) + 1))])
    merges = [(word[:end], word[end]) for word in words for end in range(1, len(word))]
    backend = Tokenizer(
        BPE(vocab={piece: place for place, piece in enumerate(vocabulary)}, merges=[*dict.fromkeys(merges)], **UNKNOWN)
    )
    for step, value in options.items():
        setattr(backend, step, value)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")  # type: ignore[no-untyped-call]


UNKNOWN: dict[str, Any] = {"unk_token": "<unk>"}
BLANK = normalizers.Replace(" ", "▁")
PIECES = ("▁the", "▁garden", "▁wa", "▁old", "the", "garden")

KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "gemma": tiny.gemma_tokenizer,
    "replaced": lambda: bpe(*PIECES, normalizer=BLANK),
    "replaced and split": lambda: bpe(
        *PIECES, normalizer=BLANK, pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous")
    ),
    "never prepended": lambda: bpe(*PIECES, pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="never")),
    "first prepended": lambda: bpe(*PIECES, pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first")),
    "prepended": lambda: bpe(
        *PIECES, normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ),
    "blank behind": lambda: bpe(
        "the ", "garden ", "old", pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous")
    ),
    "bert": tiny.bert_tokenizer,
}
RUNNING = (
    ("the", "gardener", "waters", "the", "old", "garden", "."),
    ("garden",),
    ("in", "1990", "the", "foxes", ".", "1"),
    ("a", "1 000", "fox", "the old", "garden"),
)


def in_text(tokenizer: PreTrainedTokenizerFast, words: Sequence[str]) -> tuple[list[int], list[int]]:
    """Pieces of the joined words, each with the word of its first character that is no blank between words."""
    text = " ".join(words)
    owners = [word + 1 for word, form in enumerate(words) for _ in " " + form][1:]
    encoded = tokenizer(text, return_offsets_mapping=True)
    positions, word = [], 0
    for passage, (start, _) in zip(encoded.sequence_ids(), encoded["offset_mapping"], strict=True):
        word = owners[start] if passage is not None else word and len(words) + 1
        positions.append(word)
    return encoded["input_ids"], positions


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_those_of_the_words_joined_by_blanks(kind: str) -> None:
    tokenizer = KINDS[kind]()
    for pieces, words in zip(split_words(tokenizer, RUNNING), RUNNING, strict=True):
        assert (pieces.ids.tolist(), pieces.positions.tolist()) == in_text(tokenizer, words)
        assert (pieces.words, pieces.unknown, pieces.apart) == (len(words), 0, 0)


def test_sentences_of_one_text_begin_after_a_blank() -> None:
    sentences = ("the", "garden"), ("the", "old", "garden"), ("garden",)
    for kind, make in KINDS.items():
        if kind != "blank behind":
            joined = join_sentences(split_words(tokenizer := make(), sentences, consecutive=True))
            expected = in_text(tokenizer, [word for sentence in sentences for word in sentence])
            assert (joined.ids.tolist(), joined.positions.tolist()) == expected, kind


def test_words_that_share_a_piece_are_cut_apart_and_counted() -> None:
    tokenizer = bpe("the▁old", *PIECES, normalizer=BLANK)
    assert tokenizer.tokenize("in the old garden") == ["i", "n", "▁", "the▁old", "▁garden"]
    shared, other = split_words(tokenizer, [("in", "the", "old", "garden"), ("old", "the")])
    assert tokenizer.convert_ids_to_tokens(shared.ids.tolist()) == ["i", "n", "▁", "the", "▁old", "▁garden"]
    assert shared.positions.tolist() == [1, 1, 2, 2, 3, 4]
    assert (shared.apart, other.apart) == (2, 0)


def test_offsets_that_are_wrong_behind_dropped_characters_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(UNKNOWN, "unk_token")
    tokenizer = bpe(*PIECES, pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    assert tokenizer.backend_tokenizer.encode("éé the fox").offsets[1] == (0, 3)  # of "▁the", which is (2, 6)
    [pieces] = split_words(tokenizer, [("éé", "the", "fox")])
    assert tokenizer.convert_ids_to_tokens(pieces.ids.tolist()) == ["▁", "▁the", "▁", "f", "o", "x"]
    assert (pieces.positions.tolist(), pieces.apart) == ([1, 2, 3, 3, 3, 3], 0)


def running(text: str, *words: str) -> RunningText:
    """The text with these words, each found behind the one before."""
    starts = [0]
    for before, word in pairwise(words):
        starts.append(text.index(word, starts[-1] + len(before)))
    return RunningText(text, tuple(starts))


# Blanks, apostrophes, unspaced and right-to-left scripts, and a letter whose combining mark is the next word.
TEXTS = (
    running("the gardener waters, the old garden.", "the", "gardener", "waters", ",", "the", "old", "garden", "."),
    running("the dogs aren't 1990.", "the", "dogs", "are", "n't", "1990", "."),
    running("我喜欢老花园。1990", "我", "喜欢", "老", "花园", "。", "1990"),
    running("בבית הגדול, كتابها؟", "ב", "בית", "ה", "גדול", ",", "كتاب", "ها", "؟"),
    running("cafe\u0301 a", "cafe", "\u0301", "a"),
    RunningText("the zu fox", (0, 4, 6, 7)),  # a word without a character
)
LETTERS = "我喜欢老花园。בתהגדוליكتابها؟,'é\u0301"
UNSPACED = ("欢老", "园。", "בב", "הג", "كتابها", "n't", "en'", "garden.", "éa")

RAW: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "bert": tiny.bert_tokenizer,  # it has no mark of a blank
    "gpt2": tiny.gpt2_tokenizer,
    "roberta": tiny.roberta_tokenizer,
    "unspaced": lambda: bpe(*PIECES, *UNSPACED, *LETTERS, normalizer=BLANK),
    "composed": lambda: bpe(
        *PIECES, *UNSPACED, *LETTERS, normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="always"),
    ),
}  # fmt: skip


def of_raw_text(tokenizer: PreTrainedTokenizerFast, text: RunningText, lead: str) -> tuple[list[int], list[int]]:
    """Pieces of the text, each with the last word that begins, with the blank before it, at or before the piece."""
    encoded = tokenizer(lead + text.text, return_offsets_mapping=True, add_special_tokens=False)
    positions = []
    for place, _ in encoded["offset_mapping"]:
        while (lead + text.text)[place] == " ":
            place += 1
        positions.append(max(1, sum(word <= max(place - len(lead), 0) for word in text.starts)))
    return encoded["input_ids"], positions


@pytest.mark.parametrize("kind", RAW)
def test_pieces_of_running_text_are_those_of_the_text_and_belong_to_the_word_in_which_they_begin(kind: str) -> None:
    tokenizer, shared = RAW[kind](), 0
    lead = " " if kind in ("gpt2", "roberta") else ""
    for pieces, text in zip(split_words(tokenizer, [text.parts for text in TEXTS], texts=TEXTS), TEXTS, strict=True):
        ids, positions = of_raw_text(tokenizer, text, lead)
        assert (pieces.ids[pieces.inside].tolist(), pieces.positions[pieces.inside].tolist()) == (ids, positions)
        assert (pieces.words, pieces.unknown, pieces.apart) == (len(text.starts), 0, 0)
        without = sorted({*range(1, len(text.starts) + 1)} - {*positions})
        assert pieces.pieceless.tolist() == without
        counts = count_words(tokenizer, pieces, text.parts, [text])
        assert counts["words_without_own_piece"] == len(without)
        assert counts["spelled_otherwise"] == 0
        shared += counts["pieces_across_words"]
    assert shared > (4 if kind in ("unspaced", "composed") else 0)


def test_a_piece_across_words_is_shared_by_all_of_them() -> None:
    text = running("我喜欢老花园。", "我", "喜欢", "老", "花", "园", "。")
    [pieces] = split_words(RAW["unspaced"](), [text.parts], texts=[text])
    assert pieces.positions.tolist() == [1, 2, 2, 4, 5]  # 我 喜 欢老 花 园。
    assert (pieces.joined, pieces.pieceless.tolist()) == ((3, 6), [3, 6])
    assert [of.tolist() for of in pieces.readers] == [[0, 1, 2, 2, 3, 4, 4], [1, 2, 2, 3, 4, 5, 6]]
    known = {"spelled_as_written": 2, "spelled_with_others": 4}
    counts = count_words(RAW["unspaced"](), pieces, text.parts, [replace(text, respelled=3, unlike_comment=True)])
    assert {name: counts[name] for name in SPELLED} == dict.fromkeys(SPELLED, 0) | known
    assert [counts[name] for name in SHARED] == [2, 2, 3, 1]
    two = join_sentences([pieces, pieces])
    assert (two.joined, two.pieceless.tolist()) == ((3, 6, 9, 12), [3, 6, 9, 12])
    assert count_words(RAW["unspaced"](), two, text.parts * 2, [text] * 2)["pieces_across_words"] == 4


def test_words_are_cut_alone_if_the_offsets_do_not_reach_the_end_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(UNKNOWN, "unk_token")
    tokenizer = bpe(*PIECES, pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    words = ("öö", "the", "fox")
    [pieces] = split_words(tokenizer, [words], texts=[running(" ".join(words), *words)])
    assert tokenizer.convert_ids_to_tokens(pieces.ids.tolist()) == ["▁", "▁the", "▁", "f", "o", "x"]
    assert (pieces.positions.tolist(), pieces.joined) == ([1, 2, 3, 3, 3, 3], ())


def test_letters_that_normalisation_drops_are_those_whose_marks_a_plain_loop_drops() -> None:
    tokenizer = tiny.bert_tokenizer()
    for form in ("fox", "FOX", "ﬁx", "café", "cafe\u0301", "çalışıyor", "không", "Straße", "여우", "日本", "ё"):
        plain = ""
        for letter in unicodedata.normalize("NFD", form.lower()):
            if unicodedata.category(letter) != "Mn":
                plain += letter
        has_marks = unicodedata.normalize("NFC", plain) != unicodedata.normalize("NFC", form.lower())
        assert spell_normalised(tokenizer, form) == (plain if has_marks else None), form
    assert spell_normalised(RAW["unspaced"](), "café") is None, "it normalises nothing"


@pytest.mark.parametrize("form", ["می\u200cشود", "co\u00adop", "\u200ffox"])
def test_a_format_character_that_normalisation_drops_is_no_lost_letter(form: str) -> None:
    character = next(letter for letter in form if unicodedata.category(letter) == "Cf")
    dropping = tiny.bert_tokenizer()
    spacing = bpe("fox", normalizer=normalizers.Replace(character, " "))  # as that of multilingual-e5-small
    for tokenizer in (dropping, spacing):
        assert character not in tokenizer.backend_tokenizer.normalizer.normalize_str(form)
        assert spell_normalised(tokenizer, form) is None
    assert spell_normalised(dropping, f"{form}é") == f"{form.replace(character, '')}e", "the accent is lost"


def test_what_pieces_spell_is_counted_by_kind() -> None:
    words = ("The", "café", "fox", "日本", "x日", "\u200d")
    [pieces] = split_words(tiny.bert_tokenizer(), [words])
    known = {"spelled_as_written": 1, "spelled_normalised": 2, "spelled_with_unknown_token": 3}
    counts = count_words(tiny.bert_tokenizer(), pieces, words)
    assert {name: counts[name] for name in SPELLED} == dict.fromkeys(SPELLED, 0) | known
    moved = replace(pieces, positions=np.append(pieces.positions[1:], pieces.words + 1).astype(np.int32))
    assert count_words(tiny.bert_tokenizer(), moved, words)["spelled_otherwise"] >= 4
    [other] = split_words(tiny.bert_tokenizer(), [("the", "coffee", "fox", "日本", "y日", "fox")])
    assert count_words(tiny.bert_tokenizer(), other, words)["spelled_otherwise"] == 3  # coffee, y日, fox


@pytest.mark.parametrize("name", TOKENIZERS)
def test_readable_pieces_are_the_text_of_the_word(name: str) -> None:
    """Joined, with the bytes of characters that are cut through put together again."""
    tokenizer, cut = TOKENIZERS[name](), 0
    for word in ("unlazy", "café", "日本語", "łódź", "👩", "…", "Ġ", "\ufffd"):
        [pieces] = split_words(tokenizer, [[word]])
        ids = pieces.ids[pieces.inside].tolist()
        names = readable(tokenizer, ids)
        if name == "bert":
            assert names == tokenizer.convert_ids_to_tokens(ids)
        elif name != "llama" or word == "unlazy":  # it drops letters that it does not know
            spelled = "".join(names).replace("␣", "").encode()
            whole = re.sub(rb"\\x([0-9a-f]{2})", lambda byte: bytes.fromhex(byte[1].decode()), spelled)
            assert whole.decode() == word
            cut += whole != spelled
    assert (cut > 0) == (name in ("roberta", "gpt2"))


def test_blanks_line_ends_and_added_tokens_can_be_read() -> None:
    tokenizer = tiny.gpt2_tokenizer()
    ids = tokenizer(" the\n \u200d<|endoftext|>")["input_ids"]
    assert "".join(readable(tokenizer, ids)).endswith("the\\n␣\\xe2\\x80\\x8d<|endoftext|>")
    fallback = Tokenizer(BPE({"▁": 0, "<0xC3>": 1, "<0xA9>": 2, "a▁b": 3, "\n": 4}, [], byte_fallback=True))
    fallback.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    fast = PreTrainedTokenizerFast(tokenizer_object=fallback, additional_special_tokens=["<｜of▁start｜>"])  # type: ignore[no-untyped-call]
    assert readable(fast, range(7)) == ["␣", "<0xC3>", "<0xA9>", "a b", "\\n", "<｜of▁start｜>", "<6>"]


def test_a_tokenizer_that_writes_the_blank_itself_gets_no_second_one(tmp_path: Path) -> None:
    tiny.roberta_tokenizer().save_pretrained(tmp_path)
    tokenizer = RobertaTokenizer.from_pretrained(tmp_path, add_prefix_space=True)
    assert tokenizer.tokenize("the") == ["Ġthe"]
    expected = split_words(tiny.roberta_tokenizer(), list(SENTENCES.values()))
    found = split_words(tokenizer, list(SENTENCES.values()))
    assert [pieces.ids.tolist() for pieces in found] == [pieces.ids.tolist() for pieces in expected]


def test_words_with_the_unknown_token_among_their_pieces_are_counted() -> None:
    sentences = ("the", "日本", "fox", "fox-日-fox", "\u200d"), ("the", "fox", "[SEP]")
    pieces, known = split_words(tiny.bert_tokenizer(), sentences)
    assert (pieces.with_unknown, pieces.unknown, known.with_unknown) == (3, 1, 0)


def test_a_word_without_a_piece_and_no_unknown_token_is_an_error() -> None:
    backend = Tokenizer(BPE(vocab={"a": 0}, merges=[]))
    backend.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
    assert split_words(tokenizer, [("a", "aa")])[0].positions.tolist() == [1, 2, 2]
    with pytest.raises(AlignmentError, match=r"no piece for the word 'é'.*no unknown token.*Remove the word"):
        split_words(tokenizer, [("a", "é")])


def test_a_tokenizer_that_cuts_and_pads_by_itself_does_neither(tmp_path: Path) -> None:
    """As the files of sentence-transformers tell theirs to."""
    tiny.bert_tokenizer().save_pretrained(tmp_path)
    tokenizer = BertTokenizer.from_pretrained(tmp_path, model_max_length=5)
    tokenizer.backend_tokenizer.enable_truncation(5)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    long, short = split_words(tokenizer, [("the",) * 20, ("the",)])
    assert (len(long), len(short)) == (22, 3)


def random_pieces(random: np.random.Generator, words: int, delimiters: bool) -> AlignedPieces:
    sizes = random.integers(1, 5, words).tolist()
    positions = [position + 1 for position, size in enumerate(sizes) for _ in range(size)]
    if delimiters:
        positions = [0, *positions, words + 1]
    return AlignedPieces(random.permutation(len(positions)).astype(np.int32), np.array(positions, np.int32), words)


def random_weights(random: np.random.Generator, batch: Sequence[AlignedPieces], heads: int) -> Tensor:
    """Rows that sum to one over a part's own pieces, and numbers that look real in the rows of padding."""
    longest = max(map(len, batch))
    weights = random.random((len(batch), heads, longest, longest))
    for index, pieces in enumerate(batch):
        weights[index, :, : len(pieces), len(pieces) :] = 0
    return torch.from_numpy(weights / weights.sum(-1, keepdims=True)).float()


@pytest.mark.parametrize("delimiters", [True, False], ids=["delimiters", "none"])
@pytest.mark.parametrize("long", [1, 1000], ids=["sums", "product"])
def test_a_word_without_a_piece_reads_with_the_piece_before_it_and_is_not_attended_to(
    delimiters: bool, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attention_probing.attention.alignment.LONG", long)
    random = np.random.default_rng(1)
    batch = []
    for gaps in ((2, 3, 6), (), (4,)):
        whole = random_pieces(random, 6, delimiters)
        kept = ~np.isin(whole.positions, gaps)
        batch.append(replace(whole, ids=whole.ids[kept], positions=whole.positions[kept], joined=gaps))
    weights = random_weights(random, batch, heads=3)
    found = reduction(batch, "mean", torch.device("cpu")).words(weights)
    real = slice(0, 8) if delimiters else slice(1, 7)
    np.testing.assert_allclose(found[:, :, real].sum(-1).numpy(), 1, rtol=0, atol=1e-6)
    for index, (pieces, own) in enumerate(zip(batch, weights.double().numpy(), strict=True)):
        expected = reference.reduced(own, pieces.positions.tolist(), 6)
        for gap in pieces.joined:
            before = max(piece for piece, position in enumerate(pieces.positions) if position < gap)
            for to in range(8):
                of = [piece for piece, position in enumerate(pieces.positions) if position == to]
                expected[:, gap, to] = own[:, before, of].sum(-1)
            owner = pieces.positions[before]
            expected[:, gap, gap], expected[:, gap, owner] = expected[:, gap, owner].copy(), 0
        np.testing.assert_allclose(found[index].numpy(), expected, rtol=0, atol=1e-6)
        assert all((expected[:, [word for word in range(8) if word != gap], gap] == 0).all() for gap in pieces.joined)


@pytest.mark.parametrize("from_pieces", ["mean", "first"])
@pytest.mark.parametrize("delimiters", [True, False], ids=["delimiters", "none"])
@pytest.mark.parametrize("words", [(6, 6, 6), (9, 1, 4)], ids=["equal", "padded"])
@pytest.mark.parametrize("long", [1, 1000], ids=["sums", "product"])
def test_reduction_equals_a_triple_loop(
    from_pieces: FromPieces, delimiters: bool, words: tuple[int, ...], long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attention_probing.attention.alignment.LONG", long)
    random = np.random.default_rng(0)
    batch = [random_pieces(random, n, delimiters) for n in words]
    weights = random_weights(random, batch, heads=3)
    found = reduction(batch, from_pieces, torch.device("cpu")).words(weights)
    positions = max(words) + 2
    assert found.shape == (3, 3, positions, positions)
    for index, pieces in enumerate(batch):
        n = pieces.words
        own = weights[index, :, : len(pieces), : len(pieces)].double().numpy()
        expected = np.zeros((3, positions, positions))
        expected[:, : n + 2, : n + 2] = reference.reduced(own, pieces.positions.tolist(), n, from_pieces)
        np.testing.assert_allclose(found[index].numpy(), expected, rtol=0, atol=1e-6)
        real = slice(0, n + 2) if delimiters else slice(1, n + 1)
        np.testing.assert_allclose(found[index, :, real].sum(-1).numpy(), 1, rtol=0, atol=1e-6)


@pytest.mark.parametrize("from_pieces", ["mean", "first"])
def test_sums_of_long_inputs_have_the_values_and_gradients_of_the_product(from_pieces: FromPieces) -> None:
    random = np.random.default_rng(0)
    batch = [random_pieces(random, words, True) for words in (200, 90)]
    assert max(map(len, batch)) >= LONG
    weights = torch.from_numpy(random.random((2, 3, *[max(map(len, batch))] * 2), np.float32))  # in the padding too
    factors = reduction(batch, from_pieces, torch.device("cpu"))
    expanded = replace(factors, rows=factors.rows.expand(-1, 3, -1, -1))
    weights /= weights.sum(-1, keepdim=True)
    summed, multiplied = weights.clone().requires_grad_(), weights.clone().requires_grad_()
    found, expected = expanded.words(summed), factors.rows @ multiplied @ factors.columns[:, None]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    given = torch.from_numpy(random.standard_normal(expected.shape, np.float32))
    gradients = [torch.autograd.grad(*pair, given)[0] for pair in ((found, summed), (expected, multiplied))]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)
