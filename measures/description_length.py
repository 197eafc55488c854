"""Description length of the gold governors of a treebank under a probe, in bits (Voita & Titov 2020)."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from datamodules import AttentionBatch
from datamodules.batches import BatchLoader
from measures.nested import ProbeMeasure
from measures.trainings import result_of
from metrics.attachment import ratio_scores
from probes import DependencyProbe, HeadSelectionProbe, StructuralDistanceProbe
from results import Bars, Estimate, Result, Table, Unit
from results.errors import UserError, counted

PORTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Ends of the blocks of the online code, as shares of the train split (Voita & Titov 2020, §2.2.2)."""

_UNITS: dict[str, Unit] = {"portion": "fraction", "bits": "bits", "bits_per_word": "bits", "dev_loss": "nats"}


def borders(portions: Sequence[float], sentences: int) -> list[int]:
    """Return the number of sentences up to the end of each block of the online code.

    Args:
        portions: Ends of the blocks as shares of the sentences.
        sentences: Number of sentences.

    Returns:
        Ascending numbers: each share of `sentences`, rounded down, but at least 1. If several blocks
        would end after the same sentence, they become one block.
    """
    return sorted({max(1, int(portion * sentences)) for portion in portions})


def code_bits(
    probe: DependencyProbe, loader: BatchLoader[AttentionBatch], sentences: int, device: torch.device
) -> NDArray[np.float64]:
    """Return the code length of the gold governors of each sentence under a trained probe, in bits.

    Args:
        probe: The trained probe.
        loader: Batches of sentences of one split.
        sentences: Number of sentences of the split.
        device: Device of the computation.

    Returns:
        Bits of each sentence, float64 `[sentences]`; 0 for sentences that the loader leaves out.

    Raises:
        UserError: A gold governor has probability zero, so that its code is infinite.
    """
    bits = np.zeros(sentences)
    assert isinstance(probe, HeadSelectionProbe | StructuralDistanceProbe)
    probe = probe.to(device).eval()
    with torch.inference_mode():
        for batch in loader:
            nats = probe.cross_entropy(batch.to(device)).cpu().double().sum(dim=1).numpy()
            bits[batch.index.numpy()] = nats / math.log(2)
    if not np.isfinite(bits).all():
        raise UserError(
            f"{type(probe).__name__} gives a gold governor of the train sentence with index "
            f"{int(np.argmax(~np.isfinite(bits)))} no probability above 0, so the code length is infinite. Its "
            "probabilities must cover every word and ROOT; if its loss is nan, lower its learning rate."
        )
    return bits


class DescriptionLength(ProbeMeasure):
    """Description length of the gold governors by the online code (Voita & Titov 2020, §2.2.2), in bits.

    The shuffled train split is sent in blocks. The first block is coded uniformly: log₂(n+1) bits for
    each word of a sentence of n words, because its head is one of n+1 candidates. Every other block is
    coded by a copy of the probe that was trained on all blocks before it; its weights are those of the
    epoch with the lowest `val_loss` on dev. All words are coded, punctuation too. Compression is the
    length of the uniform code of the whole split divided by the length of the online code.

    Another copy is trained on the whole split, and its score on test is reported. The code length of
    train under this copy, `data_bits`, is the part of the online code that describes the data; the rest,
    `model_bits`, describes the probe.

    The interval of the compression is over sentences of train, for fixed trained copies. It does not
    cover the variation over orders of the sentences and initialisations, which depend on `seed`.

    `ProbeMeasure` lists the options.
    """

    experiment = "description_length"
    portions: Sequence[float] = PORTIONS

    def prepare(self) -> None:
        """Load the train split too.

        Raises:
            UserError: The probe does not predict probabilities of candidate governors.
        """
        if not isinstance(self.probe, HeadSelectionProbe | StructuralDistanceProbe):
            raise UserError(
                f"{type(self.probe).__name__} predicts no probabilities of governors, so a description length cannot "
                "be computed. Use another probe, for instance AttentionOnlyProbe."
            )
        super().prepare()

    def outcome(self) -> Result:
        train = self.data.splits["train"]
        ends = borders(self.portions, len(train))
        order = np.random.default_rng(self.seed).permutation(len(train))
        uniform: NDArray[np.float64] = train.lengths * np.log2(train.lengths + 1)
        on = {counted(end, "sentence"): self.data.variant(train=order[:end].tolist()) for end in ends[:-1]}
        copies = self.trained_copies({**on, "All sentences": self.data.variant()}, "val_loss", "min")
        *online, (final, last) = copies
        data = self.data.variant()
        data.read_only(frozenset(self.probe.reads))
        data.setup("fit")
        bits, blocks = uniform.copy(), []
        for copy, (start, stop) in zip([None, *online], pairwise((0, *ends)), strict=True):
            block = order[start:stop]
            if copy is not None:
                loader = data.batches("train", block.tolist())
                bits[block] = code_bits(copy[0], loader, len(bits), self.device)[block]
            words, cost = int(train.lengths[block].sum()), float(bits[block].sum())
            blocks.append(
                {
                    "portion": stop / len(train),
                    "sentences": stop - start,
                    "words": words,
                    "epochs": copy[1].epoch if copy else 0,
                    "bits": cost,
                    "bits_per_word": cost / words,
                    "dev_loss": copy[1].value if copy else np.nan,
                    "uniform": uniform[block].sum() / words,
                }
            )
        table = pd.DataFrame(blocks)
        figure = Bars(
            title="Cost of every block of train",
            categories=tuple(f"{100 * portion:.3g} %" for portion in table["portion"]),
            series={"online code": table["bits_per_word"].tolist(), "uniform code": table.pop("uniform").tolist()},
            label="bits per word",
            unit="bits",
        )
        columns = {"sentence": np.arange(len(train)), "id": train.ids, "words": train.lengths}
        items = pd.DataFrame({**columns, "bits": bits, "uniform": uniform})
        ratios, headline = {"compression": ("uniform", "bits")}, self.probe.headline
        whole, data_bits = bits.sum(), code_bits(final, data.batches("train"), len(train), self.device).sum()
        scores = {"codelength_bits": _bits(whole), "uniform_bits": _bits(uniform.sum())}
        scores |= ratio_scores(items, ratios, unit="ratio")
        scores[headline] = result_of(final, data, self.device).scores[headline]
        scores |= {"data_bits": _bits(data_bits), "model_bits": _bits(whole - data_bits)}
        return Result(
            experiment=self.experiment,
            scores=scores,
            tables={"blocks": Table(table, _UNITS, answer=("portion", "bits", "bits_per_word"))},
            headline=("codelength_bits", "compression"),
            figures={"blocks": figure},
            audit={
                "epochs": last.epoch,
                "cut_off": sum(not best.stopped for _, best in copies),
                "merged_portions": len(self.portions) - len(ends),
            },
            items=items,
            ratios=ratios,
        )


def _bits(number: float) -> Estimate:
    return Estimate(float(number), unit="bits")
