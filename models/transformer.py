"""A pretrained transformer fine-tuned to classify, and the attention from the position of its decision."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from attention_probing.attention.capture import intervening
from attention_probing.attention.checks import check
from attention_probing.attention.heads import Head, parse_heads
from attention_probing.attention.loading import is_segmented, load_classifier, load_tokenizer
from attention_probing.attention.quantities import LayerParts, find_parts, with_residual
from attention_probing.attention.source import EncoderError, EncoderSource, resolve
from attention_probing.datamodules import ClassificationDataModule, TextBatch
from attention_probing.datamodules.classification import EVAL_TOKENS
from attention_probing.models.text_classifier import (
    Level,
    Output,
    TextClassifier,
    TextSizes,
    check_levels,
    parameter_groups,
)
from attention_probing.models.trained import recorded_gradients
from attention_probing.results.errors import UserError, setting
from attention_probing.results.options import Probability, Rate

PIECES_OF_PASS = EVAL_TOKENS  # most pieces of one pass of `decide`, padding included

_TOLERANCE = 1e-4

WEIGHT_DECAY = 0.01
"""Weight decay of matrices; biases and normalisations have none, as in BERT's training."""


@dataclass(frozen=True)
class Decision:
    """Output of `SequenceClassifier`: logits, and one row of attention of each requested head.

    The classification head reads the hidden state of one piece, here called the position of the
    decision. The row is the attention from this piece.

    Attributes:
        logits: `[batch, classes]`.
        weights: Attention from the position of the decision to all pieces, `[batch, pieces]` by head.
            Weights sum to one, unless they were imposed, and are 0 in the padding. The logits are
            computed from these tensors, so the gradients of the logits with respect to them can be
            taken.
        values: Vectors that the weights average, `[batch, pieces, dim]` by head.
    """

    logits: Tensor
    weights: Mapping[Head, Tensor]
    values: Mapping[Head, Tensor]


