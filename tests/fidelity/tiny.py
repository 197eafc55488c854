"""Small classifiers whose attention matters, and classified_batches of a few texts under them."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attention_probing.attention import EncoderSpec
from attention_probing.datamodules import TextBatch
from attention_probing.fidelity.checkpoints import Checkpoint
from attention_probing.fidelity.classified import ClassifiedBatch, classify
from attention_probing.fidelity.contract import CheckpointResult, FidelityTest, Reading, Score
from attention_probing.fidelity.saliency import Saliency
from attention_probing.metrics.bootstrap import resample
from attention_probing.models import (
    AdditiveAttention,
    AttentionClassifier,
    EmbeddingSpec,
    HierarchicalClassifier,
    RecurrentEncoder,
    TextClassifier,
    TransformerClassifier,
)
from attention_probing.models.text_classifier import WORD, TextSizes
from attention_probing.results import Estimate
from attention_probing.results.progress import Progress
from tests import tiny
from tests.models.batches import VOCABULARY, batch_of

Test = TypeVar("Test", bound=FidelityTest)
Kind = Literal["flat", "han", "transformer"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LEVELS: tuple[tuple[Kind, str | None], ...] = (("flat", None), ("han", None), ("han", WORD), ("transformer", None))
CLASSES = 3
TEXTS = ([7, 8, 9, 12], [10, 11], [11, 12, 7, 9, 13, 14, 8], [15, 8, 10], [9, 9, 13, 7, 15], [14, 7])
"""Texts of at least two words."""
SENTENCES = ([0, 0, 1, 1], [0, 1], [0, 1, 1, 1, 2, 2, 3], [0, 1, 2], [0, 0, 0, 1, 1], [0, 1])
PIECES = ([2, 7, 8, 9, 3], [2, 10, 11, 3], [2, 11, 12, 7, 7, 13, 3], [2, 9, 8, 3], [2, 12, 12, 7, 3], [2, 13, 7, 10, 3])
"""For the transformer, between the delimiters of its tokenizer."""


@cache
def classifier(kind: Kind, dtype: torch.dtype = torch.float64) -> TextClassifier:
    """One of each kind, with parameters large enough for decisions to differ; in evaluation mode, without gradients.

    The transformer shows the four heads of its last layer.
    """
    torch.manual_seed(1)
    model: TextClassifier
    sizes = TextSizes(CLASSES, VOCABULARY)
    if kind == "flat":
        model = AttentionClassifier(RecurrentEncoder(hidden=4), AdditiveAttention(), EmbeddingSpec(size=5))
    elif kind == "han":
        model = HierarchicalClassifier(
            RecurrentEncoder("gru", 4), AdditiveAttention(), RecurrentEncoder("gru", 3), AdditiveAttention(),
            EmbeddingSpec(size=5),
        )  # fmt: skip
    else:
        folder = tiny.add_head(tiny.save_bert(Path(mkdtemp(prefix="tiny-bert-"))), CLASSES)
        model, sizes = TransformerClassifier(), replace(sizes, tokenizer=EncoderSpec(str(folder)))
    model.build(sizes)
    if kind != "transformer":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 1)
            model.embedding.rows.weight[VOCABULARY.pad] = 0  # type: ignore[union-attr, operator]
            # Decisions differ from text to text.
            logits = model.eval()(texts(kind)).logits
            model.decision.bias -= logits.mean(0)  # type: ignore[union-attr]
    return model.to(dtype).eval().requires_grad_(False)


def texts(kind: Kind, rows: Sequence[int] | None = None, time: int | None = None) -> TextBatch:
    """The texts, or some of them, padded to `time`; their places in the split are those in `TEXTS`."""
    chosen = list(range(len(TEXTS))) if rows is None else list(rows)
    if kind == "transformer":
        pieces = [PIECES[row] for row in chosen]
        special = [[piece in (2, 3) for piece in text] for text in pieces]
        made = batch_of(pieces, time=time, special=special)
    else:
        made = batch_of([TEXTS[row] for row in chosen], time=time, sentences=[SENTENCES[row] for row in chosen])
    return replace(made, index=torch.tensor(chosen), labels=torch.tensor(chosen) % CLASSES)


def checkpoint(kind: Kind, dtype: torch.dtype = torch.float64, level: str | None = None) -> Checkpoint:
    config = {"seed_everything": 0, "model": {}, "data": {}, "trainer": {}}
    return Checkpoint(Path("tiny.ckpt"), "0" * 64, config, f"{kind}, seed 0", kind, classifier(kind, dtype), level)


def classified(
    kind: Kind = "flat",
    rows: Sequence[int] | None = None,
    time: int | None = None,
    *,
    level: str | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> ClassifiedBatch:
    batch = texts(kind, rows, time)
    _, found = classify(checkpoint(kind, dtype, level), batch, seed=seed, vocabulary=VOCABULARY)
    assert found is not None
    return found


@lru_cache(maxsize=256)
def saliency_of(batch: ClassifiedBatch) -> Saliency:
    return Saliency(batch)


def measurements(test: FidelityTest, batch: ClassifiedBatch) -> dict[str, Tensor]:
    return dict(test.measure(batch, saliency_of(batch)))


class Count(Progress):
    """The copies that were classified."""

    total = 0.0

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.total += amount


def copies_of(test: FidelityTest, batch: ClassifiedBatch) -> tuple[float, float]:
    """Return the number of changed copies that are classified, and that which was said before."""
    progress = Count(test.name, math.inf, "it is counted")
    counted = replace(batch, progress=progress)
    measurements(test, counted)
    return progress.total, test.changed_copies(counted)


def prepared(test: Test, classes: int = CLASSES, positive: int | None = None) -> Test:
    """The test, told the labels of the data, which F1 depends on."""
    data: Any = SimpleNamespace(labels=tuple(map(str, range(classes))), positive=positive)
    test.begin([], data, torch.device("cpu"), 0)
    return test


class Described(FidelityTest):
    """A test of which only scores and their descriptions are read."""

    def __init__(
        self,
        name: str,
        rankings: Sequence[str] = (),
        directions: Mapping[str, Any] | None = None,
        claims: Mapping[str, str] | None = None,
        beside: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        directions, claims, beside = directions or {}, claims or {}, beside or {}
        self.name = name  # type: ignore[misc]
        self.rankings = {ranking: ranking for ranking in rankings}
        self.readings = {  # type: ignore[misc]
            score: Reading(directions.get(score, ""), claims.get(score, ""), beside.get(score, ()))
            for score in dict.fromkeys([*directions, *claims])
        }

    def measure(self, batch: ClassifiedBatch, saliency: Saliency) -> dict[str, Tensor]:
        return {}

    def scores(self) -> dict[str, Score]:
        return {}


def with_constants(test: Test, **constants: float | tuple[float, ...]) -> Test:
    for name, value in constants.items():
        assert hasattr(test, name)
        setattr(test, name, value)
    return test


def one_by_one(kind: Kind = "flat", **options: Any) -> list[ClassifiedBatch]:  # noqa: ANN401
    return [classified(kind, [row], **options) for row in range(len(TEXTS))]


def close(found: Tensor, expected: Tensor, atol: float = 1e-9) -> None:
    """Equal but for rounding, nan where the other is."""
    torch.testing.assert_close(found, expected, atol=atol, rtol=0, equal_nan=True)


def slow_decision(text: ClassifiedBatch, weights: Sequence[Sequence[float]]) -> list[float]:
    """Probabilities of one text when the whole model runs with other weights `[heads][positions]`."""
    imposed = {name: torch.tensor([head], dtype=torch.float64) for name, head in zip(text.names, weights, strict=True)}
    found: list[float] = text.checkpoint.model(text.batch, imposed=imposed).logits.softmax(-1)[0].tolist()
    return found


def slow_erasure(text: ClassifiedBatch, erased: Collection[int]) -> list[float]:
    """Probabilities of one text without the weights of some positions, in every head and group."""
    groups, heads = text.groups[0].tolist(), []
    for head in text.weights[:, 0].tolist():
        left = [0.0 if position in erased else weight for position, weight in enumerate(head)]
        sums = {group: sum(w for w, own in zip(left, groups, strict=True) if own == group) for group in groups}
        heads.append([w / sums[own] if sums[own] else 0.0 for w, own in zip(left, groups, strict=True)])
    return slow_decision(text, heads)


def slow_tvd(p: Sequence[float], q: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


def slow_jsd(p: Sequence[float], q: Sequence[float]) -> float:
    return sum(x * math.log(2 * x / (a + b)) / 2 for a, b in zip(p, q, strict=True) for x in (a, b) if x > 0)


def slow_reread(kind: Kind, row: int, positions: Collection[int]) -> Tensor:
    """Probabilities of the classes given some words, or sentences, of a text, between its delimiters."""
    text, own = texts(kind, [row]), classified(kind, [row]).token_to_position[0].tolist()
    left = [place for place, position in enumerate(own) if position < 0 or position in positions]
    old = text.sentences[0, left].tolist()
    sentences = [sorted({*old} - {-1}).index(one) if one >= 0 else -1 for one in old]
    batch = batch_of([text.tokens[0, left].tolist()], special=[text.special[0, left].tolist()], sentences=[sentences])
    found: Tensor = classifier(kind)(batch).logits.softmax(-1)[0]
    return found


def checkpoint_result(
    test: str,
    variant: str,
    seed: int,
    columns: Mapping[str, Any],
    scores: Mapping[str, Estimate] | None = None,
) -> CheckpointResult:
    frame = pd.DataFrame({f"{test}.{name}": values for name, values in columns.items()})
    return CheckpointResult(f"{variant}, seed {seed}", variant, seed, frame, scores or {})


def scores_of(test: FidelityTest, values: pd.DataFrame) -> dict[str, float]:
    """The scores whose columns are there, with the name of the test or without."""
    columns = values.rename(columns=lambda name: name.removeprefix(f"{test.name}."))
    return {
        name: resample(score.statistic, columns[list(score.columns)].to_numpy(np.float64), score.unit, draws=10).value
        for name, score in test.scores().items()
        if set(score.columns) <= set(columns)
    }
