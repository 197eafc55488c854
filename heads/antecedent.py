"""Every single head as a resolver of coreference (Clark et al. 2019, §4.3), whose code was never released."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from corpora.document import MENTION_TYPES
from datamodules import AntecedentBatch, CoreferenceDataModule
from datamodules.base import STAGES
from heads.experiment import ExperimentError
from heads.rule_baselines import head_match, nearest, sieve
from heads.single_heads import Names, head_map
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
from results import Bars, Estimate, Figure, HeatMap, Result, Table, estimates, on_one_scale

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
        self.mode = mode
        self.seed = seed
        self.result: Result | None = None
        self._heads, self._others, self._idle = nn.ModuleDict(), nn.ModuleDict(), nn.ModuleDict()

    @property
    def trained_for(self) -> Mapping[str, int]:
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
        """The datamodule of the run.

        Raises:
            ExperimentError: it is not one of coreference, or has no encoder.
        """
        data, name = self.trainer.datamodule, type(self).__name__  # type: ignore[attr-defined]
        if not isinstance(data, CoreferenceDataModule):
            raise ExperimentError(
                f"{name} needs mentions, and {type(data).__name__} has none: use CoreferenceDataModule."
            )
        if data.encoder_identity is None:
            raise ExperimentError(f"{name} needs attention: --data.init_args.encoder must not be null.")
        return data

    def setup(self, stage: str) -> None:
        """Make the counters of dev and test."""
        data = self.data
        if stage == "test":
            size = len(data.layers), len(data.heads)
            for split in STAGES[stage]:
                documents = len(data.splits[split].documents)
                self._heads[split] = AntecedentCounts(documents, *size)
                self._others[split] = AntecedentCounts(documents, 1, len(self.others))
                self._idle[split] = AntecedentCounts(documents, *size)  # of choices that a head does not make

    def test_step(self, batch: AntecedentBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Count what heads, baselines and trained probe get right."""
        if batch.window is None:
            return
        links = links_of(batch)
        if self.data.candidates == "words":
            hits, idle = antecedent_hits_among_words(batch.weights[0], batch.weights[1], links)
        else:
            hits, idle = antecedent_hits(batch.weights, links)
        text = batch.window.text
        head_words = batch.head_words.cpu().numpy()
        chosen = []
        for predict in BASELINES.values():
            found = predict(text.sentences, text.tags, text.mentions)
            chosen.append(np.searchsorted(links.heads, [head_words[found[m]] for m in links.mention.tolist()]))
        if (trained := self.choose(batch, links)) is not None:
            chosen.append(trained.cpu().numpy())
        # As a head is: right if the word chosen heads an earlier mention of the cluster.
        right = torch.tensor(np.array([links.gold[np.arange(len(links)), words] for words in chosen], dtype=np.bool_))
        document, of_type = int(batch.document), torch.from_numpy(links.type)
        others = right.view(1, 1, len(chosen), len(links)).expand(2, -1, -1, -1)
        self._heads[batch.split].update(document, hits, of_type)  # type: ignore[operator]
        self._idle[batch.split].update(document, idle, of_type)  # type: ignore[operator]
        self._others[batch.split].update(document, others, of_type)  # type: ignore[operator]

    def _left_out(self, dev: Tensor, scored: Tensor) -> dict[str, dict[str, int]]:
        """Links that are scored, and those whose antecedents in the window all share their head word: no links."""
        audit = {}
        for split, links in {"dev": dev, "dev" if self.mode == "paper" else "test": scored}.items():
            held = self.data.splits["dev" if split == "dev" else "test"].counts
            count = int(links.sum())
            same_head = held["links"] - held["lost_links"] - count
            audit[f"{split}_links"] = {"scored": count, "same_head_word": same_head}
        return audit

    def on_test_epoch_end(self) -> None:
        """Choose, score, and fill `result`."""
        head_counts, other_counts, idle = (_counted(metrics) for metrics in (self._heads, self._others, self._idle))
        paper = self.mode == "paper"
        data, scored = self.data, "dev" if paper else "test"
        names = Names(data.layers, data.heads)
        dev_hits, dev_links = head_counts["dev"]
        hits, links = head_counts[scored]
        hits = hits.flatten(1, 3)  # [documents, 2·heads, types]
        other_hits = other_counts[scored][0][:, 0, 0]  # [documents, others, types]
        dev = accuracies(dev_hits.flatten(1, 3), dev_links, draws=1, seed=self.seed)
        heads = accuracies(hits, links, seed=self.seed)
        others = accuracies(other_hits, links, seed=self.seed)
        totals = [int(links.sum()), *links.sum(0).tolist()]
        # One head for all mentions; then, for each type, the best for it.
        overall = best(dev[0][:, 0])
        own = [best(dev[0][:, group]) for group in range(len(ANTECEDENT_GROUPS))]
        each = dict(zip(self.others, zip(*others, strict=True), strict=True))
        tables = {
            "antecedent": antecedent_table([overall] * 4, dev, heads, each, totals, names, paper=paper),
            "antecedent_by_type": antecedent_table(own, dev, heads, each, totals, names, paper=paper),
            "heads": all_heads(dev, heads, totals, names, paper=paper),
        }
        scores = scores_of("antecedent", heads, overall)
        for place, name in enumerate(self.others):
            scores |= scores_of(name, others, place)
        right = {"antecedent": hits[:, overall]} | {
            name: other_hits[:, place] for place, name in enumerate(self.others)
        }
        self.result = Result(
            experiment=self.experiment,
            scores=scores,
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
                "predictions_without_weight": {split: int(found.sum()) for split, (found, _) in idle.items()},
            },
            items=_items(data.splits["dev" if paper else "test"].documents, links, right),
            ratios={
                f"{name}.{group}": (f"{name}{suffix}", f"links{suffix}")
                for name in right
                for group, suffix in _SUFFIXES
            },
        )


