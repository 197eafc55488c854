"""Attention heads as predictors of antecedents (Clark et al. 2019, §4.3); the paper's code was never released."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd
import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn

from attention_probing.corpora.document import Window, whole_documents
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import AntecedentBatch, CoreferenceDataModule
from attention_probing.datamodules.batches import EncoderOf
from attention_probing.datamodules.corpus import STAGES
from attention_probing.metrics.antecedent_selection import (
    ANTECEDENT_DIRECTIONS,
    ANTECEDENT_GROUPS,
    AntecedentCounts,
    Links,
    accuracies,
    antecedent_hits,
    antecedent_hits_among_words,
    find_links,
)
from attention_probing.probes.arc_evaluation import split_key
from attention_probing.probes.rule_baselines import head_match, nearest, sieve
from attention_probing.results import (
    FEW,
    Bars,
    Estimate,
    Figure,
    Floats,
    HeatMap,
    Result,
    Table,
    Unit,
    fill_sentence,
    on_one_scale,
)
from attention_probing.results.errors import UserError, check_values, pluralize, setting
from attention_probing.results.heads import HeadNames, head_map, heads_table

BASELINES = {"nearest": nearest, "head_match": head_match, "sieve": sieve}
TRAINED = "antecedent_trained"
"""Prefix of the scores of a trained probe; its column in the tables is `trained`."""

_SUFFIXES = (("all", ""), *((group, f"_{group}") for group in ANTECEDENT_GROUPS[1:]))
"""Groups of links, and the ends of their columns after the name of the predictor."""


def links_of(batch: AntecedentBatch) -> Links:
    """Return the links of a window: its mentions with an antecedent in the window, see `Links`."""
    return find_links(*(column.cpu().numpy() for column in (batch.head_words, batch.clusters, batch.types)))


class AntecedentEvaluation(nn.Module):
    """Evaluation of antecedent selection by every attention head, three baselines and a trained probe.

    All are scored on the same links. A link is a mention with an earlier mention of its cluster in its
    window; the two must have different head words.

    Args:
        mode: `held_out` chooses the best heads on dev and scores them on test; `paper` chooses and
            scores on dev, as Clark et al. (2019) do.
        seed: Seed of the bootstrap.
        trained: True to score a trained probe too.

    Attributes:
        others: Names of the predictors other than heads: the baselines, and the trained probe.
    """

    def __init__(self, mode: Literal["held_out", "paper"] = "held_out", seed: int = 0, trained: bool = False) -> None:
        super().__init__()
        check_values(self, mode=mode)
        self.mode, self.seed = mode, seed
        self._scored: Split = "dev" if mode == "paper" else "test"
        self.others = (*BASELINES, *([TRAINED] if trained else []))
        self._counts = nn.ModuleDict()

    def prepare(self, data: CoreferenceDataModule) -> None:
        """Create the metrics that count the right choices of every predictor in each document of dev and test."""
        self._data, self._names = data, HeadNames(data.layers, data.heads)
        heads = 2 * len(self._names)
        others: dict[EncoderOf, int] = {"given": len(self.others), **({"random_init": 0} if data.random_init else {})}
        for split, (encoder, number) in product(STAGES["test"], others.items()):
            documents = len(data.splits[split].documents)
            counts = AntecedentCounts(documents, heads=heads, no_choice=heads, others=number)
            self._counts[split_key(split, encoder)] = counts

    def update(self, batch: AntecedentBatch, trained: Callable[[Links], Tensor] | None = None) -> None:
        """Count the right choices of every head, of the baselines and of a trained probe in a window.

        Args:
            batch: One window.
            trained: Function that returns the choice of a probe for each link, int64 `[links]`: an index
                into the distinct head words of the window, `links.heads`.
        """
        if batch.window is None:
            return
        links = links_of(batch)
        if self._data.candidates == "words":
            found = antecedent_hits_among_words(batch.weights[0], batch.weights[1], links)
        else:
            found = antecedent_hits(batch.weights, links)
        right, idle = (flags.flatten(0, 2) for flags in found)
        others = self._of_others(batch, batch.window, links, trained) if batch.encoder == "given" else right[:0]
        metric = self._counts[split_key(batch.split, batch.encoder)]
        types = torch.from_numpy(links.type)
        metric.update(int(batch.document), types, heads=right, no_choice=idle, others=others)  # type: ignore[operator]

    def _of_others(
        self, batch: AntecedentBatch, window: Window, links: Links, trained: Callable[[Links], Tensor] | None
    ) -> Tensor:
        """Return the links that the baselines and a trained probe get right, bool `[others, links]`."""
        text = window.text
        head_words = batch.head_words.cpu().numpy()
        chosen = []
        for predict in BASELINES.values():
            found = predict(text.sentences, text.tags, text.mentions)
            chosen.append(np.searchsorted(links.heads, [head_words[found[m]] for m in links.mention.tolist()]))
        if trained is not None:
            chosen.append(trained(links).cpu().numpy())
        # As for a head, a choice is right if the chosen word heads an earlier mention of the cluster.
        return torch.tensor(np.array([links.gold[np.arange(len(links)), words] for words in chosen], dtype=np.bool_))

    def _counted(self, split: Split, encoder: EncoderOf = "given") -> tuple[dict[str, Tensor], Tensor]:
        """Return right choices by kind of predictor `[documents, predictors, types]` and links, on the CPU."""
        right, links = self._counts[split_key(split, encoder)].compute()  # type: ignore[operator]
        return {name: found.cpu() for name, found in right.items()}, links.cpu()

    def result(self, experiment: str, trained_for: Mapping[str, object] | None = None) -> Result:
        """Return accuracies over all windows, with tables and figures, as the result of an experiment.

        Args:
            experiment: Name of the experiment.
            trained_for: Facts about the training of the probe, by name, which are added to the
                result's audit.
        """
        counts = {split: self._counted(split) for split in STAGES["test"]}
        (dev_right, dev_links), (right, links) = counts["dev"], counts[self._scored]
        dev = accuracies(dev_right["heads"], dev_links, draws=1, seed=self.seed).value
        names = self._data.splits[self._scored].documents
        units = whole_documents(names)
        heads, others = (accuracies(right[kind], links, units, seed=self.seed) for kind in ("heads", "others"))
        with_links = (links.sum(-1) > 0).tolist()
        documents = len({unit for unit, counts_it in zip(units, with_links, strict=True) if counts_it})
        if documents < FEW:
            rank_zero_warn(
                f"The intervals are over the {pluralize(documents, 'document')} of {self._scored} with links, so they "
                "are wide. Give more documents."
            )
        # The best head of each group: the first of equals, and the first head without a link.
        own = np.nan_to_num(dev, nan=-1.0).argmax(0).tolist()
        each = {name: others[place] for place, name in enumerate(self.others)}
        every = self._all_heads(dev, heads, links)
        tables = {
            "antecedent": self._table(every, own[:1] * len(own), each),
            "antecedent_by_type": replace(self._table(every, own, each), main=()),
            "heads": every,
        }
        if self._data.random_init:
            random = [self._counted(split, "random_init") for split in dict.fromkeys(("dev", self._scored))]
            random_dev, random_scored = (
                accuracies(one["heads"], of, of_units, seed=self.seed)
                for (one, of), of_units in ((random[0], None), (random[-1], units))
            )
            tables["random_init.heads"] = self._all_heads(random_dev.value, random_scored, links)
        scores: dict[str, Estimate] = {}
        for name, found in {"antecedent": heads[own[0]], **each}.items():
            scores |= {f"{name}.{of_mentions}": found[place] for place, of_mentions in enumerate(ANTECEDENT_GROUPS)}
        if self._scored == "dev":
            of_head = [name for name in scores if name.startswith("antecedent.")]
            scores |= {name: replace(scores[name], low=np.nan, high=np.nan) for name in of_head}
        chosen = {"antecedent": right["heads"][:, own[0]]}
        chosen |= {name: right["others"][:, place] for place, name in enumerate(self.others)}
        text = f"head {{head}} (best on dev) finds an antecedent of {{antecedent.all}} of {{n}} {self._scored} mentions"
        if TRAINED in each:
            text = "the probe is right on {antecedent_trained.all} of {n} mentions; head {head} on {antecedent.all}"
        text += "; the nearest mention {nearest.all}, with the same head word {head_match.all}; the sieve {sieve.all}"
        return Result(
            experiment=experiment,
            scores=scores,
            headline=[f"{name}.{ANTECEDENT_GROUPS[0]}" for name in chosen],
            answer=fill_sentence(text, scores, n=int(links.sum()), head=tables["antecedent"].frame["head"][0]),
            tables=tables,
            figures=self._figures(tables["antecedent"], heads.value, own),
            audit={
                "mode": self.mode,
                "units": pluralize(documents, "document"),
                "candidates": self._data.candidates,
                **(trained_for or {}),
                **{
                    f"{split}_links": self._left_out(split, int(counts[split][1].sum()))
                    for split in dict.fromkeys(("dev", self._scored))
                },
                # Behind a causal mask, or where a weight is below the least number that the store keeps.
                "predictions_without_weight": {
                    split: int(of_split["no_choice"].sum()) for split, (of_split, _) in counts.items()
                },
            },
            shares=tuple(f"{name}.{group}" for name in chosen for group, _ in _SUFFIXES),
            items=_items(names, units, links, chosen),
            ratios={f"{name}.{group}": (f"{name}{end}", f"links{end}") for name in chosen for group, end in _SUFFIXES},
        )

    def _left_out(self, split: Split, scored: int) -> dict[str, int]:
        """Count the links that are scored, and links without another head word among their antecedents."""
        held = self._data.splits[split].counts
        return {"scored": scored, "same_head_word": held["links"] - held["lost_links"] - scored}

    def _all_heads(self, dev: Floats, scored: Estimate[Floats], links: Tensor) -> Table:
        """Return every head and direction: `mentions, n, direction, head, dev, test, low, high`."""
        groups = {
            group: (total, dev[:, place], np.nan if self._scored == "dev" else scored.value[:, place])
            for place, (group, total) in enumerate(zip(ANTECEDENT_GROUPS, _totals(links), strict=True))
        }
        table = heads_table("mentions", groups, ANTECEDENT_DIRECTIONS, self._names)
        for end, numbers in zip(("low", "high"), scored.interval, strict=True):
            table.frame[end] = numbers.T.flatten()
        return replace(table, interval=self._scored)

    def _table(self, heads: Table, chosen: Sequence[int], others: Mapping[str, Estimate[Floats]]) -> Table:
        """Return `mentions, n, head, direction, dev, test, low, high` of one head for each group of mentions.

        The other predictors have columns `name, name.low, name.high`: a trained probe, `trained`, before the head, the
        baselines behind it. Where dev is scored, `test` is nan, and the interval belongs to `dev`.

        Args:
            heads: Table of all heads, from `_all_heads`.
            chosen: Head of each group, `direction · heads + head`.
            others: Accuracies of the other predictors on the scored split, `[4]` each.
        """
        rows = heads.frame.iloc[[2 * len(self._names) * group + head for group, head in enumerate(chosen)]]
        columns = {_column(name): found.named(_column(name)) for name, found in others.items()}
        trained = columns.pop("trained", {})
        of_head = rows[["head", "direction", "dev", "test", "low", "high"]]
        named = rows[["mentions", "n"]].assign(**trained).join(of_head)
        frame = named.assign(**{key: values for one in columns.values() for key, values in one.items()})
        if self._scored == "dev":
            frame[["low", "high"]] = np.nan  # no interval of one head holds for the best of all on the same mentions
        units: dict[str, Unit] = dict.fromkeys(("dev", "test", *map(_column, others)), "fraction")
        main = ("mentions", "head", self._scored, *map(_column, others))
        return Table(frame.reset_index(drop=True), units, interval=self._scored, main=main)

    def _figures(self, table: Table, accuracy: Floats, own: Sequence[int]) -> Mapping[str, Figure]:
        """Draw bars of the table, and a map of all heads for each group of mentions with its best head framed."""
        paper, names = self._scored == "dev", self._names
        series = {"trained probe": "trained"} if "trained" in table.frame else {}
        series |= {"best head": self._scored, "nearest mention": "nearest"}
        series |= {"same head word": "head_match", "sieve": "sieve"}
        how = "chosen and scored on dev" if paper else "chosen on dev, scored on test"
        head, direction = table.frame[["head", "direction"]].iloc[0]
        title = f"Antecedent selection: head {head} (layer-head), {direction}, {how}"
        bars = Bars.from_table(title, table, "mentions", series, "accuracy (%)")
        maps: dict[str, HeatMap] = {}
        for group, of_mentions in enumerate(ANTECEDENT_GROUPS):
            way, best = names.split(own[group])
            title = f"Antecedents, {of_mentions}, {ANTECEDENT_DIRECTIONS[way]}{', dev' if paper else ''}"
            values = accuracy[:, group].reshape(2, len(names.layers), len(names.heads))[way]
            maps[f"heads_{of_mentions}"] = head_map(title, values, names, divmod(best, len(names.heads)))
        return {"antecedent": bars, **on_one_scale(maps)}


def _totals(links: Tensor) -> list[int]:
    """Return the number of links of each group from the links of each document, `[documents, 4]`."""
    return [int(links.sum()), *links.sum(0).tolist()[:-1]]


def _column(name: str) -> str:
    """Return the column of a predictor."""
    return "trained" if name == TRAINED else name


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


def _items(
    documents: tuple[str, ...], units: Sequence[str], links: Tensor, right: Mapping[str, Tensor]
) -> pd.DataFrame:
    """Make a row of counts per document: `document, links`, right choices of every predictor, then the same by type.

    If documents are parts of others, the column `whole_document` follows `document`. `links` and `right` are
    `[documents, 4]`.
    """
    counts = {"links": links, **right}
    columns: dict[str, object] = {"document": documents}
    if list(documents) != list(units):
        columns["whole_document"] = list(units)
    for types, (_, suffix) in zip(([0, 1, 2, 3], [0], [1], [2]), _SUFFIXES, strict=True):
        columns |= {f"{name}{suffix}": of_type[:, types].sum(1).tolist() for name, of_type in counts.items()}
    return pd.DataFrame(columns)
