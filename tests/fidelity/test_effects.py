"""Probes of the effects of removals against least squares, loops over the texts, and models whose effects are known."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from attention_probing.datamodules import TextBatch
from attention_probing.datamodules.batches import Ranks
from attention_probing.fidelity import EffectProbe, Effects, effects as module
from attention_probing.fidelity.classified import ClassifiedBatch, classify, select_texts
from attention_probing.fidelity.effects import EFFECT_RANKINGS, LEARNED, log_odds
from attention_probing.models.text_classifier import Level, Output
from attention_probing.results import HeatMap, UserError
from tests.fidelity import tiny
from tests.fidelity.tiny import KINDS, TEXTS, Kind, checkpoint, classified, close, measurements, with_constants
from tests.models.batches import VOCABULARY, batch_of

CPU = torch.device("cpu")


class Texts:
    """A split of texts in one batch, or in batches of one."""

    def __init__(self, whole: TextBatch, single: bool = False) -> None:
        self.whole, self.single = replace(whole, split="train"), single

    def __len__(self) -> int:
        return len(self.whole.index)

    def batches(self, most: int, items: Sequence[int]) -> Iterator[TextBatch]:
        for some in [[item] for item in items] if self.single else [items] if items else []:
            yield select_texts(self.whole, torch.tensor(some))


def data_of(train: Texts, ranks: Ranks | None = None) -> Any:  # noqa: ANN401 # as a datamodule
    return SimpleNamespace(splits={"train": train}, ranks=ranks or Ranks(), eval_tokens=1000, vocabulary=VOCABULARY)


def fitted(kind: Kind, level: str | None = None, *, single: bool = False, **options: Any) -> Effects:  # noqa: ANN401
    test = with_constants(Effects(draws=3), removals=12, **options)
    test.begin([checkpoint(kind, level=level)], data_of(Texts(tiny.texts(kind), single)), CPU, 0)
    return test


def test_dependent_heads_share_their_weight_and_idle_heads_have_none() -> None:
    design = torch.rand((3, 11, 7), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    design = torch.cat([design, design[..., :1], torch.zeros_like(design[..., :1])], -1)
    effects = 3 * design[None, ..., 0] + design[None, ..., 1]
    probe = EffectProbe.fit(*EffectProbe.equations(design, effects))
    assert probe.ridge
    assert probe.weights[0].tolist() == pytest.approx([1.5, 1, 0, 0, 0, 0, 0, 1.5, 0], abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_measurements_are_those_of_loops(kind: Kind) -> None:
    test, found = fitted(kind, k=2), classified(kind, time=9)
    numbers = measurements(test, found)
    kept, saliency = test._draw_removals(found, "test"), tiny.saliency_of(found)
    probes = test._fitted[found.checkpoint.name].probes
    norms = saliency.of_attention.head_norms
    for row in range(len(TEXTS)):
        label, places = int(found.predicted[row]), found.words[row].nonzero().flatten().tolist()

        def odds(positions: Sequence[int], row: int = row, label: int = label) -> float:
            p = float(tiny.slow_reread(kind, row, positions)[label])
            return float(np.log(p / (1 - p)))

        effects = [odds(places) - odds([one for one in places if kept[draw, row, one]]) for draw in range(12)]
        learned = [
            {one: sum(float(w) * float(a[row, one]) for w, a in zip(weights, of, strict=True)) for one in places}
            for weights, of in (
                (probes["attention"].weights[0], found.weights),
                (probes["norms"].weights[0], norms),
                *((weights, found.weights) for weights in probes["attention"].weights[1:]),
            )
        ]
        by_ranking: dict[str, list[dict[int, float]]] = {
            "learned": learned[:1],
            "learned_norms": learned[1:2],
            "learned_shuffled": learned[2:],
        }
        for name in EFFECT_RANKINGS[4:]:
            orders = saliency.rankings(name, 3)[:, row]
            by_ranking[name] = [{one: float(order[one]) for one in places} for order in orders]
        for name, every in by_ranking.items():
            rhos, drops = [], []
            for scores in every:
                sums = [sum(scores[one] for one in places if not kept[draw, row, one]) for draw in range(12)]
                # As many digits as the tolerance of ties leaves.
                rhos.append(spearmanr(np.round(sums, 9), np.round(effects, 6)).statistic)
                order = sorted(places, key=lambda one: (-scores[one], one))
                drops.append(odds(places) - odds(order[min(2, len(places) - 1) :]))
            assert numbers[f"{name}.topk_drop"][row].item() == pytest.approx(np.mean(drops), abs=1e-7), name
            assert numbers[f"{name}.lds"][row].item() == pytest.approx(np.mean(rhos), abs=1e-9, nan_ok=True), name
    assert float(numbers["leave_one_out.lds"].mean()) > float(numbers["random.lds"].mean()) or kind == "transformer"


def test_the_probe_of_train_is_least_squares_over_its_removals() -> None:
    test, found = fitted("transformer", k=2), classified("transformer")
    kept, rows, effects = test._draw_removals(found, "train"), [], []
    for row in range(len(TEXTS)):
        label, places = int(found.predicted[row]), found.words[row].nonzero().flatten().tolist()
        odds = []
        for left in [places, *([one for one in places if kept[draw, row, one]] for draw in range(12))]:
            p = float(tiny.slow_reread("transformer", row, left)[label])
            odds.append(np.log(p / (1 - p)))
        effects.append(odds[0] - np.array(odds[1:]))
        gone = (found.words & ~kept)[:, row].double().numpy()
        rows.append(gone @ found.weights[:, row].numpy().T)
    centred = np.concatenate([one - one.mean(0) for one in rows])
    targets = np.concatenate([one - one.mean() for one in effects])
    expected = np.linalg.lstsq(centred, targets, rcond=None)[0]
    own = test._fitted[found.checkpoint.name]
    assert own.probes["attention"].weights[0].tolist() == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-6)
    for head in range(len(expected)):
        rhos = [
            spearmanr(np.round(one[:, head], 9), np.round(of, 6)).statistic
            for one, of in zip(rows, effects, strict=True)
        ]
        assert own.heads["attention"]["lds"][head] == pytest.approx(np.nanmean(rhos), abs=1e-9)


class Additive(nn.Module):
    """A model whose log-odds are the sum of one number per token, which the head 2-1 shows; other heads show noise."""

    def __init__(self, heads: int = 6, sign: float = 1.0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(1)
        self.tables = torch.rand((heads, len(VOCABULARY.words)), generator=random, dtype=torch.float64)
        self.sign, self.shown = sign, heads // 2

    def forward(self, batch: TextBatch, **_: object) -> Output:
        values = (self.tables[:, batch.tokens] * batch.words).double()
        total = self.sign * values[self.shown].sum(1) + 4
        hidden = batch.tokens[..., None].double()
        levels = {f"{n // 3 + 1}-{n % 3 + 1}": Level(of, batch.words, hidden) for n, of in enumerate(values)}
        return Output(torch.stack([torch.zeros_like(total), total], 1), levels, hidden)

    def value_norms(self, output: Output, level: str) -> Tensor:
        return torch.ones_like(output.levels[level].weights)


def many(texts: int, seed: int, most: int = 12) -> TextBatch:
    random = np.random.default_rng(seed)
    return batch_of([random.integers(6, 15, random.integers(3, most)).tolist() for _ in range(texts)])


def planted(model: nn.Module, train: int = 60, test: int = 40, **options: Any) -> tuple[Effects, ClassifiedBatch]:  # noqa: ANN401
    own = replace(checkpoint("flat"), model=model)  # type: ignore[arg-type]
    effects = Effects(**{"rankings": [*LEARNED, "attention", "random"], **options})
    effects.begin([own], data_of(Texts(many(train, 0))), CPU, 0)
    _, found = classify(own, many(test, 1), seed=0, vocabulary=VOCABULARY)
    assert found is not None
    return effects, found


def test_the_head_that_shows_the_effects_is_found() -> None:
    effects, found = planted(Additive())
    numbers = measurements(effects, found)
    own = effects._fitted[found.checkpoint.name]
    for quantity in ("attention", "norms"):
        assert own.probes[quantity].weights[0].tolist() == pytest.approx([0, 0, 0, 1, 0, 0], abs=1e-6)
    for ranking in ("learned", "learned_norms", "best_head"):
        close(numbers[f"{ranking}.lds"], torch.ones(40, dtype=torch.float64))
    assert (numbers["attention.lds"] < 0.999).all()
    assert (numbers["learned.topk_drop"] >= numbers["attention.topk_drop"] - 1e-9).all()
    scores = tiny.scores_of(effects, pd.DataFrame({name: one.numpy() for name, one in numbers.items()}))
    expected = 1 - float(numbers["attention.lds"].mean())
    assert scores["learned.over_attention"] == pytest.approx(expected)


def test_shuffled_effects_predict_nothing() -> None:
    effects, found = planted(Additive(), 200, 100, draws=200, rankings=["learned_shuffled", "random"])
    lds = measurements(effects, found)
    assert abs(float(lds["learned_shuffled.lds"].mean())) < 0.02
    assert float(lds["random.lds"].mean()) > 0.2  # more words, more effect


def test_texts_without_any_effect_have_no_score_and_are_counted() -> None:
    effects, found = planted(Additive(sign=0.0))
    numbers = measurements(effects, found)
    assert numbers["learned.lds"].isnan().all()
    assert (numbers["attention.topk_drop"] == 0).all()
    result = tiny.checkpoint_result("effects", "a", 0, {name: one.numpy() for name, one in numbers.items()})
    table = effects.tables([replace(result, name=found.checkpoint.name)])["effects"].frame
    assert table["undefined"].tolist() == [40] * 6
    assert table["texts"].tolist() == [0] * 6


def test_weights_are_a_table_and_a_map_of_heads() -> None:
    effects, found = planted(Additive(), rankings=["learned", "attention"])
    numbers = measurements(effects, found)
    values = {name: one.numpy() for name, one in numbers.items()}
    result = replace(tiny.checkpoint_result("effects", "a", 0, values), name=found.checkpoint.name)
    table = effects.tables([result])["effects.weights"].frame
    assert table["head"].tolist() == ["1-1", "1-2", "1-3", "2-1", "2-2", "2-3"]
    assert table["quantity"].unique().tolist() == ["attention"]
    assert table["weight"].tolist() == pytest.approx([0, 0, 0, 1, 0, 0], abs=1e-6)
    assert table["lds"].tolist()[3] == pytest.approx(1)
    figures = effects.figures([result])
    figure = figures["effects.attention"]
    assert isinstance(figure, HeatMap)
    assert figure.values.ravel().tolist() == pytest.approx(table["contribution"].tolist())
    assert effects.audit() == {"train_texts": {found.checkpoint.name: 60}, "ridge": 0}
    flat = fitted("flat")
    assert flat.figures([replace(result, name="flat, seed 0")]) == {}
    unlearned = Effects(["attention"])
    unlearned.begin([checkpoint("flat")], data_of(Texts(tiny.texts("flat"))), CPU, 0)
    assert unlearned.audit() == {}
    assert list(unlearned.tables([result])) == ["effects"]
    assert "learned.over_attention" not in unlearned.scores()


def test_two_devices_fit_what_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[Any] = []
    train, own = Texts(tiny.texts("transformer"), single=True), [checkpoint("transformer")]
    for rank in range(2):
        test = Effects(draws=2)
        monkeypatch.setattr(module, "gather_items", lambda found: [parts.append(one) or one for one in found])  # type: ignore[func-returns-value]
        test.begin(own, data_of(train, Ranks(rank, 2)), CPU, 0)
    assert len(parts) == len(TEXTS)
    monkeypatch.setattr(module, "gather_items", lambda found: parts)
    test.begin(own, data_of(train, Ranks(1, 2)), CPU, 0)
    monkeypatch.undo()
    alone = Effects(draws=2)
    alone.begin(own, data_of(train), CPU, 0)
    (both,), (one,) = test._fitted.values(), alone._fitted.values()
    assert both.texts == one.texts == len(TEXTS)
    for quantity in ("attention", "norms"):
        close(both.probes[quantity].weights, one.probes[quantity].weights, 1e-6)
        assert both.heads[quantity]["lds"].tolist() == pytest.approx(one.heads[quantity]["lds"].tolist(), abs=1e-9)


def test_removals_keep_a_word_and_differ_by_split_seed_and_text() -> None:
    found = classified("transformer", time=9)
    test = with_constants(Effects(), removals=2000, keep=0.3)
    kept, train = test._draw_removals(found, "test"), test._draw_removals(found, "train")
    assert kept.any(-1).all()
    assert not (kept & ~found.words).any()
    assert (kept != train).any()
    assert (kept != test._draw_removals(replace(found, seed=1), "test")).any()
    for row, words in enumerate(found.words.sum(1).tolist()):
        expected = 0.3 / (1 - 0.7**words)  # of a word, given that not all are removed
        shares = kept[:, row][:, found.words[row]].double().mean(0)
        assert shares.tolist() == pytest.approx([expected] * words, abs=0.05)


def test_log_odds_are_exact_where_the_decision_is_certain() -> None:
    found = classified("flat", dtype=torch.float32)
    logits = torch.tensor([[30.0, 0.0, 1.0]]).repeat(len(TEXTS), 1)
    sure = replace(found, output=replace(found.output, logits=logits))
    expected = 30 - np.log(1 + np.e)
    assert log_odds(sure, sure.probabilities).tolist() == pytest.approx([expected] * len(TEXTS), rel=1e-6)


def test_train_without_texts_of_two_words_is_refused() -> None:
    with pytest.raises(UserError, match="none of the texts drawn from train has two words"):
        Effects().begin([checkpoint("flat")], data_of(Texts(batch_of([[7], [8]]))), CPU, 0)
