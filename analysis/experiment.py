"""All analyses in one pass: every text is read once, and nothing but sums is kept."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from analysis.base import Analysis, HeadNumbers, of_corpora
from analysis.change import differences
from attention.extraction import Allowance
from datamodules import SegmentBatch, TextDataModule
from datamodules.batches import EncoderOf
from metrics.moments import Moments, Updates, recorded, subtract
from results import Result, merged
from results.errors import UserError
from training import Experiment
from training.experiment import check_names


class AttentionAnalyses(Experiment[TextDataModule]):
    """What attention looks like, by every analysis that is named, in one pass over some texts.

    Run it with `python train.py test`. Nothing is trained, and no attention is stored. With `random_init` of the data
    every analysis is made of an encoder with random weights too; what comes out is called `random_init.<name>`. With
    `before` it is made of the encoder before its fine-tuning, as `before.<name>`, and the tables `differences` and
    `differences_by_quantity` say what has changed.

    Args:
        analyses: what is analysed.
        corpora: names of the corpora that an analysis reads, by its name; one that is not named reads all.

    Raises:
        UserError: there is none, one is named twice, or before another that it needs; or, later, there is no such
            analysis or corpus.
    """

    experiment = "attention"
    takes = TextDataModule

    def __init__(self, analyses: list[Analysis], corpora: dict[str, list[str]] | None = None) -> None:
        super().__init__()
        names = [analysis.name for analysis in analyses]
        check_names("analyses", names)
        for place, analysis in enumerate(analyses):
            if missing := [name for name in analysis.needs if name not in names[:place]]:
                raise UserError(
                    f"--model.init_args.analyses: {type(analysis).__name__} needs {' and '.join(missing)}: name it "
                    f"before."
                )
        self.corpora = dict(corpora or {})
        if strange := sorted(self.corpora.keys() - set(names)):
            raise UserError(f"--model.init_args.corpora: there is no analysis {' or '.join(strange)} among {names}.")
        self._named = nn.ModuleDict({analysis.name: analysis for analysis in analyses})
        self._of: dict[EncoderOf, Mapping[str, Analysis]] = {}

    def prepare(self) -> None:
        """Let every analysis begin, once for each encoder."""
        if self._of:
            return
        for name, corpora in self.corpora.items():
            if strange := [corpus for corpus in corpora if corpus not in self.data.names]:
                raise UserError(
                    f"--model.init_args.corpora.{name}: there is no corpus {' or '.join(strange)}; the data have "
                    f"{', '.join(self.data.names)}. Name one of them there, or give --model.init_args.corpora null: "
                    f"then every analysis reads all of them."
                )
        given: Mapping[str, Analysis] = dict(self._named.items())  # type: ignore[arg-type]
        own = {name: analysis for name, analysis in given.items() if not analysis.compares}
        # Before any of them begins, and holds an encoder.
        self._of = {which: given if which == "given" else deepcopy(own) for which in self.data.encoders}
        after, before = (self._begin(which) for which in ("given", "before"))
        self._begin("random_init")
        if "before" in self._of:
            for metric in list(nn.ModuleList(own.values()).modules()):
                if isinstance(metric, Moments):
                    metric.pair()
            subtract(after, before)  # of those that have read their inputs already
        self._memory = Allowance()
        copies = [nn.ModuleDict(found) for which, found in self._of.items() if which != "given"]
        self._copies = nn.ModuleList(copies)  # so that they move to the device too

    def _begin(self, which: EncoderOf) -> Updates:
        with recorded() as updates:
            for name, analysis in self._of.get(which, {}).items():
                data = self.data.only(self.corpora.get(name, self.data.names))
                analysis.begin(data, self.data.encoders[which])
        return updates

    def update(self, batch: SegmentBatch) -> None:
        if not len(batch.index):
            return
        if batch.encoder != "given" or "before" not in self._of:
            self._show(batch)
        else:
            comparing = [analysis for analysis in self._reading(batch) if analysis.compares]
            with recorded() as after:
                self._show(batch, comparing)
            with recorded() as before:
                self._show(replace(batch, encoder="before"), comparing)
            subtract(after, before)
            for analysis in comparing:
                analysis.end(batch)
        self._memory.check()

    def _reading(self, batch: SegmentBatch) -> list[Analysis]:
        """The analyses of the batch's encoder that read its corpus."""
        analyses = self._of[batch.encoder].items()
        return [analysis for name, analysis in analyses if batch.corpus in self.corpora.get(name, [batch.corpus])]

    def _show(self, batch: SegmentBatch, comparing: Sequence[Analysis] = ()) -> None:
        """Run a batch through its encoder, for all analyses of it, and for those that compare it with another."""
        analyses = [analysis for analysis in self._reading(batch) if not analysis.compares]
        if not analyses and not comparing:
            return

        def receive(layer: int, weights: Tensor) -> None:
            for analysis in (*analyses, *comparing):
                analysis.update(batch, layer, weights)

        encoder = self.data.encoders[batch.encoder]
        with torch.inference_mode():
            inputs = encoder.inputs(batch.tokens, batch.mask, batch.segments)
            encoder.capture(inputs, receive, frozenset(range(encoder.layers)))
        for analysis in analyses:
            analysis.end(batch)

    def outcome(self) -> Result:
        self.data.warn_of_left_out()
        found = {which: self._results(analyses) for which, analyses in self._of.items()}
        if "before" in self._of:
            found["given"]["differences"] = differences(self._of["given"], self._of["before"], self.corpora)
        results = {which: merged(which, each) for which, each in found.items()}
        whole = replace(results.pop("given"), experiment=self.experiment)
        for which, result in results.items():
            whole = _joined(whole, which, result)
        return whole

    @property
    def names(self) -> list[str]:
        """Names of the analyses."""
        return list(self._named)

    def restrict(self, corpora: Mapping[str, Sequence[str]]) -> None:
        """Keep the analyses that are named, each on these corpora."""
        for name in self.names:
            if name not in corpora:
                del self._named[name]
        self.corpora = {name: list(names) for name, names in corpora.items()}

    def of_heads(self, which: EncoderOf) -> tuple[dict[str, HeadNumbers], dict[str, Sequence[Any]]]:
        """Return numbers and classes of each head of an encoder, for the atlas; every process takes part."""
        numbers, classes = dict[str, HeadNumbers](), dict[str, Sequence[Any]]()
        for analysis in self._of[which].values():
            numbers |= analysis.by_head()
            classes |= analysis.classes()
        return numbers, classes

    def _results(self, analyses: Mapping[str, Analysis]) -> dict[str, Result]:
        found: dict[str, Result] = {}
        for place, (name, analysis) in enumerate(analyses.items()):
            result = analysis.result(dict(list(analyses.items())[:place]))
            found[name] = replace(result, figures=of_corpora(result.figures, self.corpora.get(name, ())))
        return found


def _joined(given: Result, which: EncoderOf, other: Result) -> Result:
    """Both results as one, all names of the second behind that of its encoder."""

    def named(part: str) -> dict[str, Any]:
        return {**getattr(given, part), **{f"{which}.{name}": one for name, one in getattr(other, part).items()}}

    tables = {**given.tables, **{f"{which}.{name}": replace(one, answer=()) for name, one in other.tables.items()}}
    return replace(given, scores=named("scores"), tables=tables, figures=named("figures"), audit=named("audit"))
