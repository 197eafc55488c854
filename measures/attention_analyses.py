"""All analyses of attention in one pass: each text is read once, and only sums are kept."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from attention_probing.attention import Encoder
from attention_probing.attention.alignment import Reduction
from attention_probing.attention.extraction import Allowance
from attention_probing.attention.quantities import QUANTITIES, QuantityName
from attention_probing.datamodules import SegmentBatch, TextDataModule
from attention_probing.datamodules.batches import EncoderOf
from attention_probing.datamodules.text import warn_of_left_out
from attention_probing.measures.by_head import HeadNumbers, head_rows
from attention_probing.measures.contract import Measure
from attention_probing.metrics.bootstrap import holm
from attention_probing.metrics.distributions import divided_by_sums
from attention_probing.metrics.gathered import gather_items
from attention_probing.metrics.moments import CONFIDENCE, Means, Moments, Updates, recorded, subtract
from attention_probing.results import (
    Estimate,
    Figure,
    Floats,
    HeatMap,
    Result,
    Table,
    Unit,
    merge_results,
    on_one_scale,
)
from attention_probing.results.errors import UserError, check_names, setting
from attention_probing.results.heads import head_map, head_name


class Analysis(nn.Module):
    """Base class of analyses, which read attention weights layer by layer and accumulate sums.

    The sums are in metrics, which are submodules, so memory does not grow with the number of inputs.

    `begin` is called once for an encoder. For each batch that the analysis reads, `update` is called
    with every layer, then `end` once. `result` is called after the last batch. Subclasses have a `name`;
    they implement `begin`, `result`, and `update` or `end` or both.

    Attributes:
        name: Name of the analysis, unique in a run.
        compares: True if the analysis compares the given encoder with the encoder before its
            fine-tuning. If so, for each batch `update` gets all layers of the given encoder, then all
            layers of the other encoder on the same inputs, and only then `end` is called.
            `batch.encoder` names the encoder.
        quantities: Quantities that the analysis takes. Rows of `norms`, and those of a model with attention sinks, are
            divided by their sums, because entropies, divergences and shares are those of distributions. No
            analysis takes a quantity with negative numbers, or with one map for a whole layer.
    """

    name: ClassVar[str]
    quantities: ClassVar[tuple[QuantityName, ...]] = ("attention", "attention_without_first", "norms")
    compares: ClassVar[bool] = False

    def begin(self, data: TextDataModule, encoder: Encoder) -> None:
        """Create the metrics for an encoder, before the first batch.

        Args:
            data: The texts.
            encoder: Encoder whose attention is read.

        Raises:
            UserError: Texts or encoder are unsuitable for the analysis.
        """

    def update(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        """Add the attention of one layer on a batch to the metrics.

        Args:
            batch: The inputs.
            layer: The layer, from 0.
            weights: Attention `[batch, heads, from, to]`, valid only during the call. Every row sums to
                one, and the columns of the padding are zero. The rows of the padding have no meaning.
        """

    def end(self, batch: SegmentBatch) -> None:
        """Finish a batch; called after `update` has received the last layer."""

    def by_head(self) -> Mapping[str, HeadNumbers]:
        """Return numbers for each attention head, `[layers, heads]` by name, which `Atlas` collects.

        Every process must call this method, because it gathers from all processes.
        """
        return {}

    def classes(self) -> Mapping[str, Sequence[str]]:
        """Return classes of the attention heads, such as their pattern, which `Atlas` collects.

        Every process must call this method, because it gathers from all processes.

        Returns:
            For each column of the table `atlas`, by name, a list with the class of each head, layer by
            layer.
        """
        return {}

    def result(self, others: Mapping[str, "Analysis"]) -> Result:
        """Return scores, tables and figures over all batches.

        Every process must call this method, because it gathers from all processes.

        Args:
            others: Analyses that come earlier in the list, by name.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement result().")


