"""Errors of classifiers, told by the attention of their heads: planted, random, absent, and too few."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from attention_probing import measure
from attention_probing.attention import EncoderSpec
from attention_probing.commands import CONFIGS, launch
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity import ErrorPrediction
from attention_probing.fidelity.error_prediction import decisions_of, read_heads
from attention_probing.models import HierarchicalClassifier, TransformerClassifier
from attention_probing.models.transformer import SequenceClassifier
from attention_probing.results import Result
from attention_probing.results.errors import UserError
from studies.known_cases import PLANTED, write_errors
from studies.planted import LABELS, planted_model
from tests.fidelity.tiny import classifier
from tests.glossary import unexplained
from tests.metrics.test_attention_features import by_loops
from tests.models.batches import batch_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier whose head 2-1 attends to repeated words, which no decision depends on."""
    kind, heads, decision = PLANTED["repeats"]
    folder = tmp_path_factory.mktemp("model") / "repeats"
    planted_model(kind, heads, decision=decision).save(folder)
    return folder


def data_of(corpus: str | dict[str, str], model: Path, folder: Path, **options: Any) -> ClassificationDataModule:  # noqa: ANN401
    encoder = EncoderSpec(str(model))
    return ClassificationDataModule(corpus, tokenizer=encoder, positive=LABELS[1], cache=str(folder), **options)


def predicted(
    corpus: str | dict[str, str],
    model: Path,
    folder: Path,
    columns: dict[str, str] | None = None,
    **options: Any,  # noqa: ANN401
) -> Result:
    measurement = ErrorPrediction(str(model), **{"halves": 10, "shuffles": 6, "random_weights": False, **options})
    return measure(data_of(corpus, model, folder, columns=columns), measurements=measurement)


def relabelled(corpus: str, folder: Path, change: Callable[[int, str, str], str]) -> str:
    """The same texts with other labels, by the row, the split and the old label."""
    folder.mkdir()
    for split in ("train", "dev", "test"):
        frame = pd.read_csv(corpus.replace("{split}", split), sep="\t", dtype=str)
        frame["label"] = [change(row, split, label) for row, label in enumerate(frame["label"])]
        frame.to_csv(folder / f"{split}.tsv", sep="\t", index=False)
    return str(folder / "{split}.tsv")


@pytest.mark.core
@pytest.mark.slow
def test_errors_that_one_head_tells_are_found_and_so_is_the_head(model: Path, tmp_path: Path) -> None:
    corpus = write_errors(tmp_path / "texts", 0, told=1.0)
    result = predicted(corpus, model, tmp_path, random_weights=True)
    scores = result.scores
    assert scores["attention.auroc"].value > 0.99
    assert scores["attention_confidence.minus_confidence"].value > 0.3
    assert (scores["attention_confidence.minus_confidence"].p or 1) < 0.01
    assert scores["attention.minus_shuffled"].value > 0.3
    assert (scores["attention.minus_shuffled"].p or 1) < 0.01
    assert abs(scores["confidence.auroc"].value - 0.5) < 0.2
    heads = result.tables["heads"].frame
    assert heads["head"][0] == "2-1"
    assert heads["halves"][0] == 1
    errors = result.tables["errors"].frame.set_index("predictor")
    assert list(errors.index) == [
        "confidence",
        "length",
        "attention",
        "attention_confidence",
        "random_weights",
        "random_weights_confidence",
        "shuffled",
    ]
    assert errors["n"].unique().tolist() == [round(scores["error_rate"].value * 150)]
    assert errors["p_holm"].notna().tolist() == [False, True, True, True, True, True, False]
    assert "attention knows more" in result.answer
    assert not unexplained(result.experiment, {name: score.unit for name, score in scores.items()})
    items = result.items
    assert items is not None
    assert items["wrong"].tolist() == (items["gold"] != items["predicted"]).tolist()
    assert len(items) == 150
    of_errors = items["attention.score"][items["wrong"] == 1]
    others = items["attention.score"][items["wrong"] == 0]
    assert of_errors.min() > others.max()
    assert {"errors", "heads"} == result.figures.keys()


@pytest.mark.slow
def test_random_errors_are_not_told(model: Path, tmp_path: Path) -> None:
    result = predicted(write_errors(tmp_path / "texts", 3, told=0), model, tmp_path)
    low, high = result.scores["attention.auroc"].interval
    assert low < 0.5 < high
    assert (result.scores["attention_confidence.minus_confidence"].p or 0) > 0.05
    assert "no evidence that attention knows more" in result.answer
    assert not any("random_weights" in name for name in result.scores)


