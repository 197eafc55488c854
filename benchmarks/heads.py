"""All heads on all relations in one pass over the store, against the original way: head after head, word after word.

The stability of the chosen heads, against the pass that gathers what it is computed from. Two steps that grow with
heads and with the length of a text, each against a plain way: the permutation test, and the reduction of attention
from pieces to words.

`python -m benchmarks.heads [--json FILE]`
"""

from collections import Counter
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from attention_probing.attention.alignment import AlignedPieces, reduction
from attention_probing.attention.source import EncoderSpec
from attention_probing.datamodules import DependencyDataModule
from attention_probing.metrics.attachment import ALL, PLAIN, add_arcs, groups_of, take_arcs
from attention_probing.metrics.heads import Predictions, _Offsets, hit_counts, most_attended, permutation_p
from attention_probing.metrics.rows import Rows
from attention_probing.metrics.stability import RESAMPLES, choose_again
from attention_probing.results import Integers
from benchmarks.harness import Report, Settings, Treebanks, alternate, command, timed

PERMUTATIONS = 200
PIECES, HEADS = 1300, 9
"""Size of the long input: a layer of SmolLM2-135M."""

Counts = dict[str, list[tuple[int, int]]]
"""Right words and all words of each relation, and of `all`, for every predictor in the order way, layer, head."""


class OnePass:
    """Batches from the store, the kernel over all heads, the gathered rows, and the count per relation."""

    def __init__(self, data: DependencyDataModule) -> None:
        self._data = data
        self.counts: Counts = {}
        self.predictions: Predictions | None = None

    def __call__(self) -> None:
        """Count once."""
        words = Rows()
        for batch in self._data.val_dataloader():
            found = most_attended(batch.attention, batch.lengths).flatten(2)
            add_arcs(words, batch, heads=found)
        arcs, columns = take_arcs(words)
        predicted = columns["heads"]
        self.predictions = Predictions(arcs, self._data.relations, predicted)
        groups = groups_of(arcs, self._data.relations)
        hits = dict(zip(groups, hit_counts(arcs, predicted, groups).tolist(), strict=True))
        self.counts = {
            name: [(right, int(np.count_nonzero(words))) for right in hits[name]]
            for name, words in groups.items()
            if name != PLAIN
        }


class HeadByHead:
    """What the notebook released with Clark et al. (2019) does, after its description.

    For every way, layer and head it goes through all sentences; in each it takes that head's matrix, leaves out the
    word itself and the delimiters, and takes the greatest weight of every row; then it compares word by word, and
    counts what is right and what is wrong. As there, the weights lie in memory beforehand, in float32: the store's own
    numbers, which lose nothing.

    Args:
        data: Its dev split.
    """

    def __init__(self, data: DependencyDataModule) -> None:
        store = data.splits["dev"].store
        self._sentences: list[tuple[NDArray[np.float32], list[int], list[str]]] = [
            (store.read("attention", item).numpy(), labels["heads"], labels["relations"])
            for item, labels in enumerate(store.labels.select(["heads", "relations"]).to_pylist())
        ]
        self._layers, self._heads = len(data.layers), len(data.heads)
        self.counts: Counts = {}

    def __call__(self) -> None:
        """Count once."""
        counts = [
            self._evaluate(layer, head, transposed)
            for transposed in (False, True)
            for layer in range(self._layers)
            for head in range(self._heads)
        ]
        relations = {relation for _, _, labels in self._sentences for relation in labels}
        self.counts = {
            name: [(right[name], right[name] + wrong[name]) for right, wrong in counts] for name in (ALL, *relations)
        }

    def _evaluate(self, layer: int, head: int, transposed: bool) -> tuple[Counter[str], Counter[str]]:
        right, wrong = Counter[str](), Counter[str]()
        for attention, heads, relations in self._sentences:
            weights = attention[layer, head].copy()
            if transposed:
                weights = weights.T
            # The original writes zeros, so that a word may be its own head where all other weights are zero.
            weights[range(len(weights)), range(len(weights))] = -1
            words = weights[1:-1, 1:-1]
            predicted = np.where(words.max(axis=-1) > 0, words.argmax(axis=-1) + 1, -1)
            for found, gold, relation in zip(predicted, heads, relations, strict=True):
                count = right if found == gold else wrong
                count[relation] += 1
                count[ALL] += 1
        return right, wrong


class OneByOne(_Offsets):
    """The offsets of a permutation test, compared predictor by predictor."""

    @cached_property
    def _columns(self) -> NDArray[np.integer]:
        return np.ascontiguousarray(self._chosen.T)

    def hits(self, rng: np.random.Generator, predictor: int | None = None) -> Integers:
        """Shuffle with the same draws."""
        gold = self._gold[np.argsort(self._room + rng.random(len(self._gold)))]
        columns = self._columns if predictor is None else self._columns[predictor, None]
        return np.array([np.count_nonzero(column == gold) for column in columns])


