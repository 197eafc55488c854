"""Every single head as a resolver of coreference (Clark et al. 2019, §4.3), whose code was never released."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from corpora.document import MENTION_TYPES, Window
from datamodules import AntecedentBatch, CoreferenceDataModule
from datamodules.batches import EncoderOf, Split
from datamodules.corpus import STAGES
from heads.experiment import split_key
from heads.rule_baselines import head_match, nearest, sieve
from heads.single_heads import Names, head_map, heads_table
from metrics.antecedent_selection import (
    ANTECEDENT_DIRECTIONS,
    ANTECEDENT_GROUPS,
    AntecedentCounts,
    Links,
    accuracies,
    antecedent_hits,
    antecedent_hits_among_words,
    find_links,
)
from results import Bars, Estimate, Figure, Floats, HeatMap, Result, Table, Unit, on_one_scale
from results.errors import UserError, check_values
from training import Experiment

BASELINES = {"nearest": nearest, "head_match": head_match, "sieve": sieve}
TRAINED = "antecedent_trained"
"""Prefix of the scores of a trained probe; its column in the tables is `trained`."""

_SUFFIXES = (("all", ""), *((group, f"_{group}") for group in MENTION_TYPES))
"""Groups of links, and what their columns are called behind the name of the predictor."""


def links_of(batch: AntecedentBatch) -> Links:
    """The links of a window."""
    return find_links(*(column.cpu().numpy() for column in (batch.head_words, batch.clusters, batch.types)))


class AntecedentEvaluation(nn.Module):
    """Antecedent selection accuracy of every head, of three baselines and of a trained probe, on the same links.

    Args:
        mode: `held_out` chooses on dev and scores on test; `paper` chooses and scores on dev, as the original does.
        seed: of the bootstrap.
        trained: whether a trained probe is scored beside.
    """

    def __init__(self, mode: Literal["held_out", "paper"] = "held_out", seed: int = 0, trained: bool = False) -> None:
        super().__init__()
        check_values(self, mode=mode)
        self.mode, self.seed = mode, seed
        self.others = (*BASELINES, *([TRAINED] if trained else []))
        self._counts = nn.ModuleDict()

    def prepare(self, data: CoreferenceDataModule) -> None:
        """Make the counts for the documents of dev and test."""
        self._data = data
        heads = 2 * len(data.layers) * len(data.heads)
        others: dict[EncoderOf, int] = {"given": len(self.others), **({"random_init": 0} if data.random_init else {})}
        for split, (encoder, number) in product(STAGES["test"], others.items()):
            documents = len(data.splits[split].documents)
            counts = AntecedentCounts(documents, heads=heads, no_choice=heads, others=number)
            self._counts[split_key(split, encoder)] = counts

    def update(self, batch: AntecedentBatch, trained: Callable[[Links], Tensor] | None = None) -> None:
        """Add a window; `trained` returns a probe's choice for every link, int64 `[links]`, places in `links.heads`."""
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
        """Return the links that the baselines and a trained probe have right, bool `[others, links]`."""
        text = window.text
        head_words = batch.head_words.cpu().numpy()
        chosen = []
        for predict in BASELINES.values():
            found = predict(text.sentences, text.tags, text.mentions)
            chosen.append(np.searchsorted(links.heads, [head_words[found[m]] for m in links.mention.tolist()]))
        if trained is not None:
            chosen.append(trained(links).cpu().numpy())
        # As a head is: right if the word chosen heads an earlier mention of the cluster.
        return torch.tensor(np.array([links.gold[np.arange(len(links)), words] for words in chosen], dtype=np.bool_))

    def _counted(self, split: Split, encoder: EncoderOf = "given") -> tuple[dict[str, Tensor], Tensor]:
        """Return right choices by kind of predictor `[documents, predictors, types]` and links, on the CPU."""
        metric = self._counts[split_key(split, encoder)]
        assert isinstance(metric, AntecedentCounts)
        right, links = metric.compute()
        metric.reset()
        return {name: found.cpu() for name, found in right.items()}, links.cpu()

    def _left_out(self, dev: Tensor, scored: Tensor) -> dict[str, dict[str, int]]:
        """Return, by split, the links that are scored, and those left out as all antecedents share their head word."""
        audit = {}
        splits: dict[Split, Tensor] = {"dev": dev} if self.mode == "paper" else {"dev": dev, "test": scored}
        for split, links in splits.items():
            held, count = self._data.splits[split].counts, int(links.sum())
            same_head = held["links"] - held["lost_links"] - count
            audit[f"{split}_links"] = {"scored": count, "same_head_word": same_head}
        return audit

    def result(
        self,
        experiment: str,
        figures: Mapping[str, Figure] | None = None,
        trained_for: Mapping[str, object] | None = None,
    ) -> Result:
        """Return the scores, and forget all windows.

        Args:
            experiment: name of the experiment.
            figures: figures of the experiment's own.
            trained_for: entries of the audit about a training.
        """
        counts = {split: self._counted(split) for split in STAGES["test"]}
        paper, data = self.mode == "paper", self._data
        scored: Split = "dev" if paper else "test"
        names = Names(data.layers, data.heads)
        (dev_right, dev_links), (right, links) = counts["dev"], counts[scored]
        dev = accuracies(dev_right["heads"], dev_links, draws=1, seed=self.seed)
        heads, others = (accuracies(right[kind], links, seed=self.seed) for kind in ("heads", "others"))
        totals = [int(links.sum()), *links.sum(0).tolist()]
        # One head for all mentions, and for each type the best for it: the first of equals, and where there is no link.
        own = np.nan_to_num(dev.value, nan=-1.0).argmax(0).tolist()
        overall = own[0]
        each = {name: others[place] for place, name in enumerate(self.others)}
        by_type = antecedent_table(own, dev, heads, each, totals, names, paper=paper)
        tables = {
            "antecedent": antecedent_table([overall] * len(own), dev, heads, each, totals, names, paper=paper),
            "antecedent_by_type": replace(by_type, answer=()),
            "heads": all_antecedents(dev, heads, totals, names, paper=paper),
        }
        if data.random_init:
            splits: tuple[Split, Split] = ("dev", scored)
            held = [self._counted(split, "random_init") for split in dict.fromkeys(splits)]
            random_dev, random = (
                accuracies(found["heads"], of_split, seed=self.seed) for found, of_split in (held[0], held[-1])
            )
            tables["random_init.heads"] = all_antecedents(random_dev, random, totals, names, paper=paper)
        scores, chosen = scores_of("antecedent", heads[overall]), {"antecedent": right["heads"][:, overall]}
        for place, name in enumerate(self.others):
            scores |= scores_of(name, each[name])
            chosen[name] = right["others"][:, place]
        return Result(
            experiment=experiment,
            scores=scores,
            headline=[f"{name}.{ANTECEDENT_GROUPS[0]}" for name in chosen],
            tables=tables,
            figures={
                **antecedent_figures(tables["antecedent"].frame, heads, names, own, paper=paper),
                **(figures or {}),
            },
            audit={
                "mode": self.mode,
                "candidates": data.candidates,
                **(trained_for or {}),
                **self._left_out(dev_links, links),
                # Behind a causal mask, or where a weight is below what the store keeps.
                "predictions_without_weight": {
                    split: int(of_split["no_choice"].sum()) for split, (of_split, _) in counts.items()
                },
            },
            items=_items(data.splits[scored].documents, links, chosen),
            ratios={f"{name}.{group}": (f"{name}{end}", f"links{end}") for name in chosen for group, end in _SUFFIXES},
        )


