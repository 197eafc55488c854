"""Interventions on attention heads: their outputs are replaced, and the model runs from the lowest replaced layer on.

A batch passes through the intact model once. For each layer, copies of the batch then start from this layer, with
different heads replaced in each copy: the outputs of the layers below are computed once.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, chain, product
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from attention_probing.attention.capture import Mixture, replacing
from attention_probing.attention.heads import Heads
from attention_probing.attention.masks import uniform_attention
from attention_probing.attention.source import EncoderError
from attention_probing.results.options import Rate, checked

OffKind = Literal["zero", "uniform", "mean", "resample"]
"""Replacement that switches a head off: zeros; the mean of the values that it may attend to (Kovaleva et al. 2019,
§4.6); its mean over reference texts at the same position; its output in another text, position by position."""

Kind = Literal[OffKind, "scale", "patch"]
"""Replacement of a head's output: one that switches it off; the output times a factor; or the head's output in the
other sentence of a minimal pair (activation patching, also called interchange intervention)."""

Sources = tuple[Tensor, Tensor]
"""Where replacements come from: for every position of a batch a text, and a position in it, each int64
`[batch, pieces]`. The text is a kept reference text of `resample`, or a row of the batch of `patch`. Position -1 stands
for no replacement."""

RunModel = Callable[[Mapping[str, Tensor]], Tensor]
"""Runs a model on inputs, each `[batch, …]`, and returns numbers for each text, `[batch, …]`."""

PIECES = {"cpu": 1024, "cuda": 65536}
"""Largest number of pieces in one pass by kind of device, padding included."""
CELLS = 1 << 28
"""Largest number of elements of a tensor of a pass: attention weights of a layer, or logits of a vocabulary."""
MOST_BYTES = 512 << 20
"""Largest size in bytes of the outputs that are kept for `resample`."""

# Tolerances relative to the largest output.
_TOLERANCE = 1e-4  # for a pass that starts from a layer
_UNCHANGED = 1e-6  # for a pass with the heads' own outputs


def pieces_at_once(device: torch.device, longest: int, heads: int, width: int = 0) -> int:
    """Return the largest number of pieces, summed over a batch with its padding, that a forward pass may process.

    Args:
        device: Device of the pass.
        longest: Largest number of pieces of one input.
        heads: Number of heads of a layer.
        width: Number of model outputs for each piece.
    """
    most = PIECES.get(device.type, PIECES["cuda"])
    cells_of_piece = max(heads * longest, width, 1)
    return max(min(most, CELLS // cells_of_piece), 1)


@dataclass(frozen=True, eq=False)
class ReferenceOutputs:
    """Outputs of every attention head on reference texts, which replace the outputs of ablated heads.

    The ablation `mean` uses the mean of the outputs over all reference texts. The ablation `resample`
    uses the outputs themselves, which are kept for some of the texts only.

    Attributes:
        mean: `[layers, heads, longest + 1, dim]`, the mean at each position over the texts that are long
            enough. The last entry is the mean over all positions of all texts, which is used beyond the
            end of the longest text.
        texts: Number of texts in the mean.
        outputs: `[kept texts, layers, heads, longest kept, dim]`, outputs of the heads in the kept
            texts; undefined after the end of a text.
        lengths: Number of pieces of each kept text, int64 `[kept texts]`, ascending.
        numbers: Index of each kept text, int64 `[kept texts]`. A kept text never replaces the outputs of
            an ablated text with the same index. None if the reference texts have no indices.
    """

    mean: Tensor
    texts: int
    outputs: Tensor
    lengths: Tensor
    numbers: Tensor | None = None

    @classmethod
    def from_batches(
        cls, run: RunModel, batches: Sequence[Mapping[str, Tensor]], keep: int = 0, most: int = MOST_BYTES
    ) -> "ReferenceOutputs":
        """Run a model on batches of reference texts and return the outputs of every attention head.

        Args:
            run: Function that runs the model on the inputs of a batch.
            batches: Inputs of the model, each with an `attention_mask`. If the same texts are ablated later, each
                batch also has `index`, int64 `[batch]`, the indices of the texts.
            keep: Number of texts, evenly spread, whose outputs are stored for `resample`.
            most: Largest size of the stored outputs in bytes; fewer than `keep` texts are stored if they would exceed
                it.
        """
        by_layer: list[Tensor] = []  # outputs of the heads for a batch

        def collect(layer: int, module: nn.Module, mixture: Mixture) -> Tensor:
            by_layer.append(mixture.outputs)
            return mixture.outputs

        lengths = torch.cat([inputs["attention_mask"].sum(1) for inputs in batches])
        longest = int(lengths.max())
        sums = torch.zeros(())
        stored: list[Tensor] = []  # `[layers, heads, pieces, dim]` of each stored text
        texts_to_store: list[int] = []
        first = 0  # index of the first text of the batch
        for inputs in batches:
            by_layer.clear()
            with torch.inference_mode(), replacing(collect):
                run(inputs)
            real = inputs["attention_mask"][:, None, :, None]
            sums_of_layers = [(outputs * real).sum(0, dtype=torch.float64) for outputs in by_layer]
            sums_of_batch = torch.stack(sums_of_layers)[:, :, :longest]
            sums = sums.to(sums_of_batch.device) + _pad_positions(sums_of_batch, longest)
            if first == 0:
                size = len(by_layer) * by_layer[0][0, :, 0].numel() * by_layer[0].element_size() * longest
                count = min(keep, len(lengths), max(most // size, 1))
                texts_to_store = np.linspace(0, len(lengths) - 1, count, dtype=int).tolist()
            for row in range(len(real)):
                if first + row in texts_to_store:
                    length = int(lengths[first + row])
                    stored.append(torch.stack([outputs[row, :, :length] for outputs in by_layer]))
            first += len(real)
        texts = (torch.arange(longest, device=lengths.device) < lengths[:, None]).sum(0)  # by position
        overall = sums.sum(2, keepdim=True) / lengths.sum()
        mean = torch.cat([sums / texts[:, None], overall], 2).to(by_layer[0].dtype)
        if not stored:
            return cls(mean, len(lengths), mean.new_empty(0), lengths[:0])
        order = lengths[texts_to_store].argsort(stable=True)
        longest = int(lengths[texts_to_store].max())
        places = torch.tensor(texts_to_store, device=lengths.device)[order]
        numbers = None
        if "index" in batches[0]:
            numbers = torch.cat([inputs["index"] for inputs in batches])[places]
        return cls(
            mean=mean,
            texts=len(lengths),
            outputs=torch.stack([_pad_positions(stored[place], longest) for place in order]),
            lengths=lengths[places],
            numbers=numbers,
        )

    def positions(self, index: Sequence[int], time: int, seed: int) -> Sources:
        """Draw, for every position of a batch of texts, a kept reference text and a position in it.

        For each text, the kept texts other than itself are put into a random order that depends only on the seed and
        the text's index. Position i gets position i of the first kept text in this order that is long enough. If none
        is, it gets the last position of the longest kept text.

        Args:
            index: Index of each text of the batch.
            time: Number of positions of each text, padding included.
            seed: Seed of the random orders.

        Returns:
            Indices of kept texts, and positions in them, both int64 `[batch, time]`.
        """
        lengths = self.lengths.cpu().numpy()
        numbers = np.full(len(lengths), -1)
        if self.numbers is not None:
            numbers = self.numbers.cpu().numpy()
        texts = np.empty((len(index), time), np.int64)
        places = np.empty((len(index), time), np.int64)
        positions = np.arange(time)
        for row, number in enumerate(index):
            order = np.random.default_rng([seed, number]).permutation(len(lengths))
            order = order[numbers[order] != number]
            # Only texts longer than all before them in the order are ever the first that is long enough.
            reach = np.maximum.accumulate(lengths[order])
            first = np.searchsorted(reach, positions, side="right").clip(max=len(order) - 1)
            texts[row] = np.where(positions < reach[-1], order[first], order.max())
            places[row] = np.minimum(positions, lengths[texts[row]] - 1)
        device = self.outputs.device
        return torch.from_numpy(texts).to(device), torch.from_numpy(places).to(device)


def partners_of_pairs(tokens: Tensor, lengths: Tensor) -> Sources:
    """Return, for every position of pairs of texts, the position of the partner whose output `patch` takes.

    The tokens at the start that both texts of a pair share are partners, and so are those at the end. Between them,
    tokens are partners from the left. A position of the longer text may have no partner, and the padding has none: it
    gets position -1 and keeps its own output. Texts of the same length are thus aligned position by position.

    Args:
        tokens: Tokens of the texts, int64 `[2 · pairs, pieces]`; the texts of a pair stand one after the other.
        lengths: Number of tokens of each text, int64 `[2 · pairs]`, at least 1.

    Returns:
        Rows of the batch, and positions in them.
    """
    own_rows = torch.arange(len(tokens), device=tokens.device)
    other_rows = own_rows ^ 1
    other_lengths = lengths[other_rows]
    shorter = torch.minimum(lengths, other_lengths)
    places = torch.arange(tokens.size(1), device=tokens.device)
    real = places < shorter[:, None]

    same = (tokens == tokens[other_rows]) & real
    shared_at_start = same.cumprod(1).sum(1)
    from_end = tokens.gather(1, (lengths[:, None] - 1 - places).clamp(min=0))
    same_from_end = (from_end == from_end[other_rows]) & real
    shared_at_end = same_from_end.cumprod(1).sum(1)
    shared_at_end = torch.minimum(shared_at_end, shorter - shared_at_start)

    end = (lengths - shared_at_end)[:, None]
    other_end = (other_lengths - shared_at_end)[:, None]
    positions = torch.where(places < end, places, places - end + other_end)
    has_partner_from_left = places < torch.minimum(end, other_end)
    is_shared_end = (places >= end) & (places < lengths[:, None])
    has_partner = has_partner_from_left | is_shared_end
    return other_rows[:, None].expand_as(positions), positions.where(has_partner, -1)


@checked
@dataclass(frozen=True, eq=False)
class Ablation:
    """Replacement of the outputs of some attention heads.

    The four kinds that switch a head off:

    - `zero`: zeros (Michel et al. 2019, §2.3);
    - `uniform`: the mean of the values that a position may attend to (Kovaleva et al. 2019, §4.6);
    - `mean`: the head's mean output over reference texts;
    - `resample`: its output in another reference text.

    Two kinds keep it on:

    - `scale`: its own output times a factor, as Kumon and Yanaka (2026, arXiv 2604.22166) strengthen heads on BLiMP
      by 1.5. A factor of 0 is `zero`, and 1 changes nothing.
    - `patch`: its output in the intact model for the other text of a pair, at the position that `partners_of_pairs`
      gives (activation patching, Vig et al. 2020). Texts of equal length that differ in single words are what Zhang
      and Nanda (2024, §2.1) call symmetric token replacement; in other pairs, positions without a partner keep their
      own outputs. Both texts of a pair are patched at once, each in a pass of its own:
      what changes one of them cannot change the other, so the effect on a difference of the two is the effect on one
      text minus the effect on the other. If several heads are patched, those of the higher layers get the intact
      outputs as well, whatever the lower ones have changed.

    Args:
        kind: Kind of the replacement.
        reference: Outputs on reference texts, for `mean` and `resample`; `resample` needs the outputs of at least two
            texts.
        seed: Seed of the draws of `resample`.
        factor: Factor of `scale`, for which 1.5 stands for one and a half times the output.
    """

    kind: Kind
    reference: ReferenceOutputs | None = None
    seed: int = 0
    factor: Rate = 1.0

    @property
    def name(self) -> str:
        """Name among other ablations: the kind, such as `zero`, or kind and factor, such as `scale_0.5`."""
        if self.kind == "scale":
            return f"scale_{self.factor:g}"
        return self.kind

    def outputs(
        self, layer: int, heads: Tensor, current: Tensor, sources: Sources, substitutes: Tensor | None = None
    ) -> Tensor:
        """Return the replacement outputs of some heads of a layer.

        Args:
            layer: 0-based index of the layer.
            heads: 0-based indices of the heads, int64 `[heads]`.
            current: Outputs of the layer that are replaced, `[batch, all heads, pieces, dim]`.
            sources: Where `resample` and `patch` take their outputs from.
            substitutes: Outputs of the layer to take replacements from, likewise: for `uniform` with uniform
                attention, for `patch` in the intact model; by default `current`.

        Returns:
            The outputs `[batch, heads, pieces, dim]`, or a tensor that broadcasts to this shape.
        """
        if self.kind == "zero":
            return current.new_zeros(())
        if self.kind == "scale":
            return current[:, heads] * self.factor
        if substitutes is None:
            substitutes = current
        if self.kind == "uniform":
            return substitutes[:, heads]
        texts, positions = sources
        if self.kind == "patch":
            outputs_of_partner = substitutes[texts[:, None], heads[None, :, None], positions.clamp(min=0)[:, None]]
            has_partner = positions[:, None, :, None] >= 0
            return outputs_of_partner.where(has_partner, current[:, heads])
        assert self.reference is not None
        if self.kind == "mean":
            mean = self.reference.mean[layer, heads]
            places = torch.arange(current.size(2), device=heads.device).clamp(max=mean.size(1) - 1)
            return mean[None, :, places]
        return self.reference.outputs[texts[:, None], layer, heads[None, :, None], positions[:, None]]


def _pad_positions(outputs: Tensor, longest: int) -> Tensor:
    """Return `[layers, heads, pieces, dim]` with zeros up to a number of pieces."""
    return nn.functional.pad(outputs, (0, 0, 0, longest - outputs.size(2)))


def uniform_outputs(mixture: Mixture, mask: Tensor) -> Tensor:
    """Return the outputs of heads with uniform attention: the mean of the values that each position may attend to.

    Args:
        mixture: Attention of one layer in a forward pass.
        mask: Bool `[batch, pieces]`, True for real positions.

    Returns:
        Outputs `[batch, heads, from, dim]`; rows of padding are undefined.
    """
    return uniform_attention(mixture.allowed(mask), mixture.values.dtype) @ mixture.values


@dataclass
class _Batch:
    """A batch and its outputs in the intact model, from which copies of it start."""

    run: RunModel
    inputs: Mapping[str, Tensor]
    ablation: Ablation
    sources: Sources
    result: Tensor = field(default_factory=lambda: torch.empty(0))
    outputs: list[Tensor] = field(default_factory=list)  # by layer [batch, heads, pieces, dim]
    uniform: dict[int, Tensor] = field(default_factory=dict)  # by layer, as `outputs`
    states: list[object] = field(default_factory=list)  # by layer, the output of its module
    projected: dict[nn.Module, Tensor] = field(default_factory=dict)  # zeros of the shape of its output for one text

    @property
    def mask(self) -> Tensor:
        """True for real positions, bool `[batch, pieces]`."""
        return self.inputs["attention_mask"].bool()


def _ignore(number: int) -> None:
    """Do nothing with a number of finished texts."""


class AblatedModel:
    """A model whose attention heads can be ablated, several sets of heads in one forward pass.

    The model must be in eval mode and use the attention function of `attention.capture`. The constructor tests
    whether a forward pass can start from any layer. If it cannot, for instance because all layers share one module,
    every ablation is a pass through the whole model.

    Args:
        model: Model called with `input_ids` and `attention_mask`; the first of its outputs is a tensor.
        layers: Number of attention layers.
        heads: Number of heads of each layer.
        width: Number of outputs for every piece, for instance logits of a vocabulary.
        share: Compute the layers below the ablated ones only once for all sets of heads.
    """

    def __init__(self, model: nn.Module, layers: int, heads: int, *, width: int = 0, share: bool = True) -> None:
        self.model = model
        self.layers = layers
        self.heads = heads
        self.width = width
        self._blocks: list[nn.Module] = []
        self._projections: list[list[nn.Module]] = []  # by layer
        self._exact: set[Kind] = set()  # kinds that leave the model as it is if they give it its own outputs
        if share:
            self._find()
            if not self._starts_anywhere():
                # A gate that is computed before the softmax is needed after it (AfMoE, Qwen3-Next).
                self._projections = [[] for _ in self._projections]
                if not self._starts_anywhere():
                    self._blocks = []

    @property
    def shares(self) -> bool:
        """True if the layers below the ablated ones are computed only once for all sets of heads."""
        return bool(self._blocks)

    @torch.inference_mode()
    def run(
        self,
        run: RunModel,
        inputs: Mapping[str, Tensor],
        ablation: Ablation,
        sets: Sequence[Heads],
        index: Sequence[int] | None = None,
        partners: Sources | None = None,
        finish: Callable[[int], None] = _ignore,
    ) -> Tensor:
        """Return the output of the model with each set of attention heads ablated, `[sets, batch, …]`.

        For the empty set, the output equals that of the intact model bit for bit.

        The first run with `scale` or `patch` checks that factor 1, or a text as its own partner, changes nothing.

        Args:
            run: Function that runs the model on inputs, and returns its output `[batch, …]`.
            inputs: Inputs of the model, each `[batch, …]`, with an `attention_mask`.
            ablation: Replacement of the outputs of the ablated heads.
            sets: Sets of 0-based (layer, head) pairs to ablate together.
            index: Index of every text, on which the draws of `resample` depend; by default its position in the batch.
            partners: Rows of the batch, and positions in them, from which `patch` takes the outputs; of texts in pairs
                those of `partners_of_pairs`.
            finish: Function that is called as the run goes on, with the number of texts times sets that it has just
                finished.

        Raises:
            EncoderError: The model changes if its heads get their own outputs.
        """
        mask = inputs["attention_mask"]
        sources = (mask, mask)  # only `resample` and `patch` read their sources
        if ablation.kind in ("scale", "patch"):
            self._require_exact(ablation.kind)
        if ablation.kind == "patch":
            assert partners is not None
            sources = partners
        if ablation.kind == "resample":
            assert ablation.reference is not None
            numbers = range(len(mask)) if index is None else index
            sources = ablation.reference.positions(numbers, mask.size(1), ablation.seed)
        by_layer: defaultdict[int, list[int]] = defaultdict(list)
        for place, heads in enumerate(sets):
            lowest = min(heads)[0] if heads else self.layers
            by_layer[lowest].append(place)
        batch = _Batch(run, inputs, ablation, sources)
        uniform_layers: set[int] = set()
        if ablation.kind == "uniform":
            uniform_layers.update(by_layer)
        self._run_intact(batch, uniform_layers)
        outputs: dict[int, Tensor] = dict.fromkeys(by_layer.pop(self.layers, []), batch.result)
        finish(len(outputs) * len(mask))
        most = max(pieces_at_once(mask.device, mask.size(1), self.heads, self.width) // mask.numel(), 1)
        for layer, places in sorted(by_layer.items()):
            for first in range(0, len(places), most):
                some = places[first : first + most]
                results = self._run_from(layer, [sets[place] for place in some], batch)
                outputs |= dict(zip(some, results, strict=True))
                finish(len(some) * len(mask))
        return torch.stack([outputs[place] for place in range(len(sets))])

    def _run_intact(self, batch: _Batch, uniform: set[int]) -> None:
        """Run one pass with nothing replaced; also keep the outputs under uniform attention of layers `uniform`."""

        def replace(layer: int, module: nn.Module, mixture: Mixture) -> Tensor:
            if self.shares or batch.ablation.kind == "patch":
                batch.outputs.append(mixture.outputs)
            if self.shares and layer in uniform:
                batch.uniform[layer] = uniform_outputs(mixture, batch.mask)
            return mixture.outputs

        def keep_state(module: nn.Module, args: object, output: object) -> None:
            batch.states.append(output)

        def keep_shape(module: nn.Module, args: object, output: Tensor) -> None:
            batch.projected[module] = output.new_zeros(1).expand(1, *output.shape[1:])

        with ExitStack() as hooks, replacing(replace):
            for block in self._blocks:
                hooks.enter_context(block.register_forward_hook(keep_state))
            if self.shares:
                for projection in chain.from_iterable(self._projections):
                    hooks.enter_context(projection.register_forward_hook(keep_shape))
            batch.result = batch.run(batch.inputs)

    def _run_from(self, start: int, sets: Sequence[Heads], batch: _Batch) -> Tensor:
        """Return the output `[sets, batch, …]` of a copy of the batch for each set, run from layer `start` on."""
        copies = len(sets)
        size = len(batch.mask)
        repeated = {name: _repeat(tensor, copies, size) for name, tensor in batch.inputs.items()}

        def replace(layer: int, module: nn.Module, mixture: Mixture) -> Tensor:
            heads_by_copy = [_heads_in(heads, layer) for heads in sets]
            is_start = layer == start and self.shares
            if is_start:
                outputs = batch.outputs[layer].repeat(copies, 1, 1, 1)
            elif any(heads_by_copy):
                outputs = mixture.outputs.clone()
            else:
                return mixture.outputs
            by_copy = outputs.view(copies, size, *outputs.shape[1:])
            substitutes = by_copy
            if batch.ablation.kind == "patch":
                substitutes = batch.outputs[layer].expand_as(by_copy)
            elif batch.ablation.kind == "uniform" and is_start:
                substitutes = batch.uniform[layer].expand_as(by_copy)
            elif batch.ablation.kind == "uniform":
                mask = repeated["attention_mask"].bool()
                substitutes = uniform_outputs(mixture, mask).view_as(by_copy)
            for copy, heads in enumerate(heads_by_copy):
                if not heads:
                    continue
                places = torch.tensor(heads, device=outputs.device)
                replacement = batch.ablation.outputs(layer, places, by_copy[copy], batch.sources, substitutes[copy])
                by_copy[copy, :, places] = replacement.to(outputs.dtype)
            return outputs

        with ExitStack() as skipped:
            if self.shares:
                self._skip_below(start, copies, batch, skipped)
            skipped.enter_context(replacing(replace, start if self.shares else 0))
            result = batch.run(repeated)
        return result.view(copies, len(result) // copies, *result.shape[1:])

    def _skip_below(self, start: int, copies: int, batch: _Batch, skipped: ExitStack) -> None:
        """Let all modules below the attention of layer `start` return what they returned in the intact model."""
        size = len(batch.mask)
        below = None
        if start:
            below = _repeat(batch.states[start - 1], copies, size)
        for block in self._blocks[:start]:
            skipped.enter_context(_returning(block, below))
        for projection in self._projections[start]:  # the outputs of the heads are known already
            blank = batch.projected[projection]
            blank = blank.expand(copies * size, *blank.shape[1:])
            skipped.enter_context(_returning(projection, blank))

    def _find(self) -> None:
        """Find the module of each layer, and the projections inside its attention that run before the softmax."""
        names = {module: name for name, module in self.model.named_modules()}
        passed: Counter[nn.Module] = Counter()  # calls of modules without submodules that return a tensor for each text
        paths: list[list[str]] = []  # to the attention of each layer: the names of all modules around it
        [sample, *_] = self._samples()
        texts = len(sample["input_ids"])

        def leave(module: nn.Module, args: object, output: object) -> None:
            if isinstance(output, Tensor) and output.dim() and len(output) == texts:
                passed[module] += 1

        def attend(layer: int, module: nn.Module, mixture: Mixture) -> Tensor:
            paths.append([*accumulate(names[module].split("."), "{}.{}".format)])
            projections = []
            for part in module.modules():
                if passed[part] == 1 and [*part.parameters()]:
                    projections.append(part)
            self._projections.append(projections)
            passed.clear()
            return mixture.outputs

        with torch.inference_mode(), ExitStack() as hooks, replacing(attend):
            for module in self.model.modules():
                if not any(module.children()):
                    hooks.enter_context(module.register_forward_hook(leave))
            self.model(**sample)
        # The block of a layer is the outermost module that is around no other attention.
        times = Counter(chain.from_iterable(paths))
        for path in paths:
            names_of_layer = [name for name in path if times[name] == 1]
            if names_of_layer:
                self._blocks.append(self.model.get_submodule(names_of_layer[0]))

    def _samples(self) -> Iterator[dict[str, Tensor]]:
        """Yield batches of texts that differ in the number of texts and of pieces."""
        device = next(self.model.parameters()).device
        for texts, pieces in ((3, 5), (2, 8)):
            places = torch.arange(texts * pieces, device=device).view(texts, pieces)
            tokens = places % 6 + 1
            yield {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    def _starts_anywhere(self) -> bool:
        """Return True if a pass from each layer on, with its first head ablated, gives the output of a whole pass."""
        if len(self._blocks) != self.layers:
            return False
        return all(self._starts_as_whole_pass(inputs) for inputs in self._samples())

    def _require_exact(self, kind: Kind) -> None:
        """Raise EncoderError if a model changes when all of its heads, or those of one layer, get their own outputs."""
        if kind in self._exact:
            return
        self._exact.add(kind)
        every_layer = frozenset(product(range(self.layers), range(self.heads)))
        middle_layer = frozenset(product([self.layers // 2], range(self.heads)))

        def run(inputs: Mapping[str, Tensor]) -> Tensor:
            output: Tensor = self.model(**inputs)[0]
            return output

        for inputs in self._samples():
            texts, pieces = inputs["input_ids"].shape
            places = torch.arange(pieces, device=inputs["input_ids"].device).expand(texts, -1)
            rows = torch.arange(texts, device=places.device)[:, None].expand(-1, pieces)
            expected = run(inputs)
            for heads in (every_layer, middle_layer):
                [output] = self.run(run, inputs, Ablation(kind), [heads], partners=(rows, places))
                gap = float((output - expected).abs().max() / expected.abs().max())
                if not gap <= max(_UNCHANGED, torch.finfo(expected.dtype).eps):  # also if it is not a number
                    raise EncoderError(
                        f"{type(self.model).__name__} cannot be changed by `{kind}`: with the heads' own outputs in "
                        f"place of themselves its output differs by {gap:.1e} of the largest. Choose another kind of "
                        "ablation, or another architecture."
                    )

    def _starts_as_whole_pass(self, inputs: Mapping[str, Tensor]) -> bool:
        """Return True if passes from each layer on give the output of whole passes for these inputs."""

        def run(inputs: Mapping[str, Tensor]) -> Tensor:
            output: Tensor = self.model(**inputs)[0]
            return output

        sets = [frozenset({(layer, 0)}) for layer in range(self.layers)]
        in_whole_passes = AblatedModel(self.model, self.layers, self.heads, share=False)
        expected = in_whole_passes.run(run, inputs, Ablation("zero"), sets)
        try:
            ours = self.run(run, inputs, Ablation("zero"), sets)
        except Exception:  # of any kind, if the layers are not called one after the other
            return False
        gap = float((ours - expected).abs().max())
        return gap <= _TOLERANCE * max(1.0, float(expected.abs().max()))


def _heads_in(heads: Heads, layer: int) -> list[int]:
    """Return the heads of a set that are in a layer, ascending."""
    return sorted(head for layer_of_head, head in heads if layer_of_head == layer)


def _repeat(output: Any, copies: int, batch: int) -> Any:  # noqa: ANN401 # the output of a layer
    """Return every tensor with a leading batch, repeated `copies` times, one copy after the other."""
    if isinstance(output, Tensor) and output.dim() and len(output) == batch:
        return output.repeat(copies, *[1] * (output.dim() - 1))
    if isinstance(output, tuple):
        return tuple(_repeat(part, copies, batch) for part in output)
    return output


@contextmanager
def _returning(module: nn.Module, output: object) -> Iterator[None]:
    """Let a module return `output` without any computation."""
    module.forward = lambda *_, **__: output
    try:
        yield
    finally:
        del module.forward