class AttentionAnalyses(Measure[TextDataModule]):
    """Several analyses of attention in one pass over some texts.

    No attention is stored. With the option
    `random_init` of the datamodule, every analysis also reads an encoder with random weights; the names
    of these results begin with `random_init.`. With the option `before`, every analysis also reads the
    encoder before its fine-tuning; the names of these results begin with `before.`. The tables
    `differences` and `differences_by_quantity` then compare the encoder before and after its
    fine-tuning. Analyses that compare the two encoders themselves, such as `Change`, run only once.

    Args:
        analyses: The analyses.
        corpora: Names of the corpora that an analysis reads, by name of the analysis; analyses that are
            not named read all corpora.

    Raises:
        UserError: There is no analysis, or one is named twice. In `begin`: `corpora` names an unknown analysis
            or corpus.
    """

    experiment = "attention"
    takes = TextDataModule

    def __init__(self, analyses: list[Analysis], corpora: dict[str, list[str]] | None = None) -> None:
        super().__init__()
        self.names = [analysis.name for analysis in analyses]
        check_names(setting("model.analyses"), self.names)
        self.corpora = dict(corpora or {})
        self._given = nn.ModuleDict({analysis.name: analysis for analysis in analyses})
        self._of: dict[EncoderOf, Mapping[str, Analysis]] = {}
        self._empty = 0

    def begin(self) -> None:
        """Create the metrics of every analysis for every encoder."""
        if self._of:
            return
        for option, wanted, known in (
            ("", self.corpora, self.names),
            *((f".{name}", corpora, self.data.names) for name, corpora in self.corpora.items()),
        ):
            if strange := [name for name in wanted if name not in known]:
                raise UserError(
                    f"{setting('model.corpora' + option)}: there is no {' or '.join(strange)}. Give "
                    f"{' or '.join(known)}."
                )
        given: Mapping[str, Analysis] = dict(self._given.items())  # type: ignore[arg-type]
        for analysis in given.values():
            if self.data.quantity not in analysis.quantities:
                raise UserError(
                    f"{setting('data.quantity')} is {self.data.quantity}, but {type(analysis).__name__} takes only "
                    f"{' and '.join(analysis.quantities)}. Give one of them, or leave out {type(analysis).__name__}."
                )
        own = {name: analysis for name, analysis in given.items() if not analysis.compares}
        # Copied before any of them begins, and holds an encoder.
        self._of = {which: given if which == "given" else deepcopy(own) for which in self.data.encoders}
        after, before = (self._begin(which) for which in ("given", "before"))
        self._begin("random_init")
        if "before" in self._of:
            for metric in list(nn.ModuleList(own.values()).modules()):
                if isinstance(metric, Moments):
                    metric.pair()
            subtract(after, before)  # of analyses that read their inputs in `begin`
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
        """Return the analyses of the batch's encoder that read its corpus."""
        analyses = self._of[batch.encoder].items()
        return [analysis for name, analysis in analyses if batch.corpus in self.corpora.get(name, [batch.corpus])]

    def _show(self, batch: SegmentBatch, comparing: Sequence[Analysis] = ()) -> None:
        """Run a batch through its encoder for all analyses of this encoder, and for the `comparing` analyses."""
        analyses = [analysis for analysis in self._reading(batch) if not analysis.compares]
        if not analyses and not comparing:
            return

        encoder, measured = self.data.encoders[batch.encoder], QUANTITIES[self.data.quantity]
        parts = encoder.parts if measured.needs_parts else {}
        quantity = measured(parts, batch.mask, Reduction.of_pieces(batch.mask))

        def receive(layer: int, weights: Tensor) -> None:
            if not quantity.sums_to_one or encoder.has_sinks:
                weights = divided_by_sums(weights)
                self._empty += int(((weights.sum(-1) == 0) & batch.mask[:, None]).sum())
            for analysis in (*analyses, *comparing):
                analysis.update(batch, layer, weights)

        with torch.inference_mode():
            inputs = encoder.inputs(batch.tokens, batch.mask, batch.segments)
            encoder.capture(inputs, receive, frozenset(range(encoder.layers)), measure=quantity.maps)
        for analysis in analyses:
            analysis.end(batch)

    def result(self) -> Result:
        warn_of_left_out(self.data)
        found = {which: self._results(analyses) for which, analyses in self._of.items()}
        if "before" in self._of:
            found["given"]["differences"] = self._differences()
        results = {which: merge_results(which, each) for which, each in found.items()}
        whole = replace(results.pop("given"), experiment=self.experiment)
        for which, result in results.items():
            whole = _joined(whole, which, result)
        divided = any(one.has_sinks for one in self.data.encoders.values())
        divided = divided or not QUANTITIES[self.data.quantity].sums_to_one
        if self.data.quantity == "attention" and not divided:
            return whole
        # A head without output has rows of zeros, which stay so.
        counts = {
            "quantity": f"{self.data.quantity}{', rows divided by their sums' if divided else ''}",
            "rows_of_zeros": sum(gather_items([self._empty])),
        }
        return replace(whole, audit={**whole.audit, **counts})

    def of_heads(self, which: EncoderOf) -> tuple[dict[str, HeadNumbers], dict[str, Sequence[Any]]]:
        """Return what the analyses found for each head of one encoder, for `Atlas`.

        Every process must call this method, because it gathers from all processes.

        Args:
            which: The encoder.

        Returns:
            Two mappings by name. The first has numbers, each `[layers, heads]`. The second has classes, such
            as the pattern, each a list with one entry for each head, layer by layer.
        """
        numbers, classes = dict[str, HeadNumbers](), dict[str, Sequence[Any]]()
        for analysis in self._of[which].values():
            numbers |= analysis.by_head()
            classes |= analysis.classes()
        return numbers, classes

    def _results(self, analyses: Mapping[str, Analysis]) -> dict[str, Result]:
        found: dict[str, Result] = {}
        for place, (name, analysis) in enumerate(analyses.items()):
            result = analysis.result(dict(list(analyses.items())[:place]))
            found[name] = replace(result, figures=self._captioned(name, result.figures))
        return found

    def _captioned(self, name: str, figures: Mapping[str, Figure]) -> Mapping[str, Figure]:
        """Add to the titles of figures the corpora of an analysis, unless it reads all, and the quantity."""
        about = [*self.corpora.get(name, ()), *([self.data.quantity] if self.data.quantity != "attention" else [])]
        if not about:
            return figures
        return {key: replace(one, title=f"{one.title} ({', '.join(about)})") for key, one in figures.items()}

    def _differences(self) -> Result:
        """Compare every number of each head after and before fine-tuning.

        A difference is the mean over inputs of after − before, with Student's interval and p-value; Holm's method
        corrects the p-values over the heads. Inputs are taken as independent.

        Returns:
            Tables `differences`, by quantity and head, and `differences_by_quantity`, with the means over all heads,
            the number of `heads` that differ after the correction, and the head with the largest difference; the
            scores `differences.<quantity>`, equal to these counts; and maps `difference_<quantity>`, with one scale
            for each analysis and unit.
        """
        tables, rows = list[pd.DataFrame](), list[dict[str, Any]]()
        scores, figures = dict[str, Estimate](), dict[str, Figure]()
        units: list[Unit] = []
        for name, analysis in self._of["before"].items():
            maps: dict[Unit, dict[str, HeatMap]] = {}
            old = analysis.by_head()
            for quantity, new in self._of["given"][name].by_head().items():
                before = old[quantity]
                if not isinstance(new, Means) or not isinstance(before, Means) or new.differences is None:
                    continue  # a bound, not a mean over inputs
                difference = replace(new.differences.over(), p=new.differences.p())
                table, row, drawn = _compared(quantity, before.over().value, new.over().value, difference)
                tables.append(table)
                rows.append(row)
                units.append(difference.unit)
                scores[f"differences.{quantity}"] = Estimate(float(row["heads"]), unit="count")
                maps.setdefault(difference.unit, {}).update(drawn)
            for same in maps.values():
                figures |= self._captioned(name, on_one_scale(same))
        if not tables:
            return Result("differences", {})
        numbers = ("before", "after", "difference")
        of_rows = [unit for table, unit in zip(tables, units, strict=True) for _ in range(len(table))]
        of_columns: dict[str, Any] = {**dict.fromkeys(numbers, of_rows), "p": "p", "p_holm": "p"}
        whole = Table(pd.concat(tables, ignore_index=True), of_columns, interval="difference")
        main = ("quantity", *numbers, "heads")
        by_quantity = Table(pd.DataFrame(rows), dict.fromkeys((*numbers, "largest_difference"), units), main=main)
        return Result("differences", scores, {"differences": whole, "differences_by_quantity": by_quantity}, figures)


