"""All analyses in one pass: every text is read once, and nothing but sums is kept."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from analysis.base import Analysis, AnalysisError
from attention.forward import Allowance
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
        corpora: names of the corpora that an analysis reads, by its name; one that is not named reads all.

    Raises:
        AnalysisError: there is none, one is named twice, or before another that it needs; or, later, there is no such
            analysis or corpus.
    """

    experiment = "attention"
    example_input_array = None

    def __init__(self, analyses: list[Analysis], corpora: dict[str, list[str]] | None = None) -> None:
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
        self.corpora = dict(corpora or {})
        if strange := sorted(self.corpora.keys() - set(names)):
            raise AnalysisError(
                f"--model.init_args.corpora: there is no analysis {' or '.join(strange)} among {names}."
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
        for name, corpora in self.corpora.items():
            if strange := [corpus for corpus in corpora if corpus not in self.data.names]:
                raise AnalysisError(
                    f"--model.init_args.corpora.{name}: there is no corpus {' or '.join(strange)}; the data have "
                    f"{', '.join(self.data.names)}."
                )
        given: Mapping[str, Analysis] = dict(self._named.items())  # type: ignore[arg-type]
        # Before any of them begins, and holds an encoder.
        self._of = {which: given if which == "given" else deepcopy(given) for which in self.data.encoders}
        for which, copies in self._of.items():
            for name, analysis in copies.items():
                data = self.data.only(self.corpora.get(name, self.data.names))
                analysis.begin(data, self.data.encoders[which])
        self._memory = Allowance()
        self._control = nn.ModuleDict(self._of.get("random_init", {}))  # so that it moves to the device too

    def test_step(self, batch: SegmentBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        if not len(batch.index):
            return
        analyses = [
            analysis
            for name, analysis in self._of[batch.encoder].items()
            if batch.corpus in self.corpora.get(name, [batch.corpus])
        ]
        if not analyses:
            return

        def receive(layer: int, weights: Tensor) -> None:
            for analysis in analyses:
                analysis.update(batch, layer, weights)

        encoder = self.data.encoders[batch.encoder]
        with torch.inference_mode():
            inputs = encoder.inputs(batch.tokens, batch.mask, batch.segments)
            encoder.capture(inputs, receive, frozenset(range(encoder.layers)))
        for analysis in analyses:
            analysis.end(batch)
        self._memory.check()

    def on_test_epoch_end(self) -> None:
        """Sum up, and fill `result`."""
        self.data.warn_of_left_out()
        results = {which: merged(which, self._results(analyses)) for which, analyses in self._of.items()}
        self.result = replace(results["given"], experiment=self.experiment)
        if "random_init" in results:
            self.result = _joined(self.result, results["random_init"])

    def _results(self, analyses: Mapping[str, Analysis]) -> dict[str, Result]:
        found: dict[str, Result] = {}
        for place, (name, analysis) in enumerate(analyses.items()):
            found[name] = analysis.result(dict(list(analyses.items())[:place]))
        return found


def _joined(given: Result, random: Result) -> Result:
    """Both results as one, all names of the second behind `random_init.`."""

    def named(part: str) -> dict[str, Any]:
        return {**getattr(given, part), **{f"random_init.{name}": one for name, one in getattr(random, part).items()}}

    return Result(given.experiment, named("scores"), named("tables"), named("figures"), named("audit"))