def _permutations(settings: Settings, report: Report, found: Predictions) -> None:
    """The permutation test, each permutation over all predictors at once, against one predictor after the other.

    Raises:
        RuntimeError: A p-value differs.
    """
    chosen = [found.best(group) for group in found.groups]
    test = partial(permutation_p, found, found, chosen, permutations=PERMUTATIONS)

    def one_by_one() -> NDArray[np.float64]:
        with patch("attention_probing.metrics.heads._Offsets", OneByOne):
            return test()

    if not np.array_equal(test(), one_by_one(), equal_nan=True):
        raise RuntimeError("The p-values differ, though their draws are the same.")
    seconds = alternate(settings.rounds, reference=timed(one_by_one), ours=timed(test))
    meaning = "the permutation test, predictor by predictor ÷ all predictors at once"
    report.ratio("permutations_over_reference", seconds["reference"], seconds["ours"], meaning)
    report.seconds("permutations_s", seconds["ours"], f"{PERMUTATIONS} permutations for all relations, chosen on dev")
    report.seconds("permutations_reference_s", seconds["reference"], "predictor by predictor")


def _stability(settings: Settings, report: Report, found: Predictions, one_pass: OnePass) -> None:
    """Choosing the head of every relation again on 100 resamples, against the pass that gathers the predictions."""

    def choose() -> None:
        for group in found.groups:
            choose_again(*found.count_units(group))

    seconds = alternate(settings.rounds, one_pass=timed(one_pass), again=timed(choose))
    meaning = f"choosing all heads again on {RESAMPLES} resamples ÷ one pass over the store"
    report.ratio("stability_over_pass", seconds["again"], seconds["one_pass"], meaning, wanted="≤ .2")
    report.seconds("stability_s", seconds["again"], "for all relations")


def _reduction(settings: Settings, report: Report) -> None:
    """The reduction of one layer of a long input, by sums against the product with factors of zeros and ones.

    Raises:
        RuntimeError: The two differ by 1e-6.
    """
    words = np.cumsum(np.random.default_rng(0).random(PIECES) < 0.7).astype(np.int32)
    part = AlignedPieces(words, words, int(words[-1]) - 1)
    factors = reduction([part], "mean", torch.device("cpu"))
    factors = replace(factors, rows=factors.rows.expand(-1, HEADS, -1, -1).contiguous())
    weights = torch.rand(1, HEADS, PIECES, PIECES, generator=torch.Generator().manual_seed(0)).mul(9).softmax(-1)

    def product() -> torch.Tensor:
        with patch("attention_probing.attention.alignment.LONG", np.inf):
            return factors.words(weights)

    sums = partial(factors.words, weights)
    gap = float((sums() - product()).abs().max())
    if gap > 1e-6:
        raise RuntimeError(f"The sums differ from the product by {gap:.1e}.")
    seconds = alternate(settings.rounds, reference=timed(product), ours=timed(sums))
    meaning = f"a layer of {HEADS} heads, {PIECES:,} pieces, to words: product ÷ sums"
    report.ratio("reduction_over_product", seconds["reference"], seconds["ours"], meaning)
    report.seconds("reduction_s", seconds["ours"], "by sums")
    report.seconds("reduction_product_s", seconds["reference"], "by the product")


def check(ours: Counts, reference: Counts) -> None:
    """Compare the counts.

    Raises:
        RuntimeError: A single one differs: the two do not compute the same, and no ratio means anything.
    """
    if ours.keys() != reference.keys():
        raise RuntimeError(f"One side has not counted {sorted(ours.keys() ^ reference.keys())}.")
    wrong = [name for name in ours if ours[name] != reference[name]]
    if wrong:
        raise RuntimeError(f"Accuracies differ from the reference's on {len(wrong)} relations, the first {wrong[0]!r}.")


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """All heads on all relations in one pass over the store, against a loop over heads, sentences and words."""
    treebanks = Treebanks.choose(settings, folder, report, "its dev split")
    data = DependencyDataModule({"dev": str(treebanks.dev)}, encoder=EncoderSpec(), cache=str(folder / "cache"))
    data.setup("validate")
    ours, reference = OnePass(data), HeadByHead(data)
    ours()  # and the pages of the store are warm from here on
    seconds = alternate(settings.rounds, reference=timed(reference), ours=timed(ours))
    check(ours.counts, reference.counts)
    meaning = "a loop over heads, sentences and words ÷ all heads in one pass over the store"
    report.ratio("over_reference", seconds["reference"], seconds["ours"], meaning, wanted="≥ 15")
    report.figure("sentences", len(data.splits["dev"]), "scored")
    report.figure("predictors", len(ours.counts[ALL]), "heads, each asked both ways")
    report.figure("relations", len(ours.counts) - 1, "counted; each count is the same on both sides")
    report.seconds("one_pass_s", seconds["ours"], "from the opened store to the counts")
    report.seconds("reference_s", seconds["reference"], "the original way, all weights in memory beforehand")
    assert ours.predictions is not None
    _stability(settings, report, ours.predictions, ours)
    _permutations(settings, report, ours.predictions)
    _reduction(settings, report)


main = command("heads", measure)
