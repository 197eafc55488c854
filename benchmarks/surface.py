"""Surface statistics of all heads in one pass over texts, against a bare forward pass.

`python -m benchmarks.surface [--json FILE]`
"""

from pathlib import Path

import torch

from attention_probing.datamodules import TextDataModule
from attention_probing.measures import Surface
from benchmarks.extraction import BareForward
from benchmarks.harness import Report, Settings, alternate, command, texts, timed

SEGMENTS = 256


class OnePass:
    """What the measurement does with its batches: a pass in which the analysis sees every layer.

    Attributes:
        batches: Of all segments, in memory beforehand.
    """

    def __init__(self, data: TextDataModule) -> None:
        self._data, self._encoder = data, data.encoders["given"]
        self.batches = list(data.test_dataloader()[0])

    @torch.inference_mode()
    def capture(self, analysis: Surface | None = None) -> None:
        """Run all batches once, for an analysis or for none."""
        for batch in self.batches:
            inputs = self._encoder.inputs(batch.tokens, batch.mask, batch.segments)

            def receive(layer: int, weights: torch.Tensor) -> None:
                if analysis is not None:
                    analysis.update_layer(batch, layer, weights)  # noqa: B023 - called within this turn of the loop

            self._encoder.capture(inputs, receive, frozenset(range(self._encoder.layers)))
            if analysis is not None:
                analysis.update(batch)

    def __call__(self) -> None:
        """From the batches to tables and figures."""
        surface = Surface()
        surface.data, surface.encoder = self._data, self._encoder
        surface.begin()
        self.capture(surface)
        surface.result()


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Surface statistics of all heads in one pass over texts, against a bare forward pass."""
    data = texts(settings, folder, SEGMENTS)
    ours = OnePass(data)
    encoder = data.encoders["given"]
    bare = BareForward(encoder, [encoder.inputs(batch.tokens, batch.mask, batch.segments) for batch in ours.batches])
    seconds = alternate(settings.rounds, bare=timed(bare), ours=timed(ours), capture=timed(ours.capture))
    report.figure("corpus", data.names[0], "segments of two passages, at most 128 tokens")
    meaning = "all surface statistics ÷ bare sdpa forward passes over the same batches"
    report.ratio("to_bare_forward", seconds["ours"], seconds["bare"], meaning, wanted="≤ 1.6")
    report.ratio("capture_to_bare_forward", seconds["capture"], seconds["bare"], "the same pass without any statistics")
    report.figure("segments", sum(len(batch.index) for batch in ours.batches), "each read once")
    report.seconds("bare_forward_s", seconds["bare"], "the bare forward passes")
    report.seconds("surface_s", seconds["ours"], "from the batches to tables and figures")


main = command("surface", measure)
