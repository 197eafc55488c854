"""What every classifier shares, on a tiny corpus through a Trainer."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pytorch_lightning import Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torchmetrics.functional.classification import binary_auroc, binary_f1_score

from attention_probing.attention import EncoderSpec
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.models import (
    AdditiveAttention,
    AttentionClassifier,
    AverageEncoder,
    DotAttention,
    EmbeddingSpec,
    MaskedLanguageModel,
    RecurrentEncoder,
    Residual,
    TrainingError,
    Tying,
)
from attention_probing.models.decisions import SplitDecisions
from attention_probing.models.predictions import Prediction, prediction_table
from attention_probing.models.regularizers import Regularizer
from tests.models.batches import batch_of
from tests.models.corpora import write_texts
from tests.tiny import save_roberta
from tests.trainers import CONTINUES, trainer

pytestmark = CONTINUES


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """61, 23 and 29 texts of two labels."""
    return write_texts(tmp_path_factory.mktemp("texts"))


def data_of(corpus: str, cache: Path, min_count: int = 1) -> ClassificationDataModule:
    return ClassificationDataModule(corpus, positive="good", cache=str(cache), batch_size=8, min_count=min_count)


def model_of() -> AttentionClassifier:
    return AttentionClassifier(
        RecurrentEncoder(hidden=4),
        AdditiveAttention(),
        EmbeddingSpec(size=8, dropout=0.1),
        [Tying(0.1), MaskedLanguageModel()],
        dropout=0.1,
        learning_rate=2e-2,
    )


def trainer_of(folder: Path, epochs: int = 8) -> Trainer:
    return trainer(epochs, ModelCheckpoint(folder, monitor="val_f1", mode="max"))


def trained(corpus: str, folder: Path) -> tuple[Trainer, AttentionClassifier, ClassificationDataModule]:
    """A classifier of a seed, fitted and tested at its best epoch."""
    seed_everything(3, verbose=False)
    trainer, model, data = trainer_of(folder), model_of(), data_of(corpus, folder)
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data, ckpt_path="best", verbose=False)
    return trainer, model, data


Run = tuple[Trainer, AttentionClassifier, ClassificationDataModule, Path]


@pytest.fixture(scope="module")
def run(texts: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One that is trained, and the file of its best epoch."""
    folder = tmp_path_factory.mktemp("run")
    found = trained(texts, folder)
    (best,) = folder.glob("*.ckpt")
    return *found, best


def test_the_scores_are_those_of_the_items(run: Run, texts: str) -> None:
    _, model, data, _ = run
    assert model.result is not None
    items, scores = model.result.items, model.result.numbers
    assert items is not None
    rows = pd.read_csv(texts.format(split="test"), sep="\t")
    assert items["text"].tolist() == list(range(29))
    assert items["id"].tolist() == [str(line) for line in range(2, 31)]
    assert items["gold"].tolist() == rows["label"].tolist()
    gold = torch.tensor((items["gold"] == "good").to_numpy()).int()
    found = torch.tensor((items["predicted"] == "good").to_numpy()).int()
    assert scores["accuracy"] == pytest.approx(float((gold == found).float().mean()))
    assert scores["f1"] == pytest.approx(float(binary_f1_score(found, gold)))
    ranks = torch.tensor(items["probability.good"].to_numpy())
    assert scores["auroc"] == pytest.approx(float(binary_auroc(ranks, gold)), abs=1e-6)
    assert scores["accuracy"] > 0.8
    assert scores["majority.accuracy"] == pytest.approx(float((gold == 0).float().mean()))  # 31 of 61 in train are bad
    np.testing.assert_allclose(items["probability.good"] + items["probability.bad"], 1, atol=1e-6)
    nats = -np.log(np.where(gold == 1, items["probability.good"], items["probability.bad"])).mean()
    assert scores["loss.cross_entropy"] == pytest.approx(float(nats), rel=1e-4)
    terms = [scores[f"loss.{name}"] for name in ("cross_entropy", "tying", "mlm")]
    assert scores["loss"] == pytest.approx(sum(terms))
    assert min(terms) > 0
    assert {"dev.f1.low", "dev.accuracy", "auroc.high"} <= scores.keys()
    assert model.result.ratios == {"accuracy": ("correct", "scored"), "f1": ("f1_right", "f1_found")}
    assert model.result.audit["epochs_run"] == 8
    assert 1 <= int(str(model.result.audit["epochs"])) <= 8
    assert data.positive == 1


def test_predictions_hold_tokens_and_their_attention(run: Run, texts: str) -> None:
    trainer, model, data, _ = run
    trainer.predict(model, datamodule=data)
    found, result = model.predictions, model.result
    assert found is not None
    assert result is not None
    items = result.items
    assert items is not None
    assert found["id"].tolist() == items["id"].tolist()
    assert found["predicted"].tolist() == items["predicted"].tolist()
    np.testing.assert_allclose(found["probability.good"], items["probability.good"], atol=1e-6)
    rows = pd.read_csv(texts.format(split="test"), sep="\t")
    known = set(pd.read_csv(texts.format(split="train"), sep="\t")["text"].str.split().explode())
    assert found["gold"].tolist() == items["gold"].tolist()
    assert found["words"].tolist() == rows["text"].str.split().tolist()
    assert found["sentences"].map(len).tolist() == found["words"].map(len).tolist()
    for tokens, text, weights in zip(found["tokens"], rows["text"], found["attention.word"], strict=True):
        assert tokens == [word if word in known else "<unk>" for word in text.split()]
        assert weights.shape == (len(tokens),)
        assert sum(weights) == pytest.approx(1, abs=1e-5)


