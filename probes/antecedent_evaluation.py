"""Evaluation of predicted antecedents (Clark et al. 2019, §4.3), whose code was never released.

Every attention head, three baselines and a trained probe are scored on the same links: a link is a mention with an
earlier mention of its cluster in its window; the two must have different head words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
import pandas as pd
import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor

from attention_probing.corpora.document import whole_documents
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import AntecedentBatch, CoreferenceDataModule
from attention_probing.datamodules.batches import EncoderOf
from attention_probing.metrics.antecedent_selection import (
    ANTECEDENT_DIRECTIONS,
    ANTECEDENT_GROUPS,
    Links,
    accuracies,
    antecedent_hits,
    antecedent_hits_among_words,
    choose_predictors_again,
    count_by_type,
    count_groups,
    find_links,
)
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.metrics.stability import StabilityCells, stability_columns, warn_of_choice
from attention_probing.probes.rule_baselines import head_match, nearest, sieve
from attention_probing.results import (
    FEW,
    Bars,
    Estimate,
    Figure,
    Finding,
    Flags,
    Floats,
    HeatMap,
    Integers,
    Result,
    Table,
    Unit,
    fill_sentence,
    on_one_scale,
)
from attention_probing.results.errors import UserError, pluralize, setting
from attention_probing.results.heads import HeadNames, head_map, heads_table
from attention_probing.results.progress import warn
from attention_probing.results.tables import ARROWS

LEAST_DOCUMENTS = 7
"""Fewest documents over which a share has an interval, unless it is close to 0 or 1 (`metrics.bootstrap`)."""
SelectionMode = Literal["held_out", "paper"]
"""`held_out` chooses the best heads on dev and scores them on test; `paper` chooses and scores on dev, as Clark et al.
(2019) do."""

WindowRows = Mapping[tuple[Split, EncoderOf], Rows]
"""Rows of the windows of each split, read with each encoder."""

BASELINES = {"nearest": nearest, "head_match": head_match, "sieve": sieve}
TRAINED = "antecedent_trained"
"""Prefix of the scores of a trained probe; its column in the tables is `trained`."""


def check_coreference(data: CoreferenceDataModule, reader: str) -> None:
    """Raise a UserError if the data have no encoder, and so no attention.

    Args:
        data: The datamodule.
        reader: Class name of the experiment that needs attention, for the message.
    """
    if data.encoder_identity is None:
        raise UserError(
            f"{reader} needs attention, but {setting('data.encoder')} is null. Name an encoder with "
            f"{setting('encoder')}."
        )


def make_rows(data: CoreferenceDataModule) -> WindowRows:
    """Return empty rows for the windows of dev and test, read with each encoder of the data."""
    rows: dict[tuple[Split, EncoderOf], Rows] = {("dev", "given"): Rows(), ("test", "given"): Rows()}
    if data.random_init:
        rows["dev", "random_init"] = Rows()
        rows["test", "random_init"] = Rows()
    return rows


def links_of(batch: AntecedentBatch) -> Links:
    """Return the links of a window: its mentions with an antecedent in the window, see `Links`."""
    return find_links(batch.head_words.cpu().numpy(), batch.clusters.cpu().numpy(), batch.types.cpu().numpy())


def add_links(
    rows: WindowRows, batch: AntecedentBatch, candidates: str, trained: Callable[[Links], Tensor] | None = None
) -> None:
    """Add a row for a window: its links, and those that each predictor gets right, by mention type.

    Args:
        rows: Rows from `make_rows`.
        batch: One window.
        candidates: `mentions`, or `words` if heads choose among all words.
        trained: Function that returns the choice of a probe for each link, int64 `[links]`: an index
            into the distinct head words of the window, `links.heads`.
    """
    if batch.window is None:
        return
    links = links_of(batch)
    if candidates == "words":
        choices = antecedent_hits_among_words(batch.weights[0], batch.weights[1], links)
    else:
        choices = antecedent_hits(batch.weights, links)
    right = {"heads": choices.right.flatten(0, 2)}
    if batch.encoder == "given":
        for name, words in _choose_by_rules(batch, links).items():
            right[name] = _find_right(words, links)
        if trained is not None:
            right[TRAINED] = _find_right(trained(links).cpu().numpy(), links)
    columns = {"links": torch.ones(len(links), dtype=torch.bool), **right}
    types = torch.from_numpy(links.type)
    counts = {name: count_by_type(flags, types.to(flags.device))[None] for name, flags in columns.items()}
    without_weight = choices.without_weight.sum()[None]
    rows_of_split = rows[batch.split, batch.encoder]
    rows_of_split.add(batch.index, document=batch.document, without_weight=without_weight, **counts)


def _choose_by_rules(batch: AntecedentBatch, links: Links) -> dict[str, Integers]:
    """Return the head word that each baseline chooses for each link, an index into `links.heads`."""
    assert batch.window is not None
    text = batch.window.text
    head_words = batch.head_words.cpu().numpy()
    chosen = {}
    for name, predict in BASELINES.items():
        antecedents = predict(text.sentences, text.tags, text.mentions)
        words = [head_words[antecedents[mention]] for mention in links.mention.tolist()]
        chosen[name] = np.searchsorted(links.heads, words)
    return chosen


def _find_right(words: Integers, links: Links) -> Tensor:
    """Return True for links whose chosen word heads an earlier mention of the cluster, bool `[links]`."""
    return torch.from_numpy(links.gold[np.arange(len(links)), words])


@dataclass(frozen=True, eq=False)
class LinkCounts:
    """Links of each document of a split by mention type, and those that each predictor gets right.

    Attributes:
        links: Number of links, `[documents, 4]`.
        heads: Right choices of every head in both directions, `[documents, 2·heads, 4]`.
        others: Right choices of the baselines and of a trained probe by name, `[documents, 4]` each.
        without_weight: Number of choices of heads for which no candidate has any weight.
    """

    links: Integers
    heads: Integers
    others: Mapping[str, Integers]
    without_weight: int


def take_counts(rows: Rows, documents: int) -> LinkCounts:
    """Return the counts of all windows by document; every process must call it.

    Args:
        rows: Rows of one split and encoder, filled by `add_links`.
        documents: Number of documents of the split.
    """
    columns = rows.take()
    del columns[ITEM]
    document = columns.pop("document")
    without_weight = columns.pop("without_weight")
    counts: dict[str, Integers] = {}
    for name, of_windows in columns.items():
        counts[name] = np.zeros((documents, *of_windows.shape[1:]), np.int64)
        np.add.at(counts[name], document, of_windows)
    return LinkCounts(counts.pop("links"), counts.pop("heads"), counts, int(without_weight.sum()))


def evaluate_links(
    experiment: str,
    data: CoreferenceDataModule,
    rows: WindowRows,
    mode: SelectionMode = "held_out",
    seed: int = 0,
    audit: Mapping[str, object] | None = None,
) -> Result:
    """Return accuracies over all windows, with tables and figures, as the result of an experiment.

    Args:
        experiment: Name of the experiment.
        data: The datamodule of the windows.
        rows: Rows from `make_rows`, filled by `add_links`.
        mode: Splits on which heads are chosen and scored.
        seed: Seed of the bootstrap.
        audit: Entries of the result's audit, by name, such as facts about the training of a probe.
    """
    counts = {}
    for (split, encoder), of_split in rows.items():
        counts[split, encoder] = take_counts(of_split, len(data.splits[split].documents))
    names = HeadNames(data.layers, data.heads)
    scored: Split = "dev" if mode == "paper" else "test"
    documents = data.splits[scored].documents
    units = whole_documents(documents)
    of_dev = counts["dev", "given"]
    of_scored = counts[scored, "given"]
    number = _count_units(units, of_scored, scored)

    dev = accuracies(of_dev.heads, of_dev.links, draws=1, seed=seed).value
    heads = accuracies(of_scored.heads, of_scored.links, units, seed=seed)
    others = {}
    for name, right in of_scored.others.items():
        others[name] = accuracies(right, of_scored.links, units, seed=seed)
    # The best head of each group, the first of equals; a group without links on dev has none, and gets the first.
    has_best = cast("Flags", ~np.isnan(dev).all(axis=0))
    if not has_best[0]:
        warn("No mention of dev has an antecedent in its window, so no head is chosen.")
    best = np.nan_to_num(dev, nan=-1.0).argmax(0).tolist()
    all_heads = _all_heads_table(names, dev, heads, of_scored.links, scored)
    stability = _describe_choices(of_dev, whole_documents(data.splits["dev"].documents), best, names, seed)
    of_best_overall = _predictors_table(
        all_heads, names, [best[0]] * len(best), [stability[0]] * len(best), others, scored
    )
    _blank_heads(of_best_overall, np.full(len(best), has_best[0]))
    of_best_by_type = _predictors_table(all_heads, names, best, stability, others, scored)
    _blank_heads(of_best_by_type, has_best)
    tables = {
        "antecedent": of_best_overall,
        "antecedent_by_type": replace(of_best_by_type, main=()),
        "heads": all_heads,
    }
    if data.random_init:
        random = counts["dev", "random_init"]
        random_dev = accuracies(random.heads, random.links, draws=1, seed=seed).value
        random = counts[scored, "random_init"]
        random_scored = accuracies(random.heads, random.links, units, seed=seed)
        tables["random_init.heads"] = _all_heads_table(names, random_dev, random_scored, of_scored.links, scored)

    finding = Finding("antecedent.all", "antecedents that the best head finds") if has_best[0] else None
    of_best = _undefined_where(heads[best[0]], value=not has_best[0], interval=not has_best[0] or mode == "paper")
    right_choices = dict(of_scored.others)
    if has_best[0]:
        right_choices = {"antecedent": of_scored.heads[:, best[0]], **right_choices}
    scores: dict[str, Estimate] = {}
    for name, accuracy in {"antecedent": of_best, **others}.items():
        for place, group in enumerate(ANTECEDENT_GROUPS):
            scores[f"{name}.{group}"] = accuracy[place]
    ratios = _ratios(right_choices)
    return Result(
        experiment=experiment,
        scores=scores,
        headline=[f"{name}.all" for name in right_choices],
        answer=_answer(scores, int(of_scored.links.sum()), of_best_overall.frame, scored),
        finding=finding,
        tables=tables,
        figures=_figures(of_best_overall, heads.value, best, has_best, names, scored) if has_best[0] else {},
        audit={
            "mode": mode,
            "units": pluralize(number, "document"),
            "candidates": data.candidates,
            **(audit or {}),
            **_count_left_out(data, counts, scored),
        },
        shares=tuple(ratios),
        items=_items(documents, units, of_scored.links, right_choices),
        ratios=ratios,
    )


def _count_units(units: Sequence[str], counts: LinkCounts, split: Split) -> int:
    """Return the number of whole documents with links, and warn if they are few."""
    with_links = counts.links.sum(-1) > 0
    number = len(set(np.asarray(units)[with_links].tolist()))
    of_documents = f"over the {pluralize(number, 'document')} of {split} with links"
    if number < LEAST_DOCUMENTS:
        rank_zero_warn(
            f"Most numbers have no interval {of_documents}: {LEAST_DOCUMENTS} are needed. Give more documents."
        )
    elif number < FEW:
        rank_zero_warn(f"The intervals are {of_documents}, so they are wide. Give more documents.")
    return number


def _count_left_out(
    data: CoreferenceDataModule, counts: Mapping[tuple[Split, EncoderOf], LinkCounts], scored: Split
) -> dict[str, object]:
    """Return entries of the audit: links that are scored and left out, and choices without weight."""
    audit: dict[str, object] = {}
    splits: dict[Split, None] = {"dev": None, scored: None}
    for split in splits:
        links = int(counts[split, "given"].links.sum())
        of_data = data.splits[split].counts
        same_head_word = of_data["links"] - of_data["lost_links"] - links
        audit[f"{split}_links"] = {"scored": links, "same_head_word": same_head_word}
    # Behind a causal mask, or where a weight is below the least number that the store keeps.
    audit["predictions_without_weight"] = {
        "dev": counts["dev", "given"].without_weight,
        "test": counts["test", "given"].without_weight,
    }
    return audit


def _answer(scores: Mapping[str, Estimate], links: int, best: pd.DataFrame, split: Split) -> str:
    """Return the answer of the result, one sentence.

    Args:
        scores: The scores.
        links: Number of links of the scored split.
        best: Frame of the table of the head that is best on dev for all mentions, the first row.
        split: The scored split.
    """
    head = str(best["head"][0])
    again = warn_of_choice(best["chosen"][0])
    if f"{TRAINED}.all" in scores:
        text = "the probe is right on {antecedent_trained.all} of {n} mentions; head {head}{again} on {antecedent.all}"
    else:
        again = again or " (best on dev)"
        text = f"head {{head}}{{again}} finds an antecedent of {{antecedent.all}} of {{n}} {split} mentions"
    text += "; the nearest mention {nearest.all}, with the same head word {head_match.all}; the sieve {sieve.all}"
    return fill_sentence(text, scores, n=links, head=head, again=again)


def _all_heads_table(names: HeadNames, dev: Floats, scored: Estimate[Floats], links: Integers, split: Split) -> Table:
    """Return every head and direction: `mentions, n, direction, head, dev, test, low, high`."""
    totals = count_groups(links.sum(axis=0))
    groups: dict[str, tuple[int, Floats, Floats | float]] = {}
    for place, group in enumerate(ANTECEDENT_GROUPS):
        test = scored.value[:, place] if split == "test" else np.nan
        groups[group] = (int(totals[place]), dev[:, place], test)
    table = heads_table("mentions", groups, ANTECEDENT_DIRECTIONS, names)
    low, high = scored.interval
    table.frame["low"] = low.T.flatten()
    table.frame["high"] = high.T.flatten()
    return replace(table, interval=split)


def _predictors_table(
    all_heads: Table,
    names: HeadNames,
    chosen: Sequence[int],
    stability: Sequence[StabilityCells],
    others: Mapping[str, Estimate[Floats]],
    split: Split,
) -> Table:
    """Return `mentions, n, head, direction, dev, test, low, high` of one head for each group of mentions.

    The other predictors have columns `name, name.low, name.high`: a trained probe, `trained`, before the head, the
    baselines behind it, and last `chosen` and `rivals`, the stability of the choice of the head. Where dev is scored,
    `test` is nan, and the interval belongs to `dev`.

    Args:
        all_heads: Table of all heads, from `_all_heads_table`.
        names: Names of the heads.
        chosen: Head of each group, `direction · heads + head`.
        stability: How often this head is chosen again on resamples of dev, and its rivals, for each group.
        others: Accuracies of the other predictors on the scored split, `[4]` each.
        split: The scored split.
    """
    places = [2 * len(names) * group + head for group, head in enumerate(chosen)]
    rows = all_heads.frame.iloc[places].reset_index(drop=True)
    frame = rows[["mentions", "n"]].copy()
    if TRAINED in others:
        frame = frame.assign(**others[TRAINED].columns("trained"))
    frame = frame.join(rows[["head", "direction", "dev", "test", "low", "high"]])
    if split == "dev":
        frame[["low", "high"]] = np.nan  # no interval of one head holds for the best of all on the same mentions
    for name, accuracy in others.items():
        if name != TRAINED:
            frame = frame.assign(**accuracy.columns(name))
    frame = frame.join(stability_columns(stability))
    columns = ["trained" if name == TRAINED else name for name in others]
    units: dict[str, Unit] = dict.fromkeys(("dev", "test", *columns), "fraction")
    return Table(frame, units, interval=split, main=("mentions", "head", "direction", split, *columns))


def _describe_choices(
    dev: LinkCounts, units: Sequence[str], best: Sequence[int], names: HeadNames, seed: int
) -> list[StabilityCells]:
    """Return how often the best head of each group of mentions is chosen again on resamples of dev, and its rivals.

    Args:
        dev: Counts of dev.
        units: Name of the whole document of each document of dev.
        best: Head of each group, `direction · heads + head`.
        names: Names of the heads.
        seed: Seed of the resamples.
    """

    def name(predictor: int) -> str:
        direction, head = names.split(predictor)
        return f"{names.head(head)}{ARROWS[ANTECEDENT_DIRECTIONS[direction]]}"

    cells = []
    for again, head in zip(choose_predictors_again(dev.heads, dev.links, units, seed=seed), best, strict=True):
        cells.append(again.describe(head, name))
    return cells


def _undefined_where(accuracy: Estimate[Floats], *, value: bool, interval: bool) -> Estimate[Floats]:
    """Return accuracies without their values, or without their intervals, which do not hold for the best of all."""
    nothing = np.full(len(ANTECEDENT_GROUPS), np.nan)
    if value:
        accuracy = replace(accuracy, value=nothing)
    if interval:
        accuracy = replace(accuracy, low=nothing, high=nothing)
    return accuracy


def _blank_heads(table: Table, has_best: Flags) -> None:
    """Blank the head of the groups without a best one, in place."""
    table.frame.loc[~has_best, ["head", "direction", "test", "low", "high"]] = np.nan
    table.frame.loc[~has_best, ["chosen", "rivals"]] = None


def _figures(
    table: Table, accuracy: Floats, best: Sequence[int], has_best: Flags, names: HeadNames, split: Split
) -> dict[str, Figure]:
    """Draw bars of the table, and a map of all heads for each group of mentions with its best head framed.

    Args:
        table: Table of the predictors.
        accuracy: Accuracy of every head in both directions, `[2·heads, 4]`.
        best: Head of each group, `direction · heads + head`.
        has_best: True for each group with links on dev, by which its head is chosen. The others have no map.
        names: Names of the heads.
        split: The scored split.
    """
    series = {"trained probe": "trained"} if "trained" in table.frame else {}
    series |= {"best head": split, "nearest mention": "nearest", "same head word": "head_match", "sieve": "sieve"}
    how = "chosen and scored on dev" if split == "dev" else "chosen on dev, scored on test"
    head = table.frame["head"][0]
    title = f"Antecedent selection: head {head} (layer-head), {table.frame['direction'][0]}, {how}"
    bars = Bars.from_table(title, table, "mentions", series, "accuracy (%)", title_says="split")
    maps: dict[str, HeatMap] = {}
    for place, group in enumerate(ANTECEDENT_GROUPS):
        if not has_best[place]:
            continue
        direction, head = names.split(best[place])
        title = f"Antecedents, {group}, {ANTECEDENT_DIRECTIONS[direction]}"
        values = accuracy[:, place].reshape(2, len(names.layers), len(names.heads))[direction]
        figure = head_map(title, values, names, divmod(head, len(names.heads)))
        if split == "dev":
            figure = replace(figure, title=f"{title}, dev", title_says="split")
        maps[f"heads_{group}"] = figure
    return {"antecedent": bars, **on_one_scale(maps)}


def _suffix(group: str) -> str:
    """Return the end of the columns of a group of mentions in the items, after the name of the predictor."""
    return "" if group == "all" else f"_{group}"


def _ratios(predictors: Mapping[str, Integers]) -> dict[str, tuple[str, str]]:
    """Return the columns of the items with numerator and denominator, by name of the score."""
    ratios = {}
    for name in predictors:
        for group in ANTECEDENT_GROUPS:
            ratios[f"{name}.{group}"] = (f"{name}{_suffix(group)}", f"links{_suffix(group)}")
    return ratios


def _items(
    documents: Sequence[str], units: Sequence[str], links: Integers, right: Mapping[str, Integers]
) -> pd.DataFrame:
    """Make a row of counts per document: `document, links`, right choices of every predictor, then the same by type.

    If documents are parts of others, the column `whole_document` follows `document`. `links` and `right` are
    `[documents, 4]`.
    """
    frame = pd.DataFrame({"document": documents})
    if list(documents) != list(units):
        frame["whole_document"] = list(units)
    counts = {"links": count_groups(links)}
    for name, of_predictor in right.items():
        counts[name] = count_groups(of_predictor)
    for place, group in enumerate(ANTECEDENT_GROUPS):
        for name, of_groups in counts.items():
            frame[f"{name}{_suffix(group)}"] = of_groups[:, place]
    return frame
