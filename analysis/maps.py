"""The raw attention of every head in one input, as pictures."""

from collections.abc import Mapping
from textwrap import shorten

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from analysis.base import Analysis
from attention import Encoder
from datamodules import SegmentBatch, TextDataModule
from results import Maps, Result
from results.errors import UserError, check_numbers
from training import gathered

_WIDTH = 160  # letters of the text in the title


class RawMaps(Analysis):
    """Attention weights of all layers and heads in one input, padding left out. It keeps these weights, and no sums.

    Args:
        input: number of the segment among all of the run, from 0.
    """

    name = "maps"

    def __init__(self, input: int = 0) -> None:
        super().__init__()
        check_numbers(self, least=0, input=input)
        self.input = input

    def begin(self, data: TextDataModule, encoder: Encoder) -> None:
        self._layers = encoder.layers
        self._found: list[tuple[int, str, NDArray[np.float32]]] = []  # layer, text, [heads, from, to]

    def update(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        for place in (batch.index == self.input).nonzero().flatten().tolist():
            length = int(batch.lengths[place])
            text = " | ".join(" ".join(passage.words) for passage in batch.passages[place])
            own = weights[place, :, :length, :length].float().cpu().numpy()
            self._found.append((layer, text, own.copy()))

    def result(self, others: Mapping[str, Analysis]) -> Result:
        """Figure `maps`, layers × heads; a UserError where there is no such input."""
        found = sorted(gathered(self._found), key=lambda one: one[0])
        if len(found) != self._layers:
            raise UserError(
                f"--model.init_args.analyses: RawMaps shows input {self.input}, and the texts have fewer segments. "
                f"Give a smaller number."
            )
        rows = [list(weights) for _, _, weights in found]
        figure = Maps(
            f"Attention of every head in: {shorten(found[0][1], _WIDTH, placeholder=' …')}",
            rows,
            [str(row) for row in range(1, len(rows) + 1)],
            [str(column) for column in range(1, len(rows[0]) + 1)],
            "layer",
            "head",
            "attention",
            unit="fraction",
        )
        return Result(self.name, {}, figures={"maps": figure}, audit={"input": self.input, "tokens": len(rows[0][0])})