def check_coreference(data: CoreferenceDataModule, reader: str) -> None:
    """Raise a UserError for data without an encoder."""
    if data.encoder_identity is None:
        raise UserError(f"{reader} needs attention: --data.init_args.encoder must not be null.")


def all_antecedents(
    dev: Estimate[Floats], scored: Estimate[Floats], totals: Sequence[int], names: Names, *, paper: bool
) -> Table:
    """Every head and direction: `mentions, n, direction, head, dev, test, low, high`, the interval over documents."""
    groups = {
        group: (totals[place], dev.value[:, place], np.nan if paper else scored.value[:, place])
        for place, group in enumerate(ANTECEDENT_GROUPS)
    }
    table = heads_table("mentions", groups, ANTECEDENT_DIRECTIONS, names)
    for end, numbers in zip(("low", "high"), scored.interval, strict=True):
        table.frame[end] = numbers.T.flatten()
    return replace(table, interval="dev" if paper else "test")


class AntecedentHeads(Experiment[CoreferenceDataModule]):
    """Antecedent selection accuracy of every head of every layer, in both directions, from one pass.

    A head predicts, for every mention that has an antecedent in its window, the earlier mention whose head word it
    attends to most (or that attends to it most). One head is chosen on dev for all mentions, and one for each type of
    mention; both are scored on test, beside the nearest mention, the nearest with the same head word, and a rule-based
    sieve, all on the same links. Intervals are over documents. Nothing is trained: run it with `python train.py test`.

    Args:
        mode: `held_out` chooses on dev and scores on test; `paper` chooses and scores on dev, as the original does.
        seed: of the bootstrap.
    """

    experiment = "antecedent"
    takes = CoreferenceDataModule

    def __init__(self, mode: Literal["held_out", "paper"] = "held_out", seed: int = 0) -> None:
        super().__init__(seed)
        self.evaluation = AntecedentEvaluation(mode, seed)

    def prepare(self) -> None:
        check_coreference(self.data, type(self).__name__)
        self.evaluation.prepare(self.data)

    def update(self, batch: AntecedentBatch) -> None:
        self.evaluation.update(batch)

    def outcome(self) -> Result:
        return self.evaluation.result(self.experiment)


