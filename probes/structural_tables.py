"""What a sweep of structural probes found: one row of counts per sentence in, scores and tables out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from metrics.attachment import Floats, Integers
from metrics.bootstrap import bootstrap_ratio
from metrics.structural import length_weights
from probes.structural_pairs import Pair
from results import HeatMap, Table


@dataclass(frozen=True, eq=False)
class Found:
    """What k probes found in the sentences of a split.

    Attributes:
        sentence: `[sentences]` index in the split.
        words: `[sentences]`.
        total: `[sentences]` what there was to find.
        right: `[sentences, k]` how much of it was found.
        correlation: `[sentences, k]` Spearman's; nan where there is none.
    """

    sentence: Integers
    words: Integers
    total: Floats
    right: Floats
    correlation: Floats

    @classmethod
    def of(cls, sentence: Integers, rows: Floats, lengths: Integers) -> "Found":
        """From gathered rows `[sentences, 1 + 2k]`: total, right, correlation; `lengths` are those of the split."""
        total, right, correlation = rows[:, 0], *np.split(rows[:, 1:], 2, axis=1)
        return cls(sentence, lengths[sentence], total, right, correlation)

    def counts(self, share: bool) -> tuple[Floats, Floats]:
        """Numerators and denominators `[sentences, k]` of the share that was found, or of the mean correlation."""
        if share:
            return self.right, np.broadcast_to(self.total[:, None], self.right.shape)
        return self.mean_correlation()

    def mean_correlation(self) -> tuple[Floats, Floats]:
        """Numerators and denominators `[sentences, k]` of the mean over lengths of the mean correlation per length.

        The correlation of a sentence counts with a weight that is the same in all resamples of a bootstrap: 1 / (the
        lengths that occur × the sentences of its length). A resample may have more of one length than of another,
        so that the interval also allows for a sample with other lengths.
        """
        known = ~np.isnan(self.correlation)
        weights = np.stack([length_weights(self.words, column) for column in known.T], axis=1)
        return np.where(known, self.correlation, 0.0) * weights, weights

    def items(self, ids: Sequence[str], probe: int, total: str, right: str) -> pd.DataFrame:
        """One row per sentence, of one probe.

        Args:
            ids: of all sentences of the split.
            probe: which of the k.
            total: name of the column of what there was to find.
            right: name of the column of what was found.

        Returns:
            Columns `sentence, id, words`, these two, `spearman`, and its share in the mean as `spearman_weighted` and
            `spearman_weight`.
        """
        weighted, weight = self.mean_correlation()
        return pd.DataFrame(
            {
                "sentence": self.sentence,
                "id": [ids[index] for index in self.sentence],
                "words": self.words,
                total: self.total.astype(np.int64),
                right: self.right[:, probe].astype(np.int64),
                "spearman": self.correlation[:, probe],
                "spearman_weighted": weighted[:, probe],
                "spearman_weight": weight[:, probe],
            }
        )


def mean(numerators: Floats, denominators: Floats) -> Floats:
    """Σ numerators / Σ denominators over the sentences, `[k]`; nan where there is nothing."""
    total = denominators.sum(axis=0)
    means: Floats = np.divide(numerators.sum(axis=0), total, out=np.full_like(total, np.nan), where=total != 0)
    return means


def sweep_table(
    pairs: Sequence[Pair], epochs: Sequence[int], dev: tuple[Floats, Floats], test: tuple[Floats, Floats]
) -> Table:
    """A row for each probe: columns `layer, rank, epochs, dev, test, low, high`, the interval that of `test`.

    Args:
        pairs: the probes.
        epochs: the epoch of each one's best loss on dev, from 1.
        dev: numerators and denominators `[sentences, k]` of the score.
        test: the same of the other split.
    """
    low, high = bootstrap_ratio(*test)
    frame = pd.DataFrame(
        {
            "layer": [pair.layer for pair in pairs],
            "rank": [pair.rank for pair in pairs],
            "epochs": list(epochs),
            "dev": mean(*dev),
            "test": mean(*test),
            "low": low,
            "high": high,
        }
    )
    return Table(frame, dict.fromkeys(("dev", "test"), "fraction"), interval="test")


def sweep_map(table: pd.DataFrame, chosen: int, score: str) -> HeatMap:
    """The scores of a sweep on test, layers × ranks, with a frame around that of the row `chosen`."""
    values = table.pivot(index="layer", columns="rank", values="test")
    layers, ranks = values.index.tolist(), values.columns.tolist()
    return HeatMap(
        title=f"{score} on test, by layer and rank",
        values=values.to_numpy(dtype=np.float64),
        row_labels=[str(layer) for layer in layers],
        column_labels=[str(rank) for rank in ranks],
        row_label="layer",
        column_label="rank",
        value_label=score,
        unit="fraction",
        marked=(layers.index(table["layer"][chosen]), ranks.index(table["rank"][chosen])),
    )
