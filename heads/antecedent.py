"""Every single head as a resolver of coreference (Clark et al. 2019, §4.3), whose code was never released."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from corpora.document import MENTION_TYPES, Window
from datamodules import AntecedentBatch, CoreferenceDataModule
from datamodules.base import STAGES, part_of
from datamodules.batch import EncoderOf, Split
from heads.experiment import ExperimentError
from heads.rule_baselines import head_match, nearest, sieve
from heads.single_heads import Names, head_map, heads_table
from metrics.antecedent import (
    ANTECEDENT_DIRECTIONS,
    ANTECEDENT_GROUPS,
    Accuracies,
    AntecedentCounts,
    Links,
    accuracies,
    antecedent_hits,
    antecedent_hits_among_words,
    find_links,
)
from results import Bars, Estimate, Figure, HeatMap, Result, Table, Unit, estimates, on_one_scale
from results.errors import check_numbers, check_values

BASELINES = {"nearest": nearest, "head_match": head_match, "sieve": sieve}

_SUFFIXES = (("all", ""), *((group, f"_{group}") for group in MENTION_TYPES))
"""Groups of links, and what their columns are called behind the name of the predictor."""


def links_of(batch: AntecedentBatch) -> Links:
    """The links of a window."""
    return find_links(*(column.cpu().numpy() for column in (batch.head_words, batch.clusters, batch.types)))


class AntecedentExperiment(LightningModule):
    """Antecedent selection accuracy of every head, of three baselines, and of a trained probe, on the same links.

    Subclasses with a trained probe name it in `others` and fill `choose`; `figures` is for those of their own.

    Args:
        mode: `held_out` chooses on dev and scores on test; `paper` chooses and scores on dev, as the original does.
        seed: of the bootstrap.

    Attributes:
        experiment: name of the experiment.
        others: predictors beside the heads, in the order in which they are counted.
        result: filled at the end of a test.
    """

    experiment: str
    others: ClassVar[tuple[str, ...]] = tuple(BASELINES)
    example_input_array = None

    def __init__(self, mode: Literal["held_out", "paper"] = "held_out", seed: int = 0) -> None:
        super().__init__()
        check_values(self, mode=mode)
        check_numbers(self, least=0, seed=seed)
        self.mode = mode
        self.seed = seed
        self.result: Result | None = None
        self._counts = nn.ModuleDict()

    @property
    def trained_for(self) -> Mapping[str, object]:
        """What a trained probe says of its epochs."""
        return {}

    def choose(self, batch: AntecedentBatch, links: Links) -> Tensor | None:
        """What a trained probe chooses for every link, int64 `[links]`, places in `links.heads`; None without one."""
        return None

    def figures(self) -> Mapping[str, Figure]:
        """Figures of the experiment's own, beside bars and maps of the heads."""
        return {}

    @property
    def data(self) -> CoreferenceDataModule:
        """The datamodule of the run; refuses one without mentions or without an encoder."""
        given, name = self.trainer.datamodule, type(self).__name__  # type: ignore[attr-defined]
        data = part_of(given, CoreferenceDataModule)
        if data is None:
            raise ExperimentError(
                f"{name} needs mentions, and {type(given).__name__} has none: use CoreferenceDataModule."
            )
        if data.encoder_identity is None:
            raise ExperimentError(f"{name} needs attention: --data.init_args.encoder must not be null.")
        return data

    def setup(self, stage: str) -> None:
        data = self.data
        if stage == "test":
            heads = 2 * len(data.layers) * len(data.heads)  # see `_counted`
            columns: dict[EncoderOf, int] = {"given": heads + len(self.others)}
            columns |= {"random_init": heads} if data.random_init else {}
            for split, (encoder, width) in product(STAGES[stage], columns.items()):
                documents = len(data.splits[split].documents)
                self._counts[_name(split, encoder)] = AntecedentCounts(documents, 1, width)

    def test_step(self, batch: AntecedentBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        if batch.window is None:
            return
        links = links_of(batch)
        if self.data.candidates == "words":
            hits, idle = antecedent_hits_among_words(batch.weights[0], batch.weights[1], links)
        else:
            hits, idle = antecedent_hits(batch.weights, links)
        of_heads = torch.cat([hits.flatten(1, 2), idle.flatten(1, 2)], dim=1)
        others = self._of_others(batch, batch.window, links) if batch.encoder == "given" else of_heads[0, :0].cpu()
        counted = torch.cat([of_heads, others.to(hits.device).expand(2, -1, -1)], dim=1)[:, None]
        metric = self._counts[_name(batch.split, batch.encoder)]
        metric.update(int(batch.document), counted, torch.from_numpy(links.type))  # type: ignore[operator]

    def _of_others(self, batch: AntecedentBatch, window: Window, links: Links) -> Tensor:
        """Whether the baselines, and a trained probe, are right, bool `[others, links]`."""
        text = window.text
        head_words = batch.head_words.cpu().numpy()
        chosen = []
        for predict in BASELINES.values():
            found = predict(text.sentences, text.tags, text.mentions)
            chosen.append(np.searchsorted(links.heads, [head_words[found[m]] for m in links.mention.tolist()]))
        if (trained := self.choose(batch, links)) is not None:
            chosen.append(trained.cpu().numpy())
        # As a head is: right if the word chosen heads an earlier mention of the cluster.
        return torch.tensor(np.array([links.gold[np.arange(len(links)), words] for words in chosen], dtype=np.bool_))

    def _counted(self, name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Counts by document and type: hits of heads, choices they do not make, hits of the others, and links.

        Those of heads are `[documents, 2·heads, types]`, the others' `[documents, others, types]`; on the CPU.
        """
        metric = self._counts[name]
        assert isinstance(metric, AntecedentCounts)
        counts, links = (found.cpu() for found in metric.compute())
        metric.reset()
        heads = len(self.data.layers) * len(self.data.heads)
        hits, idle, others = torch.tensor_split(counts.squeeze(2), [heads, 2 * heads], dim=2)
        return hits.flatten(1, 2), idle.flatten(1, 2), others[:, 0], links

    def _left_out(self, dev: Tensor, scored: Tensor) -> dict[str, dict[str, int]]:
        """Links that are scored, and those whose antecedents in the window all share their head word: no links."""
        audit = {}
        splits: dict[Split, Tensor] = {"dev": dev} if self.mode == "paper" else {"dev": dev, "test": scored}
        for split, links in splits.items():
            held, count = self.data.splits[split].counts, int(links.sum())
            same_head = held["links"] - held["lost_links"] - count
            audit[f"{split}_links"] = {"scored": count, "same_head_word": same_head}
        return audit

    def on_test_epoch_end(self) -> None:
        counts = {split: self._counted(split) for split in STAGES["test"]}
        paper = self.mode == "paper"
        data = self.data
        scored: Split = "dev" if paper else "test"
        names = Names(data.layers, data.heads)
        dev_hits, _, _, dev_links = counts["dev"]
        hits, _, other_hits, links = counts[scored]
        dev = accuracies(dev_hits, dev_links, draws=1, seed=self.seed)
        heads = accuracies(hits, links, seed=self.seed)
        others = accuracies(other_hits, links, seed=self.seed)
        totals = [int(links.sum()), *links.sum(0).tolist()]
        # One head for all mentions, and for each type the best for it: the first of equals, and where there is no link.
        own = np.nan_to_num(dev[0], nan=-1.0).argmax(0).tolist()
        overall = own[0]
        each = dict(zip(self.others, zip(*others, strict=True), strict=True))
        tables = {
            "antecedent": antecedent_table([overall] * len(own), dev, heads, each, totals, names, paper=paper),
            "antecedent_by_type": replace(
                antecedent_table(own, dev, heads, each, totals, names, paper=paper), answer=()
            ),
            "heads": all_antecedents(dev, heads, totals, names, paper=paper),
        }
        if data.random_init:
            random_dev, random = (
                accuracies(found, held, seed=self.seed)
                for found, _, _, held in (self._counted(_name(split, "random_init")) for split in ("dev", scored))
            )
            tables["random_init.heads"] = all_antecedents(random_dev, random, totals, names, paper=paper)
        scores, right = scores_of("antecedent", heads, overall), {"antecedent": hits[:, overall]}
        for place, name in enumerate(self.others):
            scores |= scores_of(name, others, place)
            right[name] = other_hits[:, place]
        self.result = Result(
            experiment=self.experiment,
            scores=scores,
            headline=[f"{name}.{ANTECEDENT_GROUPS[0]}" for name in right],
            tables=tables,
            figures={
                **antecedent_figures(tables["antecedent"].frame, heads, names, own, paper=paper),
                **self.figures(),
            },
            audit={
                "mode": self.mode,
                "candidates": data.candidates,
                **self.trained_for,
                **self._left_out(dev_links, links),
                # Behind a causal mask, or where a weight is below what the store keeps.
                "predictions_without_weight": {split: int(idle.sum()) for split, (_, idle, _, _) in counts.items()},
            },
            items=_items(data.splits[scored].documents, links, right),
            ratios={f"{name}.{group}": (f"{name}{end}", f"links{end}") for name in right for group, end in _SUFFIXES},
        )


def all_antecedents(dev: Accuracies, scored: Accuracies, totals: Sequence[int], names: Names, *, paper: bool) -> Table:
    """Every head and direction: `mentions, n, direction, head, dev, test, low, high`, the interval over documents."""
    groups = {
        group: (totals[place], dev[0][:, place], np.nan if paper else scored[0][:, place])
        for place, group in enumerate(ANTECEDENT_GROUPS)
    }
    table = heads_table("mentions", groups, ANTECEDENT_DIRECTIONS, names)
    for end, numbers in zip(("low", "high"), scored[1:], strict=True):
        table.frame[end] = numbers.T.flatten()
    return replace(table, interval="dev" if paper else "test")


def _name(split: Split, encoder: EncoderOf) -> str:
    """What the counts of an encoder on a split are kept under."""
    return split if encoder == "given" else f"{split}_{encoder}"


class AntecedentHeads(AntecedentExperiment):
    """Antecedent selection accuracy of every head of every layer, in both directions, from one pass.

    A head predicts, for every mention that has an antecedent in its window, the earlier mention whose head word it
    attends to most (or that attends to it most). One head is chosen on dev for all mentions, and one for each type of
    mention; both are scored on test, beside the nearest mention, the nearest with the same head word, and a rule-based
    sieve, all on the same links. Intervals are over documents. Nothing is trained: run it with `python train.py test`.
    """

    experiment = "antecedent"


def _items(documents: tuple[str, ...], links: Tensor, right: Mapping[str, Tensor]) -> pd.DataFrame:
    """`document, links`, right choices of every predictor, then the same of each type; counts `[documents, 3]` each."""
    counts = {"links": links, **right}
    columns: dict[str, object] = {"document": documents}
    columns |= {name: of_type.sum(1).tolist() for name, of_type in counts.items()}
    for place, (_, suffix) in enumerate(_SUFFIXES[1:]):
        columns |= {f"{name}{suffix}": of_type[:, place].tolist() for name, of_type in counts.items()}
    return pd.DataFrame(columns)


TRAINED = "antecedent_trained"
"""What the scores of a trained probe are called; its column in the tables is `trained`."""


def scores_of(name: str, found: Accuracies, place: int) -> dict[str, Estimate]:
    """`name.all`, `name.pronoun`, … of one predictor of many, each with its interval."""
    values, low, high = (numbers[place] for numbers in found)
    return estimates([f"{name}.{of_mentions}" for of_mentions in ANTECEDENT_GROUPS], values, low, high, "fraction")


def antecedent_table(
    chosen: Sequence[int],
    dev: Accuracies,
    heads: Accuracies,
    others: Mapping[str, Accuracies],
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
    scored, low, high = (numbers[chosen, groups] for numbers in heads)
    frame = pd.DataFrame(
        {
            "mentions": ANTECEDENT_GROUPS,
            "n": totals,
            "head": [names.head(names.split(k)[1]) for k in chosen],
            "direction": [ANTECEDENT_DIRECTIONS[names.split(k)[0]] for k in chosen],
            "dev": dev[0][chosen, groups],
            "test": np.nan if paper else scored,
            "low": low,
            "high": high,
        }
    )
    predictors = ["trained" if name == TRAINED else name for name in others]
    for name, found in zip(predictors, others.values(), strict=True):
        behind = 2 if name == "trained" else len(frame.columns)
        for place, (end, numbers) in enumerate(zip(("", ".low", ".high"), found, strict=True)):
            frame.insert(behind + place, f"{name}{end}", numbers)
    units: dict[str, Unit] = dict.fromkeys(("dev", "test", *predictors), "fraction")
    split = "dev" if paper else "test"
    return Table(frame, units, interval=split, answer=("mentions", "head", split, *predictors))


def antecedent_figures(
    table: pd.DataFrame, heads: Accuracies, names: Names, own: Sequence[int], *, paper: bool
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
        accuracy = heads[0][:, group].reshape(shape)[direction]
        maps[f"heads_{of_mentions}"] = head_map(title, accuracy, names, (layer, head))
    return {"antecedent": bars, **on_one_scale(maps)}
