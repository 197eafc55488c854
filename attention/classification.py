"""A Hugging Face sequence classifier: the rows of attention that its decision reads can be had, and replaced."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity

from attention.capture import intervening
from attention.encoder import EncoderError, Source, check, drawn_anew, fault_of, load_config, load_tokenizer

Head = tuple[int, int]
"""A layer and a head of it, both 0-based."""

_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Classified:
    """What a classifier says of some texts, and the rows of attention that were asked for.

    Attributes:
        logits: `[batch, classes]`.
        weights: by head `[batch, pieces]`, attention from the position that the decision is read from to all pieces;
            rows sum to one unless they were imposed, and are 0 in the padding. Logits are computed from these tensors.
        values: by head `[batch, pieces, dim]`, the vectors that the weights average.
    """

    logits: Tensor
    weights: Mapping[Head, Tensor]
    values: Mapping[Head, Tensor]


class SequenceClassifier(nn.Module):
    """A pretrained transformer under a classification head, in training mode.

    An encoder is read at its first piece, a causal decoder at its last real one; which of the two is found out by
    running it. Its attention is that of `attention.capture.attend`, seen to equal its own eager attention.

    Args:
        source: where the transformer lies. A head that comes with it is kept; one that does not is drawn from the
            run's seed. Random weights (`EncoderSpec`) are those of the encoder, under a head that is always drawn.
        classes: number of classes.

    Attributes:
        layers: number of attention layers.
        heads: heads per layer.
        drawn: names of the weights that come from the run's seed, those of the head in most cases.
        names: what a head that came with the files calls its classes, in its order; empty for one that was drawn.

    Raises:
        EncoderError: it cannot be loaded, its attention cannot be captured, it cannot be run on word embeddings, or
            its decision is read from no single piece or another than the first or last.
    """

    def __init__(self, source: Source, classes: int) -> None:
        super().__init__()
        self.model, self.drawn = _load(source, classes)
        self.names = (
            () if self.drawn else tuple(str(name) for _, name in sorted((self.model.config.id2label or {}).items()))
        )
        self.layers, self.heads = check(self.model, source.spec.name)
        # A RoBERTa may have two segments too, and was never shown the second.
        shown = "token_type_ids" in load_tokenizer(source).model_input_names
        self._segmented = shown and getattr(self.model.config, "type_vocab_size", 0) > 1
        self._check(f"{source.spec.name} ({type(self.model).__name__})")
        # from_pretrained leaves it in eval mode, and Lightning would keep it there: fine-tuning without dropout.
        self.model.train()

    def embed(self, tokens: Tensor) -> Tensor:
        """Word embeddings `[batch, pieces, size]` of int64 `[batch, pieces]`, before positions are added."""
        embedded: Tensor = self.model.get_input_embeddings()(tokens)
        return embedded

    def forward(
        self,
        embedded: Tensor,
        mask: Tensor,
        segments: Tensor,
        heads: Sequence[Head] = (),
        imposed: Mapping[Head, Tensor] | None = None,
    ) -> Classified:
        """Classify texts, one at least, that are padded on the right.

        Args:
            embedded: word embeddings `[batch, pieces, size]`; anything in the padding.
            mask: bool `[batch, pieces]`, real pieces, delimiters included.
            segments: int64 `[batch, pieces]`, 0 in a text and 1 in its pair; read where the tokenizer tells them apart.
            heads: whose rows are read.
            imposed: for some of them, weights `[batch, pieces]` in the place of the row, used exactly as they are;
                dropout spares them. All other rows, heads and layers attend as they do.
        """
        last = mask.sum(1) - 1
        rows = _Rows(last if self._reads_last else torch.zeros_like(last), heads, imposed or {})
        with intervening(rows):
            logits = self._logits(embedded, mask, segments, last)
        return Classified(logits, rows.weights, rows.values)

    def _logits(self, embedded: Tensor, mask: Tensor, segments: Tensor, last: Tensor) -> Tensor:
        inputs = {"inputs_embeds": embedded, "attention_mask": mask.long()}
        if self._segmented:
            inputs["token_type_ids"] = segments
        if not self._reads_last:
            of_first: Tensor = self.model(**inputs).logits
            return of_first
        # transformers' decoders look for the last piece by its number, which embeddings do not have.
        hidden = self.model.base_model(**inputs, use_cache=False).last_hidden_state
        logits: Tensor = self.model.get_submodule("score")(
            hidden[torch.arange(len(hidden), device=hidden.device), last]
        )
        return logits

    def _check(self, name: str) -> None:
        """Find out where the decision is read, and see that it is the model's own also from embeddings and padded."""
        pad = getattr(self.model.config, "pad_token_id", None)
        tokens = torch.tensor([[number for number in range(1, 8) if number != pad][:6]], device=self.model.device)
        layers: list[Tensor] = []

        def see(layer: int, weights: Tensor, values: Tensor) -> tuple[Tensor, None]:
            layers.append(weights)
            return weights, None

        # What follows the last layer's attention looks at each position alone: rows without gradient are not read.
        with torch.inference_mode(False), torch.enable_grad(), intervening(see):
            own = self.model(input_ids=tokens).logits
            [gradient] = torch.autograd.grad(own.sum(), layers[-1:])
        read = gradient.abs().sum((0, 1, 3)).nonzero().flatten().tolist()
        end = tokens.size(1) - 1
        if read not in ([0], [end]):
            raise EncoderError(
                f"{name} decides by the pieces {read} of {end + 1}, counted from 0. Only classifiers that decide by "
                f"the first piece or the last can be used: there is one row of attention to read then."
            )
        self._reads_last = read == [end]
        if self._reads_last and not isinstance(getattr(self.model, "score", None), nn.Linear):
            raise EncoderError(
                f"{name} decides by its last piece, but not with a linear layer `score`, so that padding cannot be "
                f"left out. Choose another decoder (GPT-2, Llama, …)."
            )
        padded = nn.functional.pad(tokens, (0, 2), value=1)
        mask = torch.arange(padded.size(1), device=tokens.device) <= end
        try:
            with torch.inference_mode():
                ours = self(self.embed(padded), mask[None], torch.zeros_like(padded)).logits
        except Exception as error:  # whatever an architecture raises that wants token ids
            raise EncoderError(f"{name} cannot be run on word embeddings: {error}") from error
        own = own.detach()
        gap = float((ours - own).abs().max())
        if not gap <= _TOLERANCE * max(1.0, float(own.abs().max())):  # also when it is not a number
            raise EncoderError(f"{name}: its decision on padded word embeddings differs from its own by {gap:.1e}.")


