"""All measurements of attention maps in one pass: each text is read once, and only sums are kept."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

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
from attention_probing.measures.contract import MapMeasure, Measure, check_measurement
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
from attention_probing.results.tables import DASH

Value = TypeVar("Value")

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
            check_measurement(analysis)
        self.names = [analysis.experiment for analysis in analyses]
        check_names(setting("model.analyses"), self.names)
        self.corpora = dict(corpora or {})
        self._given = nn.ModuleDict({analysis.experiment: analysis for analysis in analyses})
        self._analyses: dict[EncoderOf, Analyses] = {}
        self._pairs: list[tuple[HeadMeans, HeadMeans]] = []
        self._empty = 0

    def begin(self) -> None:
        """Begin every measurement for every encoder."""
        self._check_corpora()
        given: Analyses = dict(self._given.items())  # type: ignore[arg-type]
        for analysis in given.values():
            self._check_quantity(analysis)
        of_one_encoder = {name: analysis for name, analysis in given.items() if not analysis.compares}
        # All are copied before any of them begins, and holds an encoder.
        self._analyses = {}
        for which in self.data.encoders:
            self._analyses[which] = given if which == "given" else deepcopy(of_one_encoder)
        for which, analyses in self._analyses.items():
            for name, analysis in analyses.items():
                analysis.data = self.data.only(self.corpora.get(name, self.data.names))
                analysis.encoder = self.data.encoders[which]
                analysis.device = self.device
                analysis.ranks = self.ranks
                analysis.together = analyses
                analysis.begin()
        self._pairs = list(_paired_means(given, self._analyses.get("before", {})))
        for after, before in self._pairs:
            after.pair()
            after.subtract(before)  # of inputs that were read in `begin`
        self._memory = Allowance()
        copies = [nn.ModuleDict(analyses) for which, analyses in self._analyses.items() if which != "given"]
        self._copies = nn.ModuleList(copies)  # so that they move to the device too

    def _check_quantity(self, analysis: MapMeasure) -> None:
        """Raise UserError if a measurement does not take the quantity of the datamodule."""
        if self.data.quantity not in analysis.quantities:
            raise UserError(
                f"{setting('data.quantity')} is {self.data.quantity}, but {type(analysis).__name__} takes only "
                f"{' and '.join(analysis.quantities)}. Give one of them, or leave out {type(analysis).__name__}."
            )

    def _check_corpora(self) -> None:
        _refuse_unknown("model.corpora", self.corpora, self.names)
        for name, corpora in self.corpora.items():
            _refuse_unknown(f"model.corpora.{name}", corpora, self.data.names)

    def update(self, batch: SegmentBatch) -> None:
        if not len(batch.index):
            return
        if batch.encoder != "given" or "before" not in self._analyses:
            self._run_encoder(batch)
        else:
            comparing = [analysis for analysis in self._readers_of(batch) if analysis.compares]
            self._run_encoder(batch, comparing)
            self._run_encoder(replace(batch, encoder="before"), comparing)
            for after, before in self._pairs:
                after.subtract(before)
            for analysis in comparing:
                analysis.update(batch)
        self._memory.check()

    def _readers_of(self, batch: SegmentBatch) -> list[MapMeasure]:
        """Return the measurements of the batch's encoder that read its corpus."""
        readers = []
        for name, analysis in self._analyses[batch.encoder].items():
            if batch.corpus in self.corpora.get(name, [batch.corpus]):
                readers.append(analysis)
        return readers

    def _run_encoder(self, batch: SegmentBatch, comparing: Sequence[MapMeasure] = ()) -> None:
        """Run a batch through its encoder for all measurements of this encoder, and for the `comparing` ones."""
        analyses = [analysis for analysis in self._readers_of(batch) if not analysis.compares]
        if not analyses and not comparing:
            return
        encoder = self.data.encoders[batch.encoder]
        quantity_class = QUANTITIES[self.data.quantity]
        parts = encoder.parts if quantity_class.needs_parts else {}
        quantity = quantity_class(parts, batch.mask, Reduction.of_pieces(batch.mask))

        def receive(layer: int, weights: Tensor) -> None:
            if not quantity.sums_to_one or encoder.has_sinks:
                weights = divided_by_sums(weights)
                is_empty = (weights.sum(-1) == 0) & batch.mask[:, None]
                self._empty += int(is_empty.sum())
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
        return self._merge(self.experiment, self.names)

    def results(self) -> list[Result]:
        """Return the result of each measurement, over all encoders."""
        warn_of_left_out(self.data)
        return [self._merge(name, [name]) for name in self.names]

    def _merge(self, experiment: str, names: Sequence[str]) -> Result:
        """Merge the results of some measurements over all encoders."""
        by_encoder: dict[EncoderOf, Result] = {}
        for which, analyses in self._analyses.items():
            results = {}
            for name in names:
                if name in analyses:
                    results[name] = self._result_of(analyses[name])
            if which == "given" and "before" in self._analyses:
                results["differences"] = self._compare_encoders(names)
            by_encoder[which] = merge_results(which, results)
        merged = replace(by_encoder.pop("given"), experiment=experiment)
        for which, result in by_encoder.items():
            merged = _join(merged, which, result)
        return replace(merged, audit={**merged.audit, **self._audit()})

    def _result_of(self, analysis: MapMeasure) -> Result:
        result = analysis.result()
        assert result is not None
        return replace(result, figures=self._caption(analysis.experiment, result.figures))

    def _audit(self) -> dict[str, object]:
        """Return the quantity, and how its rows were changed; nothing for the attention of a model as it is."""
        quantity = self.data.quantity
        has_sinks = any(encoder.has_sinks for encoder in self.data.encoders.values())
        if has_sinks or not QUANTITIES[quantity].sums_to_one:
            text = f"{quantity}, rows divided by their sums"
        elif quantity != "attention":
            text = quantity
        else:
            return {}
        # A head without output has rows of zeros, which stay so.
        return {"quantity": text, "rows_of_zeros": sum(gather_items([self._empty]))}

    def of_heads(self, which: EncoderOf) -> tuple[dict[str, HeadNumbers], dict[str, Sequence[Any]]]:
        """Return the numbers and classes of each head of one encoder, for `Atlas`.

        Every process must call this method, because it gathers from all processes.

        Args:
            which: The encoder.

        Returns:
            Two mappings by name. The first has numbers, each `[layers, heads]`. The second has classes, such
            as the pattern, each a list with one entry for each head, layer by layer.
        """
        numbers: dict[str, HeadNumbers] = {}
        classes: dict[str, Sequence[Any]] = {}
        for analysis in self._analyses[which].values():
            numbers |= analysis.by_head()
            classes |= analysis.classes()
        return numbers, classes

    def _caption(self, name: str, figures: Mapping[str, Figure]) -> Mapping[str, Figure]:
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

    def _compare_encoders(self, names: Sequence[str]) -> Result:
        """Compare every number of each head after and before fine-tuning, of some measurements.

        A difference is the mean over inputs of after − before, with Student's interval and p-value; Holm's method
        corrects the p-values over the heads. Inputs are taken as independent.

        Returns:
            Tables `differences`, by quantity and head, and `differences_by_quantity`, with the means over all heads,
            the number of `heads` that differ after the correction, and the head with the largest difference; the
            scores `differences.<quantity>`, equal to these counts; and maps `difference_<quantity>`, with one scale
            for each measurement and unit.
        """
        changes: list[_HeadChange] = []
        figures: dict[str, Figure] = {}
        for name in names:
            if name in self._analyses["before"]:  # else it compares the encoders itself
                changes_of_measurement = self._changes(name)
                figures.update(self._caption(name, _change_maps(changes_of_measurement)))
                changes.extend(changes_of_measurement)
        if not changes:
            return Result("differences", {})
        frames = []
        rows = []
        units: list[Unit] = []
        units_of_heads: list[Unit] = []
        for change in changes:
            frame = change.frame()
            unit = change.difference.unit
            frames.append(frame)
            rows.append(change.row(frame))
            units.append(unit)
            units_of_heads.extend([unit] * len(frame))
        numbers = ("before", "after", "difference")
        columns: dict[str, Any] = {**dict.fromkeys(numbers, units_of_heads), "p": "p", "p_holm": "p"}
        by_head = Table(pd.concat(frames, ignore_index=True), columns, interval="difference")
        columns = dict.fromkeys((*numbers, "largest_difference"), units)
        by_quantity = Table(pd.DataFrame(rows), columns, main=("quantity", *numbers, "heads"))
        scores = {f"differences.{row['quantity']}": Estimate(float(row["heads"]), unit="count") for row in rows}
        tables = {"differences": by_head, "differences_by_quantity": by_quantity}
        return Result("differences", scores, tables, figures)

    def _changes(self, name: str) -> list["_HeadChange"]:
        """Return the change of every mean over inputs of one measurement; its bounds are left out."""
        changes = []
        before = self._analyses["before"][name].by_head()
        for quantity, new in self._analyses["given"][name].by_head().items():
            old = before[quantity]
            if isinstance(new, Means) and isinstance(old, Means) and new.differences is not None:
                difference = replace(new.differences.over(), p=new.differences.p())
                changes.append(_HeadChange(quantity, old.over().value, new.over().value, difference))
        return changes


