"""`explain`: a classifier explains its decision on one text, without a corpus."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor

from attention_probing.datamodules.text_split import TextSplit
from attention_probing.fidelity.checkpoints import Checkpoint, load_one
from attention_probing.fidelity.classified import ClassifiedBatch, classify, ranks_of
from attention_probing.fidelity.erasure import FIRST_ROUND, RANDOM
from attention_probing.fidelity.rationale import Rationale
from attention_probing.fidelity.saliency import KNOWN, PLANTED, Explainer, Saliency, name_of
from attention_probing.models import HierarchicalClassifier, recorded_gradients
from attention_probing.models.text_classifier import WORD
from attention_probing.results import ColouredText, ColouredTexts, Table, Unit
from attention_probing.results.document import embed_page
from attention_probing.results.errors import UserError, check_names, near, pluralize
from attention_probing.results.tables import DASH, data_table, format_cells, format_number
from attention_probing.results.texts import html_page

DEFAULT_RANKINGS = ("attention", "integrated_gradients")
"""Rankings of `explain` by default."""
OF_ONE_TEXT = tuple(name for name in KNOWN if name != PLANTED)
"""Rankings that need nothing but the text and the classifier."""
REMOVED = (1, 2, 3)
"""Numbers of first words without which the probability of the decision is given."""
FARTHEST = 12
"""Most first words that are removed to see whether the decision changes; it bounds the time of a long text."""
WIDTH = 80  # characters of a line of a printed explanation
FIRST_WORDS = 4  # words of each ranking that are printed
MOST_NAMES = 5  # classes, and unknown words, that a sentence names


@dataclass(frozen=True, eq=False)
class Explanation:
    """Decision of a classifier on one text, the importance of its words, and the decision without the first of them.

    `print(explanation)` shows tables of 80 columns; as the last line of a cell it shows its words in colour.

    Attributes:
        text: The text, or both texts of a pair.
        classifier: Name of the checkpoint file or the folder.
        probabilities: Probability of each class, by label.
        words: A row for each word that the classifier reads or, with a pretrained tokenizer, for each piece of a word.
            Columns: `number`, the number of the word from 1; `word`; `token`, the word or the piece; and for each
            ranking the importance by its name. Negative values speak against the decision.
        effects: A row for each ranking, and the last for `random`. `without_1` to `without_3` are the probability of
            the decision without the first words of the ranking, and `flips_after` is the least number of first words
            without which the decision changes, nan if it stays without any number up to 12 that leaves a word.
            `comprehensiveness` and `sufficiency` are those of `fidelity.Rationale`. Values of `random` are means over
            five orders; its `flips_after` is their median, the decisions that stay being last.
        notes: Sentences that say what was cut, is unknown, or is no word.
    """

    text: tuple[str, ...]
    classifier: str
    probabilities: Mapping[str, float]
    words: pd.DataFrame
    effects: pd.DataFrame
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The text; the texts of a pair with a slash between them."""
        return " / ".join(self.text)

    @property
    def decision(self) -> str:
        """Label of the class with the highest probability."""
        return max(self.probabilities, key=lambda label: self.probabilities[label])

    @property
    def rankings(self) -> list[str]:
        """Names of the rankings, without `random`."""
        return [str(name) for name in self.effects["ranking"] if name != RANDOM]

    @property
    def answer(self) -> str:
        """Sentence with the decision and the probabilities of the classes, the highest first."""
        labels = sorted(self.probabilities, key=lambda label: -self.probabilities[label])
        others = [f"{label} {_percent(self.probabilities[label])}" for label in labels[1:MOST_NAMES]]
        if len(labels) > MOST_NAMES:
            others.append(f"{len(labels) - MOST_NAMES} more")
        confidence = _percent(self.probabilities[self.decision])
        return f"{self.classifier} decides {self.decision!r} with probability {confidence} ({', '.join(others)})."

    @property
    def figure(self) -> ColouredTexts:
        """The text once for each ranking, its words coloured by their importance."""
        rows = {name: self.words[name].tolist() for name in self.rankings}
        text = ColouredText("", self.answer, tuple(self.words["token"]), rows)
        return ColouredTexts(self.title, (text,))

    def _first_words_table(self) -> Table:
        """Return the first words of each ranking with their importance, as text."""
        rows = []
        for name in self.rankings:
            first = self.words.sort_values(name, ascending=False, kind="stable")[:FIRST_WORDS]
            words = [f"{token} {value:.3g}" for token, value in zip(first["token"], first[name], strict=True)]
            rows.append({"ranking": spaced(name), "first words": ", ".join(words)})
        return Table(pd.DataFrame(rows), main=["ranking", "first words"])

    def _effects_table(self) -> Table:
        """Return the effects for print, with names that may be broken at blanks, and numbers of words as text."""
        flips_after = []
        for words in self.effects["flips_after"]:
            flips_after.append(DASH if np.isnan(words) else f"{words:.0f}")
        rankings = self.effects["ranking"].map(spaced)
        frame = self.effects.assign(ranking=rankings, flips_after=flips_after)
        frame = frame.rename(columns=lambda name: spaced(name.removeprefix("without_")))
        columns = [str(name) for name in frame]
        numbers = [name for name in columns if name not in ("ranking", "flips after")]
        units: dict[str, Unit] = dict.fromkeys(numbers, "fraction")
        return Table(frame, units, main=columns)

    def _legend(self) -> str:
        farthest = min(len(self.words) - 1, FARTHEST)
        return (
            f"×100. 1, 2, 3: probability of {self.decision!r} without so many first words. flips after: number of "
            f"first words without which the decision changes, {DASH} if it stays without the first {farthest}. "
            "random: means of five orders, and their median flip."
        )

    def __repr__(self) -> str:
        title = Text(self.title)
        title.truncate(WIDTH, overflow="ellipsis")
        text = io.StringIO()
        screen = Console(file=text, width=WIDTH, color_system=None, force_jupyter=False)
        screen.print(title)
        screen.print(Text(f"{self.answer}\n"))
        screen.print(data_table("Importance", self._first_words_table(), "words", WIDTH))
        screen.print(data_table("\nDecision without the first words", self._effects_table(), "effects", WIDTH))
        screen.print(Text("\n".join(["", self._legend(), *self.notes])))
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def _repr_html_(self) -> str:
        height = f"{12 + 4 * len(self.rankings)}rem"
        page = embed_page(self.answer, html_page(self.figure), height)
        cells = format_cells(self._effects_table(), missing=DASH)
        table = pd.DataFrame(cells).to_html(index=False, border=0)
        notes = "".join(f"<br>{escape(note)}" for note in self.notes)
        return f"{page}\n{table}\n<small>{escape(self._legend())}{notes}</small>"


