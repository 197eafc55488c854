"""The cosine of outputs and mean values, against loops over positions."""

import math
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from attention import Encoder
from attention.capture import Mixture, replacing
from datamodules import SegmentBatch, TextDataModule
from measures import Bags
from tests.attention.test_checks import save
from tests.measures.passes import ENCODERS, batches, encoder, sees, show

NO_DATA = cast(TextDataModule, None)  # which this analysis does not ask


def begun(model: Encoder) -> Bags:
    bags = Bags()
    bags.begin(NO_DATA, model)
    return bags


def cosine(first: Tensor, second: Tensor) -> float:
    return float(first @ second / (first.norm() * second.norm()))


def values_of(model: Encoder, batch: SegmentBatch) -> list[Tensor]:
    """The values of each layer, `[batch, heads, to, dim]`."""
    found: list[Tensor] = []

    def read(_: int, module: nn.Module, mixture: Mixture) -> Tensor:
        found.append(mixture.values.double())
        return mixture.outputs

    with torch.inference_mode(), replacing(read):
        model.model(**model.inputs(batch.tokens, batch.mask, batch.segments))
    return found


def test_rows_with_a_sink_are_divided_by_their_sums(tmp_path: Path) -> None:
    model = Encoder(str(save(tmp_path, "gpt_oss")))
    bags, sums, inputs = begun(model), torch.zeros(model.layers, model.heads), 0
    for batch in batches(model):
        for layer, weights in enumerate(show(model, batch, bags)):
            for item, length in enumerate(batch.lengths.tolist()):
                rows = weights[item, :, :length, :length]
                rows = rows / rows.sum(-1, keepdim=True)
                sums[layer] += torch.special.entr(rows).sum(-1).mean(-1)
        inputs += len(batch.index)
    table = bags.result({}).tables["bags"].frame
    assert table["entropy"].tolist() == pytest.approx((sums / inputs).ravel().tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_numbers_are_those_of_loops_over_positions(kind: str, tmp_path: Path) -> None:
    model = encoder(kind, tmp_path)
    bags = begun(model)
    sums = torch.zeros(model.layers, model.heads, 3, dtype=torch.float64)
    for batch in batches(model):
        passed = show(model, batch, bags)
        values = values_of(model, batch)
        for item, length in enumerate(batch.lengths.tolist()):
            for layer, weights in enumerate(passed):
                for head in range(model.heads):
                    own = values[layer][item, head, :length]
                    rows = weights[item, head, :length, :length].double()
                    numbers = []
                    for row in range(length):
                        seen = [column for column in range(length) if sees(kind, layer, row, column)]
                        mean = own[seen].mean(0)
                        numbers.append(
                            (
                                cosine(rows[row] @ own, mean),
                                sum(cosine(own[column], mean) for column in seen) / len(seen),
                                -sum(float(p) * math.log(p) for p in rows[row].tolist() if p > 0),
                            )
                        )
                    sums[layer, head] += torch.tensor(numbers, dtype=torch.float64).mean(0)
    table = bags.result({}).tables["bags"].frame
    found = torch.tensor(table[["cosine", "single", "entropy"]].to_numpy().copy())
    assert torch.allclose(found, (sums / 7).view(-1, 3), atol=1e-5)
