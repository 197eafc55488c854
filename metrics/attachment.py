"""Attachment scores of dependency heads, baselines without a model, and accuracies by relation.

The arcs of a split are columns with one row per word, so that a formula is a few array operations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from attention_probing.metrics.bootstrap import bootstrap_ratio
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.results import Estimate, Flags, Floats, Integers, Unit
from attention_probing.results.errors import UserError

ALL = "all"
"""Group of all words."""
PLAIN = "all (no punctuation)"
"""Group of the words other than punctuation."""
OFFSETS = (-3, -2, -1, 1, 2, 3)  # of the fixed-offset baseline (Clark et al. 2019, §4.2)
_BLOCK = 1 << 12  # words that are added up at once, to bound memory
LONGEST_SENTENCE = 32_766
"""Most words of a sentence: a position and an offset fit 16 bits, and one number is left for none."""


@dataclass(frozen=True, eq=False)
class Arcs:
    """Gold dependency arcs of whole sentences, one row per word, sorted by sentence and word.

    All columns but `reach` are `[words]`.

    Attributes:
        sentence: Index of the sentence in its split.
        word: 1-based position of the word in the sentence.
        length: Number of words of the sentence.
        head: 1-based position of the gold head, 0 for ROOT.
        relation: Id of the relation; the datamodule has the labels by id.
        punctuation: True for punctuation.
        document: Number of the sentence's document in its split; -1, or None, if no documents are marked.
        reach: `[words, layers, 2]`, first and last word that each word may attend to in each layer of an
            encoder; None if every word may attend to all. The baselines of uniform attention
            and fixed offsets choose heads only within reach.

    Raises:
        ValueError: The words of a sentence are not 1 to `length` in order, or a head lies outside its
            sentence.
    """

    sentence: Integers
    word: Integers
    length: Integers
    head: Integers
    relation: Integers
    punctuation: Flags
    document: Integers | None = None
    reach: NDArray[np.integer] | None = None

    def __post_init__(self) -> None:
        # The formulas find the row of a head from its distance.
        new = np.diff(self.sentence, prepend=-1) != 0
        starts = np.flatnonzero(new)
        sizes = np.diff(starts, append=len(self))
        if (np.diff(self.sentence) < 0).any():
            raise ValueError("the rows of arcs are not sorted by sentence")
        rank = np.arange(len(self)) - np.repeat(starts, sizes) + 1
        broken = (self.word != rank) | (self.length != np.repeat(sizes, sizes))
        if broken.any():
            at = int(np.argmax(broken))
            raise ValueError(
                f"arcs of sentence {self.sentence[at]} must be words 1…{self.length[at]}, one row each in order; "
                f"there are {np.repeat(sizes, sizes)[at]} rows, and row {rank[at]} is word {self.word[at]}"
            )
        wrong = (self.head < 0) | (self.head > self.length)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ValueError(
                f"word {self.word[at]} of sentence {self.sentence[at]} ({self.length[at]} words) has the gold head "
                f"{self.head[at]}, but a head must be from 0 (ROOT) to {self.length[at]}"
            )

    def __len__(self) -> int:
        return int(self.sentence.size)

    @property
    def documents(self) -> Integers | None:
        """Number of the document of each sentence, `[sentences]`; None if not all sentences have one."""
        if self.document is None or (self.document < 0).any():
            return None
        documents: Integers = self.document[self.word == 1]
        return documents

    @property
    def units(self) -> Integers:
        """Number of the unit of each sentence, `[sentences]`, for intervals and tests.

        Sentences of a document are a unit; where no documents are marked, each sentence is.
        """
        documents = self.documents
        if documents is None:
            return np.arange(np.count_nonzero(self.word == 1))
        numbers: Integers = np.unique(documents, return_inverse=True)[1]
        return numbers

    @property
    def number_of_units(self) -> int:
        """Number of units for intervals and tests."""
        return int(self.units.max(initial=-1)) + 1

    @property
    def units_of_words(self) -> Integers:
        """Number of the unit of each word, `[words]`."""
        of_sentences = np.cumsum(self.word == 1) - 1
        units: Integers = self.units[of_sentences]
        return units


def add_arcs(rows: Rows, batch: Any, **predicted: Tensor) -> None:  # noqa: ANN401 - a batch of a room above
    """Add a row for each word of a batch: its gold arc, and what is predicted for it. The padding is left out.

    Args:
        rows: Rows of one split, read by `take_arcs`.
        batch: Sentences padded to n words, with the tensors `index` (of the sentence in its split) and `lengths`,
            `[batch]`, `documents` (-1 for none), `[batch]`; `heads` (0 for ROOT), `relations` and `punctuation`,
            `[batch, n]`.
        **predicted: Numbers of the words by name, `[batch, n]`; or, of several predictors, small integers
            `[batch, n, predictors]`, which take most of the memory and are kept in 16 bits.

    Raises:
        UserError: A sentence has more than 32,766 words, and there are numbers of several predictors.
    """
    gold = {
        "document": batch.documents[:, None].expand_as(batch.heads),
        "length": batch.lengths.long()[:, None].expand_as(batch.heads),
        "head": batch.heads,
        "relation": batch.relations,
        "punctuation": batch.punctuation,
    }
    words = batch.heads.size(1)
    word = torch.arange(1, words + 1, device=batch.heads.device).expand_as(batch.heads)
    sentence = batch.index[:, None].expand_as(batch.heads)
    columns = {name: column.flatten() for name, column in gold.items()}
    for name, column in predicted.items():
        if column.dim() == 2:
            columns[name] = column.flatten()
            continue
        if words > LONGEST_SENTENCE:
            raise UserError(
                f"Sentence {int(batch.index[batch.lengths.argmax()]) + 1:,} of a split has {words:,} words, but arcs "
                f"are scored in sentences of at most {LONGEST_SENTENCE:,} words. Cut it into several sentences."
            )
        columns[name] = column.short().flatten(0, 1)
    real = word <= gold["length"]
    rows.add(torch.stack([sentence.flatten(), word.flatten()], dim=1), real=real.flatten(), **columns)


def take_arcs(rows: Rows) -> tuple[Arcs, dict[str, NDArray[Any]]]:
    """Return the gold arcs of all words, and what is predicted for them by name; the rows are empty afterwards.

    Args:
        rows: Rows of one split, filled by `add_arcs`.

    Returns:
        The arcs, and columns `[words]` or `[words, predictors]`. Without any batch there are no columns.

    Raises:
        ValueError: A sentence was added more than once.
    """
    columns = rows.take()
    items = columns.pop(ITEM).reshape(-1, 2)
    gold: dict[str, Integers] = {"sentence": items[:, 0], "word": items[:, 1]}
    for name in ("document", "length", "head", "relation", "punctuation"):
        gold[name] = columns.pop(name, np.empty(0)).astype(np.int64)
    punctuation = gold.pop("punctuation").astype(np.bool_)
    return Arcs(**gold, punctuation=punctuation), columns


def _check_column(arcs: Arcs, predicted: Integers) -> None:
    """Raise ValueError if there is not one predicted head for each word; arrays of other shapes would be broadcast."""
    if predicted.shape != arcs.head.shape:
        raise ValueError(f"predicted has shape {predicted.shape}, but must have {arcs.head.shape}: a head per word")


def attached(arcs: Arcs, predicted: Integers) -> Floats:
    """Return 1.0 for each word whose predicted syntactic head is the gold one, else 0.0, `[words]`.

    The mean over words other than punctuation is the unlabelled attachment score (UAS).

    Args:
        arcs: Gold arcs.
        predicted: Position of the predicted head of each word, `[words]`; 0 for ROOT.
    """
    _check_column(arcs, predicted)
    return np.where(predicted == arcs.head, 1.0, 0.0)


def edges_found(arcs: Arcs, predicted: Integers) -> Floats:
    """Return 1.0 for each word whose undirected edge to its gold head is predicted, else 0.0, `[words]`.

    An edge is predicted if either of its words has the other as predicted head. Predictions for
    punctuation do not count. Punctuation, words under ROOT and words that are their own gold head (in
    control tasks) get nan. The mean of the other words is the UUAS (Hewitt & Manning 2019, §4).

    Args:
        arcs: Gold arcs.
        predicted: Position of the predicted head of each word, `[words]`.
    """
    _check_column(arcs, predicted)
    scored, head_row = _edges(arcs)
    drawn_by_word = predicted == arcs.head
    drawn_by_head = (predicted[head_row] == arcs.word) & ~arcs.punctuation[head_row]
    return np.where(scored, np.where(drawn_by_word | drawn_by_head, 1.0, 0.0), np.nan)


def uniform_attached(arcs: Arcs) -> Floats:
    """Return the expected `attached` score if heads are drawn uniformly at random, `[ways, words]`.

    There is a row for each way to draw the syntactic heads:

    - Without `arcs.reach` there is one row. The head of a word is ROOT or any other word of its
      sentence, so the score is 1/n in a sentence of n words.
    - With `arcs.reach`, the words that each word may attend to in each layer, there are two rows for each
      layer. The rows of the first half have one row per layer, in which the head is ROOT or any other
      word that the word may attend to. In those of the second half, the head is ROOT or any other word
      that may attend to the word.
    """
    return _uniform(arcs)[0]


def uniform_edges_found(arcs: Arcs) -> Floats:
    """Return the expected `edges_found` score if heads are drawn uniformly at random, `[ways, words]`.

    There is a row for each way to draw heads, as in `uniform_attached`. The edge between a word and its
    gold head is found if the word draws its head, or the head draws the word:

    - Without `arcs.reach`, each of the two has the probability 1/n in a sentence of n words, so that the
      score is 1 − (1 − 1/n)².
    - With `arcs.reach`, each of the two draws only from words that it may attend to in the layer (rows of
      the first half), or only from words that may attend to it (rows of the second half).

    If the gold head is punctuation, its own draw does not count. Punctuation, words under ROOT and
    words that are their own gold head get nan.
    """
    scored, head_row = _edges(arcs)
    of_word, of_head = _uniform(arcs)
    of_head = np.where(arcs.punctuation[head_row], 0.0, of_head)
    return np.where(scored, 1.0 - (1.0 - of_word) * (1.0 - of_head), np.nan)


def _uniform(arcs: Arcs) -> tuple[Floats, Floats]:
    """Return the chance of each word to draw its head, and of its head to draw the word, both `[ways, words]`."""
    if arcs.reach is None:
        each = 1.0 / arcs.length.astype(np.float64)[None]
        return each, each
    rows = np.arange(len(arcs))
    _, head_row = _edges(arcs)
    first = arcs.reach[..., 0].T  # [layers, words]
    last = arcs.reach[..., 1].T
    sees_head = ((first <= arcs.head) & (arcs.head <= last)) | (arcs.head == 0)
    seen_by_head = ((first[:, head_row] <= arcs.word) & (arcs.word <= last[:, head_row])) | (arcs.head == 0)
    # Numbers of words that a word may attend to, and that may attend to it, in each layer. The word itself is among
    # them and stands for ROOT.
    numbers_seen = last - first + 1
    steps = np.zeros((len(first), len(arcs) + 1), np.int64)
    for layer in range(len(first)):
        np.add.at(steps[layer], rows - arcs.word + first[layer], 1)
        np.add.at(steps[layer], rows - arcs.word + last[layer] + 1, -1)
    numbers_seeing = steps.cumsum(1)[:, :-1]
    of_word = np.concatenate([sees_head / numbers_seen, seen_by_head / numbers_seeing])
    of_head = np.concatenate([seen_by_head / numbers_seen[:, head_row], sees_head / numbers_seeing[:, head_row]])
    return of_word, of_head


def offset_heads(arcs: Arcs, k: int | Integers) -> Integers:
    """Predict the word at offset `k` as the syntactic head of every word; return its position, `[words]`.

    If this position is outside the sentence, it is replaced by −1, which is always wrong. Clark et al.'s
    released code instead clips it into [0, n], so that a first word may hit ROOT: for k = −1 on the
    test set of UD English EWT this raises the UAS without punctuation from 6.6 % to 9.2 %. The position
    is also replaced by −1 if `arcs.reach` excludes attention between the two words, in both directions,
    in every layer.

    Args:
        arcs: Gold arcs; only positions, lengths and `reach` are used.
        k: Offset, positive to the right: one for all words, or one for each word, `[words]`.
    """
    target = arcs.word + k
    inside = (target >= 1) & (target <= arcs.length)
    if arcs.reach is not None:
        rows = np.arange(len(arcs))
        other = np.where(inside, rows + k, rows)
        sees = _within(target, arcs.reach)
        is_seen = _within(arcs.word, arcs.reach[other])
        inside &= (sees | is_seen).any(1)
    return np.where(inside, target, -1)


def _within(word: Integers, reach: NDArray[np.integer]) -> Flags:
    """Return True, `[words, layers]`, for a word `[words]` within the reach `[words, layers, 2]` of another."""
    return (reach[..., 0] <= word[:, None]) & (word[:, None] <= reach[..., 1])


def right_branching(arcs: Arcs) -> Integers:
    """Predict the NEXT word as syntactic head of every word, `[words]`; the last word's head is ROOT.

    The name is from Clark et al. (2019, §5). The parsing literature swaps the two names: there,
    attachment to the next word is called left-branching, and to the previous word right-branching.
    """
    return np.where(arcs.word < arcs.length, arcs.word + 1, 0)


def left_branching(arcs: Arcs) -> Integers:
    """Predict the previous word as the syntactic head of every word; for the first word, ROOT.

    Returns:
        Position of each word's predicted head, `[words]`, from 1; 0 for ROOT.
    """
    return arcs.word - 1


def best_offsets(arcs: Arcs, relations: int) -> tuple[int, Integers]:
    """Return the fixed offset, from -3 to 3, that finds most governors: overall and by relation.

    The overall offset is chosen over all words but punctuation, and the offset of a relation over all
    its words. A relation without words gets the overall offset. Of equally good offsets, the one
    nearest to 0 is chosen, and of k and −k the positive one. Choose on one split and score on another.

    Args:
        arcs: Gold arcs of the split to choose on.
        relations: Number of relations.

    Returns:
        The overall offset, and the offset of each relation, int64 `[relations]`.
    """
    ordered = np.array(sorted(OFFSETS, key=lambda k: (abs(k), -k)), dtype=np.int64)
    hits = np.stack([attached(arcs, offset_heads(arcs, k)) for k in ordered.tolist()])
    # argmax takes the first of equals, and the offsets stand in the order of preference.
    overall = ordered[np.argmax(hits[:, ~arcs.punctuation].sum(axis=1))]
    per_relation = np.stack([np.bincount(arcs.relation, weights=hit, minlength=relations) for hit in hits])
    occurs = np.bincount(arcs.relation, minlength=relations) > 0
    best = ordered[np.argmax(per_relation, axis=0)]
    return int(overall), np.where(occurs, best, overall)


def _edges(arcs: Arcs) -> tuple[Flags, Integers]:
    """Flag the words whose edge counts, and find the row of each word's head (its own row where there is no edge).

    A word that is its own head, as in control tasks, has no edge.
    """
    rows = np.arange(len(arcs))
    inside = (arcs.head > 0) & (arcs.head != arcs.word)
    return inside & ~arcs.punctuation, np.where(inside, rows + arcs.head - arcs.word, rows)


ATTACHMENT_RATIOS = {
    "uas": ("correct", "scored"),
    "uuas": ("edges_found", "edges"),
    "uas_with_punctuation": ("correct_with_punctuation", "words"),
}
"""Numerator and denominator of each score among the columns of `sentence_scores`."""


def attachment_scores(
    arcs: Arcs, attached: Floats, edges: Floats, *, prefix: str = "", seed: int = 0
) -> dict[str, Estimate]:
    """Return `uas`, `uuas` and `uas_with_punctuation`, with 95 % intervals over `Arcs.units`.

    The first two leave out punctuation.

    Args:
        arcs: Gold arcs.
        attached: Score of each word for its syntactic head, `[words]`: the result of the function
            `attached`, or a row of `uniform_attached`.
        edges: Score of each word for its undirected edge, `[words]`: the result of the function
            `edges_found`, or a row of `uniform_edges_found`.
        prefix: Beginning of the names of the scores.
        seed: Seed of the resampling.
    """
    return ratio_scores(sentence_scores(arcs, attached, edges), ATTACHMENT_RATIOS, prefix=prefix, seed=seed)


def ratio_scores(
    items: pd.DataFrame,
    ratios: Mapping[str, tuple[str, str]],
    *,
    unit: Unit = "fraction",
    share: bool = True,
    of_units: bool = False,
    prefix: str = "",
    seed: int = 0,
) -> dict[str, Estimate]:
    """Return scores that are the ratio of the sums of two columns, with 95 % intervals.

    A score is nan if its denominator is zero in all rows.

    Args:
        items: One row per item, for instance a sentence. Intervals are over the values of the column `document`, if
            there is one, else over the rows.
        ratios: Names of the columns with numerator and denominator, by name of the score.
        unit: Unit of the scores.
        share: True if the numerators count some of the items that the denominators count; see `bootstrap_ratio`.
        of_units: True if the denominators are weights of the rows; see `bootstrap_ratio`.
        prefix: Beginning of the names of the scores.
        seed: Seed of the resampling.
    """
    units = np.arange(len(items))
    if "document" in items:
        units = items["document"].to_numpy()
    numerators = items[[numerator for numerator, _ in ratios.values()]].to_numpy(dtype=np.float64)
    denominators = items[[denominator for _, denominator in ratios.values()]].to_numpy(dtype=np.float64)
    scores = bootstrap_ratio(
        sums_by(units, numerators),
        sums_by(units, denominators),
        unit,
        share=share,
        of_units=of_units,
        seed=seed,
    )
    return {f"{prefix}{name}": scores[place] for place, name in enumerate(ratios)}


def groups_of(arcs: Arcs, relations: Sequence[str]) -> dict[str, Flags]:
    """Return masks of the groups of words that scores are reported for, bool `[words]` by group name.

    The groups are all words (`ALL`), all words but punctuation (`PLAIN`), and the words of each relation
    that occurs, the most frequent relation first.

    Args:
        arcs: Gold arcs.
        relations: Label of each relation id.
    """
    frequency = np.bincount(arcs.relation, minlength=len(relations))
    groups = {ALL: np.ones(len(arcs), dtype=np.bool_), PLAIN: ~arcs.punctuation}
    for relation in np.argsort(-frequency, kind="stable").tolist():
        if frequency[relation]:
            groups[relations[relation]] = arcs.relation == relation
    return groups


def relation_accuracies(arcs: Arcs, attached: Floats, relations: Sequence[str], *, seed: int = 0) -> pd.DataFrame:
    """Return accuracies on all words, on all words but punctuation, and on each relation that occurs.

    They have 95 % intervals over `Arcs.units`.

    Args:
        arcs: Gold arcs.
        attached: 1.0 for words with the right head, else 0.0, `[words]`.
        relations: Label of every relation id.
        seed: Seed of the resampling.

    Returns:
        A frame with a row for each group of `groups_of`, and columns
        `relation, n, accuracy, low, high`; n is the number of words.
    """
    groups = groups_of(arcs, relations)
    accuracy = found_shares(arcs, [attached] * len(groups), list(groups.values()), seed=seed)
    return pd.DataFrame(
        {
            "relation": list(groups),
            "n": [int(np.count_nonzero(words)) for words in groups.values()],
            "accuracy": accuracy.value,
            "low": accuracy.low,
            "high": accuracy.high,
        }
    )


def sentence_scores(arcs: Arcs, attached: Floats, edges: Floats) -> pd.DataFrame:
    """Return the numerators and denominators of the attachment scores, one row per sentence.

    Args:
        arcs: Gold arcs.
        attached: Score of each word, `[words]`, as from `attached`.
        edges: Score of each word's edge, `[words]`, as from `edges_found`; nan for words whose edge
            does not count.

    Returns:
        A frame with a row for each sentence and these columns:

        - `document`: number of the sentence's document, if documents are marked;
        - `sentence`: index of the sentence in its split;
        - `words`, `scored`: number of words, and of words other than punctuation;
        - `correct`, `correct_with_punctuation`: sums of `attached` without punctuation, and with it;
        - `edges`, `edges_found`: number of edges that count, and sum of their scores.

        `ATTACHMENT_RATIOS` names the two columns of each score.
    """
    plain = ~arcs.punctuation
    has_edge = plain & ~np.isnan(edges)
    first = arcs.word == 1
    documents = arcs.documents
    columns: dict[str, NDArray[Any]] = {}
    if documents is not None:
        columns["document"] = documents
    columns |= {
        "sentence": arcs.sentence[first],
        "words": arcs.length[first],
        "scored": count(arcs, plain).astype(np.int64),
        "correct": count(arcs, attached * plain),
        "correct_with_punctuation": count(arcs, attached),
        "edges": count(arcs, has_edge).astype(np.int64),
        "edges_found": count(arcs, np.where(has_edge, edges, 0.0)),
    }
    return pd.DataFrame(columns)


def count(arcs: Arcs, of_words: Floats | NDArray[np.bool_]) -> Floats:
    """Sum one value per word over the words of each sentence; return float64 `[sentences]`.

    Args:
        arcs: Gold arcs, which give the sentence of each word.
        of_words: Value of each word, `[words]`.
    """
    first = arcs.word == 1
    sums = np.bincount(np.cumsum(first) - 1, weights=of_words.astype(np.float64), minlength=int(first.sum()))
    return sums.astype(np.float64)  # bincount returns integers for an empty split


def count_units(arcs: Arcs, of_words: Floats | NDArray[np.bool_]) -> Floats:
    """Sum one value per word over the words of each unit of intervals and tests; return float64 `[units]`.

    Args:
        arcs: Gold arcs, which give the unit of each sentence (`Arcs.units`).
        of_words: Value of each word, `[words]`.
    """
    return sums_by(arcs.units, count(arcs, of_words)[:, None])[:, 0]


def count_found(arcs: Arcs, words: Flags, found: Flags) -> tuple[Floats, Floats]:
    """Count the words that each candidate finds, and the words that count, in each unit of intervals and tests.

    Args:
        arcs: Gold arcs, which give the unit of each word.
        words: The n words that count, bool `[words]`.
        found: True for those that each candidate finds, `[n, candidates]`.

    Returns:
        Two arrays of float64: `[units, candidates]` and `[units]`.
    """
    unit = arcs.units_of_words[words]
    counted = np.bincount(unit, minlength=arcs.number_of_units).astype(np.float64)
    found_in_units = np.zeros((len(counted), found.shape[1]))
    for start in range(0, len(unit), _BLOCK):
        of_block = unit[start : start + _BLOCK]
        rows = np.arange(len(of_block))
        is_in_unit = csr_array((np.ones(len(rows)), (of_block, rows)), shape=(len(counted), len(rows)))
        found_in_units += is_in_unit @ found[start : start + _BLOCK].astype(np.float64)
    return found_in_units, counted


def sums_by(units: NDArray[Any], values: Floats) -> Floats:
    """Sum rows `[rows, columns]` that have the same unit; return float64 `[units, columns]`, sorted by unit.

    Args:
        units: Unit of each row, `[rows]`.
        values: The rows.
    """
    numbers = np.unique(units, return_inverse=True)[1]
    sums = np.zeros((int(numbers.max(initial=-1)) + 1, values.shape[1]))
    np.add.at(sums, numbers, values)
    return sums


def found_shares(
    arcs: Arcs, found: Sequence[Flags | Floats], words: Sequence[Flags], *, seed: int = 0
) -> Estimate[Floats]:
    """Return the shares of words that are found, with 95 % intervals over `Arcs.units`, `[columns]`.

    Args:
        arcs: Gold arcs.
        found: For each column, True (or 1.0) for words whose head or edge is found, `[words]`.
        words: For each column, the words that count, bool `[words]`.
        seed: Seed of the resampling.
    """
    numbers = [count_units(arcs, counted * right) for right, counted in zip(found, words, strict=True)]
    totals = [count_units(arcs, counted) for counted in words]
    return bootstrap_ratio(np.stack(numbers, axis=1), np.stack(totals, axis=1), share=True, seed=seed)


def compare_found(
    arcs: Arcs,
    found: Sequence[Flags],
    by_baseline: Sequence[Flags],
    words: Sequence[Flags],
    *,
    draws: int,
    seed: int = 0,
) -> Estimate[Floats]:
    """Return the share of words that are found minus the share that a baseline finds, `[comparisons]`.

    The difference is paired: both sides see the same subsets of `Arcs.units`. It has a 95 % interval and a two-sided
    p-value.

    Args:
        arcs: Gold arcs.
        found: For each comparison, True for words whose head or edge is found, `[words]`.
        by_baseline: The same for the baseline.
        words: For each comparison, the words that count, bool `[words]`.
        draws: Number of subsets.
        seed: Seed of the subsets.
    """
    gains = [count_gains(arcs, *sides) for sides in zip(found, by_baseline, words, strict=True)]
    totals = [count_units(arcs, counted) for counted in words]
    return bootstrap_ratio(
        np.stack(gains, axis=1),
        np.stack(totals, axis=1),
        share=True,
        compared=True,
        draws=draws,
        seed=seed,
    )


def count_gains(arcs: Arcs, found: Flags, by_baseline: Flags, words: Flags) -> Floats:
    """Count the words that are found, minus those that a baseline finds, in each unit; return float64 `[units]`.

    Args:
        arcs: Gold arcs.
        found: True for words whose head or edge is found, `[words]`.
        by_baseline: The same for the baseline.
        words: The words that count, bool `[words]`.
    """
    return count_units(arcs, words * (1.0 * found - by_baseline))


def baseline_scores(dev: Arcs, test: Arcs, relations: int) -> dict[str, Estimate]:
    """Return the attachment scores of every baseline on test, such as `offset.uas` and `uniform.uuas`.

    The baselines are `offset`, the fixed offset that is best on dev; `right_branching`;
    `left_branching`; and `uniform`, uniform attention. If `Arcs.reach` limits the words that can be
    attended to, uniform attention differs by layer and direction. Its scores are then those of the
    layer and direction that are best on dev.

    Args:
        dev: Gold arcs of dev.
        test: Gold arcs of test.
        relations: Number of relations in the corpus.
    """
    offset, _ = best_offsets(dev, relations)
    heads: dict[str, Integers] = {
        "offset": offset_heads(test, offset),
        "right_branching": right_branching(test),
        "left_branching": left_branching(test),
    }
    # Without a reach all layers and directions are one way, and each split may be without.
    best = 0
    if test.reach is not None:
        by_way = uniform_attached(dev)[:, ~dev.punctuation].sum(1)
        best = int(by_way.argmax())
    scores = attachment_scores(test, uniform_attached(test)[best], uniform_edges_found(test)[best], prefix="uniform.")
    for name, predicted in heads.items():
        scores |= attachment_scores(test, attached(test, predicted), edges_found(test, predicted), prefix=f"{name}.")
    return scores
