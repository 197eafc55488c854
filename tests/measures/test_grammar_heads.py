"""Heads that grammar depends on: effects against heads that are off by hand, a planted head, and interrupted runs."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from attention_probing import commands
from attention_probing.attention.ablation import Ablation
from attention_probing.attention.capture import Mixture, replacing
from attention_probing.attention.source import EncoderSpec
from attention_probing.commands import CONFIGS
from attention_probing.corpora.pairs import PairColumns
from attention_probing.datamodules import PairDataModule
from attention_probing.measures import GrammarHeads, MinimalPairAccuracy, measure
from attention_probing.measures.attribution import estimate_effects, head_gradients
from attention_probing.measures.kept_batches import KeptBatches
from attention_probing.measures.pair_effects import PairEffects, Paradigm
from attention_probing.measures.pair_passes import PairPasses
from attention_probing.measures.pair_tasks import MinimalPairs
from attention_probing.measures.pair_times import PassTimes
from attention_probing.measures.paradigm_clusters import ParadigmClusters
from attention_probing.metrics.differences import against_random_draws, widen_for_choice
from attention_probing.metrics.head_effects import effect_of_head, reason_not_to_test
from attention_probing.metrics.p_values import holm
from attention_probing.metrics.pairs import choosing_half
from attention_probing.results import Estimate, Result, UserError
from attention_probing.results.heads import HeadNames
from studies.blank import random_decoder
from tests.measures.test_importance import language_model
from tests.measures.test_pairs import WORDS, Rows, data_of, planted, slow, some_pairs, write
from tests.tiny import save_bert

LAYERS, HEADS = 2, 4
PAIRS = 24  # of each paradigm
RIGHT = 22  # of them, which the model gets right
NAMES = ("p0", "p1", "p2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny GPT-2, a language model."""
    folder = tmp_path_factory.mktemp("grammar")
    language_model("gpt2", folder / "model")
    return folder


@cache
def preferred_pairs(folder: Path) -> Rows:
    """Pairs of three paradigms, of which the model prefers the first sentence in all but two of each."""
    random = np.random.default_rng(0)
    rows: Rows = []
    for name in NAMES:
        for place in range(PAIRS):
            start = int(random.integers(len(WORDS) - 8))
            one = WORDS[start : start + 5 + place % 3]
            other = [*one[:2], one[3], one[2], *one[4:]]
            pair = [" ".join(one), " ".join(other)]
            if (slow(folder / "model", pair[0]) >= slow(folder / "model", pair[1])) != (place < RIGHT):
                pair.reverse()
            rows.append((name, "syntax" if name == "p0" else "semantics", *pair))  # type: ignore[arg-type]
    return rows


def log_ratio(folder: Path, row: tuple[str, ...], heads: tuple[tuple[int, int], ...] = ()) -> float:
    """Log-probability of the first sentence of a pair minus that of the second, with heads off by hand."""
    return slow(folder / "model", row[2], heads) - slow(folder / "model", row[3], heads)


@cache
def effects_by_hand(folder: Path) -> Any:  # noqa: ANN401
    """The intact model's log-ratio minus that without each head, `[pairs, heads]`, from passes of one sentence."""
    rows = preferred_pairs(folder)
    heads = list(product(range(LAYERS), range(HEADS)))
    return np.array([[log_ratio(folder, row) - log_ratio(folder, row, (head,)) for head in heads] for row in rows])


def rows_of(result: Result, kind: str = "zero") -> list[dict[Any, Any]]:
    return result.tables[f"heads_{kind}"].frame.to_dict("records")


@pytest.fixture(scope="module")
def exact(folder: Path) -> Result:
    return measure(data_of(folder, preferred_pairs(folder)), measurements=GrammarHeads(choose="exact", shortlist=5))


def test_effects_are_those_of_heads_that_are_off_by_hand(folder: Path, exact: Result) -> None:
    of_pairs = effects_by_hand(folder)
    matrix = exact.tables["matrix"].frame.query("kind == 'zero'")
    for place, name in enumerate(NAMES):
        of_paradigm = of_pairs[place * PAIRS : (place + 1) * PAIRS]
        effects = matrix.loc[matrix["paradigm"] == name, "effect"]
        np.testing.assert_allclose(effects, of_paradigm.mean(0), atol=1e-4)


