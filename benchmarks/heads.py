"""All heads on all relations in one pass over the store, against the original way: head after head, word after word.

`python -m benchmarks.heads [--json FILE]`
"""

from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attention.encoder import EncoderSpec
from benchmarks.harness import Report, Settings, Treebanks, alternate, command, timed
from datamodules import DependencyDataModule
from metrics.attachment import ALL, PLAIN, groups_of
from metrics.heads import hit_counts, most_attended
from metrics.rows import ArcRows

Counts = dict[str, list[tuple[int, int]]]
"""Right words and all words of each relation, and of `all`, for every predictor in the order way, layer, head."""


class OnePass:
    """Batches from the store, the kernel over all heads, the gathered rows, and the count per relation."""

    def __init__(self, data: DependencyDataModule) -> None:
        self._data = data
        self.counts: Counts = {}

    def __call__(self) -> None:
        """Count once."""
        metric = ArcRows(heads=2 * len(self._data.layers) * len(self._data.heads))
        for batch in self._data.val_dataloader():
            found = most_attended(batch.attention, batch.lengths).flatten(2)
            metric.add(batch, heads=found)
        arcs, rows = metric.arcs()
        predicted = rows["heads"]
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


main = command("heads", measure)
