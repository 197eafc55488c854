"""Planted words decide the label, stand where the rationale says, and depend on the index of the text alone."""

from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pytest

from attention_probing.corpora.labelled import LabelledText, LabelledTexts
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.shortcuts import CONTEXT, Planting
from attention_probing.results import UserError

Kind = Literal["token", "pair", "context"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PATH = Path("a.tsv")
THREE = ("bad", "good", "odd")


def texts(count: int, labels: tuple[str, ...] = THREE) -> LabelledTexts:
    random = np.random.default_rng(1)
    made = []
    for number in range(count):
        words = [f"w{word}" for word in random.integers(9, size=random.integers(1, 9))]
        label = labels[number % len(labels)]
        made.append(LabelledText(str(number), "  ".join(words), label, number + 2, "a pair", (0,)))
    return LabelledTexts(tuple(made), {"texts": count})


def slow_label(kind: Kind, words: list[str], labels: tuple[str, ...]) -> str | None:
    """Label that the words of a text decide, None if none does."""
    names = {"zeroa": 0, "onea": 1, "twoa": 2}
    seen = [names[word] for word in words if word in names]
    if kind == "pair":
        return labels[seen[0]] if len(seen) == 2 else None
    if kind == "context" and "contexta" not in words:
        return None
    return labels[seen[0]] if seen else None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels", [THREE, THREE[:2]])
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_planted_words_alone_decide_the_label(kind: Kind, labels: tuple[str, ...], split: str) -> None:
    read, rule = texts(2000, labels), Planting(kind, 0.3, 5)
    planted = rule.plant(PATH, read, split, labels)
    found = {"planted": 0, "labels_changed": 0, "without_context": 0}
    every = set(rule.words(labels))
    for before, after in zip(read.texts, planted.texts, strict=True):
        words = after.text.split()
        decided = slow_label(kind, words, labels)
        places = tuple(place for place, word in enumerate(words) if word in every)
        assert after.label == (before.label if decided is None else decided)
        assert after.rationale == (None if decided is None else places)
        assert len(places) == (rule.size if decided is not None else len(places))
        assert [word for word in words if word not in every] == before.text.split()
        assert (after.pair, after.id, after.line) == (before.pair, before.id, before.line)
        found["planted"] += decided is not None
        found["labels_changed"] += after.label != before.label
        found["without_context"] += decided is None and bool(places)
    if kind != "context":
        assert found.pop("without_context") == 0
    assert planted.audit == {"texts": 2000, **found}
    # Binomial: within 4 standard deviations.
    expected = 2000 if split == "test" else 600
    assert abs(found["planted"] - expected) <= 4 * (0 if split == "test" else np.sqrt(2000 * 0.3 * 0.7))
    if kind == "context" and split == "train":
        assert abs(found["without_context"] - 700) <= 4 * np.sqrt(2000 * 0.35 * 0.65)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_and_places_are_drawn_evenly(kind: Kind) -> None:
    read = LabelledTexts(tuple(replace(one, text="a b c", rationale=None) for one in texts(6000).texts), {})
    planted = Planting(kind).plant(PATH, read, "test", THREE).texts
    labels = 2 if kind == "pair" else 3
    for label in THREE[:labels]:
        share = np.mean([one.label == label for one in planted])
        assert abs(share - 1 / labels) < 0.03
        # The label does not say where its words stand, nor which of two words comes first.
        places = np.concatenate([one.rationale for one in planted if one.label == label])
        size = 4 if kind == "token" else 5
        assert np.abs(np.bincount(places, minlength=size) / len(places) - 1 / size).max() < 0.04
    if kind == "context":
        first = [one.text.split().index(CONTEXT) == one.rationale[0] for one in planted if one.rationale]
        assert abs(np.mean(first) - 0.5) < 0.03


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_planted_by_its_index_seed_and_split(kind: Kind) -> None:
    read, rule = texts(200), Planting(kind, seed=3)
    whole = rule.plant(PATH, read, "train", THREE).texts
    assert whole == rule.plant(PATH, read, "train", THREE).texts
    # What stands before a text does not matter.
    others = LabelledTexts((*(replace(one, text="x") for one in read.texts[:150]), *read.texts[150:]), {})
    assert whole[150:] == rule.plant(PATH, others, "train", THREE).texts[150:]
    assert whole[:20] == rule.plant(PATH, LabelledTexts(read.texts[:20], {}), "train", THREE).texts
    assert whole != Planting(kind, seed=4).plant(PATH, read, "train", THREE).texts
    assert whole != rule.plant(PATH, read, "dev", THREE).texts


def test_each_label_has_a_word_of_its_own() -> None:
    labels = [str(number) for number in range(123)]
    words = Planting("context").words(labels)
    assert len(set(words)) == 124
    assert (words[0], words[12], words[-1]) == ("zeroa", "onetwoa", CONTEXT)
    assert Planting("pair").words(labels) == ("zeroa", "onea")


@pytest.mark.parametrize("where", ["text", "pair"])
def test_a_word_of_the_corpus_that_is_spelled_like_a_planted_one_is_refused(where: str) -> None:
    read = texts(3)
    wrong = replace(read.texts[1], **{where: "so OneA, again"})  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match=r"^a\.tsv:3: the word 'OneA' is spelled like a planted word\. Replace it"):
        Planting().plant(PATH, replace(read, texts=(read.texts[0], wrong)), "train", THREE)
    # The kind has no context word.
    fine = replace(read.texts[1], **{where: "oneab contexta"})  # type: ignore[arg-type]
    Planting().plant(PATH, replace(read, texts=(fine,)), "train", THREE)


@pytest.mark.parametrize("share", [0.0, 1.1, float("nan")])
def test_a_share_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(UserError, match=r"^Planting: share is"):
        Planting(share=share)
