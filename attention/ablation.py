"""Ablation of attention heads: their outputs are replaced, and the model runs from the lowest replaced layer on.

A batch passes through the whole model once. Copies of it then start from each layer, with other heads of that layer
replaced in each: the outputs of the layers below are computed once.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from attention.capture import Heads, Mixture, replacing, uniform_attention
from results.errors import check_values

Kind = Literal["zero", "uniform", "mean", "resample"]
"""Replacement of a head's output: zeros; the mean of the values that it may attend to (Kovaleva et al. 2019, §4.6); its
own mean over some texts at the same position; its own output in another text, position by position."""

Measure = Callable[[Mapping[str, Tensor]], Tensor]
"""Runs a model on inputs, each `[batch, …]`, and returns numbers for each text, `[batch, …]`."""

PIECES = {"cpu": 1024, "cuda": 65536}
"""Bound of what runs at once by kind of device, in pieces, padding included."""
CELLS = 1 << 28
"""Bound of the numbers of the largest tensor of a pass: attention weights of a layer, or logits of a vocabulary."""
KEPT = 512 << 20
"""Bound in bytes of the outputs that are kept to resample from."""

_TOLERANCE = 1e-4  # of a model that starts from a layer, relative to the largest of its outputs


def pieces_at_once(device: torch.device, longest: int, heads: int, width: int = 0) -> int:
    """Return how many pieces may run at once, in inputs of at most `longest`, with `width` outputs of each."""
    return max(min(PIECES.get(device.type, PIECES["cuda"]), CELLS // max(heads * longest, width, 1)), 1)


@dataclass(frozen=True, eq=False)
class Reference:
    """The outputs of every head in some texts.

    Attributes:
        mean: `[layers, heads, longest + 1, dim]`, at each position over the texts that have it: the first piece, often
            a delimiter, is like no other. The last is over all positions, for those that no text has.
        texts: number of texts that the mean is over.
        outputs: `[kept texts, layers, heads, longest, dim]`; what lies behind the end of a text has no meaning.
        lengths: int64 `[kept texts]`, ascending.
        numbers: numbers of the kept texts, int64 `[kept texts]`; an ablated text of the same number is the same text.
            None where no kept text is ablated.
    """

    mean: Tensor
    texts: int
    outputs: Tensor
    lengths: Tensor
    numbers: Tensor | None = None

    @classmethod
    def from_batches(
        cls, measure: Measure, batches: Sequence[Mapping[str, Tensor]], keep: int = 0, most: int = KEPT
    ) -> "Reference":
        """Return the outputs of every head in batches of texts.

        Inputs have an `attention_mask`, and `index`, the numbers of the texts, if these may be ablated. The outputs in
        `keep` of the texts, evenly spread, or in as many as fit in `most` bytes, are kept to be resampled.
        """
        found: list[Tensor] = []  # of each layer

        def collect(layer: int, module: nn.Module, mixture: Mixture) -> Tensor:
            found.append(mixture.outputs)
            return mixture.outputs

        lengths = torch.cat([inputs["attention_mask"].sum(1) for inputs in batches])
        longest, sums = int(lengths.max()), torch.zeros(())
        kept, chosen, seen = list[Tensor](), list[int](), 0
        for inputs in batches:
            found.clear()
            with torch.inference_mode(), replacing(collect):
                measure(inputs)
            real = inputs["attention_mask"][:, None, :, None]
            own = torch.stack([(one * real).sum(0, dtype=torch.float64) for one in found])[:, :, :longest]
            sums = sums.to(own.device) + nn.functional.pad(own, (0, 0, 0, longest - own.size(2)))
            if not seen:
                size = len(found) * found[0][0, :, 0].numel() * found[0].element_size() * longest
                count = min(keep, len(lengths), max(most // size, 1))
                chosen = np.linspace(0, len(lengths) - 1, count, dtype=int).tolist()
            for text in range(seen, seen + len(real)):
                if text in chosen:
                    kept.append(torch.stack([one[text - seen, :, : int(lengths[text])] for one in found]))
            seen += len(real)
        texts = (torch.arange(longest, device=lengths.device) < lengths[:, None]).sum(0)  # that have a position
        overall = sums.sum(2, keepdim=True) / lengths.sum()
        mean = torch.cat([sums / texts[:, None], overall], 2).to(found[0].dtype)
        if not kept:
            return cls(mean, seen, mean.new_empty(0), lengths[:0])
        order = lengths[chosen].argsort(stable=True)
        longest = int(lengths[chosen].max())
        whole = torch.stack(
            [nn.functional.pad(kept[place], (0, 0, 0, longest - kept[place].size(2))) for place in order]
        )
        numbers = torch.cat([inputs["index"] for inputs in batches]) if "index" in batches[0] else None
        places = torch.tensor(chosen, device=lengths.device)[order]
        return cls(mean, seen, whole, lengths[places], None if numbers is None else numbers[places])

    def positions(self, index: Sequence[int], time: int, seed: int) -> tuple[Tensor, Tensor]:
        """Draw a kept text and a position in it for every position of some texts, both int64 `[batch, time]`.

        For each text the other kept texts are put into an order, drawn from the seed and its number. Its position i
        gets position i of the first of them that is long enough, or the end of the longest.
        """
        lengths = self.lengths.cpu().numpy()
        own = np.full(len(lengths), -1) if self.numbers is None else self.numbers.cpu().numpy()
        texts, places = (np.empty((len(index), time), np.int64) for _ in range(2))
        positions = np.arange(time)
        for row, number in enumerate(index):
            order = np.random.default_rng([seed, number]).permutation(len(lengths))
            order = order[own[order] != number]
            # Only texts longer than all before them in the order are ever the first that is long enough.
            reach = np.maximum.accumulate(lengths[order])
            first = np.searchsorted(reach, positions, side="right").clip(max=len(order) - 1)
            texts[row] = np.where(positions < reach[-1], order[first], order.max())
            places[row] = np.minimum(positions, lengths[texts[row]] - 1)
        device = self.outputs.device
        return torch.from_numpy(texts).to(device), torch.from_numpy(places).to(device)


@dataclass(frozen=True, eq=False)
class Ablation:
    """An ablation: the kind of outputs that replace the heads' own.

    Args:
        kind: kind of replacement.
        reference: outputs in other texts, for `mean` and `resample`; `resample` needs two kept texts or more.
        seed: of `resample`.
    """

    kind: Kind
    reference: Reference | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_values(self, **vars(self))

    def context(self, mask: Tensor, index: Sequence[int]) -> "Context":
        """Return the ablation of some texts: their mask, bool `[batch, pieces]`, and the number of each."""
        sources = None
        if self.kind == "resample":
            assert self.reference is not None
            sources = self.reference.positions(index, mask.size(1), self.seed)
        return Context(self, mask, sources)


@dataclass(frozen=True, eq=False)
class Context:
    """An ablation of some texts."""

    ablation: Ablation
    mask: Tensor  # bool [batch, pieces]
    sources: tuple[Tensor, Tensor] | None

    def outputs(self, layer: int, heads: Tensor, uniform: Callable[[], Tensor]) -> Tensor:
        """Return the replaced outputs of some heads of a layer, `[batch, heads, pieces, dim]` or broadcast to it.

        `uniform` gives the outputs of all heads of the layer with uniform attention.
        """
        reference = self.ablation.reference
        match self.ablation.kind:
            case "zero":
                return torch.zeros((), device=self.mask.device)
            case "uniform":
                return uniform()[:, heads]
            case "mean":
                assert reference is not None
                of_heads = reference.mean[layer, heads]
                places = torch.arange(self.mask.size(1), device=self.mask.device).clamp(max=of_heads.size(1) - 1)
                return of_heads[None, :, places]
        assert reference is not None
        assert self.sources is not None
        texts, positions = self.sources
        return reference.outputs[texts[:, None], layer, heads[None, :, None], positions[:, None]]


def uniform_outputs(mixture: Mixture, mask: Tensor) -> Tensor:
    """Return the mean of the values that each position may attend to, `[batch, heads, from, dim]`.

    `mask` says which positions are real, bool `[batch, pieces]`. In rows of the padding the numbers have no meaning.
    """
    return uniform_attention(mixture.allowed(mask), mixture.values.dtype) @ mixture.values


@dataclass
class _Whole:
    """Outputs of the whole model on a batch, from which copies of it can start."""

    result: Tensor
    outputs: list[Tensor] = field(default_factory=list)  # by layer [batch, heads, pieces, dim]
    uniform: dict[int, Tensor] = field(default_factory=dict)  # by layer, as `outputs`
    left: list[object] = field(default_factory=list)  # by layer, what its module returns
    shapes: dict[nn.Module, tuple[int, ...]] = field(default_factory=dict)  # of what the projections return


class AblatedModel:
    """A model, in eval mode and going through the registered attention function, whose heads can be ablated.

    The constructor runs the model to see if it can start from any layer. Where it cannot, for instance because all
    layers are one module, every ablation is a pass through the whole model.

    Args:
        model: called with `input_ids` and `attention_mask` it returns a tensor first.
        layers: attention layers.
        heads: heads of each layer.
        width: outputs for every piece, for instance logits of a vocabulary.
        share: whether passes share what lies below the ablated layers.
    """

    def __init__(self, model: nn.Module, layers: int, heads: int, *, width: int = 0, share: bool = True) -> None:
        self.model, self.layers, self.heads, self.width = model, layers, heads, width
        self._blocks: list[nn.Module] = []
        self._projections: list[list[nn.Module]] = []
        if share:
            self._find()
            if not self._starts_anywhere():
                self._blocks, self._projections = [], []

    @property
    def shares(self) -> bool:
        """True if passes share what lies below the ablated layers."""
        return bool(self._blocks)

    @torch.inference_mode()
    def run(
        self,
        measure: Measure,
        inputs: Mapping[str, Tensor],
        ablation: Ablation,
        sets: Sequence[Heads],
        index: Sequence[int] | None = None,
    ) -> Tensor:
        """Return `measure` with each set of heads ablated, `[sets, batch, …]`.

        The empty set gives the same bits as the whole model.

        Args:
            measure: runs the model.
            inputs: each `[batch, …]`, an `attention_mask` among them.
            ablation: what the outputs are replaced by.
            sets: of heads.
            index: number of every text, by which `resample` draws; None counts them.
        """
        mask = inputs["attention_mask"].bool()
        numbers = range(len(mask)) if index is None else index
        context = ablation.context(mask, numbers)
        by_layer: defaultdict[int, list[int]] = defaultdict(list)
        for place, heads in enumerate(sets):
            by_layer[min(heads)[0] if heads else self.layers].append(place)
        whole = self._run_whole(measure, inputs, mask, {*by_layer} if ablation.kind == "uniform" else set())
        found: dict[int, Tensor] = {place: whole.result for place in by_layer.pop(self.layers, [])}
        most = max(pieces_at_once(mask.device, mask.size(1), self.heads, self.width) // mask.numel(), 1)
        for layer, places in sorted(by_layer.items()):
            for first in range(0, len(places), most):
                some = places[first : first + most]
                results = self._run_from(layer, measure, inputs, context, [sets[place] for place in some], whole)
                found |= dict(zip(some, results, strict=True))
        return torch.stack([found[place] for place in range(len(sets))])

    def _run_whole(self, measure: Measure, inputs: Mapping[str, Tensor], mask: Tensor, uniform: set[int]) -> _Whole:
        """Run one pass with nothing replaced; also keep the outputs under uniform attention of layers `uniform`."""
        whole = _Whole(torch.empty(0))

        def replace(layer: int, module: nn.Module, mixture: Mixture) -> Tensor:
            if self.shares:
                whole.outputs.append(mixture.outputs)
                if layer in uniform:
                    whole.uniform[layer] = uniform_outputs(mixture, mask)
            return mixture.outputs

        with ExitStack() as hooks, replacing(replace):
            for block in self._blocks:
                hooks.enter_context(_watching(block, lambda _, output: whole.left.append(output)))
            for projection in (one for some in self._projections for one in some):
                hooks.enter_context(
                    _watching(projection, lambda module, output: whole.shapes.update({module: output.shape[1:]}))
                )
            whole.result = measure(inputs)
        return whole

    def _run_from(
        self,
        start: int,
        measure: Measure,
        inputs: Mapping[str, Tensor],
        context: Context,
        sets: Sequence[Heads],
        whole: _Whole,
    ) -> Tensor:
        """Run a copy of the batch for each set, none with a head below the layer `start`: `[sets, batch, …]`."""
        copies, batch = len(sets), len(context.mask)
        chosen = [self._chosen(layer, sets, context.mask.device) for layer in range(self.layers)]

        def replace(layer: int, module: nn.Module, mixture: Mixture) -> Tensor:
            if layer == start and self.shares:
                outputs = whole.outputs[layer].repeat(copies, 1, 1, 1)
            elif chosen[layer]:
                outputs = mixture.outputs.clone()
            else:
                return mixture.outputs
            by_copy = outputs.view(copies, batch, *outputs.shape[1:])
            at_start = layer == start and self.shares
            spread = cache(lambda: whole.uniform[layer] if at_start else uniform_outputs(mixture, repeated_mask))
            for copy, heads in chosen[layer]:
                rows = slice(None) if at_start else slice(copy * batch, (copy + 1) * batch)
                given = context.outputs(layer, heads, partial(_rows_of, spread, rows))
                by_copy[copy, :, heads] = given.to(outputs.dtype)
            return outputs

        repeated = {name: _repeated(tensor, copies, batch) for name, tensor in inputs.items()}
        repeated_mask = context.mask.repeat(copies, 1)
        with ExitStack() as skipped:
            if self.shares:
                left = _repeated(whole.left[start - 1], copies, batch) if start else None
                for block in self._blocks[:start]:
                    skipped.enter_context(_returning(block, left))
                for projection in self._projections[start]:  # what they would project is known already
                    blank = context.mask.new_zeros(1, dtype=whole.outputs[start].dtype)
                    shape = whole.shapes[projection]
                    skipped.enter_context(_returning(projection, blank.expand(copies * batch, *shape)))
            skipped.enter_context(replacing(replace, start if self.shares else 0))
            result = measure(repeated)
        return result.view(copies, batch, *result.shape[1:])

    def _chosen(self, layer: int, sets: Sequence[Heads], device: torch.device) -> list[tuple[int, Tensor]]:
        """Return the copies that have heads in a layer, each with its heads, int64 `[heads]`."""
        found = [(copy, sorted(head for of, head in heads if of == layer)) for copy, heads in enumerate(sets)]
        return [(copy, torch.tensor(heads, device=device)) for copy, heads in found if heads]

    def _find(self) -> None:
        """Find the module of each layer, and the projections inside its attention that come before it attends."""
        stack: list[nn.Module] = []
        paths: list[tuple[nn.Module, ...]] = []
        passed: list[nn.Module] = []  # modules without parts, in the order in which they end
        attending: list[tuple[nn.Module, frozenset[nn.Module]]] = []

        def leave(module: nn.Module, output: object) -> None:
            stack.pop()
            if not any(module.children()) and isinstance(output, Tensor):
                passed.append(module)

        def attend(layer: int, module: nn.Module, mixture: Mixture) -> Tensor:
            paths.append(tuple(stack))
            attending.append((module, frozenset(passed)))
            return mixture.outputs

        with torch.inference_mode(), ExitStack() as hooks, replacing(attend):
            for module in self.model.modules():
                hooks.enter_context(_watching(module, leave, stack.append))
            self.model(**self._sample)
        for path, (module, before) in zip(paths, attending, strict=True):
            others = {one for other in paths if other is not path for one in other}
            own = [one for one in path if one not in others]
            if not own:
                self._blocks, self._projections = [], []
                return
            self._blocks.append(own[0])
            self._projections.append([one for one in module.modules() if one in before and [*one.parameters()]])

    @property
    def _sample(self) -> dict[str, Tensor]:
        device = next(self.model.parameters()).device
        tokens = torch.tensor([[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]], device=device)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    def _starts_anywhere(self) -> bool:
        """Return whether ablating the first head of each layer gives the same from that layer on as in a whole pass."""
        if len(self._blocks) != self.layers:
            return False

        def measure(inputs: Mapping[str, Tensor]) -> Tensor:
            output: Tensor = self.model(**inputs)[0]
            return output

        sets = [frozenset({(layer, 0)}) for layer in range(self.layers)]
        plain = AblatedModel(self.model, self.layers, self.heads, share=False).run(
            measure, self._sample, Ablation("zero"), sets
        )
        try:
            ours = self.run(measure, self._sample, Ablation("zero"), sets)
        except Exception:  # whatever an architecture raises whose layers are not called one after the other
            return False
        gap = float((ours - plain).abs().max())
        return gap <= _TOLERANCE * max(1.0, float(plain.abs().max()))


def _rows_of(whole: Callable[[], Tensor], rows: slice) -> Tensor:
    return whole()[rows]


def _repeated(output: Any, copies: int, batch: int) -> Any:  # noqa: ANN401 # whatever a layer returns
    """Return every tensor with a leading batch, repeated `copies` times, one copy after the other."""
    if isinstance(output, Tensor):
        return output.repeat(copies, *[1] * (output.dim() - 1)) if output.dim() and len(output) == batch else output
    if isinstance(output, tuple):
        return tuple(_repeated(one, copies, batch) for one in output)
    return output


@contextmanager
def _returning(module: nn.Module, output: object) -> Iterator[None]:
    """Have a module return this, and compute nothing."""
    module.forward = lambda *_, **__: output
    try:
        yield
    finally:
        del module.forward


@contextmanager
def _watching(
    module: nn.Module,
    leave: Callable[[nn.Module, Any], object],
    enter: Callable[[nn.Module], object] | None = None,
) -> Iterator[None]:
    """Call these when the module is entered, and when it returns something."""
    hooks = [module.register_forward_hook(lambda module, _, output: (leave(module, output), None)[1])]
    if enter is not None:
        hooks.append(module.register_forward_pre_hook(lambda module, _: (enter(module), None)[1]))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