def _refuse_unknown(option: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Raise UserError if one of the names is not known."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(f"{setting(option)}: there is no {' or '.join(unknown)}. Give {' or '.join(known)}.")


def _paired_means(given: Analyses, before: Analyses) -> Iterator[tuple[HeadMeans, HeadMeans]]:
    """Yield the means of the same numbers of each measurement, for the given encoder and before its fine-tuning."""
    for name, analysis in before.items():
        for path, means in analysis.named_modules():
            if isinstance(means, HeadMeans):
                after = given[name].get_submodule(path)
                assert isinstance(after, HeadMeans)
                yield after, means


@dataclass(frozen=True, eq=False)
class _HeadChange:
    """Change of a number of every head by fine-tuning.

    Attributes:
        quantity: Name of the number.
        before: The number before fine-tuning, `[layers, heads]`.
        after: The number after fine-tuning, `[layers, heads]`.
        difference: After − before, with intervals and p-values, `[layers, heads]`.
    """

    quantity: str
    before: Floats
    after: Floats
    difference: Estimate[Floats]

    @cached_property
    def largest(self) -> tuple[int, int] | None:
        """Layer and number of the head with the largest difference, of either sign; None if no head differs."""
        values = self.difference.value
        if not np.nan_to_num(values).any():
            return None
        layer, head = np.unravel_index(np.nanargmax(np.abs(values)), values.shape)
        return int(layer), int(head)

    def frame(self) -> pd.DataFrame:
        """Return a row for each head, with p-values corrected over the heads."""
        assert self.difference.p is not None
        frame = head_rows({"before": self.before, "after": self.after, "difference": self.difference})
        frame = frame.rename(columns={f"difference.{end}": end for end in ("low", "high", "p")})
        frame["p_holm"] = holm(self.difference.p.ravel().tolist())
        frame.insert(0, "quantity", self.quantity)
        return frame

    def row(self, frame: pd.DataFrame) -> dict[str, Any]:
        """Return the means over all heads, and the head with the largest difference, given the rows of `frame`."""
        row: dict[str, Any] = {"quantity": self.quantity, **frame[["before", "after", "difference"]].mean()}
        row["heads"] = int((frame["p_holm"] < 1 - CONFIDENCE).sum())
        row["largest"] = DASH
        row["largest_difference"] = np.nan
        if self.largest is not None:
            row["largest"] = head_name(*self.largest)
            row["largest_difference"] = self.difference.value[self.largest]
        return row

    def map(self) -> HeatMap:
        """Draw the differences by head."""
        unit = self.difference.unit
        title = f"{self.quantity.replace('_', ' ').capitalize()}, after − before fine-tuning"
        label = "difference" if unit == "fraction" else f"difference ({unit})"  # fractions are drawn in %
        drawn = head_map(title, self.difference.value, None, self.largest, label, unit)
        return replace(drawn, diverging=True)


def _change_maps(changes: Sequence[_HeadChange]) -> dict[str, Figure]:
    """Draw the changes of the numbers of one measurement; those of one unit share a scale."""
    by_unit: dict[Unit, dict[str, HeatMap]] = {}
    for change in changes:
        if change.largest is not None:
            maps = by_unit.setdefault(change.difference.unit, {})
            maps[f"difference_{change.quantity}"] = change.map()
    figures: dict[str, Figure] = {}
    for maps in by_unit.values():
        figures.update(on_one_scale(maps))
    return figures


def _join(given: Result, which: EncoderOf, other: Result) -> Result:
    """Join two results; the names of the second get the prefix `<encoder>.`, and its tables are not printed."""
    tables = {name: replace(table, main=()) for name, table in other.tables.items()}
    return replace(
        given,
        scores={**given.scores, **_prefix(which, other.scores)},
        tables={**given.tables, **_prefix(which, tables)},
        figures={**given.figures, **_prefix(which, other.figures)},
        audit={**given.audit, **_prefix(which, other.audit)},
    )


def _prefix(which: EncoderOf, named: Mapping[str, Value]) -> dict[str, Value]:
    """Return the same values under the names `<encoder>.<name>`."""
    return {f"{which}.{name}": value for name, value in named.items()}
