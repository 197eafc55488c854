"""Analyses of norms of weighted values in place of attention weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attention import EncoderSpec
from attention.quantities import QuantityName
from datamodules import TextDataModule, TextSource
from measures import Analysis, AttentionAnalyses, Bags, Surface
from results import UserError
from tests.trainers import scored


def texts(bert: Path, cache: Path, quantity: QuantityName) -> TextDataModule:
    return TextDataModule(
        [TextSource("sample", limit=9)], EncoderSpec(str(bert)), cache=str(cache), max_length=48, quantity=quantity
    )


def keep(weights: list[Tensor]) -> Callable[[int, Tensor], None]:
    return lambda _, own: weights.append(own.clone())


def test_rows_of_norms_are_divided_by_their_sums(bert: Path, tmp_path: Path) -> None:
    result = scored(AttentionAnalyses([Surface()]), texts(bert, tmp_path, "norms"))
    data = texts(bert, tmp_path, "attention")
    data.setup("test")
    encoder, found = data.encoders["given"], []
    model: Any = encoder.model
    for batch in data.test_dataloader()[0]:
        inputs = encoder.inputs(batch.tokens, batch.mask, batch.segments)
        with torch.inference_mode():
            states = model(**inputs, output_attentions=False, output_hidden_states=True).hidden_states
            weights: list[Tensor] = []
            encoder.capture(inputs, keep(weights), frozenset(range(encoder.layers)))
        for layer, block in enumerate(model.encoder.layer):
            values = block.attention.self.value(states[layer]).unflatten(2, (encoder.heads, -1))
            parts = block.attention.output.dense.weight.unflatten(1, (encoder.heads, -1))  # [size, heads, dim]
            sizes = torch.einsum("bthd,shd->bhts", values, parts).norm(dim=-1)
            for item, n in enumerate(batch.lengths.tolist()):
                norms = weights[layer][item, :, :n, :n] * sizes[item, :, None, :n]
                shares = norms / norms.sum(-1, keepdim=True)
                found.append(shares[..., batch.end[item, :n]].sum(-1).mean())
    assert result.scores["surface.end"].value == pytest.approx(float(torch.stack(found).mean()), abs=1e-6)
    assert result.audit["quantity"] == "norms, rows divided by their sums"


@pytest.mark.parametrize(
    ("analysis", "quantity"),
    [(Surface(), "effective"), (Bags(), "norms")],
)
def test_what_an_analysis_does_not_take_is_refused(
    analysis: Analysis, quantity: QuantityName, bert: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"quantity is {quantity}, but {type(analysis).__name__} takes only attention"):
        scored(AttentionAnalyses([analysis]), texts(bert, tmp_path, quantity))
