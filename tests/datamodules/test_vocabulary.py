import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from attention.encoder import EncoderSpec, resolve
from attention.tokenizer import TextTokenizer
from corpora.sentence import CorpusError
from datamodules.tokenization import SPECIALS, Vocabulary, build_vocabulary, piece_vocabulary

COUNTS = Counter({"b": 3, "a": 3, "rare": 1, "the": 9, "Z": 3})


def built(min_count: int = 1, max_words: int | None = None) -> Vocabulary:
    return build_vocabulary(COUNTS, min_count=min_count, max_words=max_words)


def test_words_follow_the_specials_by_falling_count_and_then_by_spelling() -> None:
    assert built().words == (*SPECIALS, "the", "Z", "a", "b", "rare")


def test_rare_words_and_those_past_the_bound_are_left_out() -> None:
    assert built(min_count=3).words[6:] == ("the", "Z", "a", "b")
    assert built(max_words=2).words[6:] == ("the", "Z")
    assert len(built(min_count=2, max_words=3)) == 9


def test_the_order_of_the_counts_decides_nothing() -> None:
    backwards = Counter(dict(reversed(COUNTS.items())))
    assert build_vocabulary(backwards, min_count=1, max_words=None).digest == built().digest


def test_specials_have_the_numbers_of_their_places() -> None:
    own = built()
    numbers = (own.pad, own.unknown, own.mask, own.start, own.end, own.separator)
    assert tuple(own.words[number] for number in numbers if number is not None) == SPECIALS


def test_numbers_are_places_and_strangers_are_unknown() -> None:
    own = built(min_count=3)
    words = ["a", "rare", "the", "never seen", "b"]
    slow = [own.words.index(word) if word in own.words else own.unknown for word in words]
    assert own.numbers(words).tolist() == slow
    assert own.numbers([]).tolist() == []


@pytest.mark.parametrize("word", SPECIALS)
def test_a_word_that_is_spelled_like_a_special_is_unknown_and_never_counted_as_a_word(word: str) -> None:
    own = build_vocabulary(Counter({word: 99, "a": 1}), min_count=1, max_words=None)
    assert own.words == (*SPECIALS, "a")
    assert own.numbers([word, "a"]).tolist() == [own.unknown, 6]


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
    with pytest.raises(CorpusError, match=r"No word of train occurs 10 times.*--data.init_args.min_count"):
        built(min_count=10)


def test_the_vocabulary_of_a_tokenizer_has_its_own_numbers(bert: Path) -> None:
    own = piece_vocabulary(TextTokenizer(resolve(EncoderSpec(str(bert)))))
    assert own.words[:5] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert (own.pad, own.unknown, own.mask, own.start, own.end, own.separator) == (0, 1, 4, 2, 3, 3)
    assert own.words[own.numbers(["fox"])[0]] == "fox"