def _compared(
    quantity: str, before: Floats, after: Floats, difference: Estimate[Floats]
) -> tuple[pd.DataFrame, dict[str, Any], dict[str, HeatMap]]:
    """Return a row for each head, a row for all heads, and a map; no map where no head differs."""
    assert difference.p is not None
    adjusted = holm(difference.p.ravel().tolist())
    frame = head_rows({"before": before, "after": after, "difference": difference})
    frame = frame.rename(columns={f"difference.{end}": end for end in ("low", "high", "p")}).assign(p_holm=adjusted)
    frame.insert(0, "quantity", quantity)
    row = {"quantity": quantity, **frame[["before", "after", "difference"]].mean()}
    row |= {"heads": int((adjusted < 1 - CONFIDENCE).sum()), "largest": "–", "largest_difference": np.nan}
    if not np.nan_to_num(difference.value).any():
        return frame, row, {}
    layer, head = map(int, np.unravel_index(np.nanargmax(np.abs(difference.value)), difference.value.shape))
    row |= {"largest": head_name(layer, head), "largest_difference": difference.value[layer, head]}
    title = f"{quantity.replace('_', ' ').capitalize()}, after − before fine-tuning"
    label = "difference" if difference.unit == "fraction" else f"difference ({difference.unit})"  # drawn in %
    drawn = head_map(title, difference.value, None, (layer, head), label, difference.unit)
    return frame, row, {f"difference_{quantity}": replace(drawn, diverging=True)}


def _joined(given: Result, which: EncoderOf, other: Result) -> Result:
    """Join two results; the names of the second get the prefix `<encoder>.`."""

    def named(part: str) -> dict[str, Any]:
        return {**getattr(given, part), **{f"{which}.{name}": one for name, one in getattr(other, part).items()}}

    tables = {**given.tables, **{f"{which}.{name}": replace(one, main=()) for name, one in other.tables.items()}}
    return replace(given, scores=named("scores"), tables=tables, figures=named("figures"), audit=named("audit"))