class SequenceClassifier(nn.Module):
    """A pretrained transformer with a classification head, in training mode.

    The classification head reads the hidden state of one piece: the first in an encoder, the last real
    one in a causal decoder. The constructor runs the model on a short input to find which, and checks
    two things: that captured attention equals the model's own eager attention, and that padded word
    embeddings as input give the same logits as token ids.

    Args:
        source: Files of the transformer. A classification head in these files is loaded; without one,
            the head is initialised at random with the run's seed. If the `EncoderSpec` asks for random
            weights, the head is always random.
        classes: Number of classes.

    Attributes:
        layers: Number of attention layers.
        heads: Number of attention heads of each layer.
        drawn: Names of the weights initialised at random with the run's seed: those of a random
            classification head, and of a pooler that the files lack. A transformer body with random
            weights has its own seed, and its weights are not among them.
        names: Names of the classes in the files, in the order of the classification head's outputs;
            empty if `drawn` is not.

    Raises:
        EncoderError: The model cannot be loaded, its classification head is for another number of
            classes or reads another piece than the first or the last, it cannot be run on word
            embeddings in place of token ids, or its attention cannot be captured.
    """

    def __init__(self, source: EncoderSource, classes: int) -> None:
        super().__init__()
        self.model, self.drawn = load_classifier(source, classes)
        labels = {} if self.drawn else self.model.config.id2label or {}
        self.names = tuple(str(name) for _, name in sorted(labels.items()))
        checked = check(self.model, source.spec.name, source.spec.scores, changes=True)
        self.layers = checked.layers
        self.heads = checked.heads
        self._segmented = is_segmented(self.model, load_tokenizer(source))
        self._check(f"{source.spec.name} ({type(self.model).__name__})")
        # from_pretrained leaves it in eval mode, and Lightning would keep that: fine-tuning without dropout.
        self.model.train()

    @cached_property
    def parts(self) -> tuple[LayerParts, ...]:
        """Modules around the attention of each layer, for the ranking `attention_norm`; call it after training.

        Raises:
            UserError: The output projection of a layer cannot be found or read.
        """
        try:
            return find_parts(self.model, type(self.model).__name__)
        except UserError as error:
            fault = str(error).partition(". ")[0].partition(" Choose")[0]
            remedy = "Leave it out of the `rankings` of each test"
            raise UserError(f"The ranking attention_norm cannot be computed: {fault}. {remedy}.") from None

    def freeze(self) -> None:
        """Freeze the weights from the files; only weights that were initialised at random stay trainable."""
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in self.drawn)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return word embeddings `[batch, pieces, size]`, without positions, for tokens, int64 `[batch, pieces]`."""
        embedded: Tensor = self.model.get_input_embeddings()(tokens)
        return embedded

    def forward(
        self,
        embedded: Tensor,
        mask: Tensor,
        segments: Tensor,
        heads: Sequence[Head] = (),
        imposed: Mapping[Head, Tensor] | None = None,
    ) -> Decision:
        """Classify one or more texts, padded on the right; return logits and the attention of some heads.

        Args:
            embedded: Word embeddings `[batch, pieces, size]`, with any values in the padding.
            mask: Bool `[batch, pieces]`, True for real pieces, delimiters included.
            segments: int64 `[batch, pieces]`, 0 in a text and 1 in its pair; used if the tokenizer has
                segments.
            heads: Attention heads whose attention is returned, 0-based (layer, head) pairs.
            imposed: Attention weights `[batch, pieces]` for some of these heads. They replace the
                attention from the piece that the classification head reads, without being normalised and
                without dropout. All other rows, heads and layers keep their attention.
        """
        rows = _Rows(self.decision_positions(mask), heads, imposed or {})
        with intervening(rows):
            logits = self._logits(embedded, mask, segments, mask.sum(1) - 1)
        return Decision(logits, rows.weights, rows.values)

    def logits(self, tokens: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
        """Return the logits `[batch, classes]` of texts.

        Within a context of `attention.capture`, such as `intervening`, the attention can be read or changed.

        Args:
            tokens: int64 `[batch, pieces]`.
            mask: Bool `[batch, pieces]`, True for real pieces.
            segments: int64 `[batch, pieces]`, 0 in a text and 1 in its pair.
        """
        return self._logits(self.embed(tokens), mask, segments, mask.sum(1) - 1)

    @torch.no_grad()
    def rollout(self, embedded: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
        """Return the attention rollout from the piece that the head reads, `[batch, pieces]`, 0 in the padding.

        It is a row of the product, over all layers, of (mean of the heads + I)/2 (Abnar & Zuidema 2020, §3).

        Args:
            embedded: Word embeddings `[batch, pieces, size]`.
            mask: Bool `[batch, pieces]`, True for real pieces.
            segments: int64 `[batch, pieces]`, 0 in a text and 1 in its pair.
        """
        through: list[Tensor] = []  # the product of the layers so far

        def multiply(_: int, weights: Tensor, __: Tensor) -> tuple[Tensor, None]:
            mixing = with_residual(weights)
            if through:
                mixing = mixing @ through.pop()
            through.append(mixing)
            return weights, None

        with intervening(multiply):
            self._logits(embedded, mask, segments, mask.sum(1) - 1)
        rows = self.decision_positions(mask)
        return through[0][torch.arange(len(rows), device=rows.device), rows]

    def decision_positions(self, mask: Tensor) -> Tensor:
        """Return the position of the piece that the classification head reads, int64 `[batch]`.

        Args:
            mask: Bool `[batch, pieces]`, True for real pieces.
        """
        last = mask.sum(1) - 1
        return last if self._reads_last else torch.zeros_like(last)

    def _logits(self, embedded: Tensor, mask: Tensor, segments: Tensor, last: Tensor) -> Tensor:
        inputs = {"inputs_embeds": embedded, "attention_mask": mask.long()}
        if self._segmented:
            inputs["token_type_ids"] = segments
        if not self._reads_last:
            of_first: Tensor = self.model(**inputs).logits
            return of_first
        # transformers' decoders find the last piece by its id, which embeddings do not have.
        hidden = self.model.base_model(**inputs, use_cache=False).last_hidden_state
        read = hidden[torch.arange(len(hidden), device=hidden.device), last]
        logits: Tensor = self.model.get_submodule("score")(read)
        return logits

    def _check(self, name: str) -> None:
        """Find the position of the decision; check that padded embeddings give the model's own decision."""
        pad = getattr(self.model.config, "pad_token_id", None)
        ids = [number for number in range(1, 8) if number != pad]
        tokens = torch.tensor([ids[:6]], device=self.model.device)
        layers: list[Tensor] = []

        def see(layer: int, weights: Tensor, values: Tensor) -> tuple[Tensor, None]:
            layers.append(weights)
            return weights, None

        # Layers after the last attention treat each position by itself: the decision depends on rows with a gradient.
        with recorded_gradients(), intervening(see):
            logits = self.model(input_ids=tokens).logits
            [gradient] = torch.autograd.grad(logits.sum(), layers[-1:])
        read = gradient.abs().sum((0, 1, 3)).nonzero().flatten().tolist()
        end = tokens.size(1) - 1
        if read not in ([0], [end]):
            raise EncoderError(
                f"{name}: the classification head reads the positions {read}, from 0, of a {end + 1}-token input. "
                f"It must read only the first token (BERT) or only the last (GPT-2), so that one attention row belongs "
                f"to the decision. Choose another classifier."
            )
        self._reads_last = read == [end]
        if self._reads_last and not isinstance(getattr(self.model, "score", None), nn.Linear):
            raise EncoderError(
                f"{name} classifies from the last token, but its classification head is not a linear layer called "
                f"`score`, so padded batches cannot be scored correctly. Choose another decoder (GPT-2, Llama, …)."
            )
        padded = nn.functional.pad(tokens, (0, 2), value=1)
        mask = torch.arange(padded.size(1), device=tokens.device) <= end
        try:
            with torch.inference_mode():
                ours = self(self.embed(padded), mask[None], torch.zeros_like(padded)).logits
        except Exception as error:  # of any kind, from an architecture that needs token ids
            reason = " ".join(str(error).split())
            wrong = f"{name} cannot be run on input embeddings ({reason}). Choose another classifier."
            raise EncoderError(wrong) from error
        logits = logits.detach()
        if logits.isnan().any():
            raise EncoderError(f"{name}: the logits of a short text are nan. Choose another classifier.")
        gap = float((ours - logits).abs().max())
        if not gap <= _TOLERANCE * max(1.0, float(logits.abs().max())):  # also when it is not a number
            raise EncoderError(
                f"{name} gives other logits for padded input embeddings than for unpadded token ids (difference "
                f"{gap:.1e}), so it cannot be explained by gradients or erasure. Choose another classifier."
            )


