"""`explain`: a classifier explains its decision on one text, without a corpus."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

RANKINGS = ("attention", "integrated_gradients")
"""Rankings of `explain` by default."""
OF_ONE_TEXT = tuple(name for name in KNOWN if name != PLANTED)
"""Rankings that need nothing but the text and the classifier."""
REMOVED = (1, 2, 3)
"""Numbers of first words without which the probability of the decision is given."""
FARTHEST = 12
"""Most first words that are removed to see whether the decision changes; it bounds the time of a long text."""
WIDTH = 80  # characters of a line of a printed explanation
FIRST = 4  # words of each ranking that are printed
MOST = 5  # classes, and unknown words, that a sentence names


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
        ordered = sorted(self.probabilities, key=lambda label: -self.probabilities[label])
        shares = [f"{label} {_percent(self.probabilities[label])}" for label in ordered[1:MOST]]
        if len(ordered) > MOST:
            shares.append(f"{len(ordered) - MOST} more")
        sure = _percent(self.probabilities[self.decision])
        return f"{self.classifier} decides {self.decision!r} with probability {sure} ({', '.join(shares)})."

    @property
    def figure(self) -> ColouredTexts:
        """The text once for each ranking, its words coloured by their importance."""
        rows = {name: self.words[name].tolist() for name in self.rankings}
        text = ColouredText("", self.answer, tuple(self.words["token"]), rows)
        return ColouredTexts(self.title, (text,))

    def _first_words(self) -> pd.DataFrame:
        """Return the first words of each ranking with their importance, as text."""
        rows = []
        for name in self.rankings:
            first = self.words.sort_values(name, ascending=False, kind="stable")[:FIRST]
            named = zip(first["token"], first[name], strict=True)
            cells = [f"{token} {value:.3g}" for token, value in named]
            rows.append({"ranking": spaced(name), "first words": ", ".join(cells)})
        return pd.DataFrame(rows)

    def _effects(self) -> Table:
        """Return the effects for print, with names that may be broken at blanks, and numbers of words as text."""
        after = [DASH if np.isnan(words) else f"{words:.0f}" for words in self.effects["flips_after"]]
        frame = self.effects.assign(ranking=self.effects["ranking"].map(spaced), flips_after=after)
        frame = frame.rename(columns=lambda name: spaced(name.removeprefix("without_")))
        columns = [str(name) for name in frame]
        units: dict[str, Unit] = {name: "fraction" for name in columns if name not in ("ranking", "flips after")}
        return Table(frame, units, main=columns)

    def _legend(self) -> str:
        farthest = min(len(self.words) - 1, FARTHEST)
        return (
            f"×100. 1, 2, 3: probability of {self.decision!r} without so many first words. flips after: number of "
            f"first words without which the decision changes, {DASH} if it stays without the first {farthest}. "
            "random: means of five orders, and their median flip."
        )

    def __repr__(self) -> str:
        first = Table(self._first_words(), main=["ranking", "first words"])
        title = Text(self.title)
        title.truncate(WIDTH, overflow="ellipsis")
        screen = Console(file=io.StringIO(), width=WIDTH, color_system=None, force_jupyter=False)
        for part in (
            title,
            Text(f"{self.answer}\n"),
            data_table("Importance", first, "words", WIDTH),
            data_table("\nDecision without the first words", self._effects(), "effects", WIDTH),
            Text("\n".join(["", self._legend(), *self.notes])),
        ):
            screen.print(part)
        assert isinstance(screen.file, io.StringIO)
        return "\n".join(line.rstrip() for line in screen.file.getvalue().splitlines())

    def _repr_html_(self) -> str:
        page = embed_page(self.answer, html_page(self.figure), f"{12 + 4 * len(self.rankings)}rem")
        table = pd.DataFrame(format_cells(self._effects(), missing=DASH)).to_html(index=False, border=0)
        notes = "".join(f"<br>{escape(note)}" for note in self.notes)
        return f"{page}\n{table}\n<small>{escape(self._legend())}{notes}</small>"


def explain(
    text: str | tuple[str, str],
    checkpoint: Path | str | Checkpoint,
    rankings: Sequence[str | Explainer] = RANKINGS,
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
    chosen = _checked_rankings(rankings)
    parts = _parts_of(text)
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = load_one(checkpoint)
    _check_takes(checkpoint, parts)
    model = checkpoint.model
    split = model.sizes.tokenize([parts[0] if len(parts) == 1 else (parts[0], parts[1])])
    if split.counts["texts_all_unknown"]:
        raise UserError(f"{checkpoint.path} knows no word of the text. Check its language, and give another text.")
    level = WORD if isinstance(model, HierarchicalClassifier) else None
    with recorded_gradients():
        _, classified = classify(checkpoint, split[[0]], level, seed=seed, vocabulary=model.sizes.vocabulary)
        if classified is None:
            raise UserError(
                f"{checkpoint.path} reads fewer than two words of the text, so that there is nothing to rank. Give a "
                "longer text."
            )
        classified.progress.begin("Changed copies of the text", math.inf, "it depends on the decisions")
        saliency = Saliency(classified)
        words = _importance(split, classified, saliency, chosen)
        effects = _effects(classified, saliency, chosen)
    probabilities = dict(zip(model.sizes.labels, classified.probabilities[0].tolist(), strict=True))
    notes = _notes(split, classified, words)
    return Explanation(parts, checkpoint.path.name, probabilities, words, effects, notes)


def _checked_rankings(rankings: Sequence[str | Explainer]) -> list[str | Explainer]:
    """Check rankings, and return them without `random`."""
    given = [rankings] if isinstance(rankings, str) else list(rankings)
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
    pairs = checkpoint.reads_pairs
    if pairs is not None and pairs != (len(parts) == 2):
        wanted = "pairs of texts. Give two texts, ('…', '…')" if pairs else "single texts. Give one string"
        raise UserError(f"{checkpoint.path} was trained on {wanted}.")


def _importance(
    split: TextSplit, classified: ClassifiedBatch, saliency: Saliency, rankings: Sequence[str | Explainer]
) -> pd.DataFrame:
    """Return the table of the words; see `Explanation.words`."""
    read = split.forms(0)
    tokens = read if classified.checkpoint.model.sizes.tokenizer is None else split.readable(0)
    inside = classified.words[0, : len(read)].cpu().numpy()  # over words positions are tokens
    columns: dict[str, Any] = {
        "number": np.array(split.places(0))[inside] + 1,
        "word": np.array(read, dtype=object)[inside],
        "token": np.array(tokens, dtype=object)[inside],
    }
    for ranking in rankings:
        values = saliency.signed(ranking)[0].detach().double().cpu().numpy()
        columns[name_of(ranking)] = values[: len(read)][inside]
    return pd.DataFrame(columns)


def _effects(classified: ClassifiedBatch, saliency: Saliency, rankings: Sequence[str | Explainer]) -> pd.DataFrame:
    """Return the table of effects; see `Explanation.effects`."""
    test = Rationale([*rankings, RANDOM])
    numbers = test.measure(classified, saliency).numbers
    rows = []
    for ranking, name in zip(test.rankings, test.names, strict=True):
        keys = saliency.rankings(ranking, test.draws).detach()
        ranks = ranks_of(keys.masked_fill(~classified.words, -torch.inf))
        row: dict[str, object] = {"ranking": name}
        for count, probability in without_first(classified, ranks).items():
            row[f"without_{count}"] = probability
        row["flips_after"] = _median(removals_until_flip(classified, ranks))
        for score in ("comprehensiveness", "sufficiency"):
            row[score] = float(numbers[f"{name}.{score}"][0])
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
    found = {}
    for count in REMOVED:
        if count < int(classified.words.sum()):
            probabilities = classified.of_predicted(classified.reread(classified.words & (ranks >= count)))
            found[count] = float(probabilities.mean())
    return found


def removals_until_flip(classified: ClassifiedBatch, ranks: Tensor) -> list[int | None]:
    """Return the least number of removed words that changes the decision, for each order; None if none does.

    All numbers up to `FARTHEST` that leave a word are tried, in rounds of twice as many numbers as in the round before.

    Args:
        classified: One text.
        ranks: Rank of each position, 0 for the first word, `[orders, 1, positions]`.
    """
    found: list[int | None] = [None] * len(ranks)
    most = min(int(classified.words.sum()) - 1, FARTHEST)
    start, size = 1, FIRST_ROUND
    while start <= most and None in found:
        left = [order for order, count in enumerate(found) if count is None]
        counts = torch.arange(start, min(start + size, most + 1), device=ranks.device)
        keep = classified.words & (ranks[left] >= counts[:, None, None, None])  # [counts, orders, 1, positions]
        decisions = classified.reread(keep.flatten(0, 1)).argmax(-1).view(len(counts), len(left))
        flipped = decisions != classified.predicted
        for order, flips in zip(left, flipped.T.tolist(), strict=True):
            if any(flips):
                found[order] = start + flips.index(True)
        start, size = start + size, 2 * size
    return found


def _median(counts: Sequence[int | None]) -> float:
    """Return the median of an odd number of counts, of which None is the largest; nan if it is None."""
    ordered = sorted(np.inf if count is None else float(count) for count in counts)
    median = ordered[len(ordered) // 2]
    return median if np.isfinite(median) else np.nan


def _notes(split: TextSplit, classified: ClassifiedBatch, words: pd.DataFrame) -> tuple[str, ...]:
    """Return sentences about what the classifier does not read, and about attention to no word."""
    notes = []
    vocabulary, read = classified.vocabulary, len(words)
    if cut := split.counts["tokens_cut"]:
        notes.append(f"The text is too long: the last {pluralize(cut, 'token')} are cut, and {read} are read.")
    if split.counts["unknown_tokens"]:
        pairs = zip(split.tokens(0), split.forms(0), strict=True)
        unknown = list(dict.fromkeys(str(form) for token, form in pairs if token == vocabulary.unknown and form))
        more = f" and {len(unknown) - MOST} more" if len(unknown) > MOST else ""
        notes.append(f"Unknown to the classifier: {', '.join(unknown[:MOST])}{more}.")
    if len(classified.names) > 1:
        first, *_, last = classified.names
        notes.append(f"attention is the mean of {len(classified.names)} heads, {first} to {last}.")
    elsewhere = 1 - float((classified.attention * classified.words).sum() / classified.attention.sum())
    if elsewhere > 0.0005 and "attention" in words:
        notes.append(f"{_percent(elsewhere)} of the attention goes to delimiters, which are no words.")
    if classified.checkpoint.model.sizes.tokenizer is not None:
        notes.append("Words are ranked and removed in the pieces of the tokenizer.")
    return tuple(notes)


def spaced(name: str) -> str:
    """Return the name of a ranking or a column in running text."""
    return name.replace("_", " ")


def _percent(share: float) -> str:
    return f"{format_number(share, 'fraction', missing=DASH)} %"