def explain(
    text: str | tuple[str, str],
    checkpoint: Path | str | Checkpoint,
    rankings: Sequence[str | Explainer] = DEFAULT_RANKINGS,
    *,
    seed: int = 0,
) -> Explanation:
    """Explain the decision of a trained classifier on one text.

    The numbers are those of a run of `Fidelity` on a corpus with this text: of attention over words in a hierarchical
    classifier, and of the heads in the configuration of a transformer, by default those of its last layer. Words are
    removed as `fidelity.Rationale` removes them: the rest of the text is encoded again.

    Args:
        text: The text in the form of the training corpus, or both texts of a pair.
        checkpoint: A checkpoint, the folder of a run that has only one, a Hugging Face classifier, or the result of
            `fidelity.checkpoints.load_one`.
        rankings: Rankings of the words: names of `fidelity.saliency.KNOWN`, or objects. `random` is always beside them.
        seed: Seed of the random orders.

    Raises:
        UserError: The text is empty, has fewer than two words or only unknown ones; there is no such ranking, or it is
            not defined for this classifier; or the file is no checkpoint of a text classifier that decides
            between classes.
    """
    chosen = _check_rankings(rankings)
    parts = _parts_of(text)
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = load_one(checkpoint)
    _check_takes(checkpoint, parts)
    model = checkpoint.model
    if isinstance(model, HierarchicalClassifier):
        checkpoint = replace(checkpoint, level=WORD)
    text_or_pair = parts[0] if len(parts) == 1 else (parts[0], parts[1])
    split = model.sizes.tokenize([text_or_pair])
    if split.counts["texts_all_unknown"]:
        raise UserError(f"{checkpoint.path} knows no word of the text. Check its language, and give another text.")
    with recorded_gradients():
        _, classified = classify(checkpoint, split[[0]], seed=seed, vocabulary=model.sizes.vocabulary)
        if classified is None:
            raise UserError(
                f"{checkpoint.path} reads fewer than two words of the text, so that there is nothing to rank. Give a "
                "longer text."
            )
        classified.progress.begin("Changed copies of the text", math.inf, "it depends on the decisions")
        saliency = Saliency(classified)
        words = _measure_importance(split, classified, saliency, chosen)
        effects = _measure_effects(classified, saliency, chosen)
    probabilities = dict(zip(model.sizes.labels, classified.probabilities[0].tolist(), strict=True))
    notes = _notes(split, classified, words)
    return Explanation(parts, checkpoint.path.name, probabilities, words, effects, notes)