def test_pieces_of_predictions_are_written_as_they_are_read(texts: str, tmp_path: Path) -> None:
    encoder = EncoderSpec(str(save_roberta(tmp_path / "encoder")))
    data = ClassificationDataModule(texts, tokenizer=encoder, positive="good", cache=str(tmp_path))
    data.setup("test")
    found = prediction_table([Prediction(0, [0.5, 0.5], {})], data.splits["test"], data.labels)
    pieces, raw = found["tokens"][0], data.text("test", 0)[1]
    assert (pieces[0], pieces[-1]) == ("<s>", "</s>")
    assert "Ġ" in "".join(raw)
    assert [piece.replace("␣", "") for piece in pieces] == [piece.replace("Ġ", "") for piece in raw]


def test_a_checkpoint_of_another_vocabulary_is_refused(run: Run, texts: str, tmp_path: Path) -> None:
    again = trainer_of(tmp_path)
    again.test(model_of(), datamodule=data_of(texts, tmp_path), ckpt_path=run[3], verbose=False)
    other = data_of(texts, tmp_path, min_count=12)
    for model, path in ((model_of(), run[3]), (run[1], None)):
        with pytest.raises(
            TrainingError, match=r"on other data \(difference in vocabulary\): give the corpus and the options"
        ):
            again.test(model, datamodule=other, ckpt_path=path, verbose=False)


def test_a_checkpoint_of_another_model_is_refused(run: Run, texts: str, tmp_path: Path) -> None:
    """Also where all parameters would fit: a residual connection has none."""
    *_, best = run
    again = trainer_of(tmp_path / "again")
    terms: list[Regularizer] = [Tying(0.1), MaskedLanguageModel()]
    spec = EmbeddingSpec(size=8, dropout=0.1)
    others = {
        r"has no regularizers\.2 Residual": AttentionClassifier(
            RecurrentEncoder(hidden=4), AdditiveAttention(), spec, [*terms, Residual()]
        ),
        r"which has a attention\.projection\.weight": AttentionClassifier(
            RecurrentEncoder(hidden=4), DotAttention(), spec, terms
        ),
        r"whose attention\.projection\.weight has the shape \[4, 8\], not \[6, 8\]": AttentionClassifier(
            RecurrentEncoder(hidden=4), AdditiveAttention(6), spec, terms
        ),
    }
    for difference, model in others.items():
        with pytest.raises(
            TrainingError, match=f"The checkpoint is of another model, .*{difference}: give the config and"
        ):
            again.test(model, datamodule=data_of(texts, tmp_path), ckpt_path=best, verbose=False)
    foreign = torch.load(best, weights_only=True)
    del foreign["classifier"]
    torch.save(foreign, tmp_path / "foreign.pt")
    with pytest.raises(TrainingError, match=r"This is no checkpoint of AttentionClassifier\. Give a file"):
        again.test(model_of(), datamodule=data_of(texts, tmp_path), ckpt_path=tmp_path / "foreign.pt", verbose=False)


def test_probabilities_near_one_are_told_apart() -> None:
    """As float32 these would be 1, and tie."""
    evaluated = SplitDecisions(regression=False, names=())
    logits = torch.tensor([[0.0, 18.0], [0.0, 20.0], [0.0, 25.0]])
    evaluated.add(batch_of([[7], [7], [7]], labels=[0, 1, 1]), logits, {})
    found = evaluated.decisions().outputs
    expected = 1 / (1 + np.exp(-np.array([18.0, 20.0, 25.0])))
    assert np.unique(found[:, 1]).size == 3
    np.testing.assert_allclose(found[:, 1], expected, rtol=1e-14)


@pytest.mark.parametrize("eval_tokens", [1, 20, 16384])
def test_the_loss_of_a_split_is_one_mean_however_it_is_batched(eval_tokens: int, tmp_path: Path) -> None:
    """Over all texts, of train and of dev; of masked words over all words."""
    for split, count in (("train", 12), ("dev", 9), ("test", 4)):
        rows = [f"{'good' if n % 4 == 0 else 'bad'}\t{'film ' * (n + 1)}the cast\n" for n in range(count)]
        (tmp_path / f"{split}.tsv").write_text("label\ttext\n" + "".join(rows), encoding="utf-8")
    corpus = str(tmp_path / "{split}.tsv")
    size = {1: 1, 20: 5, 16384: 12}[eval_tokens]
    folder = str(tmp_path / "cache")
    data = ClassificationDataModule(corpus, positive="good", cache=folder, batch_size=size)
    data.eval_tokens = eval_tokens
    seed_everything(5, verbose=False)
    model = AttentionClassifier(
        AverageEncoder(4),
        AdditiveAttention(),
        EmbeddingSpec(size=4),
        [MaskedLanguageModel()],
        learning_rate=0,
    )
    run = trainer()
    run.fit(model.train(), datamodule=data)
    logged = {name: float(value) for name, value in run.callback_metrics.items()}

    expected = {}
    model.eval()
    for split, texts_of in data.splits.items():
        nats, weights, masked, words = torch.zeros(4)
        for one in texts_of.batches(1):
            with torch.no_grad():
                output, terms = model.loss_terms(one)
            nats, weights = nats + nn.functional.cross_entropy(output.logits, one.labels), weights + 1
            masked, words = masked + terms["mlm"].value * terms["mlm"].count, words + terms["mlm"].count
        expected[split] = float(nats / weights), float(masked / words)
    assert logged["train_loss.cross_entropy"] == pytest.approx(expected["train"][0], rel=1e-5)
    assert logged["val_loss"] == pytest.approx(sum(expected["dev"]), rel=1e-5)
