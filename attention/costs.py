"""Costs of reading a corpus with an encoder, predicted without its weights: memory, space on disk, operations.

The encoder is built on PyTorch's meta device, where tensors have shapes and no numbers. The forward passes of an
extraction run there too, so what is counted is what they allocate and compute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias
from weakref import finalize

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from attention_probing.attention.capture import FLOAT32, NAME, LayerCall, measuring
from attention_probing.attention.checks import number_layers
from attention_probing.attention.extraction import GROWTH, batches, run_pass, workers_of
from attention_probing.attention.loading import architecture, load_tokenizer, longest_input, quiet_transformers
from attention_probing.attention.masks import AttentionMasks
from attention_probing.attention.source import EncoderError, EncoderSource
from attention_probing.attention.specification import Items
from attention_probing.attention.words import Encoder

_SAMPLE = 6
"""Forward passes that run on the meta device; the operations of the others are interpolated."""

Operation: TypeAlias = Any
"""An operation of PyTorch, `torch._ops.OpOverload`."""

_aten = torch.ops.aten
_FUSED = _aten.scaled_dot_product_attention.default
_FRESH = _aten.lift_fresh.default
"""Operation that returns its argument, a tensor that `torch.tensor` has just made."""
_ANSWERS: Mapping[Any, object] = {
    _aten._local_scalar_dense.default: 0,
    _aten.equal.default: False,
}
"""What the meta device answers where a program asks for a number: there is padding, and all sums are right."""


class Tally(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that counts the bytes of living tensors, and the operations of matrix products, of what runs in it.

    Args:
        device: Device whose tensors are counted. What is copied to it from the host counts once, as on a CPU.

    Attributes:
        peak: Most bytes of tensors made in it that were alive at once.
        turnover: Bytes of all tensors made in it.
        operations: Floating-point operations of matrix products and attention.
    """

    def __init__(self, device: torch.device | str = "meta") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self.turnover = 0
        self.operations = 0
        self._device = torch.device(device).type
        self._alive = 0
        self._storages: set[int] = set()

    def __torch_dispatch__(
        self, operation: Operation, types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401 # the result of an operation
        options = kwargs or {}
        if operation in _ANSWERS and args[0].is_meta:
            return _ANSWERS[operation]
        if operation is _FUSED:
            result = self._attend(*args[:3])
        else:
            with self:
                result = operation.decompose(*args, **options)
            if result is not NotImplemented:
                return result
            result = operation(*args, **options)
            count = flop_registry.get(operation._overloadpacket)
            if count is not None:
                self.operations += count(*args, **options, out_val=result)
        storages_of_arguments: set[int] = set()
        if operation is not _FRESH:
            storages_of_arguments = {_key_of_storage(tensor) for tensor in _tensors_in((args, options))}
        for tensor in _tensors_in(result):
            if _key_of_storage(tensor) not in storages_of_arguments:  # no view, as of weights
                self._add(tensor)
        return result

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the outputs of fused attention, which keeps no weights; taken apart, it would make them."""
        self.operations += 2 * query.numel() * (key.size(-2) + value.size(-2))
        return query.new_empty(*query.shape[:-1], value.size(-1))

    def _add(self, tensor: Tensor) -> None:
        if tensor.device.type != self._device:
            return
        key = _key_of_storage(tensor)
        if key in self._storages:
            return
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        self._storages.add(key)
        self._alive += size
        self.turnover += size
        self.peak = max(self.peak, self._alive)
        finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self._alive -= size


def _tensors_in(values: object) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _key_of_storage(tensor: Tensor) -> int:
    """Return a number that tells the storage of a tensor from all others."""
    key: int = tensor.untyped_storage()._cdata
    return key


class PlannedEncoder(Encoder):
    """An encoder without weights, on the meta device, whose forward passes have shapes and no numbers.

    Args:
        source: Files of the encoder; no weights are read.

    Raises:
        EncoderError: The config or the tokenizer cannot be read, or the model does not compute its attention through
            transformers' attention interface.
    """

    def __init__(self, source: EncoderSource) -> None:
        self.source = source
        self.device = torch.device("meta")
        self.model = architecture(source)
        self.tokenizer = load_tokenizer(source)
        self.model.eval().requires_grad_(False)  # type: ignore[no-untyped-call]
        self.model.config.use_cache = False
        self.max_length = longest_input(self.model, self.tokenizer)
        self.pad_id = int(self.tokenizer.pad_token_id or 0)
        self.halved = 0
        self.tapped = False
        self.has_sinks = False
        self.causal = False  # for sizes, every token may attend to every other
        with quiet_transformers():
            self.model.set_attn_implementation(NAME if source.spec.scores == "model" else FLOAT32)
        shapes: list[torch.Size] = []

        def see(_: int, call: LayerCall) -> Tensor:
            shapes.append(call.mixture.weights.shape)
            return call.mixture.weights

        tokens = torch.zeros(1, 6, dtype=torch.int64, device=self.device)
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        reason = "it computes its attention outside transformers' attention interface"
        try:
            with torch.inference_mode(), Tally(), measuring(see) as modules:
                self.model(**inputs)
        except Exception as error:  # of any kind, from a model that needs numbers
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(".")
            shapes.clear()
        if not shapes:
            raise EncoderError(
                f"{self.title}: its memory cannot be predicted without its weights ({reason}). Run it on a few "
                "sentences instead."
            )
        self.attending = number_layers(self.model, modules)
        self.layers = max(max(self.attending) + 1, getattr(self.model.config, "num_hidden_layers", 0))
        self.heads = shapes[0][1]
        self.is_hybrid = len(self.attending) < self.layers

    def allowed(self, real: Tensor) -> AttentionMasks:
        """Return masks that allow everything, on the CPU."""
        pieces = real.size(1)
        masks = torch.ones(len(real), 1, pieces, pieces, dtype=torch.bool)
        return AttentionMasks(masks, torch.zeros(self.layers, dtype=torch.int64))

    @cached_property
    def state_size(self) -> int:
        """Size of a hidden state, as the config says."""
        return int(self.model.config.hidden_size)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def weights(self) -> int:
        """Bytes of parameters and buffers."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class Costs:
    """Costs of reading all items of a corpus once.

    Attributes:
        passes: Number of forward passes.
        pieces: Number of pieces of all items, without padding.
        largest: Items and pieces of the pass with the most weights in one layer, `(batch, T)`.
        layer: Bytes of one layer's attention in this pass.
        attention: Bytes of all layers' attention in this pass, which never exist at once.
        peak: Most bytes that the tensors of one pass take at once, the result included.
        result: Bytes of the result of the largest pass.
        workers: Number of passes at once.
        spare: Bytes of free memory that the process keeps between passes.
        disk: Bytes on disk.
        operations: Floating-point operations of the matrix products of all passes.
    """

    passes: int
    pieces: int
    largest: tuple[int, int]
    layer: int
    attention: int
    peak: int
    result: int
    workers: int
    spare: int
    disk: int
    operations: float

    @property
    def memory(self) -> int:
        """Bytes of all passes at once: each worker has one that runs, and one result that waits.

        On a CPU, with what the process keeps for later passes before it gives memory back; see `Allowance`.
        """
        return self.workers * (self.peak + self.result) + self.spare


def predict_costs(encoder: PlannedEncoder, items: Items, device: str) -> Costs:
    """Predict the costs of an extraction; no pass computes a number.

    Args:
        encoder: The encoder.
        items: Items of the corpus.
        device: Kind of device of the run, `cpu` or `cuda`, which bounds the size of a pass.
    """
    passes: list[list[int]] = []
    for shard in items.shards:
        passes.extend(batches(items, shard, device))
    sizes_of_passes = []
    for batch in passes:
        longest = max(len(items.inputs[item]) for item in batch)
        sizes_of_passes.append((len(batch), longest))
    sizes = np.array(sizes_of_passes)
    padded = sizes.prod(1)
    cells = padded * sizes[:, 1]
    by_length = np.argsort(sizes[:, 1], kind="stable")
    spread = by_length[np.linspace(0, len(passes) - 1, min(_SAMPLE, len(passes)), dtype=int)]
    peak = 0
    lengths = []
    operations_of_pieces = []
    turnover_of_pieces = []
    for number in dict.fromkeys([*spread.tolist(), int(cells.argmax()), int(padded.argmax())]):
        tally = Tally()
        with tally:
            run_pass(encoder, items, passes[number], encoder.device)
        peak = max(peak, tally.peak)
        lengths.append(sizes[number, 1])
        operations_of_pieces.append(tally.operations / padded[number])
        turnover_of_pieces.append(tally.turnover / padded[number])
    order = np.argsort(lengths, kind="stable")
    sampled_lengths = np.array(lengths)[order]
    operations = padded * np.interp(sizes[:, 1], sampled_lengths, np.array(operations_of_pieces)[order])
    turnover = padded * np.interp(sizes[:, 1], sampled_lengths, np.array(turnover_of_pieces)[order])
    items_of_largest, longest = sizes[cells.argmax()].tolist()
    disk = sum(map(items.bytes, range(len(items.shards))))
    bytes_of_layer = 4 * encoder.heads * int(cells.max())  # single precision
    spare = 0
    if device == "cpu":
        spare = min(GROWTH, int(turnover.sum()))  # no more than was ever allocated
    return Costs(
        passes=len(passes),
        pieces=sum(map(len, items.inputs)),
        largest=(items_of_largest, longest),
        layer=bytes_of_layer,
        attention=bytes_of_layer * len(items.layers),
        peak=peak,
        result=max(_bytes_of(items, batch) for batch in passes),
        workers=workers_of(encoder, items, device),
        spare=spare,
        disk=disk,
        operations=float(operations.sum()),
    )


def _bytes_of(items: Items, batch: Sequence[int]) -> int:
    """Return the bytes that the store keeps of some items."""
    numbers = 0
    for item in batch:
        numbers += sum(int(np.prod(shape)) for shape in items.shapes(item).values())
    return numbers * items.extraction.options.dtype.itemsize
