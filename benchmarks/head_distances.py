"""Distances between all pairs of heads: ours, streamed, against the original way; and the peak of memory.

`python -m benchmarks.head_distances [--json FILE]`
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention_probing.corpora.sample import write_sample_text
from attention_probing.datamodules import SegmentBatch, TextDataModule
from attention_probing.measures import Clusters
from attention_probing.results import Floats
from benchmarks.harness import Report, Settings, alternate, command, texts, timed
from benchmarks.memory import run_job

SEGMENTS = 16
"""Of either side; a second of the original way for each."""
TOLERANCE = 1e-4
SMALL, LARGE = 200, 2000
"""Segments whose peaks of memory are compared."""
_COPIES = 40  # of the embedded text, so that it has as many


class Streamed:
    """What the measurement does with batches whose weights have passed by.

    Args:
        data: Texts, set up.

    Attributes:
        passed: Batches with their weights `[layers, batch, heads, from, to]`, which lie in memory beforehand.
        found: The distances, `[all heads, all heads]`.
    """

    def __init__(self, data: TextDataModule) -> None:
        self._data, self._encoder = data, data.encoders["given"]
        self.passed = [(batch, self._weights(batch)) for batch in data.test_dataloader()[0]]
        self.found: Floats = np.zeros(0)

    def _weights(self, batch: SegmentBatch) -> Tensor:
        layers: list[Tensor] = []
        inputs = self._encoder.inputs(batch.tokens, batch.mask, batch.segments)
        self._encoder.capture(inputs, lambda _, weights: layers.append(weights), frozenset(range(self._encoder.layers)))
        return torch.stack(layers)

    @torch.inference_mode()
    def __call__(self) -> None:
        """Sum up all batches."""
        clusters = Clusters()
        clusters.data, clusters.encoder = self._data, self._encoder
        clusters.begin()
        for batch, weights in self.passed:
            for layer, one in enumerate(weights):
                clusters.update_layer(batch, layer, one)
            clusters.update(batch)
        self.found = clusters.distances()


class PairByPair:
    """What the script released with Clark et al. (2019) does, after its description.

    For every input, and in it for every head, it smooths the weights of that head and of all heads, mixes them, and
    sums both divergences from the mixture over all rows. As there, the weights lie in memory beforehand, in NumPy. It
    never divides by the number of tokens, which is done here at the end.
    """

    def __init__(self, ours: Streamed) -> None:
        self._inputs: list[NDArray[np.float32]] = []
        for batch, weights in ours.passed:
            for item, n in enumerate(batch.lengths.tolist()):
                self._inputs.append(weights[:, item, :, :n, :n].flatten(0, 1).contiguous().numpy())
        self.found: Floats = np.zeros(0)

    def __call__(self) -> None:
        """Sum up all inputs."""
        count = len(self._inputs[0])
        sums = np.zeros((count, count))
        for weights in self._inputs:
            n = weights.shape[-1]
            for head in range(count):
                one = 0.001 / n + 0.999 * weights[head][None]
                others = 0.001 / n + 0.999 * weights
                mixed = (one + others) / 2
                divergence = -one * np.log(mixed / one)
                divergence += -others * np.log(mixed / others)
                divergence /= 2
                sums[head] += divergence.sum(-1).sum(-1)
        self.found = sums / sum(weights.shape[-1] for weights in self._inputs)


def check(ours: Floats, reference: Floats) -> float:
    """The greatest difference of a distance between two heads, relative to it.

    Raises:
        RuntimeError: It is above `TOLERANCE`: the two do not compute the same, and no ratio means anything.
    """
    pairs = ~np.eye(len(ours), dtype=np.bool_)
    difference = float((np.abs(ours - reference)[pairs] / reference[pairs]).max())
    if not difference <= TOLERANCE:  # also when it is not a number
        raise RuntimeError(f"A distance differs from the reference's by {difference:.1e} of it.")
    return difference


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Distances between all pairs of heads: ours, streamed, against the original way; and the peak of memory."""
    data = texts(settings, folder, SEGMENTS)
    ours = Streamed(data)
    reference = PairByPair(ours)
    ours()
    seconds = alternate(settings.rounds, reference=timed(reference), ours=timed(ours))
    report.figure("corpus", data.names[0], "segments of two passages, at most 128 tokens")
    meaning = "a loop over inputs and heads in NumPy ÷ one logarithm for each pair and weight"
    report.ratio("over_reference", seconds["reference"], seconds["ours"], meaning, wanted="≥ 4")
    report.figure("segments", sum(len(batch.index) for batch, _ in ours.passed), "whose weights lie in memory")
    report.figure("heads", len(ours.found), "of all layers")
    meaning = "the greatest of a distance"
    report.figure("relative_difference", check(ours.found, reference.found), meaning, wanted="≤ 1e-4")
    report.seconds("streamed_s", seconds["ours"], "from weights to distances")
    report.seconds("reference_s", seconds["reference"], "the original way")
    if settings.memory:
        _memory(settings, data.names[0], folder, report)


def _memory(settings: Settings, corpus: str, folder: Path, report: Report) -> None:
    """Of whole measurements of `Surface` and `Clusters` in processes of their own."""
    if corpus == "sample":
        long = folder / "long.txt"
        long.write_text(write_sample_text(folder).read_text(encoding="utf-8") * _COPIES, encoding="utf-8")
        corpus = str(long)
    peaks = {}
    for most in (SMALL, LARGE):
        segments = min(most, settings.limit or most)
        peaks[most] = [run_job("distances", folder / "cache", train=corpus, limit=segments).peak_mb]
        report.figure(f"peak_{most}", peaks[most][0], f"peak anonymous memory of {segments:,} segments, in MB")
    report.ratio("peak_2000_over_200", peaks[LARGE], peaks[SMALL], "the one peak ÷ the other", wanted="0.9 – 1.1")


main = command("head_distances", measure)
