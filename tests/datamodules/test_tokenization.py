import hashlib
import json
from collections import Counter
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from attention_probing.attention.inputs import TextTokenizer
from attention_probing.attention.source import EncoderSpec, resolve
from attention_probing.corpora.labelled import LabelledText
from attention_probing.corpora.sentence import CorpusError
from attention_probing.datamodules.tokenization import (
    CLOSERS,
    SENTENCE_ENDS,
    SPECIALS,
    TokenizedTexts,
    Vocabulary,
    Words,
    build_vocabulary,
    piece_tokens,
    piece_vocabulary,
    read_words,
    truncate,
    word_tokens,
)
from tests.tiny import save_gemma, save_gpt2, save_llama, save_roberta

PAIRS = (
    ("The fox sleeps . The dogs drink coffee . and guests", "lazy dogs . overslept"),
    ("fox", "dogs"),
    ("unquestionably overslept", "foxglove ."),
)


def text(words: str, pair: str | None = None, rationale: tuple[int, ...] | None = None) -> LabelledText:
    return LabelledText("1", words, "x", 1, pair, rationale)


def spelled(tokens: TokenizedTexts, item: int) -> list[str]:
    assert tokens.types is not None
    written = (*tokens.types, *SPECIALS)
    return [written[code] for code in tokens.codes[tokens.offsets[item] : tokens.offsets[item + 1]]]


def sentences(tokens: TokenizedTexts, words: Words, item: int) -> list[int]:
    found: list[int] = tokens.sentences(words)[tokens.offsets[item] : tokens.offsets[item + 1]].tolist()
    return found


def parted(words: list[str]) -> list[int]:
    """The rule, told slowly: the sentence of every word."""
    found, number, state = [], 0, "inside"
    for word in words:
        if state == "ended" and word not in SENTENCE_ENDS | CLOSERS:
            number, state = number + 1, "inside"
        found.append(number)
        if word in SENTENCE_ENDS:
            state = "ended"
    return found


def random_text(random: np.random.Generator) -> str:
    words = ["a", "b", "c", ".", "!", "...", '"', ")"]
    return " ".join(random.choice(words, random.integers(1, 25)))


def test_sentences_end_as_the_rule_says() -> None:
    random = np.random.default_rng(0)
    texts = [text(random_text(random), random_text(random) if number % 2 else None) for number in range(300)]
    words = read_words(texts)
    tokens = word_tokens(words, delimiters=False)
    for item, one in enumerate(texts):
        first = parted(one.text.split())
        if one.pair is None:
            assert sentences(tokens, words, item) == first
        else:
            second = [first[-1] + 1 + number for number in parted(one.pair.split())]
            assert sentences(tokens, words, item) == [*first, -1, *second]


def test_the_rule_by_hand() -> None:
    texts = ('He left . " Why ? " she asked ... . Nobody ( knew . ) Mr. Fox', '" b', ") . c")
    #         He left . "  Why ?  "  she asked ... . Nobody ( knew .  )  Mr. Fox
    words = read_words([text(one) for one in texts])
    tokens = word_tokens(words, delimiters=False)
    assert sentences(tokens, words, 0) == [*(0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4)]
    assert [sentences(tokens, words, item) for item in (1, 2)] == [[0, 0], [0, 0, 1]]  # nothing of the text before


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("It isn't great, it's (almost) awful!", "it is n't great , it 's ( almost ) awful !"),
        ("I don’t know... The U.S. won 1,000.5 off-days.", "i do n’t know ... the u.s. won 1,000.5 off-days ."),
        ('She said: "no," twice.', 'she said : " no , " twice .'),
        ("don't can't they'll we've I'm he'd", "do n't ca n't they 'll we 've i 'm he 'd"),
        ("-LRB- a -rrb-", "-lrb- a -rrb-"),
        ("o'clock 5% a_b \u200d", "o ' clock 5 % a_b \u200d"),
    ],
)
def test_punctuation_of_raw_text_stands_apart_where_it_is_asked_for(raw: str, words: str) -> None:
    found = read_words([text(raw)], lowercase=True, punctuation="apart")
    assert [found.types[code] for code in found.codes] == words.split(" ")
    untouched = read_words([text(raw)], lowercase=True)
    assert [untouched.types[code] for code in untouched.codes] == raw.lower().split()


def test_all_parts_of_a_word_that_decides_decide_and_separators_stay_whole() -> None:
    texts = [text("It wasn't good. | Bad!", "not bad?", rationale=(1, 2)), text("fine, fine", rationale=(1,))]
    found = read_words(texts, punctuation="apart", sentence_separator="|")
    spelled = [found.types[code] for code in found.codes]
    assert spelled == ["It", "was", "n't", "good", ".", "Bad", "!", "not", "bad", "?", "fine", ",", "fine"]
    deciding = [word for word, decides in zip(spelled, found.rationale, strict=True) if decides]
    assert deciding == ["was", "n't", "good", ".", "fine"]
    assert found.rationale[-1]
    assert (np.flatnonzero(np.diff(found.sentences)) + 1).tolist() == [5, 7, 10]
    ruled = read_words([text("Good. Bad!")], punctuation="apart")
    assert len(set(ruled.sentences.tolist())) == 2


