"""Attention of the decoder of an encoder-decoder: to itself, and to what the encoder has read."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attention_probing.attention.alignment import AlignedPieces, name_positions, readable, reduction, split_words
from attention_probing.attention.capture import FLOAT32, NAME, capture_attention
from attention_probing.attention.checks import ForwardPass, find_difference, read_attention
from attention_probing.attention.encoder import LoadedEncoder
from attention_probing.attention.loading import load_config, load_whole
from attention_probing.attention.source import EncoderError
from attention_probing.results.errors import UserError, pluralize

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DecoderPart = Literal["decoder", "cross"]
"""Attention of the decoder to its own words, or to the words of the source."""


class DecoderAttention:
    """The whole model of an encoder-decoder, which reads pairs of a source and a target.

    A row belongs to a word of the target: it is the attention with which the word is predicted, from the position
    before it.

    Args:
        encoder: The encoder of the same files.

    Raises:
        EncoderError: The model is no encoder-decoder, or its attention cannot be captured.
    """

    def __init__(self, encoder: LoadedEncoder) -> None:
        self.encoder = encoder
        source = encoder.source
        config = load_config(source)
        if not config.is_encoder_decoder:
            raise EncoderError(
                f"{source.spec.name} ({type(encoder.model).__name__}) is not an encoder-decoder, so it has no "
                "attention between two texts. Name one (T5, BART, …), or leave out `part`."
            )
        if source.spec.device_map is not None or config.decoder_start_token_id is None:
            why = "has no decoder_start_token_id"
            if source.spec.device_map:
                why = "is divided among devices"
            raise EncoderError(f"{source.spec.name} {why}, so its decoder cannot be read. Name another model.")
        self.model: PreTrainedModel = load_whole(source).to(encoder.device)  # type: ignore[arg-type]
        self.model.eval().requires_grad_(False)
        self.start: int = config.decoder_start_token_id
        source_ids = torch.arange(1, 7, device=encoder.device)
        target_ids = torch.arange(1, 5, device=encoder.device)
        inputs = self._inputs(source_ids, target_ids)
        with torch.inference_mode():
            eager = self.model(**inputs, output_attentions=True, use_cache=False)
        self.layers = len(eager.cross_attentions)
        # In the order of a pass.
        weights = [*eager.encoder_attentions]
        for layer in range(self.layers):
            weights += [eager.decoder_attentions[layer], eager.cross_attentions[layer]]
        self.model.set_attn_implementation(NAME)
        fault = find_difference([read_attention(self.model, inputs)], [ForwardPass([], weights, eager[0])])
        if fault:
            raise EncoderError(
                f"{source.spec.name} ({type(self.model).__name__}) computes the attention of its decoder outside "
                f"transformers' attention interface, or in another order ({fault}). Choose another architecture (T5, "
                "BART, …)."
            )
        if source.spec.scores == "float32":
            self.model.set_attn_implementation(FLOAT32)

    def attention(self, source: Sequence[str], target: Sequence[str], part: DecoderPart) -> xr.DataArray:
        """Return the attention of the decoder while it predicts a target, over words.

        Args:
            source: Words that the encoder reads.
            target: Words that the decoder predicts.
            part: `cross` for attention to the source, `decoder` for attention to the target before each word.

        Returns:
            `[layer, head, from, to]`, float32, with the coordinates of `Encoder.attention`. `from` are the words of
            the target and its end delimiter. `to` are the words and delimiters of the source; or the start tokens of
            the decoder and the words of the target.

        Raises:
            UserError: A text is longer than the model takes.
        """
        tokenizer = self.encoder.tokenizer
        source_pieces, target_pieces = split_words(tokenizer, [source, target])
        self._check_length(source_pieces, "source")
        self._check_length(target_pieces, "target")
        device = self.encoder.device
        source_ids = torch.from_numpy(source_pieces.ids).long().to(device)
        target_ids = torch.from_numpy(target_pieces.ids).long().to(device)
        # What the decoder reads at a position is the piece before the one that it predicts there. A start delimiter of
        # the tokenizer is predicted too, as in training; its row is left out.
        shifted = np.concatenate([[0], target_pieces.positions[:-1]]).astype(np.int32)
        pieces_to = replace(target_pieces, positions=shifted)
        if part == "cross":
            pieces_to = source_pieces
        rows = reduction([target_pieces], "mean", device).rows
        columns = reduction([pieces_to], "mean", device).columns
        captured = self._capture(self._inputs(source_ids, target_ids), part)
        weights = torch.stack([(rows @ layer @ columns)[0] for layer in captured]).cpu()
        names, numbers = name_positions(tokenizer, target_pieces, target)
        if numbers[0] == 0:
            names = names[1:]
            numbers = numbers[1:]
        if part == "cross":
            to, to_numbers = name_positions(tokenizer, source_pieces, source)
        else:
            starts = [self.start, *target_pieces.ids[target_pieces.positions == 0].tolist()]
            to = [" ".join(readable(tokenizer, starts)), *target]
            to_numbers = [*range(len(target) + 1)]
        coords: dict[str, Any] = {
            "layer": range(1, len(weights) + 1),
            "head": range(1, weights.size(1) + 1),
            "from": names,
            "to": to,
            "from_word": ("from", numbers),
            "to_word": ("to", to_numbers),
        }
        values = weights[:, :, numbers][..., to_numbers].numpy()
        return xr.DataArray(values, coords, ("layer", "head", "from", "to"), "attention")

    def _check_length(self, pieces: AlignedPieces, text: str) -> None:
        """Raise UserError if a text is longer than the model takes."""
        if len(pieces) > self.encoder.max_length:
            raise UserError(
                f"The {text} has {pluralize(len(pieces), 'piece')}, but {self.encoder.source.spec.name} takes at "
                f"most {self.encoder.max_length}. Shorten it."
            )

    def _inputs(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        shifted = torch.cat([target.new_tensor([self.start]), target[:-1]])
        return {
            "input_ids": source[None],
            "decoder_input_ids": shifted[None],
            "attention_mask": torch.ones_like(source[None]),
        }

    def _capture(self, inputs: dict[str, Tensor], part: DecoderPart) -> list[Tensor]:
        """Return the weights of each layer; the encoder's layers run first, then in each layer both of the decoder."""
        first = self.encoder.layers
        if part == "cross":
            first += 1
        calls = frozenset(range(first, self.encoder.layers + 2 * self.layers, 2))
        captured: list[Tensor] = []
        capture_attention(self.model, inputs, lambda _, weights: captured.append(weights), calls)
        return captured