def test_a_test_without_errors_is_blank_with_its_reason(model: Path, tmp_path: Path, caplog: Any) -> None:  # noqa: ANN401
    corpus = write_errors(tmp_path / "texts", 1, told=1.0, texts=40)
    split = tmp_path / "texts" / "test.tsv"
    frame = pd.read_csv(split, sep="\t", dtype=str)
    frame[frame["text"].map(lambda text: len(set(text.split())) == 9)].to_csv(split, sep="\t", index=False)
    result = predicted(corpus, model, tmp_path)
    assert all(np.isnan(score.value) for name, score in result.scores.items() if "auroc" in name or "minus" in name)
    assert result.scores["error_rate"].value == 0
    number = len(result.items if result.items is not None else [])
    reason = f"none of the {number} decisions on test is wrong"
    assert f"AUROC is undefined: {reason}." in result.answer
    assert reason in caplog.text
    assert reason in str(result.audit)


def test_a_dev_with_one_error_leaves_the_confidence_alone(model: Path, tmp_path: Path) -> None:
    corpus = write_errors(tmp_path / "texts", 1, told=1.0, texts=40)
    turned: list[int] = []

    def right_on_dev(row: int, split: str, label: str) -> str:
        text = texts[split][row].split()
        if split != "dev" or len(set(text)) == 9:
            return label
        turned.append(row)
        return label if turned == [row] else LABELS[label == LABELS[0]]

    texts = {}
    for split in ("train", "dev", "test"):
        texts[split] = pd.read_csv(corpus.replace("{split}", split), sep="\t", dtype=str)["text"].tolist()
    result = predicted(relabelled(corpus, tmp_path / "one", right_on_dev), model, tmp_path)
    assert not np.isnan(result.scores["confidence.auroc"].value)
    assert np.isnan(result.scores["attention.auroc"].value)
    reason = "1 of the 40 decisions on dev is wrong, but a regression needs 2 errors and 2 right decisions"
    assert f"AUROC is undefined: {reason}." in result.answer
    assert "heads" not in result.tables


def test_few_errors_are_marked(model: Path, tmp_path: Path) -> None:
    result = predicted(write_errors(tmp_path / "texts", 1, told=1.0, texts=40), model, tmp_path)
    errors = result.tables["errors"].frame["n"][0]
    assert 2 < errors < 20
    assert result.scores["attention.auroc"].inputs == errors


def test_of_one_file_a_half_is_fitted_and_the_other_tested(model: Path, tmp_path: Path) -> None:
    corpus = write_errors(tmp_path / "texts", 2, told=1.0, texts=61)
    files = {split: corpus.replace("{split}", split) for split in ("train", "dev")}
    result = predicted({**files, "test": files["dev"]}, model, tmp_path)
    items = result.items
    assert items is not None
    assert len(items) == items["id"].nunique() == 31
    [of_checkpoint] = result.audit["checkpoints"].values()  # type: ignore[attr-defined]
    assert of_checkpoint["dev_texts"] == 30
    assert "a random half was fitted" in str(result.audit["dev_and_test"])


def test_a_file_with_a_column_of_splits_is_not_one_split(model: Path, tmp_path: Path) -> None:
    corpus = write_errors(tmp_path / "texts", 2, told=1.0, texts=40)
    frames = []
    for split in ("train", "dev", "test"):
        frames.append(pd.read_csv(corpus.replace("{split}", split), sep="\t", dtype=str).assign(split=split))
    file = tmp_path / "all.tsv"
    pd.concat(frames).to_csv(file, sep="\t", index=False)
    result = predicted(str(file), model, tmp_path, columns={"split": "split"})
    assert len(result.items if result.items is not None else []) == 40
    assert "dev_and_test" not in result.audit


@pytest.mark.parametrize("rows", ["all", "decision"])
def test_features_are_those_of_the_maps_that_transformers_returns(rows: Literal["all", "decision"]) -> None:
    model = classifier("transformer")
    assert isinstance(model, TransformerClassifier)
    batch = batch_of([[2, 7, 8, 9, 3], [2, 10, 3], [2, 11, 12, 7, 7, 13, 3]])
    reading = read_heads(model, batch, rows)
    inner = model.classifier.model
    heads = [f"{layer}-{head}" for layer in range(1, model.classifier.layers + 1) for head in range(1, 5)]
    assert list(reading.heads) == heads
    for text, n in enumerate(batch.lengths.tolist()):
        inner.set_attn_implementation("eager")
        output = inner(batch.tokens[text : text + 1, :n], output_attentions=True)
        inner.set_attn_implementation("probing")
        torch.testing.assert_close(reading.logits[text], output.logits[0])
        for place, name in enumerate(reading.heads):
            layer, head = (int(part) - 1 for part in name.split("-"))
            expected = output.attentions[layer][0, head]
            if rows == "decision":
                row = expected[0].tolist()
                wanted = [-np.log(sum(w * w for w in row)), row[0], sum(w * j for j, w in enumerate(row))]
            else:
                wanted = by_loops(expected, n)
            assert reading.features[text, place].tolist() == pytest.approx(wanted, rel=1e-5)


def test_a_classifier_with_one_row_has_one_head_without_a_distance() -> None:
    model = classifier("flat")
    batch = batch_of([[7, 8, 9, 12], [10, 11]])
    reading = read_heads(model, batch, "all")
    weights = model(batch).levels["word"].weights
    assert reading.heads == ("word",)
    for text, n in enumerate(batch.lengths.tolist()):
        row = weights[text, :n].tolist()
        entropy, first, distance = reading.features[text, 0].tolist()
        assert entropy == pytest.approx(-np.log(sum(w * w for w in row)))
        assert first == pytest.approx(row[0])
        assert np.isnan(distance)


