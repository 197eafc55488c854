"""Every single head as a resolver of coreference (Clark et al. 2019, §4.3), whose code was never released."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from datamodules import AntecedentBatch, CoreferenceDataModule
from metrics.antecedent import (
    ANTECEDENT_DIRECTIONS,
    ANTECEDENT_GROUPS,
    Accuracies,
    AntecedentCounts,
    accuracies,
    antecedent_hits,
    antecedent_hits_among_words,
    find_links,
)
from metrics.results import Bars, Figure, Result
from probes.base import ProbeError
from probes.head_figures import head_map
from probes.head_tables import Names
from probes.sieve import head_match, nearest, sieve

BASELINES = {"nearest": nearest, "head_match": head_match, "sieve": sieve}


class AntecedentProbe(LightningModule):
    """Antecedent selection accuracy of every head of every layer, in both directions, from one pass.

    A head predicts, for every mention that has an antecedent in its window, the earlier mention whose head word it
    attends to most (or that attends to it most). One head is chosen on dev for all mentions, and one for each type of
    mention; both are scored on test, beside the nearest mention, the nearest with the same head word, and a rule-based
    sieve, all on the same links. Intervals are over documents. Nothing is trained: run it with `python train.py test`.

    Args:
        mode: `held_out` chooses on dev and scores on test; `paper` chooses and scores on dev, as the original does.
        seed: of the bootstrap.

    Attributes:
        result: filled at the end of a test.
    """

    experiment = "antecedent"
    example_input_array = None

    def __init__(self, mode: Literal["held_out", "paper"] = "held_out", seed: int = 0) -> None:
        super().__init__()
        self.mode = mode
        self.seed = seed
        self.result: Result | None = None
        self._heads, self._rules = nn.ModuleList(), nn.ModuleList()

    @property
    def data(self) -> CoreferenceDataModule:
        """The datamodule of the run.

        Raises:
            ProbeError: it is not one of coreference, or has no encoder.
        """
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, CoreferenceDataModule):
            raise ProbeError(
                f"AntecedentProbe needs mentions, and {type(data).__name__} has none: use CoreferenceDataModule."
            )
        if data.encoder_identity is None:
            raise ProbeError("AntecedentProbe needs attention: --data.init_args.encoder must not be null.")
        return data

    def setup(self, stage: str) -> None:
        """Make the counters of dev and test."""
        data = self.data
        documents = [len(data.splits[split].documents) for split in ("dev", "test")]
        self._heads = nn.ModuleList(AntecedentCounts(n, len(data.layers), len(data.heads)) for n in documents)
        self._rules = nn.ModuleList(AntecedentCounts(n, 1, len(BASELINES)) for n in documents)

    def test_step(self, batch: AntecedentBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Count what every head and every baseline gets right, on dev (dataloader 0) and test (1)."""
        if batch.window is None:
            return
        head_words, clusters, types = (
            column.cpu().numpy() for column in (batch.head_words, batch.clusters, batch.types)
        )
        links = find_links(head_words, clusters, types)
        if self.data.candidates == "words":
            hits = antecedent_hits_among_words(batch.weights[0], batch.weights[1], links)
        else:
            hits = antecedent_hits(batch.weights, links)
        text = batch.window.text
        by_rule = []
        for predict in BASELINES.values():
            found = predict(text.sentences, text.tags, text.mentions)
            # As a head is: right if its word heads an earlier mention of the cluster.
            words = np.searchsorted(links.heads, [head_words[found[m]] for m in links.mention.tolist()])
            by_rule.append(links.gold[np.arange(len(links)), words].tolist())
        document, of_type = int(batch.document), torch.from_numpy(links.type)
        rules = torch.tensor(by_rule, dtype=torch.bool).view(1, 1, len(BASELINES), len(links)).expand(2, -1, -1, -1)
        self._heads[dataloader_idx].update(document, hits, of_type)  # type: ignore[operator]
        self._rules[dataloader_idx].update(document, rules, of_type)  # type: ignore[operator]

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
        counted = [metric.compute() for metric in (*self._heads, *self._rules)]
        for metric in (*self._heads, *self._rules):
            metric.reset()
        paper = self.mode == "paper"
        data, scored = self.data, 0 if paper else 1
        names = Names(data.layers, data.heads)
        dev_hits, dev_links = (part.cpu() for part in counted[0])
        hits, links = (part.cpu() for part in counted[scored])
        rule_hits = counted[2 + scored][0].cpu()[:, 0, 0]  # [documents, rules, types]
        dev = accuracies(dev_hits.flatten(1, 3), dev_links, draws=1, seed=self.seed)
        heads = accuracies(hits.flatten(1, 3), links, seed=self.seed)
        rules = accuracies(rule_hits, links, seed=self.seed)
        totals = [int(links.sum()), *links.sum(0).tolist()]
        # One head for all mentions; then, for each type, the best for it.
        overall = _best(dev.value[:, 0])
        own = [_best(dev.value[:, group]) for group in range(len(ANTECEDENT_GROUPS))]
        tables = {
            "antecedent": _table([overall] * 4, dev, heads, rules, totals, names, paper=paper),
            "antecedent_by_type": _table(own, dev, heads, rules, totals, names, paper=paper),
            "heads": _all_heads(dev, heads, totals, names, paper=paper),
        }
        documents = list(data.splits["dev" if paper else "test"].documents)
        items = {"document": documents, "links": links.sum(1).tolist()}
        items["antecedent"] = hits.flatten(1, 3)[:, overall].sum(-1).tolist()
        items |= {name: rule_hits[:, place].sum(-1).tolist() for place, name in enumerate(BASELINES)}
        self.result = Result(
            experiment=self.experiment,
            scores=_scores("antecedent", heads, overall)
            | {
                name: score
                for place, rule in enumerate(BASELINES)
                for name, score in _scores(rule, rules, place).items()
            },
            tables=tables,
            figures=_figures(tables["antecedent"], heads, names, own, paper=paper),
            audit={"mode": self.mode, "candidates": data.candidates, **self._left_out(dev_links, links)},
            items=pd.DataFrame(items),
        )