@dataclass
class _Rows:
    """Reads the rows of some heads at one position of each text, `[batch]`, and replaces some of them."""

    positions: Tensor
    heads: Sequence[Head]
    imposed: Mapping[Head, Tensor]
    weights: dict[Head, Tensor] = field(default_factory=dict)
    values: dict[Head, Tensor] = field(default_factory=dict)

    def __call__(self, layer: int, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor | None]:
        heads = [head for head in self.heads if head[0] == layer]
        if not heads:
            return weights, None
        rows = weights[self._index(heads, weights)].unbind(1)
        for head, row in zip(heads, rows, strict=True):
            self.weights[head] = row
            if head in self.imposed:
                self.weights[head] = self.imposed[head].to(weights.dtype)
            self.values[head] = values[:, head[1]]
        spared = None
        imposed = [head for head in heads if head in self.imposed]
        if imposed:
            spared = torch.zeros_like(weights[..., :1], dtype=torch.bool)
            spared[self._index(imposed, weights)] = True
        # The model's own rows are put back too, so that their gradients are the ones of the weights used.
        used = torch.stack([self.weights[head] for head in heads], 1)
        return weights.index_put(self._index(heads, weights), used), spared

    def _index(self, heads: Sequence[Head], weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the index of the rows of some heads in weights `[batch, heads, from, to]`."""
        texts = torch.arange(len(weights), device=weights.device)
        numbers = torch.tensor([number for _, number in heads], device=weights.device)
        return texts[:, None], numbers, self.positions[:, None]


@dataclass(frozen=True)
class TransformerOutput(Output):
    """Output of a `TransformerClassifier`, with the inputs for running the transformer again.

    `TransformerClassifier.decide` reads them, because it repeats the forward pass with other attention.

    Attributes:
        segments: int64 `[batch, time]`, 0 in a text and 1 in its pair.
        imposed: Attention weights `[batch, time]` that replaced the model's own in `forward`, by level,
            that is by `layer-head`; empty if none did.
    """

    segments: Tensor
    imposed: Mapping[str, Tensor]


class TransformerClassifier(TextClassifier):
    """A text classifier: a classification head on the pretrained transformer of the data's tokenizer.

    A level of attention is one row of one attention head: the attention from the piece that the
    classification head reads to all pieces, delimiters included. This piece is the first in an encoder
    (`[CLS]`) and the last in a decoder. A level is named `layer-head`, both counted from 1. Imposed
    weights replace only this row; all other rows, heads and layers compute their own attention.

    A classification head in the model's files is loaded, and can be tested without training. In a
    regression the head has one output, and the mean squared error is the loss.

    Args:
        heads: Attention heads whose rows are levels: `6-1`; a layer, `6`, for all its heads; `all` for
            those of all layers; None for the last layer.
        learning_rate: Highest learning rate of AdamW.
        warmup: Fraction of the training steps in which the learning rate rises from 0; afterwards it
            falls to 0 by the last step. Both are linear, as in BERT's released code.
        frozen: Train only weights that were initialised at random, in most cases the classification
            head. All weights from the model's files stay as they are, and their modules have no
            dropout. A pooler is trained only if the files lack it.

    Raises:
        UserError: `warmup` is not a fraction below 1. Once the datamodule is known: its texts are cut
            into words instead of pieces, the model lacks one of `heads`, the classes of a loaded
            classification head have another order, `frozen` leaves nothing to train, or the number of
            training steps is not limited.
    """

    regresses = True
    may_come_trained = True

    def __init__(
        self,
        heads: Sequence[str] | None = None,
        learning_rate: Rate = 2e-5,
        warmup: Probability = 0.1,
        frozen: bool = False,
    ) -> None:
        super().__init__(learning_rate, "adamw", WEIGHT_DECAY)
        self.warmup = warmup
        self.frozen = frozen
        self._wanted = heads

    def build(self, sizes: TextSizes) -> None:
        if sizes.tokenizer is None:
            raise UserError(
                f"{type(self).__name__} reads the pieces of a pretrained tokenizer, but the data have words. Set "
                f"{setting('data.tokenizer.name')} to the name or folder of the encoder, such as bert-base-uncased."
            )
        self.classifier = SequenceClassifier(resolve(sizes.tokenizer), sizes.classes)
        self.expose([str(self.classifier.layers)] if self._wanted is None else self._wanted)
        self.trained = self.trained or not self.classifier.drawn
        if self.frozen:
            self.classifier.freeze()

    def expose(self, heads: Sequence[str], option: str = "model.heads") -> None:
        """Make the rows of some attention heads the levels.

        Args:
            heads: Names of the heads, as for the constructor.
            option: Option that holds the names, for messages.

        Raises:
            UserError: The model lacks one of the heads.
        """
        chosen = parse_heads(heads, self.classifier.layers, self.classifier.heads, setting(option))
        self.levels = {f"{layer + 1}-{head + 1}": (layer, head) for layer, head in sorted(chosen)}

    def on_train_start(self) -> None:
        """Switch off dropout in the modules of frozen weights."""
        if self.frozen:
            self.classifier.model.base_model.eval()

    def make_for(self, data: ClassificationDataModule) -> None:
        super().make_for(data)
        names = self.classifier.names
        labels = data.labels
        ours = [name.lower() for name in names]
        theirs = [label.lower() for label in labels]
        if ours != theirs and sorted(ours) == sorted(theirs):
            assert data.tokenizer is not None
            raise UserError(
                f"{data.tokenizer.name}: the classification head has the classes in the order {', '.join(names)}, but "
                f"the data have {', '.join(labels)} (sorted by name). Rename the labels in the files of the texts so "
                f"that sorting gives the order of the head, for instance {names[0]} to 0_{names[0]}."
            )
        if names and labels:
            equal = [f"{label} = {name}" for label, name in zip(labels, names, strict=True)]
            self.audit["classes_of_the_head"] = ", ".join(equal)
        if self.classifier.drawn:
            self.audit["drawn_weights"] = ", ".join(self.classifier.drawn)

    def forward(
        self, batch: TextBatch, *, embedded: Tensor | None = None, imposed: Mapping[str, Tensor] | None = None
    ) -> TransformerOutput:
        # Word embeddings, to which the transformer adds positions and segments.
        if embedded is None:
            embedded = self.classifier.embed(batch.tokens)
        imposed = imposed or {}
        heads = list(self.levels.values())
        decision = self.classifier(embedded, batch.mask, batch.segments, heads, self._rows(imposed))
        levels = {}
        for name, head in self.levels.items():
            levels[name] = Level(decision.weights[head], batch.mask, decision.values[head])
        return TransformerOutput(decision.logits, levels, embedded, batch.segments, imposed)

    def decide(self, output: Output, imposed: Mapping[str, Tensor]) -> Tensor:
        """Run the transformer again with replaced attention, and return logits `[..., batch, classes]`.

        The attention of a level that is not in `imposed` is the one imposed on it in `forward`, if any;
        otherwise the level computes its own. The texts are divided into passes of at most `PIECES_OF_PASS`
        pieces, padding included.

        Args:
            output: Output of `forward`.
            imposed: Attention weights `[..., batch, time]` by name of the level (`layer-head`), used
                without being normalised.
        """
        assert isinstance(output, TransformerOutput)
        mask = next(iter(output.levels.values())).mask
        imposed = {**output.imposed, **imposed}
        texts, time = mask.shape
        shapes = [weights.shape[:-2] for weights in imposed.values()]
        leading = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        rows = {}
        for head, weights in self._rows(imposed).items():
            rows[head] = weights.expand(*leading, texts, time).reshape(-1, time)
        copies = torch.arange(leading.numel() * texts, device=mask.device)
        logits = [output.logits[:0]]  # `leading` may have no element
        for in_pass in torch.split(copies, max(PIECES_OF_PASS // time, 1)):
            if not len(in_pass):
                continue
            text = in_pass % texts
            imposed_here = {head: of_head[in_pass] for head, of_head in rows.items()}
            decision = self.classifier(
                output.embedded[text], mask[text], output.segments[text], list(imposed_here), imposed_here
            )
            logits.append(decision.logits)
        return torch.cat(logits).view(*leading, texts, output.logits.size(1))

    def value_norms(self, output: Output, level: str) -> Tensor:
        """Return ‖v W_O‖, the norm of each value after the part of the output projection that reads the head.

        Multiplied by the weights it is the norm of Kobayashi et al. (2020, §3).

        Raises:
            UserError: No linear layer reads the heads, or its weights are quantised.
        """
        layer, head = self.levels[level]
        moved: Tensor = output.levels[level].hidden @ self.classifier.parts[layer].by_head[head]
        sizes: Tensor = moved.norm(dim=-1)
        return sizes

    def rollout(self, output: Output) -> Tensor:
        """Return the attention rollout from the position of the decision to each token, `[batch, time]`.

        Args:
            output: Output of `forward` for the texts.
        """
        assert isinstance(output, TransformerOutput)
        mask = next(iter(output.levels.values())).mask
        return self.classifier.rollout(output.embedded, mask, output.segments)

    def _rows(self, imposed: Mapping[str, Tensor]) -> dict[Head, Tensor]:
        remedy = f"{setting('model.heads')} names the levels."
        checked = check_levels(imposed, self.levels, remedy)
        return {self.levels[name]: weights for name, weights in checked.items()}

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise UserError(
                f"{type(self).__name__}'s learning-rate schedule (warm-up, then decay to 0) needs a finite training: "
                f"set {setting('trainer.max_epochs')}, for example 3."
            )
        rising = self.warmup * steps

        def share(step: int) -> float:
            return step / rising if step < rising else max(steps - step, 0) / (steps - rising)

        groups = parameter_groups(self, self.weight_decay, lambda _, parameter: parameter.dim() > 1)
        if not groups:
            raise UserError(
                f"{setting('model.frozen')} is true, but the files of the model include a classification head, so "
                "nothing is left to train. Score it without training (`probing test`), or set frozen to "
                "false."
            )
        adam = torch.optim.AdamW(groups, self.learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(adam, share)
        return {"optimizer": adam, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