class _Rows:
    """Reads rows of one pass, and puts others in their place.

    Args:
        positions: int64 `[batch]`, from which piece.
        heads: whose.
        imposed: the others, `[batch, pieces]`, for some of the heads.
    """

    def __init__(self, positions: Tensor, heads: Sequence[Head], imposed: Mapping[Head, Tensor]) -> None:
        self.positions, self.heads, self.imposed = positions, heads, imposed
        self.weights: dict[Head, Tensor] = {}
        self.values: dict[Head, Tensor] = {}

    def __call__(self, layer: int, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weights `[batch, heads, from, to]` with the rows in them, and which of them were imposed."""
        places = [place for place in self.heads if place[0] == layer]
        if not places:
            return weights, None
        batch, positions = torch.arange(len(weights), device=weights.device)[:, None], self.positions[:, None]

        def index(some: Sequence[Head]) -> tuple[Tensor, Tensor, Tensor]:
            return batch, torch.tensor([head for _, head in some], device=weights.device), positions

        for place, own in zip(places, weights[index(places)].unbind(1), strict=True):
            self.weights[place] = self.imposed[place].to(weights.dtype) if place in self.imposed else own
            self.values[place] = values[:, place[1]]
        spared = None
        if given := [place for place in places if place in self.imposed]:
            spared = torch.zeros_like(weights[..., :1], dtype=torch.bool)
            spared[index(given)] = True
        # Its own rows are put back too: gradients with respect to them are those of what was used.
        return weights.index_put(index(places), torch.stack([self.weights[place] for place in places], 1)), spared


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own table of the weights that the files lack."""
    level = get_verbosity()
    set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        set_verbosity(level)


def _load(source: Source, classes: int) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """The model with eager attention in eval mode, and the names of the weights that the run's seed decides."""
    disable_progress_bar()  # type: ignore[no-untyped-call]  # of every weight
    config = load_config(source)
    config.num_labels = classes
    try:
        # The head is drawn from the run's seed, and moves no random numbers of the caller; `drawn` names its weights.
        with torch.random.fork_rng(devices=[]), _quiet():
            model, report = AutoModelForSequenceClassification.from_pretrained(
                source.folder,
                config=config,
                attn_implementation="eager",
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
            )
    except Exception as error:  # as in `attention.encoder`
        raise EncoderError(
            f"{source.spec.name} cannot be loaded as a classifier of {classes} classes: "
            f"{fault_of(error, source.folder)}"
        ) from error
    assert isinstance(model, PreTrainedModel)
    if config.is_encoder_decoder:
        raise EncoderError(
            f"{source.spec.name} ({type(model).__name__}) is an encoder-decoder, which reads its decision from a "
            f"decoder that attends twice. Choose an encoder or a decoder."
        )
    body = f"{model.base_model_prefix}."
    missing = sorted(
        name for name in report["missing_keys"] if name.startswith(body) and not name.startswith(f"{body}pooler.")
    )
    if missing:
        raise EncoderError(
            f"{source.spec.name}: its files lack {len(missing)} weights of {type(model).__name__}, {missing[0]} among "
            f"them. Save the whole encoder with save_pretrained."
        )
    for name, found, wanted in sorted(report["mismatched_keys"]):
        raise EncoderError(
            f"{source.spec.name}: its {name} has the shape {tuple(found)}, and {classes} classes need "
            f"{tuple(wanted)}. Give the texts it was trained on, or the encoder as it was before."
        )
    if source.spec.weights == "random":
        pretrained = model.base_model
        assert isinstance(pretrained, PreTrainedModel)
        drawn = drawn_anew(pretrained, source.spec.seed)
        with torch.random.fork_rng(devices=[]):
            model = AutoModelForSequenceClassification.from_config(  # type: ignore[no-untyped-call]
                config, attn_implementation="eager", dtype=torch.float32
            ).eval()
        model.base_model.load_state_dict(drawn.state_dict(), strict=False)  # it may have a pooler more
        return model, tuple(name for name in model.state_dict() if not name.startswith(body))
    return model, tuple(sorted(report["missing_keys"]))