def test_one_half_chooses_and_the_other_tests(folder: Path, exact: Result) -> None:
    of_pairs = effects_by_hand(folder)
    paradigms = np.repeat([2, 0, 1], PAIRS)  # semantics before syntax
    chooses = choosing_half(paradigms, 0)
    assert [int(chooses[paradigms == number].sum()) for number in range(3)] == [PAIRS // 2] * 3
    by_name = {row["paradigm"]: row for row in rows_of(exact)}
    p_values = []
    for number, name in ((2, "p0"), (0, "p1"), (1, "p2")):
        row = by_name[name]
        choosing = of_pairs[(paradigms == number) & chooses]
        testing = of_pairs[(paradigms == number) & ~chooses]
        best = int(choosing.mean(0).argmax())
        assert row["head"] == f"{best // HEADS + 1}-{best % HEADS + 1}"
        assert row["n"] == PAIRS // 2
        assert row["effect"] == pytest.approx(testing[:, best].mean(), abs=1e-4)
        others = [head for head in range(8) if head // HEADS == best // HEADS and head != best]
        assert row["random"] == pytest.approx(testing[:, others].mean(), abs=1e-4)
        assert row["beyond_random"] == pytest.approx(row["effect"] - row["random"], abs=1e-6)
        p_values.append(row["beyond_random_p"])
        own = [entry for entry in preferred_pairs(folder) if entry[0] == name]
        tested = [entry for entry, choose in zip(own, chooses[paradigms == number], strict=True) if not choose]
        off = ((best // HEADS, best % HEADS),)
        lost = [(log_ratio(folder, entry) >= 0) - (log_ratio(folder, entry, off) >= 0) for entry in map(tuple, tested)]
        assert row["accuracy_effect"] == pytest.approx(np.mean(np.array(lost, float)))
    effects = [row["effect"] for row in rows_of(exact)]
    assert effects == sorted(effects, reverse=True)
    found = [by_name[name]["beyond_random_p_holm"] for name in NAMES]
    np.testing.assert_allclose(found, holm(p_values))
    assert exact.numbers["pairs.accuracy"] == pytest.approx(RIGHT / PAIRS)


def test_the_gradient_tests_the_same_heads_exactly(folder: Path, exact: Result) -> None:
    """Gradients choose; the chosen head is then replaced, so equal heads have equal rows."""
    found = measure(data_of(folder, preferred_pairs(folder)), measurements=GrammarHeads())
    compared = 0
    for kind in ("zero", "patch"):
        expected_rows = {row["paradigm"]: row for row in rows_of(exact, kind)}
        for row in rows_of(found, kind):
            expected = expected_rows[row["paradigm"]]
            if row["head"] == expected["head"]:
                compared += 1
                for column in ("effect", "random", "beyond_random", "accuracy_effect", "effect.low", "p"):
                    assert row[column] == pytest.approx(expected[column], abs=2e-3), column
    assert compared == 6  # a shortlist of eight heads is all
    assert "zero.on_shortlist" in exact.scores
    assert "zero.on_shortlist" not in found.scores
    assert exact.numbers["zero.spearman"] > 0.8
    assert exact.numbers["patch.spearman"] > 0.9
    agreement = {name for name in found.scores if name.endswith(("spearman", "same_head"))}
    assert agreement == {f"{kind}.layer_{name}" for kind in ("zero", "patch") for name in ("spearman", "same_head")}
    assert found.numbers["zero.layer_spearman"] > 0.7


def test_p_allows_for_the_choice_among_all_heads_not_those_of_the_shortlist(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = []

    def spied(*given: Any) -> Any:  # noqa: ANN401
        heads.append(given[-1])
        return effect_of_head(*given)

    monkeypatch.setattr("attention_probing.measures.grammar_heads.effect_of_head", spied)
    measure(data_of(folder, preferred_pairs(folder)), measurements=GrammarHeads(shortlist=2))
    assert heads == [LAYERS * HEADS] * 2 * len(NAMES)


def test_a_short_shortlist_misses_heads(folder: Path, exact: Result) -> None:
    """The share of paradigms whose best head has the largest estimate, against a ranking by hand."""
    measurement = GrammarHeads(choose="exact", shortlist=1)
    found = measure(data_of(folder, preferred_pairs(folder)), measurements=measurement)
    estimated = measure(data_of(folder, preferred_pairs(folder)), measurements=GrammarHeads()).tables["matrix"].frame
    for kind in ("zero", "patch"):
        listed = []
        for row in rows_of(exact, kind):
            own = estimated.query("kind == @kind and paradigm == @row['paradigm']")
            first = int(own["choosing"].abs().argmax())
            listed.append(own["head"].iloc[first] == row["head"])
        assert found.numbers[f"{kind}.on_shortlist"] == pytest.approx(np.mean(listed))


def test_estimates_of_all_heads_are_ranked_beside_exact_effects(folder: Path, exact: Result) -> None:
    """Over all heads, on the pairs that test one; those of the gradient come from another run."""
    estimated = measure(data_of(folder, preferred_pairs(folder)), measurements=GrammarHeads()).tables["matrix"].frame
    both = exact.tables["matrix"].frame.assign(estimated=estimated["testing"]).query("kind == 'zero'")
    by_paradigm = [
        stats.spearmanr(rows["estimated"], rows["testing"]).statistic for _, rows in both.groupby("paradigm")
    ]
    assert exact.numbers["zero.spearman"] == pytest.approx(np.mean(by_paradigm), abs=1e-6)
    assert "zero.layer_spearman" not in exact.scores


@pytest.mark.parametrize("kind", ["zero", "patch"])
def test_estimates_are_derivatives_by_finite_differences(kind: Any, folder: Path) -> None:  # noqa: ANN401
    data = data_of(folder, preferred_pairs(folder)[:4])
    data.setup("test")
    task = MinimalPairs(data.splits["test"])
    assert task.encoder.language_model is not None
    task.encoder.language_model.double()
    inputs = task.inputs(data.splits["test"][[0, 1, 2, 3]])
    ablation = Ablation(kind)
    partners = task.partners(inputs)

    def log_ratios(outputs: Tensor) -> Tensor:
        return outputs[:, 0] - outputs[:, 1]

    _, outputs, gradients = head_gradients(task.outputs, log_ratios, inputs)
    estimated = estimate_effects(outputs, gradients, ablation, partners).view(4, 2, LAYERS, HEADS).sum(1)

    def moved(layer: int, head: int, step: float) -> Tensor:
        def move(place: int, module: nn.Module, mixture: Mixture) -> Tensor:
            own = mixture.outputs.clone()
            if place == layer:
                replacement = ablation.outputs(layer, torch.tensor([head]), outputs[layer], partners)
                own[:, [head]] += step * (replacement - own[:, [head]])
            return own

        with torch.no_grad(), replacing(move):
            return log_ratios(task.outputs(inputs))

    step = 1e-4
    for layer, head in product(range(LAYERS), range(HEADS)):
        slope = (moved(layer, head, step) - moved(layer, head, -step)) / (2 * step)
        np.testing.assert_allclose(estimated[:, layer, head], -slope, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize(("kind", "paradigm"), [("zero", "verb"), ("patch", "subject")])
@pytest.mark.parametrize("choose", ["gradient", "exact"])
def test_a_planted_head_is_chosen_and_no_decoy(choose: Any, kind: Any, paradigm: Any, tmp_path: Path) -> None:  # noqa: ANN401
    model, data = planted(tmp_path, paradigm)
    found = measure(data, measurements=GrammarHeads(choose=choose))
    [row] = rows_of(found, kind)
    assert row["head"] == model.needed
    assert row["chosen"] == 100
    assert row["accuracy_effect"] >= 0.2
    assert row["p_holm"] < 0.05
    assert row["beyond_random_p_holm"] < 0.05
    assert abs(row["random"]) < 0.02 * row["effect"]
    assert found.numbers[f"{kind}.with_head"] == found.numbers[f"{kind}.beyond_random"] == 1


def test_paradigms_that_are_not_tested_are_blank_with_the_reason(folder: Path) -> None:
    rows = preferred_pairs(folder)
    turned = [(*row[:2], row[3], row[2]) for row in rows[PAIRS : 2 * PAIRS]]
    mixed = [(*row[:2], *(row[2:] if place % 2 else row[:1:-1])) for place, row in enumerate(rows[2 * PAIRS :])]
    few = [("p3", *row[1:]) for row in rows[:19]]
    found = measure(data_of(folder, [*rows[:PAIRS], *turned, *mixed, *few]), measurements=GrammarHeads())
    reasons = {row["paradigm"]: row["reason"] for row in rows_of(found)}
    half = "chance on the choosing half"
    assert reasons == {"p0": "", "p1": f"below {half}", "p2": f"not above {half}", "p3": "fewer than 20 pairs"}
    for row in rows_of(found):
        is_blank = [pd.isna(row[column]) for column in ("head", "effect", "p", "p_holm", "chosen")]
        assert is_blank == [bool(row["reason"])] * 5
    half = half.replace(" ", "_")
    assert found.audit[f"not_above_{half}"] == found.audit[f"below_{half}"] == found.audit["fewer_than_20_pairs"] == 1
    assert "above chance in 1 of 4 paradigms on the pairs that choose, with too few pairs in 1" in found.answer


def test_without_any_tested_paradigm_the_accuracy_is_left(folder: Path) -> None:
    rows = preferred_pairs(folder)
    turned = [(*row[:2], row[3], row[2]) for row in rows]
    found = measure(data_of(folder, turned), measurements=GrammarHeads())
    assert found.answer.endswith("above chance in 0 of 3 paradigms on the pairs that choose.")
    assert found.numbers["zero.tested"] == 0


def test_too_few_pairs_are_refused_before_any_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    monkeypatch.setattr(MinimalPairs, "outputs", counted(MinimalPairs.outputs, passes))
    few = [row for row in preferred_pairs(folder) if row[0] == "p0"][:19]
    with pytest.raises(UserError, match=r"20 pairs or more, but the largest has 19 pairs\. Read more pairs"):
        measure(data_of(folder, few), measurements=GrammarHeads())
    assert not passes


def test_a_large_estimate_of_the_wrong_sign_is_on_the_shortlist() -> None:
    """Two pairs choose, two test; the estimates of the pairs that test are no part of it."""
    estimated = np.array([[1.0, -9.0, 0.1, 2.0], [1.0, -7.0, 0.1, 2.0], [5.0, 5.0, 50.0, 5.0], [5.0, 5.0, 50.0, 5.0]])
    ablation = Ablation("zero")
    task: Any = SimpleNamespace(heads=2)
    measured = PairEffects(
        task, HeadNames((0, 1), (0, 1)), np.arange(4), np.zeros((4, 2)), {ablation: estimated}, {}, 0
    )
    half = np.array([True, True, False, False])
    paradigm = Paradigm("one", "syntax", 0, half, ~half, Estimate(1.0, unit="fraction"), "")
    assert measured.shortlist(ablation, paradigm, 3).tolist() == [1, 3, 0]
    chosen = measured.choose(ablation, paradigm, np.array([1, 3]), np.array([[3.0, 1.0], [2.0, 1.0]]), 1)
    assert chosen.rivals == ""
    assert (chosen.head, chosen.heads, chosen.again) == (1, frozenset({(0, 1)}), 100)
    assert chosen.random == (frozenset({(0, 0)}),)


def test_pairs_without_paradigms_are_one(folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path, preferred_pairs(folder))
    columns = PairColumns(paradigm=None, field=None, id=None)
    data = PairDataModule(str(path), EncoderSpec(str(folder / "model")), cache=str(tmp_path), columns=columns)
    [row] = rows_of(measure(data, measurements=GrammarHeads()))
    assert (row["paradigm"], row["n"], row["reason"]) == ("all", 36, "")


def test_pairs_that_patching_cannot_change_have_the_reason(folder: Path) -> None:
    rows: Rows = []
    for place in range(PAIRS):
        start = WORDS[place : place + 4]
        pair = [" ".join([*start, word]) for word in ("dogs", "the")]  # of one token each
        pair.sort(key=lambda sentence: -slow(folder / "model", sentence))
        rows.append(("last", "syntax", *pair))  # type: ignore[arg-type]
    found = measure(data_of(folder, rows), measurements=GrammarHeads())
    assert rows_of(found)[0]["reason"] == ""
    assert rows_of(found, "patch")[0]["reason"] == "no head changes a pair"


def test_a_masked_language_model_and_a_kind_given_twice_are_refused(tmp_path: Path) -> None:
    save_bert(tmp_path / "model")
    with pytest.raises(UserError, match=r"reads decoders, but .* is a masked language model\. Name a decoder"):
        measure(data_of(tmp_path, some_pairs()), measurements=GrammarHeads())
    with pytest.raises(UserError, match="zero"):
        GrammarHeads(kinds=["zero", "zero"])


def test_a_model_that_says_nan_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = MinimalPairs.outputs
    monkeypatch.setattr(MinimalPairs, "outputs", lambda task, inputs: outputs(task, inputs) * torch.nan)
    with pytest.raises(UserError, match="The model output is nan for 72 of 72 pairs"):
        measure(data_of(folder, preferred_pairs(folder)), measurements=GrammarHeads())


def test_an_interrupted_measurement_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = preferred_pairs(folder)
    calls = 0
    last = 1000
    run = MinimalPairs.rows

    def interrupted(task: MinimalPairs, *args: Any) -> dict[str, Tensor]:  # noqa: ANN401
        nonlocal calls
        calls += 1
        if calls > last:
            raise KeyboardInterrupt
        return run(task, *args)

    def begun() -> GrammarHeads:
        measurement = GrammarHeads()
        measurement.kept = tmp_path / "kept"
        return measurement

    monkeypatch.setattr(PairPasses, "time", lambda passes: PassTimes(0, 0, 0, 0, LAYERS))
    monkeypatch.setattr(MinimalPairs, "rows", interrupted)
    whole = begun()
    whole.kept = None
    expected = measure(data_of(folder, rows), measurements=whole)
    needed = calls
    calls = 0
    last = 2
    with pytest.raises(KeyboardInterrupt):
        measure(data_of(folder, rows), measurements=begun())
    kept = list((tmp_path / "kept").glob("*/*"))
    of_estimates = [path for path in kept if b"estimated_zero" in path.read_bytes()]
    assert len(kept) == last + len(of_estimates)
    of_estimates[0].write_bytes(b"damaged")
    calls = 0
    last = 1000
    passes: list[int] = []
    monkeypatch.setattr("attention_probing.measures.pair_passes.head_gradients", counted(head_gradients, passes))
    found = measure(data_of(folder, rows), measurements=begun())
    assert calls == needed - 2
    assert len(passes) == 1  # of the damaged file
    assert "An interrupted run of this command has left a part of its numbers" in caplog.text
    for kind in ("zero", "patch"):
        name = f"heads_{kind}"
        pd.testing.assert_frame_equal(found.tables[name].frame, expected.tables[name].frame, rtol=1e-6)


def test_passes_are_timed_once_for_an_interrupted_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Interrupted(GrammarHeads):
        def update(self, batch: Any) -> None:  # noqa: ANN401
            raise KeyboardInterrupt

    times = []
    for _ in range(2):
        measurement = Interrupted()
        measurement.kept = tmp_path / "kept"
        with pytest.raises(KeyboardInterrupt):
            measure(data_of(folder, preferred_pairs(folder)), measurements=measurement)
        times.append(measurement.times)
    assert times[0] == times[1]
    assert times[0].intact > 0
    assert caplog.text.count("Timing a few passes") == 1


def counted(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:  # noqa: ANN401
        calls.append(1)
        return function(*args)

    return call


def test_kept_batches_are_told_apart_by_part_and_items(tmp_path: Path) -> None:
    kept = KeptBatches(tmp_path)
    one, other = torch.tensor([1, 2]), torch.tensor([2, 1])
    for part, items, number in (("a", one, 1.0), ("a", other, 2.0), ("b", one, 3.0)):
        kept.take(part, items, partial(dict, x=torch.tensor([number])))
    again = KeptBatches(tmp_path)
    assert again.take("a", other, dict)["x"].tolist() == [2.0]
    assert again.take("b", one, dict)["x"].tolist() == [3.0]
    assert again.found == 3
    assert KeptBatches(None).take("a", one, lambda: {"x": one})["x"] is one


def test_the_time_is_that_of_the_passes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of four heads: 3 s for an estimate, 1 s intact, and 1 or .5 s with a head replaced, a token each."""
    times = PassTimes(3, 1, 1, 0.5, LAYERS)
    assert [times.replaced(layer) for layer in range(2)] == [1, 0.5]
    monkeypatch.setattr(PairPasses, "time", lambda passes: times)
    rows = preferred_pairs(folder)
    predicted: dict[str, list[float]] = {}
    for choose in ("gradient", "exact"):
        measurement = GrammarHeads(kinds=["zero"], choose=choose)
        result = measure(data_of(folder, rows), measurements=measurement)
        assert len(result.tables["paradigms"].frame) == 3
        tokens = measurement._passes.tokens(np.arange(len(rows)))
        predicted[choose] = [seconds / tokens for seconds in measurement.predict_seconds()]
    assert predicted["gradient"] == [3, 1 + (8 + 4) / 2 * 1]  # of low layers, at most
    assert predicted["exact"] == [3 + 1 + 8 * 0.75, 0]


@pytest.mark.parametrize(("right_where_chosen", "reason"), [(True, ""), (False, "below chance on the choosing half")])
def test_a_paradigm_is_tested_by_the_accuracy_of_the_half_that_chooses(right_where_chosen: bool, reason: str) -> None:
    chooses = choosing_half(np.zeros(40, np.int64), 0)
    right = chooses == right_where_chosen
    intact = np.stack([right, ~right], 1).astype(float)
    task: Any = SimpleNamespace(pairs=[SimpleNamespace(field="syntax", paradigm="one")] * 40)
    [paradigm] = PairEffects(task, HeadNames((0,), (0,)), np.arange(40), intact, {}, {}, seed=0).paradigms
    assert (paradigm.accuracy.value, paradigm.reason) == (0.5, reason)


def test_reasons_and_effects_of_arrays() -> None:
    half = np.arange(20) < 10
    right = half.astype(np.float64)
    assert reason_not_to_test(np.ones(19), half[:19]) == "fewer than 20 pairs"
    assert reason_not_to_test(np.ones(20), half) == ""
    assert reason_not_to_test(np.zeros(20), half) == "below chance on the choosing half"
    assert reason_not_to_test(np.repeat([1.0, 0.0], [13, 7])[::-1], half) == "not above chance on the choosing half"
    assert reason_not_to_test(right, half) == "", "the testing half is not asked"
    assert reason_not_to_test(right[::-1], half) == "below chance on the choosing half"
    random = np.random.default_rng(0)
    intact = random.normal((2, 0), size=(30, 2))
    sets = [intact + random.normal(size=(30, 2)) for _ in range(4)]
    found = effect_of_head(intact, sets[0], sets[1:], 999, 4)
    lost = [(intact - one) @ [1, -1] for one in sets]
    assert found.effect.value == pytest.approx(lost[0].mean())
    assert found.random.value == pytest.approx(np.mean(lost[1:]))
    assert found.beyond_random.value == pytest.approx(lost[0].mean() - np.mean(lost[1:]))
    assert found.accuracy.value == pytest.approx(
        (intact[:, 0] >= intact[:, 1]).mean() - (sets[0][:, 0] >= sets[0][:, 1]).mean()
    )
    assert found.beyond_random.p is not None
    assert found.accuracy.p is None
    _, alone = against_random_draws(replace(found.effect), [])
    assert np.isnan(alone.value)


@pytest.mark.parametrize("size", [4, 9, 16])
def test_the_choice_of_the_greatest_of_a_sample_is_that_of_grubbs(size: int) -> None:
    """p is .05 where the deviation from the mean is Grubbs' critical value, in standard deviations of the sample."""
    others = np.random.default_rng(size).normal(size=size - 1)
    t = stats.t.ppf(1 - 0.05 / (2 * size), size - 2)
    critical = (size - 1) / np.sqrt(size) * np.sqrt(t**2 / (size - 2 + t**2))

    def excess(greatest: float) -> float:
        sample = np.append(others, greatest)
        return float((greatest - sample.mean()) / sample.std(ddof=1) - critical)

    greatest = optimize.brentq(excess, others.mean(), others.mean() + 1e5)
    apart = Estimate(greatest - others.mean(), 0.0, 0.0, unit="nats", p=0.0)
    found = widen_for_choice(apart, others.tolist(), size)
    assert found.p == pytest.approx(0.05, rel=1e-4)
    assert found.interval[0] == pytest.approx(0, abs=1e-3)
    assert widen_for_choice(apart, others.tolist(), 5 * size).p == pytest.approx(0.25, rel=1e-4)
    assert widen_for_choice(replace(apart, p=0.3), others.tolist(), size).p == 0.3


def test_first_order_effects_of_a_model_in_bfloat16_are_summed_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, gradients = (torch.randn(2, 3, 40, 16, generator=generator).bfloat16() for _ in range(2))
    found = estimate_effects([outputs], [gradients], Ablation("zero"), (outputs, outputs))
    assert found.dtype == torch.float32
    expected = (outputs.double() * gradients.double()).sum((2, 3))
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-4)


def test_too_few_pairs_for_so_many_paradigms_leave_the_counts_blank(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten pairs test a head: the smallest p is 2 / 2¹⁰, and 26 times this is above .05."""
    rows = preferred_pairs(folder)[:RIGHT]
    pairs: Rows = [(f"p{number}", "syntax", *row[2:]) for number in range(26) for row in rows[:20]]
    with pytest.warns(
        UserWarning, match=r"zero: the smallest p that the pairs allow is 0\.051 after Holm.*26 paradigms"
    ):
        found = measure(data_of(folder, pairs), measurements=GrammarHeads(["zero"]))
    assert found.numbers["zero.tested"] == 26
    assert np.isnan(found.numbers["zero.with_head"])
    assert np.isnan(found.numbers["zero.beyond_random"])
    assert found.tables["fields"].frame["with_head"].isna().all()
    assert "so few pairs cannot tell in any of 26 (p is at least .051 after Holm)" in found.answer
    assert "none" not in found.answer
    fewer = measure(data_of(folder, pairs[:500]), measurements=GrammarHeads(["zero"]))
    assert not np.isnan(fewer.numbers["zero.with_head"])


def test_a_decoder_with_one_head_a_layer_has_nothing_to_compare_it_with(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(20)]
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1}
    size |= {"head_dim": 16, "intermediate_size": 16, "max_position_embeddings": 16}
    random_decoder(words, size).save(tmp_path / "model")
    rows: Rows = []
    for first, second in product(words[:5], words[5:10]):
        rows.append(("p0", "syntax", f"{first} {second} w0", f"{first} {second} w1"))
    intact = measure(data_of(tmp_path, rows), measurements=MinimalPairAccuracy()).items
    assert intact is not None
    preferred: Rows = []
    for row, is_right in zip(rows, intact["right"], strict=True):
        preferred.append(row if is_right else (*row[:2], row[3], row[2]))
    found = measure(data_of(tmp_path, preferred), measurements=GrammarHeads())
    [chosen] = rows_of(found)
    assert chosen["reason"] == ""
    assert chosen["head"] in {"1-1", "2-1"}
    assert np.isnan(chosen["beyond_random_p"])
    assert np.isnan(found.numbers["zero.beyond_random"])
    assert not np.isnan(found.numbers["zero.with_head"])
    assert "of 1" in found.answer
    assert "more than random heads" not in found.answer


@pytest.mark.parametrize("exchanged", ["pairs", "weights"])
def test_nothing_is_taken_of_a_run_with_other_files(
    exchanged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is exchanged for another of the same size after an interruption; the same command is given again."""
    language_model("gpt2", tmp_path / "model")
    rows = preferred_pairs(tmp_path)
    pairs = write(tmp_path, rows)
    words = ["measure", "grammar", "--corpus", str(pairs), "--encoder", str(tmp_path / "model")]
    words += ["--data.cache", str(tmp_path / "cache"), "--trainer.default_root_dir", str(tmp_path / "runs")]
    words += ["--trainer.accelerator", "cpu"]
    with monkeypatch.context() as patched:
        patched.setattr(GrammarHeads, "result", Mock(side_effect=KeyboardInterrupt))
        assert commands.main(words) != 0
    sizes = [path.stat().st_size for path in (pairs, *(tmp_path / "model").iterdir())]
    if exchanged == "pairs":
        write(tmp_path, [(*row[:2], row[3], row[2]) for row in rows])
    else:
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.flip(0))
        model.save_pretrained(tmp_path / "model")
    assert sizes == [path.stat().st_size for path in (pairs, *(tmp_path / "model").iterdir())]
    assert commands.main(words) == 0
    [record] = (tmp_path / "runs").rglob("results.json")
    found = json.loads(record.read_text(encoding="utf-8"))["scores"]
    data = PairDataModule(str(pairs), EncoderSpec(str(tmp_path / "model")), cache=str(tmp_path / "other"))
    expected = measure(data, measurements=MinimalPairAccuracy())
    assert expected.numbers["pairs.accuracy"] != pytest.approx(RIGHT / PAIRS)
    assert found["pairs.accuracy"] == pytest.approx(expected.numbers["pairs.accuracy"])


def test_clusters_are_made_on_one_half_and_tested_on_the_other() -> None:
    random = np.random.default_rng(0)
    shared = random.normal(size=(2, 40))
    groups = np.repeat([0, 1], 6)
    choosing = shared[groups] + random.normal(0, 0.3, (12, 40))
    testing = shared[groups] + random.normal(0, 0.3, (12, 40))
    fields = ["a", "b"] * 6
    found = ParadigmClusters.from_effects(choosing, testing, fields, 0)
    assert len({*found.clusters[:6].tolist()} & {*found.clusters[6:].tolist()}) == 0
    assert found.p < 0.01
    assert found.p_of_fields > 0.05
    assert found.within < 0.2 < 0.7 < found.between
    expected = [np.corrcoef(choosing[place], testing[place])[0, 1] for place in range(12)]
    np.testing.assert_allclose(found.reliability, expected)
    assert found.correlations[0, 1] == pytest.approx(np.corrcoef(choosing[0], testing[1])[0, 1])
    noise = ParadigmClusters.from_effects(random.normal(size=(12, 40)), random.normal(size=(12, 40)), fields, 0)
    assert noise.p > 0.05


def test_dry_tells_the_time_and_stores_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    pairs = write(tmp_path, preferred_pairs(folder))
    words = ["measure", "grammar", "--corpus", str(pairs), "--encoder", str(folder / "model")]
    words += ["--data.cache", str(tmp_path / "cache"), "--trainer.default_root_dir", str(tmp_path / "runs"), "--dry"]
    commands.main(words)
    assert "Only a few passes were timed, and nothing was stored." in capsys.readouterr().out
    assert "Effects of 8 heads (zero and patch) on 72 pairs, if nothing else runs here: about 0 s to" in caplog.text
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_two_processes_write_what_one_does(folder: Path, run_config: Callable[..., Any], tmp_path: Path) -> None:
    arguments = ["measure", f"--config={CONFIGS / 'grammar.yaml'}"]
    arguments += [f"--data.corpus={write(tmp_path, preferred_pairs(folder))}"]
    arguments += [f"--data.encoder.name={folder / 'model'}", f"--data.cache={tmp_path}"]
    _, one, at_one = run_config(*arguments, own_data=True)
    _, two, at_two = run_config(*arguments, own_data=True, processes=2)
    assert one["scores"] == pytest.approx(two["scores"], nan_ok=True)
    heads = [pd.read_csv(at / one["tables"]["heads_zero"]) for at in (at_one, at_two)]
    pd.testing.assert_frame_equal(heads[0], heads[1], rtol=1e-4)
