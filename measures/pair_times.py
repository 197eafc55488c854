"""Time that effects of heads on minimal pairs will take, predicted from passes over a few pairs."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from attention_probing.attention.heads import Heads

_PASSES = 2  # timed with a head of a layer replaced, one after the other


@dataclass(frozen=True)
class PassTimes:
    """Seconds of passes for each token of a batch, padding included.

    Attributes:
        estimate: A pass forward and back, which estimates the effects of all heads.
        intact: A forward pass of the intact model.
        first: A forward pass with a head of the first layer replaced.
        last: A forward pass with a head of the last layer replaced, which shares the layers below.
        layers: Number of layers.
    """

    estimate: float
    intact: float
    first: float
    last: float
    layers: int

    def replaced(self, layer: int) -> float:
        """Return the time with a head of a layer replaced: layers take equally long."""
        share = layer / max(self.layers - 1, 1)
        return self.first + share * (self.last - self.first)

    @property
    def replaced_on_average(self) -> float:
        """Time with a head replaced, averaged over the layers."""
        return (self.first + self.last) / 2

    @classmethod
    def measure(
        cls,
        estimate: Callable[[], object],
        replace: Callable[[list[Heads]], object],
        tokens: int,
        layers: int,
        heads: int,
        device: torch.device,
    ) -> "PassTimes":
        """Time passes over a batch; the first ones, in which memory is taken and layers are found, are not timed.

        Args:
            estimate: Function that runs a pass forward and back.
            replace: Function that runs the intact model and a pass for each set of heads.
            tokens: Number of tokens of the batch, padding included.
            layers: Number of layers.
            heads: Number of heads of a layer.
            device: Device of the passes.
        """

        def seconds(function: Callable[[], object]) -> float:
            start = _clock(device)
            function()
            return _clock(device) - start

        def seconds_of_layer(layer: int) -> float:
            sets = [frozenset({(layer, number % heads)}) for number in range(_PASSES)]
            return max(seconds(lambda: replace(sets)) - intact, 0.0) / _PASSES

        estimate()
        replace([frozenset()])
        both_ways = seconds(estimate)
        intact = seconds(lambda: replace([frozenset()]))
        first = seconds_of_layer(0)
        last = seconds_of_layer(layers - 1)
        return cls(both_ways / tokens, intact / tokens, first / tokens, last / tokens, layers)


def _clock(device: torch.device) -> float:
    """Return the time in seconds: on a CPU the processor time of a thread, so that other programs do not count."""
    if device.type == "cpu":
        return time.process_time() / torch.get_num_threads()
    torch.cuda.synchronize(device)
    return time.perf_counter()