def _items(documents: tuple[str, ...], links: Tensor, right: Mapping[str, Tensor]) -> pd.DataFrame:
    """`document, links`, right choices of every predictor, then the same of each type; counts `[documents, 3]` each."""
    counts = {"links": links, **right}
    columns: dict[str, object] = {"document": documents}
    columns |= {name: of_type.sum(1).tolist() for name, of_type in counts.items()}
    for place, (_, suffix) in enumerate(_SUFFIXES[1:]):
        columns |= {f"{name}{suffix}": of_type[:, place].tolist() for name, of_type in counts.items()}
    return pd.DataFrame(columns)


def scores_of(name: str, found: Estimate[Floats]) -> dict[str, Estimate]:
    """`name.all`, `name.pronoun`, … of a predictor, each with its interval."""
    return {f"{name}.{of_mentions}": found[place] for place, of_mentions in enumerate(ANTECEDENT_GROUPS)}


def antecedent_table(
    chosen: Sequence[int],
    dev: Estimate[Floats],
    heads: Estimate[Floats],
    others: Mapping[str, Estimate[Floats]],
    totals: Sequence[int],
    names: Names,
    *,
    paper: bool,
) -> Table:
    """`mentions, n, head, direction, dev, test, low, high` of one head for each group of mentions, and the others.

    `chosen` is the head of each group, in both directions counted through. Accuracies are `[2·heads, 4]`, and `[4]` of
    each of the others on the split that is scored. These are columns `name, name.low, name.high`: those of a trained
    probe, `trained`, before the head's, the baselines' behind. In `paper` mode, where dev is scored, `test` is nan, and
    the interval is that of `dev`.
    """
    groups = np.arange(len(chosen))
    scored = heads[chosen, groups]
    frame = pd.DataFrame(
        {
            "mentions": ANTECEDENT_GROUPS,
            "n": totals,
            "head": [names.head(names.split(k)[1]) for k in chosen],
            "direction": [ANTECEDENT_DIRECTIONS[names.split(k)[0]] for k in chosen],
            "dev": dev.value[chosen, groups],
            "test": np.nan if paper else scored.value,
            "low": scored.low,
            "high": scored.high,
        }
    )
    predictors = ["trained" if name == TRAINED else name for name in others]
    for name, found in zip(predictors, others.values(), strict=True):
        behind = 2 if name == "trained" else len(frame.columns)
        for place, (column, numbers) in enumerate(found.named(name).items()):
            frame.insert(behind + place, column, numbers)
    units: dict[str, Unit] = dict.fromkeys(("dev", "test", *predictors), "fraction")
    split = "dev" if paper else "test"
    return Table(frame, units, interval=split, answer=("mentions", "head", split, *predictors))


def antecedent_figures(
    table: pd.DataFrame, heads: Estimate[Floats], names: Names, own: Sequence[int], *, paper: bool
) -> Mapping[str, Figure]:
    """Bars of an `antecedent_table`, and a map of all heads for each group of mentions, its best head marked."""
    scored, chosen = ("dev", "chosen and scored on dev") if paper else ("test", "chosen on dev, scored on test")
    series = {"best head": scored, "nearest mention": "nearest", "same head word": "head_match", "sieve": "sieve"}
    intervals = {"best head": (table["low"].tolist(), table["high"].tolist())}
    if "trained" in table:
        series = {"trained probe": "trained", **series}
        intervals["trained probe"] = (table["trained.low"].tolist(), table["trained.high"].tolist())
    bars = Bars(
        title=f"Antecedent selection: head {table['head'][0]} (layer-head), {table['direction'][0]}, {chosen}",
        categories=ANTECEDENT_GROUPS,
        series={name: table[column].tolist() for name, column in series.items()},
        label="accuracy (%)",
        intervals=intervals,
        unit="fraction",
    )
    maps: dict[str, HeatMap] = {}
    shape = 2, len(names.layers), len(names.heads)
    for group, of_mentions in enumerate(ANTECEDENT_GROUPS):
        direction, layer, head = (int(place) for place in np.unravel_index(own[group], shape))
        title = f"Antecedents, {of_mentions}, {ANTECEDENT_DIRECTIONS[direction]}{', dev' if paper else ''}"
        accuracy = heads.value[:, group].reshape(shape)[direction]
        maps[f"heads_{of_mentions}"] = head_map(title, accuracy, names, (layer, head))
    return {"antecedent": bars, **on_one_scale(maps)}