def _check_rankings(rankings: str | Sequence[str | Explainer]) -> list[str | Explainer]:
    """Check rankings, and return them without `random`."""
    given: list[str | Explainer] = [rankings] if isinstance(rankings, str) else list(rankings)
    for ranking in given:
        if not isinstance(ranking, Explainer) and ranking not in OF_ONE_TEXT:
            raise UserError(
                f"There is no ranking {ranking!r} of a single text{near(str(ranking), OF_ONE_TEXT)}. The rankings are "
                f"{', '.join(OF_ONE_TEXT)}."
            )
    chosen = [ranking for ranking in given if ranking != RANDOM]
    check_names("rankings", [name_of(ranking) for ranking in chosen])
    return chosen


def _parts_of(text: str | tuple[str, str]) -> tuple[str, ...]:
    """Return the text, or both texts of a pair; raise UserError for anything else."""
    parts = (text,) if isinstance(text, str) else tuple(text)
    if len(parts) not in (1, 2) or not all(isinstance(part, str) for part in parts):
        raise UserError(f"The text is {text!r}. Give a string, or two strings for a classifier of pairs of texts.")
    if not all(part.strip() for part in parts):
        raise UserError("The text to explain is empty. Give a text of two words or more.")
    return parts


def _check_takes(checkpoint: Checkpoint, parts: Sequence[str]) -> None:
    """Raise UserError if the classifier does not decide between classes, or reads another number of texts."""
    if checkpoint.model.sizes.regression:
        raise UserError(
            f"{checkpoint.path} predicts a number, so that there is no decision to explain. Give a classifier of "
            "classes."
        )
    is_pair = len(parts) == 2
    if checkpoint.reads_pairs is True and not is_pair:
        raise UserError(f"{checkpoint.path} was trained on pairs of texts. Give two texts, ('…', '…').")
    if checkpoint.reads_pairs is False and is_pair:
        raise UserError(f"{checkpoint.path} was trained on single texts. Give one string.")


def _measure_importance(
    split: TextSplit, classified: ClassifiedBatch, saliency: Saliency, rankings: Sequence[str | Explainer]
) -> pd.DataFrame:
    """Return the table of the words; see `Explanation.words`."""
    forms = split.forms(0)
    has_pieces = classified.checkpoint.model.sizes.tokenizer is not None
    tokens = split.readable(0) if has_pieces else forms
    is_word = classified.words[0, : len(forms)].cpu().numpy()  # over words positions are tokens
    columns: dict[str, Any] = {
        "number": np.array(split.places(0))[is_word] + 1,
        "word": np.array(forms, dtype=object)[is_word],
        "token": np.array(tokens, dtype=object)[is_word],
    }
    for ranking in rankings:
        values = saliency.signed_values(ranking)[0].detach().double().cpu().numpy()
        columns[name_of(ranking)] = values[: len(forms)][is_word]
    return pd.DataFrame(columns)


def _measure_effects(
    classified: ClassifiedBatch, saliency: Saliency, rankings: Sequence[str | Explainer]
) -> pd.DataFrame:
    """Return the table of effects; see `Explanation.effects`."""
    test = Rationale([*rankings, RANDOM])
    rationale = test.measure(classified, saliency)
    rows = []
    for name, ranking in test.rankings.items():
        keys = saliency.rankings(ranking, test.draws).detach()
        ranks = ranks_of(keys.masked_fill(~classified.words, -torch.inf))
        row: dict[str, object] = {"ranking": name}
        for count, probability in without_first(classified, ranks).items():
            row[f"without_{count}"] = probability
        row["flips_after"] = _median(removals_until_flip(classified, ranks))
        for score in ("comprehensiveness", "sufficiency"):
            row[score] = float(rationale[f"{name}.{score}"][0])
        rows.append(row)
    return pd.DataFrame(rows)


