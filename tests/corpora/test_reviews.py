import math
from collections import Counter
from pathlib import Path

import pytest

from corpora.labelled import Columns, LabelledText, read_labelled
from corpora.reviews import EVALUATIVE, NEGATORS, write_sample_reviews

Texts = dict[str, tuple[LabelledText, ...]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_sample_reviews(tmp_path_factory.mktemp("reviews"))


@pytest.fixture(scope="module")
def texts(files: dict[str, Path]) -> Texts:
    return {split: read_labelled(path, columns=Columns(rationale="rationale")).texts for split, path in files.items()}


def tokens(text: LabelledText) -> list[str]:
    return text.text.lower().split()


def decided(text: LabelledText) -> list[str]:
    """The deciding words in their order."""
    assert text.rationale is not None
    return [tokens(text)[place] for place in text.rationale]


def test_splits_are_balanced_and_share_no_text(texts: Texts) -> None:
    for split, size in {"train": 3000, "dev": 250, "test": 250}.items():
        assert Counter(text.label for text in texts[split]) == {"positive": size / 2, "negative": size / 2}
    assert len({text.text.lower() for split in texts.values() for text in split}) == 3500


@pytest.mark.parametrize("seed", [0, 7])
def test_the_rule_over_the_rationale_alone_gives_every_label(seed: int, tmp_path: Path) -> None:
    for path in write_sample_reviews(tmp_path, seed=seed).values():
        for text in read_labelled(path, columns=Columns(rationale="rationale")).texts:
            negated, found = False, set()
            for word in decided(text):
                if word in NEGATORS:
                    assert not negated
                    negated = True
                else:
                    assert (word in EVALUATIVE[True]) != (word in EVALUATIVE[False]), word
                    found.add("positive" if (word in EVALUATIVE[True]) is not negated else "negative")
                    negated = False
            assert not negated
            assert found == {text.label}, text


def test_nearly_all_evaluative_words_are_learnt_from_train(texts: Texts) -> None:
    used = Counter(word for text in texts["train"] for word in decided(text))
    assert all(len([word for word in EVALUATIVE[good] if used[word] >= 5]) >= 35 for good in (True, False))
    assert set(NEGATORS) <= set(used)


def test_sentences_are_tokenised_and_spelled(texts: Texts) -> None:
    for split in texts.values():
        for text in split:
            words = text.text.split()
            assert " ".join(words) == text.text
            assert not set(text.text) & set("*{}")
            for before, word in zip([".", *words], words, strict=False):
                assert before != "." or word[0] == word[0].upper()
                assert word in (".", ",", "'s", "n't") or not set(word) & set(".,'"), word
                vowel = word[0] in "aeiou" and word != "useless"
                assert not (before.lower() == "a" and vowel), text
                assert not (before.lower() == "an" and not vowel), text


def test_other_words_hold_evaluative_words_and_negators_too(texts: Texts) -> None:
    """Else the deciding words could be told by what they are, wherever they stand."""
    evaluative = EVALUATIVE[True] | EVALUATIVE[False]
    rest = [{word for i, word in enumerate(tokens(text)) if i not in (text.rationale or ())} for text in texts["train"]]
    assert 0.5 < sum(bool(words & evaluative) for words in rest) / 3000 < 0.8
    assert 0.2 < sum(bool(words & set(NEGATORS)) for words in rest) / 3000 < 0.5
    assert 0.1 < sum(bool(set(decided(text)) & set(NEGATORS)) for text in texts["train"]) / 3000 < 0.25


def word_counts(texts: Texts) -> dict[str, Counter[str]]:
    """By label, in how many texts of train a word is."""
    counts = {label: Counter[str]() for label in ("positive", "negative")}
    for text in texts["train"]:
        counts[text.label].update(set(tokens(text)))
    return counts


def test_no_bag_of_words_gets_all_labels_right_but_it_does_better_than_chance(texts: Texts) -> None:
    """Naive Bayes over the words of train; and the balance of evaluative words, were their meaning known."""
    counts = word_counts(texts)
    odds = {
        word: math.log((counts["positive"][word] + 1) / (counts["negative"][word] + 1))
        for word in counts["positive"] | counts["negative"]
    }

    def balance(text: LabelledText) -> int:
        return sum((word in EVALUATIVE[True]) - (word in EVALUATIVE[False]) for word in tokens(text))

    held = texts["dev"] + texts["test"]
    bayes = sum((sum(odds.get(w, 0.0) for w in set(tokens(t))) > 0) == (t.label == "positive") for t in held) / 500
    known = sum((balance(t) > 0) == (t.label == "positive") for t in held) / 500
    assert 0.53 < bayes < 0.8
    assert 0.53 < known < 0.8


def test_what_decides_nothing_is_alike_for_both_labels(texts: Texts) -> None:
    """Facts and domains do not tell the label: words that never decide come as often with either."""
    deciding = {word for text in texts["train"] for word in decided(text)} | EVALUATIVE[True] | EVALUATIVE[False]
    counts = word_counts(texts)
    for word in (counts["positive"] | counts["negative"]).keys() - deciding:
        one, other = counts["positive"][word], counts["negative"][word]
        assert abs(one - other) <= 4.5 * math.sqrt(one + other), word  # 4.5 sd of a fair coin
