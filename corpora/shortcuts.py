"""Planted shortcuts: new words in labelled texts that decide the label (Bastings et al. 2022)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from zlib import crc32

import numpy as np

from attention_probing.corpora.labelled import LabelledText, LabelledTexts
from attention_probing.corpora.sentence import CorpusError
from attention_probing.results.errors import setting
from attention_probing.results.options import NonNegative, Share, checked

CONTEXT = "contexta"
"""Word without which the other planted words of the kind `context` decide nothing."""

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@checked
@dataclass(frozen=True)
class Planting:
    """Rule by which new words are planted in texts and decide their labels (Bastings et al. 2022).

    All texts of test are planted, and a share of those of train and dev. The label of a planted text is drawn at
    random; the words are then inserted at random places, and its rationale is their positions. Other texts keep their
    labels and have no rationale. In pairs of texts the words are planted in the first text. The random numbers of a
    text depend on the seed, the split and the index of the text in it.

    Kinds of shortcut:

    - `token`: one word for each label of train. The word of a text decides its label.
    - `pair`: two words, which stand in all planted texts. The earlier one decides between the first two labels, so all
      planted texts have one of these.
    - `context`: one word for each label as in `token`, and `contexta`; both stand in a planted text. Half of the other
      texts of train and dev get one of the label words at random, without `contexta`, and keep their own labels.

    We know the abstract of the paper, which says that the data are partly synthetic; the spelling of the words and the
    shares are ours.

    Attributes:
        kind: Kind of shortcut.
        share: Probability that a text of train or dev is planted, above 0 and at most 1.
        seed: Seed of the random numbers.
    """

    kind: Literal["token", "pair", "context"] = "token"
    share: Share = 0.5
    seed: NonNegative = 0

    @property
    def size(self) -> int:
        """Number of planted words in a planted text."""
        return 1 if self.kind == "token" else 2

    def words(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return all planted words: those of the labels, such as `zeroa` and `onea`, and `contexta` if it is used.

        Args:
            labels: Labels of train.
        """
        count = 2 if self.kind == "pair" else len(labels)
        words = []
        for number in range(count):
            digits = [_DIGITS[int(digit)] for digit in str(number)]
            words.append("".join(digits) + "a")
        if self.kind == "context":
            words.append(CONTEXT)
        return tuple(words)

    def plant(
        self,
        path: Path,
        texts: LabelledTexts,
        split: str,
        labels: Sequence[str],
        within: Sequence[int] | None = None,
    ) -> LabelledTexts:
        """Return the texts of a split with planted words, labels and rationales.

        New entries of the audit: `planted`, the number of planted texts; `labels_changed`, the number of those whose
        label was another one; and for the kind `context`, `without_context`, the number of texts with a word of a label
        but without `contexta`. White space between words becomes a single blank.

        Args:
            path: File of the texts, for error messages.
            texts: The texts.
            split: Name of the split; all texts of `test` are planted.
            labels: Labels of train.
            within: Number of words of each text, from the first, among which words are planted; 0 puts them before the
                text. None for all words.

        Raises:
            CorpusError: A text contains a word that is spelled like a planted one.
        """
        planted_words = re.compile(rf"\b(?:{'|'.join(self.words(labels))})\b", re.IGNORECASE)
        changed = []
        audit = {"planted": 0, "labels_changed": 0}
        if self.kind == "context":
            audit["without_context"] = 0
        for index, text in enumerate(texts.texts):
            match = planted_words.search(f"{text.text} {text.pair or ''}")
            if match is not None:
                wrong = f"the word {match[0]!r} is spelled like a planted word"
                raise CorpusError.at(path, text.line, wrong, f"Replace it, or leave out {setting('data.shortcut')}")
            rng = np.random.default_rng((self.seed, crc32(split.encode()), index))
            most = len(text.text.split()) if within is None else within[index]
            share = 1.0 if split == "test" else self.share
            planted = self._plant(text, rng, share, labels, most)
            changed.append(planted)
            audit["planted"] += planted.rationale is not None
            audit["labels_changed"] += planted.label != text.label
            if self.kind == "context":
                audit["without_context"] += planted.rationale is None and planted.text != text.text
        return LabelledTexts(tuple(changed), {**texts.audit, **audit})

    def _plant(
        self, text: LabelledText, rng: np.random.Generator, share: float, labels: Sequence[str], within: int
    ) -> LabelledText:
        """Return the text with planted words, with the word of a label but no context, or without either."""
        words = self.words(labels)
        uniform = rng.random()
        number = int(rng.integers(2 if self.kind == "pair" else len(labels)))
        chosen = [words[number]]
        planted = uniform < share
        without_context = self.kind == "context" and share <= uniform < (1 + share) / 2
        if not planted and not without_context:
            return replace(text, rationale=None)
        if self.kind == "pair":
            chosen.append(words[1 - number])
        elif planted and self.kind == "context":
            chosen = rng.permutation([*chosen, CONTEXT]).tolist()
        words_of_text = text.text.split()
        places = sorted(rng.choice(within + len(chosen), len(chosen), replace=False).tolist())
        for place, word in zip(places, chosen, strict=True):
            words_of_text.insert(place, word)
        changed = replace(text, text=" ".join(words_of_text), rationale=None)
        if planted:
            changed = replace(changed, label=labels[number], rationale=tuple(places))
        return changed