def test_given_separators_alone_part_sentences_and_are_dropped() -> None:
    words = read_words(
        [text("<S> a . b <s> <s> c . <s>", rationale=(1, 3, 6)), text("<s>", "d <s> e")],
        lowercase=True,
        sentence_separator="<s>",
    )
    tokens = word_tokens(words, delimiters=False)
    assert spelled(tokens, 0) == ["a", ".", "b", "c", "."]
    assert sentences(tokens, words, 0) == [0, 0, 0, 1, 1]
    assert words.rationale.tolist() == [True, False, True, True, False, False, False]
    assert spelled(tokens, 1) == ["<sep>", "d", "e"]
    assert sentences(tokens, words, 1) == [-1, 0, 1]


def test_words_are_put_together_with_delimiters_and_separator() -> None:
    words = read_words([text("A b", "C"), text("D")], lowercase=True)
    around = word_tokens(words, delimiters=True)
    assert spelled(around, 0) == ["<s>", "a", "b", "<sep>", "c", "</s>"]
    assert spelled(around, 1) == ["<s>", "d", "</s>"]
    assert around.sources.tolist() == [-1, 0, 0, -1, 1, -1, -1, 0, -1]
    assert around.segments.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert around.words.tolist() == [-1, 0, 1, -1, 2, -1, -1, 3, -1]
    bare = word_tokens(words, delimiters=False)
    assert [spelled(bare, item) for item in range(2)] == [["a", "b", "<sep>", "c"], ["d"]]


def test_a_text_of_separators_alone_becomes_the_unknown_word() -> None:
    words = read_words([text("a"), text("| |"), text("| |", "|"), text("b")], sentence_separator="|")
    tokens = word_tokens(words, delimiters=True)
    found = [" ".join(spelled(tokens, item)) for item in range(4)]
    assert found == ["<s> a </s>", "<s> <unk> </s>", "<s> <unk> <sep> </s>", "<s> b </s>"]
    assert tokens.blank == 2
    assert sentences(tokens, words, 1) == [-1, 0, -1]
    assert sentences(tokens, words, 3) == [-1, 0, -1]


def slowly_cut(first: int, second: int, room: int) -> tuple[int, int]:
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_cutting_takes_from_the_end_of_the_longer_text() -> None:
    random = np.random.default_rng(1)
    texts = [text(random_text(random), random_text(random) if number % 3 else None) for number in range(200)]
    words = read_words(texts)
    whole = word_tokens(words, delimiters=True)
    for limit in (4, 5, 9, 30, 1000):
        short, lost = truncate(whole, limit)
        for item, one in enumerate(texts):
            first, second = one.text.split(), [] if one.pair is None else one.pair.split()
            specials = 2 + (one.pair is not None)
            kept = slowly_cut(len(first), len(second), limit - specials)
            pair = [] if one.pair is None else ["<sep>", *second[: kept[1]]]
            assert spelled(short, item) == ["<s>", *first[: kept[0]], *pair, "</s>"]
            assert lost[item] == len(first) + len(second) - sum(kept)


def test_no_sentence_is_left_without_a_token_by_a_cut() -> None:
    words = read_words([text("a . b . c . d .", "e . f g h i j k l m")])
    short, _ = truncate(word_tokens(words, delimiters=False), 9)
    assert spelled(short, 0) == ["a", ".", "b", ".", "<sep>", "e", ".", "f", "g"]
    assert sentences(short, words, 0) == [0, 0, 1, 1, -1, 2, 2, 3, 3]


def test_a_limit_that_delimiters_fill_is_refused() -> None:
    tokens = word_tokens(read_words([text("a"), text("b", "c")]), delimiters=True)
    assert len(truncate(tokens, 4)[0].codes) == 7
    with pytest.raises(CorpusError, match="no room for a word beside 3 delimiters"):
        truncate(tokens, 3)


@pytest.mark.parametrize("which", ["bert", "roberta", "gpt2", "llama"])
def test_pieces_are_those_of_the_tokenizer_and_know_their_words(which: str, bert: Path, tmp_path: Path) -> None:
    savers = {"roberta": save_roberta, "gpt2": save_gpt2, "llama": save_llama}
    tokenizer = TextTokenizer(resolve(EncoderSpec(str(bert if which == "bert" else savers[which](tmp_path)))))
    texts = [text(*pair) for pair in PAIRS] + [text(first) for first, _ in PAIRS]
    words = read_words(texts)
    tokens = piece_tokens(words, tokenizer)
    for item, one in enumerate(texts):
        span = slice(tokens.offsets[item], tokens.offsets[item + 1])
        expected = tokenizer._tokenizer(one.text, one.pair)
        assert tokens.codes[span].tolist() == expected["input_ids"]
        if which == "bert":
            assert tokens.segments[span].tolist() == expected["token_type_ids"]
        # The pieces between two changes of word spell that word.
        own = one.text.split() + ([] if one.pair is None else one.pair.split())
        places = tokens.words[span]
        real = [(int(place), int(code)) for place, code in zip(places, tokens.codes[span], strict=True) if place >= 0]
        assert [place for place, _ in groupby(real, key=lambda each: each[0])] == list(
            range(words.offsets[2 * item], words.offsets[2 * item + 2])
        )
        for word, (_, pieces) in zip(own, groupby(real, key=lambda each: each[0]), strict=True):
            back = str(tokenizer._tokenizer.decode([code for _, code in pieces])).replace(" ", "").replace("##", "")
            assert back == (word.lower() if which == "bert" else word)
        assert [number for number in sentences(tokens, words, item) if number >= 0] == [
            int(words.sentences[place] - words.sentences[words.offsets[2 * item]]) for place, _ in real
        ]


