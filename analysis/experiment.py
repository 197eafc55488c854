"""All analyses in one pass: every text is read once, and nothing but sums is kept."""

from collections.abc import Mapping
from copy import deepcopy

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from analysis.base import Analysis, AnalysisError
from datamodules import SegmentBatch, TextDataModule
from datamodules.base import part_of
from datamodules.batch import EncoderOf
from results import Result, merged


class AttentionAnalyses(LightningModule):
    """What attention looks like, by every analysis that is named, in one pass over some texts.

    Run it with `python train.py test`. Nothing is trained, and no attention is stored. With `random_init` of the data
    every analysis is made of an encoder with random weights too; what comes out is called `random_init.<name>`.

    Args:
        analyses: what is analysed.

    Raises:
        AnalysisError: there is none, one is named twice, or before another that it needs.
    """

    experiment = "attention"
    example_input_array = None

    def __init__(self, analyses: list[Analysis]) -> None:
        super().__init__()
        names = [analysis.name for analysis in analyses]
        if not names or len(set(names)) < len(names):
            raise AnalysisError(f"--model.init_args.analyses: name one or more, each once, and not {names}.")
        for place, analysis in enumerate(analyses):
            if missing := [name for name in analysis.needs if name not in names[:place]]:
                raise AnalysisError(
                    f"--model.init_args.analyses: {type(analysis).__name__} needs {' and '.join(missing)}: name it "
                    f"before."
                )
        self.result: Result | None = None
        self._named = nn.ModuleDict({analysis.name: analysis for analysis in analyses})
        self._of: dict[EncoderOf, Mapping[str, Analysis]] = {}

    @property
    def data(self) -> TextDataModule:
        """The datamodule of the run, or that of its parts that has text segments."""
        data = part_of(self.trainer.datamodule, TextDataModule)  # type: ignore[attr-defined]
        if data is None:
            raise AnalysisError(
                f"{type(self).__name__} reads text segments, and "
                f"{type(self.trainer.datamodule).__name__} has none: use TextDataModule."  # type: ignore[attr-defined]
            )
        return data

    def setup(self, stage: str) -> None:
        """Let every analysis begin, once for each encoder."""
        if self._of:
            return
        given: Mapping[str, Analysis] = dict(self._named.items())  # type: ignore[arg-type]
        for which, encoder in self.data.encoders.items():
            copies = given if which == "given" else {name: deepcopy(one) for name, one in given.items()}
            for analysis in copies.values():
                analysis.begin(self.data, encoder)
            self._of[which] = copies
        self._control = nn.ModuleDict(self._of.get("random_init", {}))  # so that it moves to the device too

    def test_step(self, batch: SegmentBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        if not len(batch.index):
            return
        analyses = self._of[batch.encoder].values()

        def receive(layer: int, weights: Tensor) -> None:
            for analysis in analyses:
                analysis.update(batch, layer, weights)

        encoder = self.data.encoders[batch.encoder]
        with torch.inference_mode():
            inputs = encoder.inputs(batch.tokens, batch.mask, batch.segments)
            encoder.capture(inputs, receive, frozenset(range(encoder.layers)))
        for analysis in analyses:
            analysis.end(batch)

    def on_test_epoch_end(self) -> None:
        """Sum up, and fill `result`."""
        results = {which: self._results(analyses) for which, analyses in self._of.items()}
        random = {f"random_init.{name}": result for name, result in results.get("random_init", {}).items()}
        self.result = merged(self.experiment, results["given"] | random)

    def _results(self, analyses: Mapping[str, Analysis]) -> dict[str, Result]:
        found: dict[str, Result] = {}
        for place, (name, analysis) in enumerate(analyses.items()):
            found[name] = analysis.result(dict(list(analyses.items())[:place]))
        return found