def _best(accuracy: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> int:
    """The best of all heads in both directions, the first of equals; the first of all where there is no link."""
    return int(np.nan_to_num(accuracy, nan=-1.0).argmax())


def _scores(name: str, found: Accuracies, place: int) -> dict[str, float]:
    scores: dict[str, float] = {}
    for group, of_mentions in enumerate(ANTECEDENT_GROUPS):
        scores[f"{name}.{of_mentions}"] = float(found.value[place, group])
        scores[f"{name}.{of_mentions}.low"] = float(found.low[place, group])
        scores[f"{name}.{of_mentions}.high"] = float(found.high[place, group])
    return scores


def _table(
    chosen: Sequence[int],
    dev: Accuracies,
    heads: Accuracies,
    rules: Accuracies,
    totals: Sequence[int],
    names: Names,
    *,
    paper: bool,
) -> pd.DataFrame:
    """`mentions, n, head, direction, dev, test, low, high` of one head for each group of mentions, and the baselines.

    In `paper` mode `test` is nan, and the interval is that of `dev`, which then stands before it.
    """
    groups = range(len(ANTECEDENT_GROUPS))
    rows = {
        "mentions": list(ANTECEDENT_GROUPS),
        "n": list(totals),
        "head": [names.head(names.split(k)[1]) for k in chosen],
        "direction": [ANTECEDENT_DIRECTIONS[names.split(k)[0]] for k in chosen],
        "dev": [dev.value[k, group] for group, k in zip(groups, chosen, strict=True)],
        "test": [float("nan") if paper else heads.value[k, group] for group, k in zip(groups, chosen, strict=True)],
        "low": [heads.low[k, group] for group, k in zip(groups, chosen, strict=True)],
        "high": [heads.high[k, group] for group, k in zip(groups, chosen, strict=True)],
    }
    table = pd.DataFrame(rows)
    for place, rule in enumerate(BASELINES):
        table[rule] = rules.value[place]
        table[f"{rule}.low"], table[f"{rule}.high"] = rules.low[place], rules.high[place]
    return table[[*list(table)[:4], "test", "dev", *list(table)[6:]]] if paper else table


def _all_heads(dev: Accuracies, heads: Accuracies, totals: Sequence[int], names: Names, *, paper: bool) -> pd.DataFrame:
    """One row per head, direction and group of mentions: `mentions, n, direction, head, dev, test`."""
    frames = [
        pd.DataFrame(
            {
                "mentions": of_mentions,
                "n": totals[group],
                "direction": np.repeat(ANTECEDENT_DIRECTIONS, len(names)),
                "head": [names.head(head) for head in range(len(names))] * 2,
                "dev": dev.value[:, group],
                "test": np.full(2 * len(names), np.nan) if paper else heads.value[:, group],
            }
        )
        for group, of_mentions in enumerate(ANTECEDENT_GROUPS)
    ]
    return pd.concat(frames, ignore_index=True)


def _figures(
    table: pd.DataFrame, heads: Accuracies, names: Names, own: Sequence[int], *, paper: bool
) -> Mapping[str, Figure]:
    scored, chosen = ("dev", "chosen and scored on dev") if paper else ("test", "chosen on dev")
    bars: Figure = Bars(
        title=f"Antecedent selection: head {table['head'][0]}, {table['direction'][0]}, {chosen}",
        categories=ANTECEDENT_GROUPS,
        series={
            "best head": table[scored].tolist(),
            "nearest mention": table["nearest"].tolist(),
            "same head word": table["head_match"].tolist(),
            "sieve": table["sieve"].tolist(),
        },
        label="accuracy (%)",
        intervals={"best head": (table["low"].tolist(), table["high"].tolist())},
    )
    figures: dict[str, Figure] = {"antecedent": bars}
    shape = 2, len(names.layers), len(names.heads)
    for group, of_mentions in enumerate(ANTECEDENT_GROUPS):
        direction, layer, head = (int(place) for place in np.unravel_index(own[group], shape))
        title = f"Antecedents, {of_mentions}, {ANTECEDENT_DIRECTIONS[direction]}"
        accuracy = heads.value[:, group].reshape(shape)[direction]
        figures[f"heads_{of_mentions}"] = head_map(title, accuracy, names, (layer, head))
    return figures
