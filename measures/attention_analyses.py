"""All measurements of attention maps in one pass: each text is read once, and only sums are kept."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from attention_probing.attention.alignment import Reduction
from attention_probing.attention.extraction import Allowance
from attention_probing.attention.quantities import QUANTITIES
from attention_probing.datamodules import SegmentBatch, TextDataModule
from attention_probing.datamodules.batches import EncoderOf
from attention_probing.datamodules.text import warn_of_left_out
from attention_probing.measures.by_head import HeadMeans, HeadNumbers, head_rows
from attention_probing.measures.contract import MapMeasure, Measure
from attention_probing.metrics.distributions import divided_by_sums
from attention_probing.metrics.gathered import gather_items
from attention_probing.metrics.moments import CONFIDENCE, Means
from attention_probing.metrics.p_values import holm
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
from attention_probing.results.figures import TitlePart
from attention_probing.results.heads import head_map, head_name

Analyses = Mapping[str, MapMeasure]
"""Measurements of the maps of one encoder, by name."""


class AttentionAnalyses(Measure[TextDataModule]):
    """Several measurements of attention maps in one pass over some texts.

    No attention is stored. With the option
    `random_init` of the datamodule, every measurement also reads an encoder with random weights; the names
    of these results begin with `random_init.`. With the option `before`, every measurement also reads the
    encoder before its fine-tuning; the names of these results begin with `before.`. The tables
    `differences` and `differences_by_quantity` then compare the encoder before and after its
    fine-tuning. Measurements that compare the two encoders themselves, such as `Change`, run only once.

    Args:
        analyses: The measurements, such as `Surface`.
        corpora: Names of the corpora that a measurement reads, by name of the measurement; those that are
            not named read all corpora.

    Raises:
        UserError: There is no measurement, one is named twice, or one reads no attention maps. In `begin`: `corpora`
            names an unknown measurement or corpus.
    """

    experiment = "attention"
    takes = TextDataModule

    # jsonargparse makes a `Measure` of each item of a `list[Measure[Any]]`.
    def __init__(self, analyses: list[Measure], corpora: dict[str, list[str]] | None = None) -> None:  # type: ignore[type-arg]
        super().__init__()
        for analysis in analyses:
            if not isinstance(analysis, MapMeasure):
                name = type(analysis).__name__
                raise UserError(
                    f"{setting('model.analyses')}: {name} does not read the attention maps of texts. Give measurements "
                    f"such as Surface here, and run {name} alone."
                )
        self.names = [analysis.experiment for analysis in analyses]
        check_names(setting("model.analyses"), self.names)
        self.corpora = dict(corpora or {})
        self._given = nn.ModuleDict({analysis.experiment: analysis for analysis in analyses})
        self._of: dict[EncoderOf, Analyses] = {}
        self._pairs: list[tuple[HeadMeans, HeadMeans]] = []
        self._empty = 0

    def begin(self) -> None:
        """Begin every measurement for every encoder."""
        self._check_corpora()
        given: Analyses = dict(self._given.items())  # type: ignore[arg-type]
        for analysis in given.values():
            if self.data.quantity not in analysis.quantities:
                raise UserError(
                    f"{setting('data.quantity')} is {self.data.quantity}, but {type(analysis).__name__} takes only "
                    f"{' and '.join(analysis.quantities)}. Give one of them, or leave out {type(analysis).__name__}."
                )
        alone = {name: analysis for name, analysis in given.items() if not analysis.compares}
        # All are copied before any of them begins, and holds an encoder.
        self._of = {which: given if which == "given" else deepcopy(alone) for which in self.data.encoders}
        for which, analyses in self._of.items():
            for name, analysis in analyses.items():
                analysis.data = self.data.only(self.corpora.get(name, self.data.names))
                analysis.encoder = self.data.encoders[which]
                analysis.device, analysis.ranks = self.device, self.ranks
                analysis.together = analyses
                analysis.begin()
        self._pairs = list(_paired_means(given, self._of.get("before", {})))
        for after, before in self._pairs:
            after.pair()
            after.subtract(before)  # of inputs that were read in `begin`
        self._memory = Allowance()
        copies = [nn.ModuleDict(analyses) for which, analyses in self._of.items() if which != "given"]
        self._copies = nn.ModuleList(copies)  # so that they move to the device too

    def _check_corpora(self) -> None:
        _refuse_unknown("model.corpora", self.corpora, self.names)
        for name, corpora in self.corpora.items():
            _refuse_unknown(f"model.corpora.{name}", corpora, self.data.names)

    def update(self, batch: SegmentBatch) -> None:
        if not len(batch.index):
            return
        if batch.encoder != "given" or "before" not in self._of:
            self._read(batch)
        else:
            comparing = [analysis for analysis in self._reading(batch) if analysis.compares]
            self._read(batch, comparing)
            self._read(replace(batch, encoder="before"), comparing)
            for after, before in self._pairs:
                after.subtract(before)
            for analysis in comparing:
                analysis.update(batch)
        self._memory.check()

    def _reading(self, batch: SegmentBatch) -> list[MapMeasure]:
        """Return the measurements of the batch's encoder that read its corpus."""
        reading = []
        for name, analysis in self._of[batch.encoder].items():
            if batch.corpus in self.corpora.get(name, [batch.corpus]):
                reading.append(analysis)
        return reading

    def _read(self, batch: SegmentBatch, comparing: Sequence[MapMeasure] = ()) -> None:
        """Run a batch through its encoder for all measurements of this encoder, and for the `comparing` ones."""
        analyses = [analysis for analysis in self._reading(batch) if not analysis.compares]
        if not analyses and not comparing:
            return
        encoder = self.data.encoders[batch.encoder]
        measured = QUANTITIES[self.data.quantity]
        parts = encoder.parts if measured.needs_parts else {}
        quantity = measured(parts, batch.mask, Reduction.of_pieces(batch.mask))

        def receive(layer: int, weights: Tensor) -> None:
            if not quantity.sums_to_one or encoder.has_sinks:
                weights = divided_by_sums(weights)
                self._empty += int(((weights.sum(-1) == 0) & batch.mask[:, None]).sum())
            for analysis in (*analyses, *comparing):
                analysis.update_layer(batch, layer, weights)

        with torch.inference_mode():
            inputs = encoder.inputs(batch.tokens, batch.mask, batch.segments)
            encoder.capture(inputs, receive, frozenset(range(encoder.layers)), measure=quantity.maps)
        for analysis in analyses:
            analysis.update(batch)

    def result(self) -> Result:
        """Return the results of all measurements as one."""
        warn_of_left_out(self.data)
        return self._merged(self.experiment, self.names)

    def results(self) -> list[Result]:
        """Return the result of each measurement, over all encoders."""
        warn_of_left_out(self.data)
        return [self._merged(name, [name]) for name in self.names]

    def _merged(self, experiment: str, names: Sequence[str]) -> Result:
        """Merge the results of some measurements over all encoders."""
        of_encoders: dict[EncoderOf, Result] = {}
        for which, analyses in self._of.items():
            results = {name: self._result_of(analyses[name]) for name in names if name in analyses}
            if which == "given" and "before" in self._of:
                results["differences"] = self._differences(names)
            of_encoders[which] = merge_results(which, results)
        whole = replace(of_encoders.pop("given"), experiment=experiment)
        for which, result in of_encoders.items():
            whole = _joined(whole, which, result)
        return replace(whole, audit={**whole.audit, **self._audit()})

    def _result_of(self, analysis: MapMeasure) -> Result:
        result = analysis.result()
        assert result is not None
        return replace(result, figures=self._captioned(analysis.experiment, result.figures))

    def _audit(self) -> dict[str, object]:
        """Return the quantity, and how its rows were changed; nothing for the attention of a model as it is."""
        divided = any(encoder.has_sinks for encoder in self.data.encoders.values())
        divided = divided or not QUANTITIES[self.data.quantity].sums_to_one
        if self.data.quantity == "attention" and not divided:
            return {}
        return {
            "quantity": f"{self.data.quantity}{', rows divided by their sums' if divided else ''}",
            # A head without output has rows of zeros, which stay so.
            "rows_of_zeros": sum(gather_items([self._empty])),
        }

    def of_heads(self, which: EncoderOf) -> tuple[dict[str, HeadNumbers], dict[str, Sequence[Any]]]:
        """Return what the measurements found for each head of one encoder, for `Atlas`.

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

    def _captioned(self, name: str, figures: Mapping[str, Figure]) -> Mapping[str, Figure]:
        """Add to the titles of figures the corpora of a measurement, unless it reads all, and the quantity."""
        about: list[str] = list(self.corpora.get(name, ()))
        if self.data.quantity != "attention":
            about.append(self.data.quantity)
        if not about:
            return figures
        captioned = {}
        for key, figure in figures.items():
            title = f"{figure.title} ({', '.join(about)})"
            says: TitlePart | None = "corpora" if name in self.corpora else figure.title_says
            captioned[key] = replace(figure, title=title, title_says=says)
        return captioned

    def _differences(self, names: Sequence[str]) -> Result:
        """Compare every number of each head after and before fine-tuning, of some measurements.

        A difference is the mean over inputs of after − before, with Student's interval and p-value; Holm's method
        corrects the p-values over the heads. Inputs are taken as independent.

        Returns:
            Tables `differences`, by quantity and head, and `differences_by_quantity`, with the means over all heads,
            the number of `heads` that differ after the correction, and the head with the largest difference; the
            scores `differences.<quantity>`, equal to these counts; and maps `difference_<quantity>`, with one scale
            for each measurement and unit.
        """
        tables, rows = list[pd.DataFrame](), list[dict[str, Any]]()
        scores, figures = dict[str, Estimate](), dict[str, Figure]()
        units: list[Unit] = []
        for name in names:
            if name not in self._of["before"]:
                continue  # it compares the encoders itself
            maps: dict[Unit, dict[str, HeatMap]] = {}
            old = self._of["before"][name].by_head()
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


def _refuse_unknown(option: str, wanted: Iterable[str], known: Sequence[str]) -> None:
    """Raise UserError if one of the wanted names is not known."""
    strange = [name for name in wanted if name not in known]
    if strange:
        raise UserError(f"{setting(option)}: there is no {' or '.join(strange)}. Give {' or '.join(known)}.")


def _paired_means(given: Analyses, before: Analyses) -> Iterator[tuple[HeadMeans, HeadMeans]]:
    """Yield the means of the same numbers of each measurement, for the given encoder and before its fine-tuning."""
    for name, analysis in before.items():
        for path, means in analysis.named_modules():
            if isinstance(means, HeadMeans):
                after = given[name].get_submodule(path)
                assert isinstance(after, HeadMeans)
                yield after, means


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