def test_words_of_a_hierarchical_classifier_have_a_row_for_each_sentence() -> None:
    model = classifier("han")
    assert isinstance(model, HierarchicalClassifier)
    batch = batch_of([[7, 8, 9, 12], [10, 11]], sentences=[[0, 0, 1, 1], [0, 0]])
    reading = read_heads(model, batch, "all")
    weights = model(batch).levels["word"].weights[0].tolist()
    assert reading.heads == ("word", "sentence")
    collision = [weights[0] ** 2 + weights[1] ** 2, weights[2] ** 2 + weights[3] ** 2]
    assert float(reading.features[0, 0, 0]) == pytest.approx(-np.mean(np.log(collision)))
    assert float(reading.features[0, 0, 1]) == pytest.approx((weights[0] + weights[2]) / 2)


def test_log_odds_are_those_of_the_class_that_is_predicted() -> None:
    logits = np.array([[1.0, 3.0, 0.5], [40.0, -5.0, -6.0], [0.0, 0.0, 0.0]])
    columns = {"item": np.arange(3), "logits": logits, "gold": np.array([1, 1, 0]), "length": np.arange(3)}
    texts = decisions_of(columns)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = [np.log(row.max() / (row.sum() - row.max())) for row in shares[[0, 2]]]
    assert texts.log_odds[[0, 2]] == pytest.approx(expected)
    assert texts.log_odds[1] == pytest.approx(45 - np.log(1 + np.exp(-1)))  # not infinite, as log(p / (1 − p))
    assert texts.wrong.tolist() == [False, True, False]


def test_each_model_reads_each_text_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    corpus = write_errors(tmp_path / "texts", 1, told=1.0, texts=30)
    measurement = ErrorPrediction(str(model), halves=1, shuffles=1)
    data = data_of(corpus, model, tmp_path)
    logits = SequenceClassifier.logits

    def counted(self: SequenceClassifier, tokens: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        read.append(len(tokens))
        return logits(self, tokens, *others)

    monkeypatch.setattr(SequenceClassifier, "logits", counted)
    measure(data, measurements=measurement)
    assert sum(read) == 2 * (30 + 30)  # the classifier, and the one with random weights


@pytest.mark.slow
def test_the_config_runs_over_seeds_of_a_classifier_with_one_row(runs: Path, tmp_path: Path) -> None:
    config = CONFIGS / "ostmeier2026" / "errors.yaml"
    words = ["measure", f"--config={config}", "--checkpoints", *(str(runs / name) for name in ("base-0", "base-1"))]
    launch.main([*words, "--model.halves=4", f"--trainer.default_root_dir={tmp_path}", "--trainer.accelerator=cpu"])
    [file] = tmp_path.rglob("results.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    items = pd.read_parquet(file.parent / found["items"])
    assert items["checkpoint"].nunique() == 2
    errors = pd.read_csv(file.parent / found["tables"]["errors"]).set_index("predictor")
    wrong = items.groupby("checkpoint")["wrong"].sum()
    assert errors["n"].unique().tolist() == [round(wrong.mean())]
    of_seeds = []
    for _, of_seed in items.groupby("checkpoint"):
        of_seeds.append(roc_auc_score(of_seed["wrong"], -of_seed["probability"]))
    assert found["scores"]["confidence.auroc"] == pytest.approx(np.mean(of_seeds))
    assert found["scores"]["error_rate"] == pytest.approx(items["wrong"].mean())


BAD: Mapping[str, tuple[dict[str, Any], str]] = {
    "no checkpoint": ({"checkpoints": []}, r"No checkpoint is given\. Give one or more with `checkpoints`\."),
    "no feature": ({"features": []}, r"`features` is empty\. Give one or more of entropy, first, distance\."),
    "other feature": ({"features": ["lookback"]}, "lookback"),
    "no halves": ({"halves": 0}, "halves is 0, but must be at least 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_told_in_a_line(name: str, model: Path) -> None:
    options, message = BAD[name]
    with pytest.raises(UserError, match=message):
        ErrorPrediction(**{"checkpoints": str(model), **options})


def test_numbers_as_labels_are_refused(model: Path, tmp_path: Path) -> None:
    corpus = write_errors(tmp_path / "texts", 1, told=1.0, texts=4)
    numbers = relabelled(corpus, tmp_path / "numbers", lambda row, *_: str(row))
    encoder = EncoderSpec(str(model))
    data = ClassificationDataModule(numbers, tokenizer=encoder, regression=True, cache=str(tmp_path))
    wanted = re.escape("asks which decisions are wrong, but the labels of these data are numbers (`regression`)")
    with pytest.raises(UserError, match=wanted):
        measure(data, measurements=ErrorPrediction(str(model)))
