"""A pretrained transformer whose attention can be read: the loaded model, its tokenizer and its sizes."""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self, TypeAlias
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.utils.hub import TRANSFORMERS_DYNAMIC_MODULE_NAME

from attention_probing.attention.capture import (
    ComputeMaps,
    LayerCall,
    Receive,
    capture_attention,
    remember_arguments,
    weights_of,
)
from attention_probing.attention.checks import check
from attention_probing.attention.loading import (
    is_segmented,
    load_encoder,
    load_language_model,
    load_tokenizer,
    longest_input,
    quantisation_of,
    quiet_transformers,
    refuse_surplus,
    usable_device,
)
from attention_probing.attention.masks import AttentionMasks, find_masks
from attention_probing.attention.quantities import LayerParts, find_parts
from attention_probing.attention.source import EncoderError, EncoderSource, EncoderSpec, resolve
from attention_probing.results.errors import UserError, setting

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_AHEAD = 128  # pieces; a multiple of the length would be quicker, and take a multiple of the memory for long inputs


class LoadedEncoder:
    """A pretrained transformer whose captured attention equals the attention of transformers' eager implementation.

    `from_model` constructs one from a model and a tokenizer in memory. The model must be an encoder or decoder whose
    attention is `[pieces, pieces]` and is computed through transformers' attention interface. Of an encoder-decoder,
    only the encoder is loaded.

    Args:
        source: Name of an encoder (see `EncoderSpec`), an `EncoderSpec`, or the result of `resolve`.
        device: Device that runs the model.

    Attributes:
        model: The model, in eval mode, without gradients of parameters, with the attention function of
            `attention.capture`.
        tokenizer: Fast tokenizer.
        layers: Number of layers, with and without attention.
        attending: 0-based numbers of the layers with attention.
        heads: Number of heads in each layer with attention.
        max_length: Largest number of pieces of one input, delimiters included.
        causal: True if no token attends to a later one.
        tapped: True if the model computes its attention outside transformers' attention interface, so that its
            weights can be read and not changed.
        has_sinks: True if rows of attention sum to less than one, because the softmax has a score for no position.
        is_hybrid: True if some layers have no attention.
        changes: Number of changes of the parameters up to the end of loading; see `count_changes`.
        halved: Number of batches that were halved because they did not fit into memory.

    Raises:
        EncoderError: The encoder is not found or cannot be loaded, its attention cannot be captured, the
            tokenizer is not a fast one, or it has pieces without an embedding.
        UserError: PyTorch cannot use the device.
    """

    def __init__(self, source: "EncoderSource | EncoderSpec | str", device: torch.device | str = "cpu") -> None:
        spec = EncoderSpec(source) if isinstance(source, str) else source
        self.device = usable_device(device)
        self.source = source = resolve(spec) if isinstance(spec, EncoderSpec) else spec
        self.model = load_encoder(source)
        self.tokenizer = load_tokenizer(source)
        self.model.eval().requires_grad_(False)  # type: ignore[no-untyped-call]
        self.model.config.use_cache = False  # nothing here reads the keys and values of earlier passes
        if source.spec.device_map is None:
            self.model.to(self.device)  # type: ignore[arg-type]
        else:
            self.device = self.model.device  # of the embeddings
        attention = check(self.model, source.spec.name, source.spec.scores)
        self.layers = attention.layers
        self.attending = attention.attending
        self.heads = attention.heads
        self.tapped = attention.tapped
        self.has_sinks = attention.has_sinks
        self.is_hybrid = attention.is_hybrid
        refuse_surplus(self.tokenizer, self.model, source)
        self.causal = not bool(self._find_masks(6)[0].triu(1).any())
        self.max_length = longest_input(self.model, self.tokenizer)
        self.pad_id = int(self.tokenizer.pad_token_id or 0)  # the mask hides padding
        self._masks = torch.empty(0, 0, 0, dtype=torch.bool)  # distinct masks
        self._mask_of_layer = torch.empty(0, dtype=torch.int64)  # index of each layer's mask
        self.halved = 0
        self.changes = count_changes(self.model)

    @classmethod
    def from_model(
        cls,
        model: "PreTrainedModel",
        tokenizer: PreTrainedTokenizerBase,
        device: torch.device | str | None = None,
        name: str = "",
    ) -> Self:
        """Return an encoder of the current weights of a model in memory; the model and the tokenizer stay unchanged.

        Model and tokenizer are saved to a temporary folder, which is deleted with the encoder. Until then,
        datamodules accept `encoder.source.spec` as the encoder. Stores of attention are identified by the contents of
        these files, so the same model saved elsewhere uses the same stores. Code that came with the files of the model
        runs again, without being asked for.

        Args:
            model: Hugging Face model; a language modelling head is kept.
            tokenizer: Tokenizer of the model.
            device: Device that runs the encoder; by default the device of the model.
            name: Name in reports; by default the class of the model.

        Raises:
            EncoderError: The attention cannot be captured, the tokenizer is not a fast one, or it has pieces without an
                embedding.
            UserError: PyTorch cannot use the device.
        """
        with ExitStack() as stack:
            temporary = stack.enter_context(TemporaryDirectory(prefix="encoder-", ignore_cleanup_errors=True))
            # The name may be the folder that the model was loaded from, which must not be written to.
            folder_name = re.sub(r"[^\w.-]", "_", name).strip("._") or type(model).__name__
            folder = Path(temporary) / folder_name
            with quiet_transformers():
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
            has_own_code = type(model).__module__.startswith(f"{TRANSFORMERS_DYNAMIC_MODULE_NAME}.")
            encoder = cls(EncoderSpec(str(folder), trust_remote_code=has_own_code), device or model.device)
            finalize(encoder, stack.pop_all().close)
        return encoder

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        return (
            f"<{type(self).__name__} {self.description['name']}: {self.layers} layers × {self.heads} heads, "
            f"{size:,} parameters, {self.device}, {str(self.model.dtype).removeprefix('torch.')}>"
        )

    @property
    def description(self) -> dict[str, object]:
        """Name, origin, architecture, kind of weights and sizes of the encoder, for manifests and reports."""
        name = self.source.spec.name
        if self.source.origin == "folder":  # without the path on this machine: equal inputs give equal manifests
            name = self.source.folder.resolve().name
        description: dict[str, object] = {
            "name": name,
            "origin": self.source.origin,
            "architecture": type(self.model).__name__,
            "weights": self.source.spec.weights,
            "layers": self.layers,
            "heads": self.heads,
            "max_length": self.max_length,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "scores": self.source.spec.scores,
        }
        if self.causal:
            description["causal"] = True
        quantised = quantisation_of(self.model)
        if quantised:
            description["quantised"] = quantised
        return description

    def inputs(self, tokens: Tensor, mask: Tensor, segments: Tensor) -> dict[str, Tensor]:
        """Return the arguments of the model's forward, each `[batch, pieces]`.

        Args:
            tokens: Ids of the pieces, int64 `[batch, pieces]`.
            mask: True for real pieces, bool `[batch, pieces]`.
            segments: Segment ids, int64 `[batch, pieces]`; used only by a model that was trained on two segments.
        """
        inputs = {"input_ids": tokens, "attention_mask": mask.long()}
        if is_segmented(self.model, self.tokenizer):
            inputs["token_type_ids"] = segments
        return inputs

    def allowed(self, real: Tensor) -> AttentionMasks:
        """Return, for each layer, a mask that is True where a position may attend to another.

        A position may attend to the real positions that the model's own mask (causal, sliding window, …)
        does not hide. The model's own masks are found with one forward pass and cached. If an input is
        longer than the cached masks, a new pass finds them for this length and some more pieces, up to
        `max_length`, so that few later inputs need another pass.

        Args:
            real: Bool `[batch, pieces]`, False for padding on the right.

        Returns:
            The distinct masks, bool `[batch, masks, from, to]`, and the index of each layer's mask among
            them, int64 `[layers]`.
        """
        pieces = real.size(1)
        if pieces > self._masks.size(1):
            longest = max(pieces, min(self.max_length, pieces + _AHEAD))
            self._masks, self._mask_of_layer = self._find_masks(longest)
        masks = self._masks[:, :pieces, :pieces] & real[:, None, None, :]
        return AttentionMasks(masks, self._mask_of_layer)

    def _find_masks(self, pieces: int) -> tuple[Tensor, Tensor]:
        """Return the masks of inputs of this length without padding; see `find_masks`."""
        masks, mask_of_call = find_masks(self.model, pieces, self.tapped)
        mask_of_layer = torch.zeros(self.layers, dtype=torch.int64, device=self.device)
        mask_of_layer[list(self.attending)] = mask_of_call
        return masks, mask_of_layer

    @property
    def title(self) -> str:
        """Name and class of the model, for messages."""
        return f"{self.source.spec.name} ({type(self.model).__name__})"

    def require_interface(self, measurement: str) -> None:
        """Raise EncoderError if the attention of the encoder can be read but not changed."""
        if self.tapped:
            raise EncoderError(
                f"{self.title} computes its attention outside transformers' "
                f"attention interface: it can be read, but {measurement} would have to change it. Choose another "
                "architecture (BERT, RoBERTa, ELECTRA, GPT-2, Llama, ModernBERT, …)."
            )
        self.require_every_layer(measurement)

    def require_every_layer(self, measurement: str) -> None:
        """Raise EncoderError if some layers have no attention."""
        if self.is_hybrid:
            raise EncoderError(
                f"{self.title} has attention in {len(self.attending)} of its {self.layers} layers, but {measurement} "
                "needs it in all. Choose an encoder with attention in every layer."
            )

    @cached_property
    def state_size(self) -> int:
        """Size of a hidden state.

        Raises:
            UserError: The model does not give exactly one hidden state for each layer and one for the
                embeddings, or these differ in size.
        """
        return find_state_size(self.model, self.layers, self.title)

    @cached_property
    def language_model(self) -> "PreTrainedModel | None":
        """This encoder with its language modelling head, masked or causal; None if the files have no such head.

        The model uses the same attention function as the encoder and shares its weights. Its parameters have no
        gradients.
        """
        return load_language_model(self.source, self.model, causal=self.causal)

    def last_hidden(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run the encoder and return its last hidden states `[batch, pieces, size]`.

        Gradients can flow from them to the attention.
        """
        hidden: Tensor = self.model(**inputs).last_hidden_state
        return hidden

    @property
    def ordinary(self) -> NDArray[np.int64]:
        """Ids of all vocabulary entries except special tokens, int64, ascending."""
        return np.setdiff1d(np.arange(len(self.tokenizer)), self.tokenizer.all_special_ids)

    @property
    def embeddings(self) -> Tensor:
        """Table of input embeddings, float32 `[vocabulary, size]`.

        Raises:
            EncoderError: The input embedding of the model is not a table.
        """
        table = self.model.get_input_embeddings()
        if not isinstance(table, nn.Embedding):
            raise EncoderError(
                f"{self.source.spec.name}: its input embeddings are a {type(table).__name__}, not a table of vectors. "
                f"Name other vectors with {setting('data.vectors.name')}."
            )
        return table.weight.detach().float()

    def capture(
        self,
        inputs: Mapping[str, Tensor],
        receive: Receive,
        layers: frozenset[int],
        receive_state: Receive | None = None,
        states: frozenset[int] = frozenset(),
        measure: ComputeMaps = weights_of,
        lower: bool = False,
    ) -> None:
        """Run the model once, and pass attention weights and hidden states of some layers to callbacks.

        Layers have the model's own numbers. For a wanted layer without attention, all numbers are nan.

        Args:
            inputs: Arguments of the model, `input_ids` and `attention_mask` `[batch, pieces]`.
            receive: Called with each layer of `layers` and its attention weights before dropout,
                float32 `[batch, heads, from, to]`, valid during the call only.
            layers: Layers whose attention is wanted, 0-based.
            receive_state: Called at the end of the pass with the index of each hidden state of
                `states` and the state `[batch, pieces, size]`. The last state includes the final
                normalisation of the model.
            states: Indices of the wanted hidden states: 0 for the embeddings, k for layer k. If
                empty, the pass stops after the attention of the last wanted layer.
            measure: Function that computes the maps of a layer, which `receive` gets instead of the weights; see
                `attention.quantities`.
            lower: True if `measure` is also called for the other layers below the last wanted one.
        """
        numbers = self.attending
        batch, pieces = inputs["input_ids"].shape
        shape = [batch, self.heads, pieces, pieces]  # of the maps of a layer without attention
        without_attention = sorted(layers - {*numbers})

        def receive_blank(below: int) -> None:
            """Pass on nan for the wanted layers without attention below a layer."""
            while without_attention and without_attention[0] < below:
                receive(without_attention.pop(0), torch.full(shape, torch.nan, device=self.device))

        def receive_maps(place: int, maps: Tensor) -> None:
            shape[:] = maps.shape
            receive_blank(numbers[place])
            receive(numbers[place], maps.to(self.device))  # with a device_map, a layer may be on another one

        def receive_hidden(number: int, state: Tensor) -> None:
            if receive_state is not None:
                receive_state(number, state.to(self.device))

        def measure_layer(place: int, call: LayerCall) -> Tensor:
            return measure(numbers[place], call)

        places = frozenset(place for place, number in enumerate(numbers) if number in layers)
        capture_attention(
            self.model, inputs, receive_maps, places, receive_hidden, states, measure=measure_layer, lower=lower
        )
        receive_blank(self.layers)

    @cached_property
    def parts(self) -> dict[int, LayerParts]:
        """Modules around each layer's attention, such as values and output projection, by layer number.

        Quantities that use values read them.

        Raises:
            EncoderError: The attention can be read only as weights.
            UserError: No linear layer reads the output of the attention heads.
        """
        if self.tapped:
            raise EncoderError(
                f"{self.title} computes its attention outside transformers' "
                "attention interface: there are weights, but no values. Choose the quantity attention or rollout."
            )
        parts = find_parts(self.model, self.title)
        remember_arguments(part.block for part in parts)
        return dict(zip(self.attending, parts, strict=True))


def find_state_size(model: "PreTrainedModel", layers: int, name: str) -> int:
    """Return the size of the hidden states of a model.

    Args:
        model: The model.
        layers: Number of its layers.
        name: Name of the model, for messages.

    Raises:
        UserError: The states differ in size, or are not one for each layer and one for the embeddings.
    """
    inputs = {"input_ids": torch.arange(1, 7, device=model.device)[None]}
    with torch.inference_mode():
        states: tuple[Tensor, ...] = model(**inputs, output_hidden_states=True).hidden_states or ()
    shapes = {tuple(state.shape) for state in states}
    if len(states) != layers + 1 or len(shapes) > 1 or states[0].shape[:2] != inputs["input_ids"].shape:
        raise UserError(
            f"{name} gives {len(states)} hidden states of the shapes {', '.join(map(str, sorted(shapes)))}, "
            f"but {layers + 1} of the shape (1, {inputs['input_ids'].size(1)}, size) are needed: one of the "
            f"embeddings, and one of each layer. Choose another encoder, or leave out {setting('data.hidden')}."
        )
    return int(states[0].size(2))


if TYPE_CHECKING:
    EncoderOption: TypeAlias = EncoderSpec | str | LoadedEncoder
else:
    # In settings the name stands under `name`, so that other fields may stand beside it and override those of a config.
    EncoderOption = EncoderSpec
"""An encoder as Python may give it to a datamodule: its specification, its name or folder, or loaded."""


def specification_of(encoder: EncoderOption) -> EncoderSpec:
    """Return the specification of an encoder.

    Args:
        encoder: The specification itself, the name or folder of the encoder, or the loaded encoder.

    Raises:
        UserError: The weights of the loaded encoder are no longer those of its files.
    """
    if isinstance(encoder, str):
        return EncoderSpec(encoder)
    if isinstance(encoder, EncoderSpec):
        return encoder
    if count_changes(encoder.model) != encoder.changes:
        raise UserError(
            "The weights of the encoder were changed after it had been loaded, but its files would be read. Give "
            "Encoder.from_model(model, tokenizer) of the changed model."
        )
    return encoder.source.spec


def count_changes(model: nn.Module) -> int:
    """Return how often the parameters of a model were changed in place.

    PyTorch counts the changes of a tensor, apart from those through its attribute `data`, and those of a tensor that
    was made in inference mode.
    """
    return sum(parameter._version for parameter in model.parameters() if not parameter.is_inference())
