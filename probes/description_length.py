"""Description length: how many bits the heads of a treebank cost someone who has the probe (Voita & Titov 2020)."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from datamodules import AttentionBatch
from datamodules.batches import BatchLoader
from metrics.attachment import ratio_scores
from probes.nested import NestedExperiment, TrainedProbe, result_of
from results import Bars, Estimate, Result, Table, Unit
from results.errors import UserError, counted
from training import TrainedModule

PORTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Where the blocks of the online code end, as shares of the train split (Voita & Titov 2020, §2.2.2)."""


_UNITS: dict[str, Unit] = {"portion": "fraction", "bits": "bits", "bits_per_word": "bits", "dev_loss": "nats"}


def borders(portions: Sequence[float], sentences: int) -> list[int]:
    """Number of sentences up to the end of each block: shares rounded down, at least 1, and equal ones merged."""
    return sorted({max(1, int(portion * sentences)) for portion in portions})


def code_bits(
    probe: TrainedModule[Any, Any], loader: BatchLoader[AttentionBatch], sentences: int, device: torch.device
) -> NDArray[np.float64]:
    """Bits of the gold heads under a trained probe, `[sentences]`; those that the loader does not give cost nothing.

    Raises:
        UserError: a head has probability zero: no code for it is finite.
    """
    assert isinstance(probe, TrainedProbe)
    bits = np.zeros(sentences)
    probe = probe.to(device).eval()
    with torch.inference_mode():
        for batch in loader:
            nats = probe.cross_entropy(batch.to(device)).cpu().double().sum(dim=1).numpy()
            bits[batch.index.numpy()] = nats / math.log(2)
    if not np.isfinite(bits).all():
        at = int(np.argmax(~np.isfinite(bits)))
        raise UserError(
            f"{type(probe).__name__} gives a gold head of sentence {at} of train no probability: there is no code for "
            f"it. Every one of the n+1 candidates must have a score."
        )
    return bits


class DescriptionLength(NestedExperiment):
    """Description length of the gold heads by the online code (Voita & Titov 2020, §2.2.2), in bits.

    The train split, shuffled, is sent in blocks. The first is coded uniformly, log₂(n+1) bits for each of the n words
    of a sentence, since its head is one of n+1 candidates; every other by a copy of the probe that was trained on all
    blocks before it, to its optimum on dev: that of the code, the lowest `val_loss`. All words are coded, punctuation
    too. Compression is the length of the uniform code of the whole split over that of the online code.

    With `final` another copy is trained on the whole split. Its scores on test stand beside, and what train costs under
    it is the part of the code that describes the data, `data_bits`; the rest, `model_bits`, describes the probe.

    The interval of the compression is over sentences of train, with the trained copies as they are: it says nothing of
    the order of the blocks or of the initialisation, for which there are seeds.

    The other options are those of `NestedExperiment`; `seed` also orders the sentences.

    Args:
        probe: what is trained.
        portions: ends of the blocks, ascending shares of the sentences of train; the last is 1.
        final: whether a copy is trained on the whole split, which costs about as much as all the others.

    Raises:
        UserError: the portions do not ascend to 1.
    """

    experiment = "description_length"

    def __init__(
        self,
        probe: TrainedModule,  # type: ignore[type-arg] # jsonargparse takes no parametrized class
        portions: tuple[float, ...] = PORTIONS,
        final: bool = True,
        **training: Any,  # noqa: ANN401 # those of NestedExperiment
    ) -> None:
        super().__init__(probe, **training)
        ascending = all(low < high for low, high in pairwise((0.0, *portions)))
        if not ascending or not portions or portions[-1] != 1:
            raise UserError(f"portions must ascend from above 0 to 1, not {', '.join(map(str, portions))}.")
        self.portions, self.final = portions, final

    def outcome(self) -> Result:
        """Code every block, the first without a probe."""
        train = self.data.splits["train"]
        ends = borders(self.portions, len(train))
        order = np.random.default_rng(self.seed).permutation(len(train))
        uniform: NDArray[np.float64] = train.lengths * np.log2(train.lengths + 1)
        on = {counted(end, "sentence"): self.data.variant(train=order[:end].tolist()) for end in ends[:-1]}
        if self.final:
            on["All sentences"] = self.data.variant()
        copies = self.trained_copies(on, "val_loss", "min")
        data = self.data.variant()
        data.read_only(frozenset(self.contract.reads))
        data.setup("fit")
        bits, blocks = uniform.copy(), []
        for copy, (start, stop) in zip([None, *copies[: len(ends) - 1]], pairwise((0, *ends)), strict=True):
            block = order[start:stop]
            if copy is not None:
                loader = data.batches("train", block.tolist())
                bits[block] = code_bits(copy.probe, loader, len(bits), self.device)[block]
            words, cost = int(train.lengths[block].sum()), float(bits[block].sum())
            blocks.append(
                {
                    "portion": stop / len(train),
                    "sentences": stop - start,
                    "words": words,
                    "epochs": copy.epochs if copy else 0,
                    "bits": cost,
                    "bits_per_word": cost / words,
                    "dev_loss": copy.dev if copy else np.nan,
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
        ratios = {"compression": ("uniform", "bits")}
        scores = {"codelength_bits": _bits(bits.sum()), "uniform_bits": _bits(uniform.sum())}
        scores |= ratio_scores(items, ratios, unit="ratio")
        if self.final:
            data_bits = code_bits(copies[-1].probe, data.batches("train"), len(train), self.device).sum()
            headline = self.contract.headline
            scores[headline] = result_of(copies[-1].probe, data, self.device).scores[headline]
            scores |= {"data_bits": _bits(data_bits), "model_bits": _bits(bits.sum() - data_bits)}
        return Result(
            experiment=self.experiment,
            scores=scores,
            tables={"blocks": Table(table, _UNITS, answer=("portion", "bits", "bits_per_word"))},
            headline=("codelength_bits", "compression"),
            figures={"blocks": figure},
            audit={
                "epochs": copies[-1].epochs if copies else 0,
                "cut_off": sum(not copy.stopped for copy in copies),
                "merged_portions": len(self.portions) - len(ends),
            },
            items=items,
            ratios=ratios,
        )


def _bits(number: float) -> Estimate:
    return Estimate(float(number), unit="bits")