def test_a_lone_blank_belongs_to_the_word_behind_it(tmp_path: Path) -> None:
    words = read_words([text("fox 1990 the 1")])
    tokenizer = TextTokenizer(resolve(EncoderSpec(str(save_gemma(tmp_path)))))
    tokens = piece_tokens(words, tokenizer)
    pieces = [tokenizer.pieces[code] for code in tokens.codes]
    assert pieces[-3:] == ["▁the", "▁", "1"]
    assert tokens.words[-3:].tolist() == [2, 3, 3]
    assert [word for piece, word in zip(pieces, tokens.words, strict=True) if piece == "▁"] == [1, 3]


def test_a_text_that_yields_no_piece_becomes_the_unknown_one(bert: Path) -> None:
    tokenizer = TextTokenizer(resolve(EncoderSpec(str(bert))))
    words = read_words([text("fox"), text("\u200d"), text("\u200d", "\u200d"), text("| |")], sentence_separator="|")
    tokens = piece_tokens(words, tokenizer)
    parts = np.split(tokens.codes, tokens.offsets[1:-1])
    found = [" ".join(tokenizer.pieces[code] for code in part) for part in parts]
    assert found == ["[CLS] fox [SEP]", "[CLS] [UNK] [SEP]", "[CLS] [UNK] [SEP] [SEP]", "[CLS] [UNK] [SEP]"]
    assert tokens.blank == 3
    assert [sentences(tokens, words, item) for item in range(4)] == [[-1, 0, -1]] * 2 + [[-1, 0, -1, -1], [-1, 0, -1]]


# Vocabulary

COUNTS = Counter({"b": 3, "a": 3, "rare": 1, "the": 9, "Z": 3})


def built(min_count: int = 1) -> Vocabulary:
    return build_vocabulary(COUNTS, min_count=min_count)


def test_words_follow_the_specials_by_falling_count_and_then_by_spelling() -> None:
    own = built()
    assert own.words == (*SPECIALS, "the", "Z", "a", "b", "rare")
    numbers = (own.pad, own.unknown, own.mask, own.start, own.end, own.separator)
    assert numbers == (0, 1, 2, 3, 4, 5)
    backwards = Counter(dict(reversed(COUNTS.items())))
    assert build_vocabulary(backwards, min_count=1).digest == own.digest
    assert built(min_count=3).words[6:] == ("the", "Z", "a", "b")


def test_a_word_that_is_spelled_like_a_special_is_unknown_and_never_counted_as_a_word() -> None:
    own = build_vocabulary(Counter({**dict.fromkeys(SPECIALS, 99), "a": 1}), min_count=1)
    assert own.words == (*SPECIALS, "a")
    assert own.numbers([*SPECIALS, "a"]).tolist() == [own.unknown] * len(SPECIALS) + [6]


def test_the_digest_covers_words_order_and_specials() -> None:
    plain = Vocabulary(("p", "u", "a", "b"), 0, 1, None, None, None, None)
    written = json.dumps([["p", "u", "a", "b"], [0, 1, None, None, None, None]]).encode()
    assert plain.digest == hashlib.sha256(written).hexdigest()
    others = [
        Vocabulary(("p", "u", "b", "a"), 0, 1, None, None, None, None),
        Vocabulary(("p", "u", "a", "b"), 0, 1, 2, None, None, None),
        Vocabulary(("p", "u", "ab"), 0, 1, None, None, None, None),
    ]
    assert len({plain.digest, *(other.digest for other in others)}) == 4


def test_a_vocabulary_without_a_word_is_refused() -> None:
    with pytest.raises(CorpusError, match=r"No word of the train split occurs 10 times.*`min_count`"):
        built(min_count=10)


def test_the_vocabulary_of_a_tokenizer_has_its_own_numbers(bert: Path) -> None:
    own = piece_vocabulary(TextTokenizer(resolve(EncoderSpec(str(bert)))))
    assert own.words[:5] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert (own.pad, own.unknown, own.mask, own.start, own.end, own.separator) == (0, 1, 4, 2, 3, 3)
    assert own.words[own.numbers(["fox"])[0]] == "fox"
