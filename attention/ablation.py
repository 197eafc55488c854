"""Heads put out of action: what a model says when some of them give something else than they would.

Whatever is put in the place of a head, the layers below it give what they always do. A batch goes through the whole
model once; then, for each layer, copies of it, every one with other heads of that layer replaced, start from there.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from attention.capture import Heads, Mixture, replacing

Kind = Literal["zero", "uniform", "mean", "resample"]
"""What a head gives instead: zeros; the mean of the values that it may look at (Kovaleva et al. 2019, §4.6); its mean
output over some texts; its output in another text, position by position."""

Measure = Callable[[Mapping[str, Tensor]], Tensor]
"""Runs a model on inputs, each `[batch, …]`, and returns numbers of every one, `[batch, …]`."""

PIECES = {"cpu": 1024, "cuda": 65536}
"""Bound of the copies that run at once by kind of device, in pieces, padding included."""
KEPT = 512 << 20
"""Bound in bytes of the outputs that are kept to resample from."""

_TOLERANCE = 1e-4  # of a model that starts from a layer, relative to the largest of its outputs


@dataclass(frozen=True, eq=False)
class Reference:
    """What every head gives in some texts.

    Attributes:
        mean: float32 `[layers, heads, dim]`, over all real positions of all texts.
        outputs: `[texts, layers, heads, longest, dim]`, those of some of the texts; what lies behind the end of a text
            has no meaning.
        lengths: int64 `[texts]`, ascending.
        texts: how many texts the mean is over.
    """

    mean: Tensor
    outputs: Tensor
    lengths: Tensor
    texts: int

    @classmethod
    def of(
        cls, measure: Measure, batches: Sequence[Mapping[str, Tensor]], keep: int = 256, most: int = KEPT
    ) -> "Reference":
        """What the heads give in batches of texts, whose inputs have an `attention_mask`.

        Kept to be resampled are `keep` of the texts, evenly spread, or as many as fit in `most` bytes.
        """
        lengths = torch.cat([inputs["attention_mask"].sum(1) for inputs in batches])
        found: list[Tensor] = []  # of each layer

        def collect(layer: int, module: nn.Module, mixture: Mixture) -> Tensor:
            found.append(mixture.outputs)
            return mixture.outputs

        mean, kept, seen = torch.zeros(()), list[Tensor](), 0
        chosen: set[int] = set()
        for inputs in batches:
            found.clear()
            with torch.inference_mode(), replacing(collect):
                measure(inputs)
            outputs, real = torch.stack(found, 1), inputs["attention_mask"].bool()
            if not seen:
                size = outputs[0, :, :, 0].numel() * outputs.element_size() * int(lengths.max())
                count = min(keep, len(lengths), max(most // size, 1))
                chosen = set(np.linspace(0, len(lengths) - 1, count, dtype=int).tolist())
            mean = mean.to(outputs.device) + (outputs * real[:, None, None, :, None]).double().sum((0, 3))
            kept += [outputs[row] for row in range(len(outputs)) if seen + row in chosen]
            seen += len(outputs)
        own = torch.stack([lengths[place] for place in sorted(chosen)])
        order = own.argsort(stable=True)
        longest = int(own.max())
        padded = [nn.functional.pad(one, (0, 0, 0, longest - one.size(2)))[:, :, :longest] for one in kept]
        whole = torch.stack([padded[place] for place in order.tolist()])
        return cls((mean / lengths.sum()).to(whole.dtype), whole, own[order], len(lengths))

    def positions(self, index: Sequence[int], time: int, seed: int) -> tuple[Tensor, Tensor]:
        """A text and a position of it for every position of some texts, both int64 `[batch, time]`.

        Each text has an order of the kept ones, drawn from the seed and its own number. Its position i gets position i
        of the first of them that is long enough, or the end of the longest.
        """
        lengths = self.lengths.cpu().numpy()
        texts, places = (np.empty((len(index), time), np.int64) for _ in range(2))
        positions = np.arange(time)
        for row, number in enumerate(index):
            order = np.random.default_rng([seed, number]).permutation(len(lengths))
            # Only texts longer than all before them in the order are ever the first that is long enough.
            reach = np.maximum.accumulate(lengths[order])
            first = np.searchsorted(reach, positions, side="right").clip(max=len(order) - 1)
            texts[row] = np.where(positions < reach[-1], order[first], len(lengths) - 1)
            places[row] = np.minimum(positions, lengths[texts[row]] - 1)
        device = self.outputs.device
        return torch.from_numpy(texts).to(device), torch.from_numpy(places).to(device)


@dataclass(frozen=True, eq=False)
class Ablation:
    """What replaced heads give.

    Args:
        kind: what it is.
        causal: whether positions look at none behind them; `uniform` then does neither.
        reference: what heads give in other texts, for `mean` and `resample`.
        seed: of `resample`.
    """

    kind: Kind
    causal: bool = False
    reference: Reference | None = None
    seed: int = 0

    def context(self, mask: Tensor, index: Sequence[int]) -> "Context":
        """For some texts, bool `[batch, pieces]` and the number of each."""
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

    def outputs(self, layer: int, heads: Tensor, values: Callable[[], Tensor]) -> Tensor:
        """What some heads of a layer give instead, `[batch, heads, pieces, dim]`, or what broadcasts to it.

        `values` gives those of all heads of the layer, `[batch, heads, pieces, dim]`.
        """
        reference = self.ablation.reference
        match self.ablation.kind:
            case "zero":
                return torch.zeros((), device=self.mask.device)
            case "uniform":
                own = values()[:, heads] * self.mask[:, None, :, None]
                real = self.mask.to(own.dtype)[:, None, :, None]
                if self.ablation.causal:
                    return own.cumsum(2) / real.cumsum(2).clamp(min=1)
                return own.sum(2, keepdim=True) / real.sum(2, keepdim=True)
            case "mean":
                assert reference is not None
                return reference.mean[layer, heads][None, :, None]
        assert reference is not None
        assert self.sources is not None
        texts, places = self.sources
        return reference.outputs[texts[:, None], layer, heads[None, :, None], places[:, None]]


@dataclass
class _Whole:
    """What the whole model gave on a batch: where copies of it can start from."""

    result: Tensor
    outputs: list[Tensor] = field(default_factory=list)  # by layer [batch, heads, pieces, dim]
    values: dict[int, Tensor] = field(default_factory=dict)
    left: list[object] = field(default_factory=list)  # by layer, what its module returns
    shapes: dict[nn.Module, tuple[int, ...]] = field(default_factory=dict)  # of what the projections return


class AblatedModel:
    """A model, in eval mode and going through the registered attention function, whose heads can be ablated.

    Whether it can start from any layer is found out once, by running it; where it cannot, as where all layers are one
    module, every ablation is a pass through the whole model.

    Args:
        model: called with `input_ids` alone it returns a tensor first.
        layers: attention layers.
        share: whether passes share what lies below the ablated layers.
    """

    def __init__(self, model: nn.Module, layers: int, *, share: bool = True) -> None:
        self.model, self.layers = model, layers
        self._blocks: list[nn.Module] = []
        self._projections: list[list[nn.Module]] = []
        if share:
            self._find()
            if not self._starts_anywhere():
                self._blocks, self._projections = [], []

    @property
    def shares(self) -> bool:
        """Whether passes share what lies below the ablated layers."""
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
        """What `measure` says with each set of heads ablated, `[sets, batch, …]`; the empty set changes no bit.

        Args:
            measure: runs the model.
            inputs: each `[batch, …]`, an `attention_mask` among them.
            ablation: what replaced heads give.
            sets: of heads.
            index: number of every text, which `resample` draws by; None counts them.
        """
        mask = inputs["attention_mask"].bool()
        numbers = range(len(mask)) if index is None else index
        context = ablation.context(mask, numbers)
        by_layer: defaultdict[int, list[int]] = defaultdict(list)
        for place, heads in enumerate(sets):
            by_layer[min(heads)[0] if heads else self.layers].append(place)
        whole = self._run_whole(measure, inputs, {*by_layer} if ablation.kind == "uniform" else set())
        found: dict[int, Tensor] = {place: whole.result for place in by_layer.pop(self.layers, [])}
        most = max(PIECES.get(mask.device.type, PIECES["cuda"]) // mask.numel(), 1)
        for layer, places in sorted(by_layer.items()):
            for first in range(0, len(places), most):
                some = places[first : first + most]
                results = self._run_from(layer, measure, inputs, context, [sets[place] for place in some], whole)
                found |= dict(zip(some, results, strict=True))
        return torch.stack([found[place] for place in range(len(sets))])

    def _run_whole(self, measure: Measure, inputs: Mapping[str, Tensor], keep: set[int]) -> _Whole:
        """One pass with nothing replaced; values are kept of some layers."""
        whole = _Whole(torch.empty(0))

        def replace(layer: int, module: nn.Module, mixture: Mixture) -> Tensor:
            if self.shares:
                whole.outputs.append(mixture.outputs)
                if layer in keep:
                    whole.values[layer] = mixture.values
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
        """Copies of the batch, one for each set, none of which has a head below the layer: `[sets, batch, …]`."""
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
            for copy, heads in chosen[layer]:
                by_copy[copy, :, heads] = context.outputs(layer, heads, partial(values, layer, copy, mixture)).to(
                    outputs.dtype
                )
            return outputs

        def values(layer: int, copy: int, mixture: Mixture) -> Tensor:
            if layer == start and self.shares:
                return whole.values[layer]
            return mixture.values[copy * batch : (copy + 1) * batch]

        repeated = {name: _repeated(tensor, copies, batch) for name, tensor in inputs.items()}
        with ExitStack() as skipped:
            if self.shares:
                for block in self._blocks[:start]:
                    skipped.enter_context(_returning(block, _repeated(whole.left[start - 1], copies, batch)))
                for projection in self._projections[start]:  # what they would project is known already
                    blank = context.mask.new_zeros(1, dtype=whole.outputs[start].dtype)
                    shape = whole.shapes[projection]
                    skipped.enter_context(_returning(projection, blank.expand(copies * batch, *shape)))
            skipped.enter_context(replacing(replace, start if self.shares else 0))
            result = measure(repeated)
        return result.view(copies, batch, *result.shape[1:])

    def _chosen(self, layer: int, sets: Sequence[Heads], device: torch.device) -> list[tuple[int, Tensor]]:
        """Copies that have heads in a layer, and these, int64 `[heads]`."""
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
        """Whether the last head of each layer is ablated alike by starting at that layer and by a whole pass."""
        if len(self._blocks) != self.layers:
            return False

        def measure(inputs: Mapping[str, Tensor]) -> Tensor:
            output: Tensor = self.model(**inputs)[0]
            return output

        sets = [frozenset({(layer, 0)}) for layer in range(self.layers)]
        plain = AblatedModel(self.model, self.layers, share=False).run(measure, self._sample, Ablation("zero"), sets)
        try:
            ours = self.run(measure, self._sample, Ablation("zero"), sets)
        except Exception:  # whatever an architecture raises whose layers are not called one after the other
            return False
        gap = float((ours - plain).abs().max())
        return gap <= _TOLERANCE * max(1.0, float(plain.abs().max()))


def _repeated(output: Any, copies: int, batch: int) -> Any:  # noqa: ANN401 # whatever a layer returns
    """Every tensor with a leading batch so many times, one copy after the other."""
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