def without_first(classified: ClassifiedBatch, ranks: Tensor) -> dict[int, float]:
    """Return the probability of the decision on a text without its first 1, 2, 3 words (`REMOVED`), if one is left.

    Args:
        classified: One text.
        ranks: Rank of each position, 0 for the first word, in one or more orders, `[orders, 1, positions]`.

    Returns:
        The mean probability over the orders, by the number of removed words.
    """
    probabilities = {}
    for count in REMOVED:
        if count < int(classified.words.sum()):
            keep = classified.words & (ranks >= count)
            of_orders = classified.of_predicted(classified.reread(keep))
            probabilities[count] = float(of_orders.mean())
    return probabilities


def removals_until_flip(classified: ClassifiedBatch, ranks: Tensor) -> list[int | None]:
    """Return the least number of removed words that changes the decision, for each order; None if none does.

    All numbers up to `FARTHEST` that leave a word are tried, in rounds of twice as many numbers as in the round before.

    Args:
        classified: One text.
        ranks: Rank of each position, 0 for the first word, `[orders, 1, positions]`.
    """
    removals: list[int | None] = [None] * len(ranks)
    most = min(int(classified.words.sum()) - 1, FARTHEST)
    start = 1
    size = FIRST_ROUND
    while start <= most and None in removals:
        unfinished = [order for order, count in enumerate(removals) if count is None]
        counts = torch.arange(start, min(start + size, most + 1), device=ranks.device)
        keep = classified.words & (ranks[unfinished] >= counts[:, None, None, None])  # [counts, orders, 1, positions]
        decisions = classified.reread(keep.flatten(0, 1)).argmax(-1).view(len(counts), len(unfinished))
        flips = decisions != classified.predicted
        for order, flips_of_order in zip(unfinished, flips.T.tolist(), strict=True):
            if any(flips_of_order):
                removals[order] = start + flips_of_order.index(True)
        start += size
        size *= 2
    return removals


def _median(counts: Sequence[int | None]) -> float:
    """Return the median of an odd number of counts, of which None is the largest; nan if it is None."""
    numbers = sorted(count for count in counts if count is not None)
    middle = len(counts) // 2
    return float(numbers[middle]) if middle < len(numbers) else np.nan


def _notes(split: TextSplit, classified: ClassifiedBatch, words: pd.DataFrame) -> tuple[str, ...]:
    """Return sentences about what the classifier does not read, and about attention to no word."""
    notes = []
    cut = split.counts["tokens_cut"]
    if cut:
        notes.append(f"The text is too long: the last {pluralize(cut, 'token')} are cut, and {len(words)} are read.")
    if split.counts["unknown_tokens"]:
        unknown = _unknown_words(split, classified.vocabulary.unknown)
        more = f" and {len(unknown) - MOST_NAMES} more" if len(unknown) > MOST_NAMES else ""
        notes.append(f"Unknown to the classifier: {', '.join(unknown[:MOST_NAMES])}{more}.")
    heads = classified.names
    if len(heads) > 1:
        notes.append(f"attention is the mean of {len(heads)} heads, {heads[0]} to {heads[-1]}.")
    on_words = (classified.attention * classified.words).sum() / classified.attention.sum()
    elsewhere = 1 - float(on_words)
    if elsewhere > 0.0005 and "attention" in words:
        notes.append(f"{_percent(elsewhere)} of the attention goes to delimiters, which are no words.")
    if classified.checkpoint.model.sizes.tokenizer is not None:
        notes.append("Words are ranked and removed in the pieces of the tokenizer.")
    return tuple(notes)


def _unknown_words(split: TextSplit, unknown: int) -> list[str]:
    """Return the words of the text that the vocabulary lacks, each once; `unknown` is their token."""
    words: dict[str, None] = {}
    for token, form in zip(split.tokens(0), split.forms(0), strict=True):
        if token == unknown and form:
            words[str(form)] = None
    return list(words)


def spaced(name: str) -> str:
    """Return the name of a ranking or a column in running text."""
    return name.replace("_", " ")


def _percent(share: float) -> str:
    return f"{format_number(share, 'fraction', missing=DASH)} %"