class AntecedentHeads(AntecedentExperiment):
    """Antecedent selection accuracy of every head of every layer, in both directions, from one pass.

    A head predicts, for every mention that has an antecedent in its window, the earlier mention whose head word it
    attends to most (or that attends to it most). One head is chosen on dev for all mentions, and one for each type of
    mention; both are scored on test, beside the nearest mention, the nearest with the same head word, and a rule-based
    sieve, all on the same links. Intervals are over documents. Nothing is trained: run it with `python train.py test`.
    """

    experiment = "antecedent"


def _counted(metrics: nn.ModuleDict) -> dict[str, tuple[Tensor, Tensor]]:
    """Hits and links of every split, on the CPU; the counters begin anew."""
    counts = {}
    for split, metric in metrics.items():
        assert isinstance(metric, AntecedentCounts)
        hits, links = metric.compute()
        counts[split] = hits.cpu(), links.cpu()
        metric.reset()
    return counts


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


def best(accuracy: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> int:
    """The best of all heads in both directions, the first of equals; the first of all where there is no link."""
    return int(np.nan_to_num(accuracy, nan=-1.0).argmax())


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

    In `paper` mode `test` is nan, and the interval is that of `dev`. The others are
    columns `name, name.low, name.high`: those of a trained probe, `trained`, before the head's, the baselines' behind.

    Args:
        chosen: the head of each group, in both directions counted through.
        dev: of all heads `[2·heads, 4]`, on dev.
        heads: of all heads, on the split that is scored.
        others: of each predictor beside the heads `[4]`, on the split that is scored.
        totals: links of each group.
        names: of the heads.
        paper: whether the split that is scored is dev.
    """
    groups = range(len(ANTECEDENT_GROUPS))
    head = {
        "head": [names.head(names.split(k)[1]) for k in chosen],
        "direction": [ANTECEDENT_DIRECTIONS[names.split(k)[0]] for k in chosen],
    }
    on_dev = [dev[0][k, group] for group, k in zip(groups, chosen, strict=True)]
    scored, low, high = ([numbers[k, group] for group, k in zip(groups, chosen, strict=True)] for numbers in heads)
    on_test = [float("nan")] * len(scored) if paper else scored
    of_head = {**head, "dev": on_dev, "test": on_test, "low": low, "high": high}
    trained = _columns("trained", others[TRAINED]) if TRAINED in others else {}
    baselines: dict[str, object] = {}
    for name, found in others.items():
        baselines |= {} if name == TRAINED else _columns(name, found)
    frame = pd.DataFrame({"mentions": ANTECEDENT_GROUPS, "n": totals, **trained, **of_head, **baselines})
    predictors = ["trained" if name == TRAINED else name for name in others]
    return Table(frame, dict.fromkeys(("dev", "test", *predictors), "fraction"), interval="dev" if paper else "test")


def _columns(name: str, found: Accuracies) -> dict[str, object]:
    return dict(zip((name, f"{name}.low", f"{name}.high"), found, strict=True))


def all_heads(dev: Accuracies, heads: Accuracies, totals: Sequence[int], names: Names, *, paper: bool) -> Table:
    """One row per head, direction and group of mentions: `mentions, n, direction, head, dev, test`."""
    frames = [
        pd.DataFrame(
            {
                "mentions": of_mentions,
                "n": totals[group],
                "direction": np.repeat(ANTECEDENT_DIRECTIONS, len(names)),
                "head": [names.head(head) for head in range(len(names))] * 2,
                "dev": dev[0][:, group],
                "test": np.full(2 * len(names), np.nan) if paper else heads[0][:, group],
            }
        )
        for group, of_mentions in enumerate(ANTECEDENT_GROUPS)
    ]
    return Table(pd.concat(frames, ignore_index=True), dict.fromkeys(("dev", "test"), "fraction"))


def antecedent_figures(
    table: pd.DataFrame, heads: Accuracies, names: Names, own: Sequence[int], *, paper: bool
) -> Mapping[str, Figure]:
    """Bars of an `antecedent_table`, and a map of all heads for each group of mentions, its best head marked."""
    scored, chosen = ("dev", "chosen and scored on dev") if paper else ("test", "chosen on dev")
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
        title = f"Antecedents, {of_mentions}, {ANTECEDENT_DIRECTIONS[direction]}"
        accuracy = heads[0][:, group].reshape(shape)[direction]
        maps[f"heads_{of_mentions}"] = head_map(title, accuracy, names, (layer, head))
    return {"antecedent": bars, **on_one_scale(maps)}
