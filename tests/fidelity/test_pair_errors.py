"""Errors of decoders on minimal pairs, told by the attention of their heads: planted, random, absent, and too few."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pytorch_lightning.utilities.seed import isolate_rng
from transformers import AutoModelForCausalLM

from attention_probing import measure
from attention_probing.attention import EncoderSpec
from attention_probing.commands import CONFIGS
from attention_probing.datamodules import PairDataModule
from attention_probing.fidelity import PairErrorPrediction
from attention_probing.fidelity.error_comparison import Comparison, FittedErrors, JudgedDecisions, errors_table
from attention_probing.fidelity.head_features import head_names, reading_heads
from attention_probing.fidelity.pair_errors import PairReader, PairRows, means_of_pairs
from attention_probing.measures import MinimalPairAccuracy
from attention_probing.measures.pair_tasks import MinimalPairs
from attention_probing.results import Result
from attention_probing.results.errors import UserError
from studies.blank import random_decoder
from studies.known_cases import DECODER, write_pair_errors
from tests.glossary import unexplained
from tests.tiny import save_bert


def data_of(folder: str | Path, pairs: str = "pairs.jsonl", **options: Any) -> PairDataModule:  # noqa: ANN401
    return PairDataModule(f"{folder}/{pairs}", EncoderSpec(f"{folder}/model"), cache=str(folder), **options)


def predicted(folder: str, pairs: str = "pairs.jsonl", **options: Any) -> Result:  # noqa: ANN401
    measurement = PairErrorPrediction(**{"halves": 8, "shuffles": 5, "random_weights": False, **options})
    return measure(data_of(folder, pairs), measurements=measurement)


def keep_pairs(folder: str, keep: Callable[[int, Mapping[str, str]], bool]) -> str:
    """Write some of the pairs, and return the name of the file."""
    kept = []
    for number, line in enumerate((Path(folder) / "pairs.jsonl").read_text(encoding="utf-8").splitlines()):
        if keep(number, json.loads(line)):
            kept.append(line)
    (Path(folder) / "some.jsonl").write_text("\n".join([*kept, ""]), encoding="utf-8")
    return "some.jsonl"


def write_random_contrast(folder: Path, seed: int) -> str:
    """Write a decoder with random weights, and 240 pairs of random words of one paradigm; return the folder.

    The third word of all acceptable sentences is the same, and so is that of the others.
    """
    words = [f"w{number}" for number in range(60)]
    with isolate_rng():
        torch.manual_seed(seed)
        random_decoder(words, DECODER).save(folder / "model")
    random = np.random.default_rng(1)
    acceptable, other = random.choice(words, 2, replace=False).tolist()
    lines = []
    for number in range(240):
        first, second, *rest = random.choice(words, 4).tolist()
        good, bad = (" ".join([first, second, word, *rest]) for word in (acceptable, other))
        pair = {"sentence_good": good, "sentence_bad": bad, "UID": "contrast", "field": "f", "pairID": str(number)}
        lines.append(json.dumps(pair))
    (folder / "pairs.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return str(folder)


def has_repeated_word(pair: Mapping[str, str]) -> bool:
    words = pair["sentence_good"].split()
    return len(set(words)) < len(words)


@pytest.mark.core
@pytest.mark.slow
def test_errors_that_one_head_tells_are_found_and_so_is_the_head(tmp_path: Path) -> None:
    result = predicted(write_pair_errors(tmp_path / "told", 0, told=1.0), random_weights=True)
    scores = result.scores
    assert scores["attention.auroc"].value > 0.99
    gain = scores["attention_paradigm_confidence.minus_paradigm_confidence"]
    assert gain.value > 0.3
    assert (gain.p or 1) < 0.01
    assert abs(scores["confidence.auroc"].value - 0.5) < 0.2
    assert result.tables["heads"].frame["head"][0] == "2-1"
    assert "all three differ from confidence and paradigm by +" in result.answer
    assert re.search(r"and from random weights in place of attention by \+\d", result.answer)
    assert ": attention knows more;" in result.answer
    over_random = scores["attention_paradigm_confidence.minus_random_weights_paradigm_confidence"]
    with_attention = scores["attention_paradigm_confidence.auroc"].value
    with_random = scores["random_weights_paradigm_confidence.auroc"].value
    assert over_random.value == pytest.approx(with_attention - with_random)
    assert (over_random.p or 1) < 0.01
    errors = result.tables["errors"].frame.set_index("predictor")
    assert list(errors.index) == [
        "confidence",
        "length",
        "paradigm",
        "paradigm_confidence",
        "attention",
        "attention_confidence",
        "attention_paradigm_confidence",
        "random_weights",
        "random_weights_confidence",
        "random_weights_paradigm_confidence",
        "shuffled",
    ]
    assert errors["pairs"].unique().tolist() == [150]
    assert errors["n"].unique().tolist() == [round(scores["error_rate"].value * 150)]
    assert not unexplained(result.experiment, {name: score.unit for name, score in scores.items()})
    assert result.audit["dev_pairs"] == 150


KNOWN = {"attention": ": attention knows more;", "both": "knows more than the attention of random weights;"}


@pytest.mark.parametrize("told_by", KNOWN)
def test_attention_knows_more_only_if_it_adds_more_than_random_weights(told_by: str) -> None:
    rng = np.random.default_rng(0)
    signal = rng.normal(0, 1, (2, 400))
    wrong = signal + rng.logistic(0, 0.3, (2, 400)) > 0.5
    sides = []
    for of_side, is_wrong in zip(signal, wrong, strict=True):
        attention = np.column_stack([of_side, rng.normal(0, 1, 400)])
        random_weights = rng.normal(0, 1, (400, 2))
        if told_by == "both":
            random_weights[:, 0] = of_side + rng.normal(0, 0.1, 400)
        features = {"attention": attention, "random_weights": random_weights}
        sides.append(JudgedDecisions(np.arange(400), is_wrong, rng.random(400), rng.normal(8, 1, 400), features))
    dev, test = sides
    errors = FittedErrors("model", dev, test, [("1-1", "entropy"), ("1-1", "first")])
    errors.fit(8, 5, 0)
    comparison = Comparison.of([errors])
    assert comparison.gain.difference.value > 0.2
    assert KNOWN[told_by] in comparison.answer([""])


def test_a_predictor_without_a_feature_and_few_errors_are_said_to_be_so() -> None:
    rng = np.random.default_rng(0)
    wrong = np.zeros(400, dtype=bool)
    wrong[:12] = True
    features = {"attention": np.zeros((400, 1))}  # says nothing, so the regression chooses nothing
    decisions = JudgedDecisions(np.arange(400), wrong, rng.random(400), rng.normal(8, 1, 400), features)
    errors = FittedErrors("model", decisions, decisions, [("1-1", "entropy")])
    errors.fit(8, 5, 0)
    comparison = Comparison.of([errors])
    assert comparison.answer([""]).startswith("Of 400 decisions 12* are wrong; ")
    table = errors_table({"model": comparison}, "pairs")
    chosen = table.frame.set_index("predictor")["chosen"]
    assert chosen["attention"] == 0
    assert "chosen" in table.main
    assert table.note is not None
    assert table.note.endswith("With 0 in `chosen` the regression chose no feature, so its AUROC is 50†.")


@pytest.mark.slow
@pytest.mark.parametrize("by_paradigm", [False, True])
def test_random_errors_and_those_of_a_hard_paradigm_are_not_told(by_paradigm: bool, tmp_path: Path) -> None:
    result = predicted(write_pair_errors(tmp_path / "pairs", 1, told=0, by_paradigm=by_paradigm))
    scores = result.scores
    assert (scores["attention_paradigm_confidence.minus_paradigm_confidence"].p or 0) > 0.05
    assert "no evidence that attention knows more" in result.answer
    # Attention shows the paradigm, and so the errors; but no more than the name of the paradigm does.
    assert (scores["attention.auroc"].interval[0] > 0.5) == by_paradigm
    assert (scores["paradigm.auroc"].interval[0] > 0.5) == by_paradigm
    assert not any("random_weights" in name for name in scores)


def test_the_decisions_are_those_of_the_accuracy_on_pairs(tmp_path: Path) -> None:
    folder = write_pair_errors(tmp_path / "pairs", 2, told=1.0, pairs=61)
    items = predicted(folder).items
    plain = measure(data_of(folder), measurements=MinimalPairAccuracy()).items
    assert items is not None
    assert plain is not None
    assert len(items) == items["id"].nunique() == 31
    plain = plain.set_index("id").loc[items["id"]]
    np.testing.assert_allclose(items[["good", "bad"]], plain[["good", "bad"]], rtol=1e-6)
    assert (items["wrong"] == 1 - plain["right"].to_numpy()).all()
    apart = (items["good"] - items["bad"]).abs()
    np.testing.assert_allclose(items["probability"], 1 / (1 + np.exp(-apart)))
    assert set(items["tokens"]) == {10.0}


@pytest.mark.parametrize("rows", ["all", "answer", "context"])
def test_features_are_those_of_the_maps_that_transformers_returns(rows: PairRows, tmp_path: Path) -> None:
    folder = write_pair_errors(tmp_path / "pairs", 3, told=1.0, pairs=8)
    file = Path(folder) / "pairs.jsonl"
    pair = {
        "sentence_good": "the dog",
        "sentence_bad": "the dog saw the cat",
        "UID": "one",
        "field": "f",
        "pairID": "8",
    }
    same = {**pair, "sentence_bad": "the dog", "pairID": "9"}
    lines = [json.dumps(pair), json.dumps(same)]
    file.write_text("\n".join([file.read_text(encoding="utf-8").strip(), *lines, ""]), encoding="utf-8")
    data = data_of(folder)
    data.setup("test")
    split = data.splits["test"]
    batch = split[list(range(10))]
    reader = PairReader(batch, rows)
    language_model = split.encoder.language_model
    assert language_model is not None
    with torch.no_grad(), reading_heads(reader.reduce) as of_layers:
        language_model(input_ids=batch.tokens, attention_mask=batch.mask.long())
    features = torch.cat(of_layers, 1)
    assert head_names(of_layers)[:5] == ("1-1", "1-2", "1-3", "1-4", "2-1")
    eager = AutoModelForCausalLM.from_pretrained(f"{folder}/model", attn_implementation="eager")
    for sentence, n in enumerate(batch.lengths.tolist()):
        ids = batch.tokens[sentence, :n]
        other = batch.tokens[sentence ^ 1, : batch.lengths[sentence ^ 1]].tolist()
        context = 0
        while context < n - 1 and ids[: context + 1].tolist() == other[: context + 1]:
            context += 1
        assert int(reader.context[sentence]) == context
        start, end = {"all": (0, n), "answer": (context, n), "context": (0, context)}[rows]
        with torch.no_grad():
            maps = eager(ids[None], output_attentions=True).attentions
        for place in range(12):
            expected = maps[place // 4][0, place % 4]
            entropy, first, distance, lookback = features[sentence, place].tolist()
            of_rows = expected[start:end]
            assert entropy == pytest.approx(float(-of_rows.square().sum(1).log().mean()), abs=1e-4)
            assert first == pytest.approx(float(of_rows[:, 0].mean()), abs=1e-4)
            apart = [sum(float(w) * abs(i - j) for j, w in enumerate(expected[i])) for i in range(start, end)]
            assert distance == pytest.approx(np.mean(apart), abs=1e-3)
            ratios = []
            for i in range(max(start, context), end):
                to_context = float(expected[i, :context].mean())
                ratios.append(to_context / (to_context + float(expected[i, context : i + 1].mean())))
            if rows == "context":
                assert np.isnan(lookback)
            else:
                assert lookback == pytest.approx(np.mean(ratios), abs=1e-4)


def test_exchanging_the_sentences_changes_no_feature() -> None:
    numbers = torch.randn(8, 3, 2, generator=torch.Generator().manual_seed(0))
    exchanged = numbers.view(4, 2, 3, 2).flip(1).flatten(0, 1)
    found = means_of_pairs(numbers)
    torch.testing.assert_close(found, means_of_pairs(exchanged))
    torch.testing.assert_close(found[2], (numbers[4] + numbers[5]) / 2)


@pytest.mark.slow
def test_the_form_of_the_acceptable_sentence_does_not_tell_errors(tmp_path: Path) -> None:
    """The attention of a decoder with random weights shows which of two words a sentence has.

    The acceptable sentences of the paradigm have one of them, so features of the preferred sentence alone would tell
    almost all errors.
    """
    folder = write_random_contrast(tmp_path / "contrast", 5)
    result = predicted(folder)
    assert 0.2 < result.scores["error_rate"].value < 0.8
    attention = result.scores["attention.auroc"]
    assert abs(attention.value - 0.5) < 0.1
    assert not attention.interval[0] > 0.5  # nan where no feature is chosen
    assert "no evidence that attention knows more" in result.answer


def test_a_log_probability_that_is_nan_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_pair_errors(tmp_path / "pairs", 9, told=1.0, pairs=10)
    outputs = MinimalPairs.outputs

    def without_the_first(task: MinimalPairs, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        log_probabilities = outputs(task, inputs)
        log_probabilities[0, 1] = torch.nan
        return log_probabilities

    monkeypatch.setattr(MinimalPairs, "outputs", without_the_first)
    with pytest.raises(UserError, match=r"The model output is nan for 1 of 10 pairs\. Use another model\."):
        predicted(folder)


def test_pairs_without_an_error_are_blank_with_their_reason(tmp_path: Path, caplog: Any) -> None:  # noqa: ANN401
    folder = write_pair_errors(tmp_path / "pairs", 4, told=1.0, pairs=40)
    result = predicted(folder, keep_pairs(folder, lambda _, pair: not has_repeated_word(pair)))
    assert all(np.isnan(score.value) for name, score in result.scores.items() if "auroc" in name or "minus" in name)
    reason = f"none of the {len(result.items if result.items is not None else [])} decisions on test is wrong"
    assert f"AUROC is undefined: {reason}." in result.answer
    assert reason in caplog.text
    assert result.audit["undefined"] == reason


def test_pairs_of_one_paradigm_have_none_to_be_told_by(tmp_path: Path) -> None:
    folder = write_pair_errors(tmp_path / "pairs", 5, told=1.0, pairs=120)
    result = predicted(folder, keep_pairs(folder, lambda number, _: number % 2 == 0))
    assert not any("paradigm" in name for name in result.scores)
    assert "both together differ from the confidence alone" in result.answer


@pytest.mark.parametrize("random_weights", [False, True])
def test_each_model_reads_each_pair_once(random_weights: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    folder = write_pair_errors(tmp_path / "pairs", 6, told=1.0, pairs=20)
    data = data_of(folder)
    measurement = PairErrorPrediction(halves=1, shuffles=1, random_weights=random_weights)

    def count(module: torch.nn.Module, args: object, kwargs: Mapping[str, torch.Tensor]) -> None:
        read.append(len(kwargs["input_ids"]))

    begin = PairErrorPrediction.begin

    def begin_and_count(self: PairErrorPrediction) -> None:
        begin(self)
        for encoder in (self.task.encoder, self._random):
            if encoder is not None:
                encoder.model.register_forward_pre_hook(count, with_kwargs=True)

    monkeypatch.setattr(PairErrorPrediction, "begin", begin_and_count)
    measure(data, measurements=measurement)
    assert sum(read) == 2 * 20 * (1 + random_weights)


def test_a_model_that_sees_both_sides_is_refused_in_a_line(tmp_path: Path) -> None:
    save_bert(tmp_path / "model")
    pair = {"sentence_good": "dogs bark", "sentence_bad": "dogs barks", "UID": "one", "field": "f", "pairID": "1"}
    (tmp_path / "pairs.jsonl").write_text(f"{json.dumps(pair)}\n", encoding="utf-8")
    message = (
        r"PairErrorPrediction reads the attention of a decoder, but \S+ sees the words on both sides\. Name a decoder"
    )
    with pytest.raises(UserError, match=message):
        measure(data_of(tmp_path), measurements=PairErrorPrediction())


BAD: Mapping[str, tuple[dict[str, Any], str]] = {
    "no feature": ({"features": []}, r"`features` is empty\. Give one or more of entropy, first, distance, lookback\."),
    "other feature": ({"features": ["width"]}, "width"),
    "other rows": ({"rows": "decision"}, "decision"),
    "no halves": ({"halves": 0}, "halves is 0, but must be at least 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_told_in_a_line(name: str) -> None:
    options, message = BAD[name]
    with pytest.raises(UserError, match=message):
        PairErrorPrediction(**options)


@pytest.mark.slow
def test_the_config_runs(run_config: Callable[..., Any], tmp_path: Path) -> None:
    folder = write_pair_errors(tmp_path / "pairs", 8, told=0.7, pairs=80)
    arguments = ["measure", f"--config={CONFIGS / 'ostmeier2026/pair_errors.yaml'}", f"--data.cache={tmp_path}"]
    arguments += [f"--data.corpus={folder}/pairs.jsonl", f"--data.encoder.name={folder}/model"]
    arguments += ["--model.halves=3", "--model.shuffles=2", "--model.rows=answer"]
    _, found, at = run_config(*arguments, own_data=True)
    assert found["scores"]["attention.auroc"] > 0.6
    items = pd.read_parquet(at / found["items"])
    assert found["scores"]["error_rate"] == pytest.approx(items["wrong"].mean())
    assert re.match(r"Of 40 decisions \d+\*? are wrong", found["answer"])
    assert found["scores"]["attention.auroc.high"] == 1  # 1.009 by the fits to so few errors
