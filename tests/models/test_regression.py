"""A transformer that predicts numbers: its loss, scores, predictions, and what refuses them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_lightning import seed_everything
from scipy import stats

from attention_probing.attention import EncoderSpec
from attention_probing.corpora.sentence import CorpusError
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity import Fidelity, Permutation
from attention_probing.models import (
    AdditiveAttention,
    AttentionClassifier,
    AverageEncoder,
    TrainingError,
    TransformerClassifier,
)
from attention_probing.results.errors import UserError
from tests import tiny
from tests.trainers import scored, trainer


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Texts with the number of coffees in them, a half each."""
    folder, random = tmp_path_factory.mktemp("numbers"), np.random.default_rng(0)
    for split, texts in (("train", 120), ("dev", 30), ("test", 31)):
        lines = ["text\tlabel"]
        for place in range(texts):
            coffees = place % 5
            words = ["coffee"] * coffees + random.choice(["the", "fox", "dogs"], 6 - coffees).tolist()
            lines.append(f"{' '.join(random.permutation(words))}\t{coffees / 2}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return str(folder / "{split}.tsv")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_bert(tmp_path_factory.mktemp("bert"))


def data(corpus: str, folder: Path | None, cache: Path) -> ClassificationDataModule:
    spec = None if folder is None else EncoderSpec(str(folder))
    return ClassificationDataModule(corpus, tokenizer=spec, regression=True, batch_size=8, cache=str(cache), seed=0)


def test_it_learns_numbers_and_says_them_again_without_the_data(corpus: str, bare: Path, tmp_path: Path) -> None:
    seed_everything(0, verbose=False)
    model, module = TransformerClassifier(learning_rate=3e-3), data(corpus, bare, tmp_path)
    fitting = trainer(8)
    fitting.fit(model, datamodule=module)
    assert module.labels == ()
    batch = module.splits["dev"][[1, 4]]
    assert (batch.labels.dtype, batch.labels.tolist()) == (torch.float32, [0.5, 2.0])
    logged = {name: float(value) for name, value in fitting.callback_metrics.items()}

    fitting.test(model, datamodule=module, verbose=False)
    assert model.result is not None
    assert model.result.items is not None
    found, items = model.result.numbers, model.result.items
    assert logged["val_pearson"] == pytest.approx(found["dev.pearson"], abs=1e-6)
    gold, predicted = items["gold"], items["predicted"]
    assert gold.tolist() == [place % 5 / 2 for place in range(31)]
    assert found["pearson"] == pytest.approx(stats.pearsonr(gold, predicted).statistic)
    assert found["spearman"] == pytest.approx(stats.spearmanr(gold, predicted).statistic)
    assert found["mse"] == pytest.approx(((gold - predicted) ** 2).mean())
    assert found["loss"] == found["loss.squared_error"] == pytest.approx(found["mse"], rel=1e-5)
    train = [place % 5 / 2 for place in range(120)]
    assert found["mean.mse"] == pytest.approx(((gold - float(np.mean(train))) ** 2).mean())
    assert found["pearson"] > 0.8
    assert found["pearson.low"] < found["pearson"] < found["pearson.high"]
    assert {"dev.spearman.low", "dev.mse.high"} <= found.keys()
    r, mse = ([found[f"{name}{end}"] for end in ("", ".low", ".high")] for name in ("pearson", "mse"))
    assert model.result.answer == (
        "Pearson's r of predicted and gold numbers of 31 texts is {:.2f} [{:.2f}, {:.2f}]; ".format(*r)
        + "the mean squared error is {:.4g} [{:.4g}, {:.4g}], ".format(*mse)
        + f"that of the mean of train {found['mean.mse']:.4g}."
    )
    assert "accuracy" not in found
    path = tmp_path / "trained.ckpt"
    fitting.save_checkpoint(path, weights_only=True)
    again = TransformerClassifier.load_from_checkpoint(path)
    line = Path(corpus.replace("{split}", "test")).read_text().splitlines()[8].partition("\t")[0]
    assert again.predict_texts([line])["predicted"].tolist() == pytest.approx([predicted[7]], abs=1e-5)

    other = ClassificationDataModule(corpus, tokenizer=EncoderSpec(str(bare)), cache=str(tmp_path))
    with pytest.raises(TrainingError, match=r"trained on other data \(difference in labels\)"):
        trainer().test(TransformerClassifier(), datamodule=other, ckpt_path=path, verbose=False)


def test_what_decides_between_classes_refuses_numbers(corpus: str, bare: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"AttentionClassifier decides between classes, but the labels are numbers"):
        trainer().fit(
            AttentionClassifier(AverageEncoder(), AdditiveAttention()), datamodule=data(corpus, None, tmp_path)
        )
    checkpoint = tmp_path / "some.ckpt"
    checkpoint.touch()
    with pytest.raises(UserError, match=r"the labels of these data are numbers \(`regression`\)"):
        scored(Fidelity(checkpoints=[str(checkpoint)], tests=[Permutation()]), data(corpus, bare, tmp_path))
    words = ClassificationDataModule(corpus, cache=str(tmp_path), regression=False)
    with pytest.raises(CorpusError, match=r"^`score` is pearson, but must be a score of a classification: accuracy or"):
        ClassificationDataModule(corpus, score="pearson")
    assert words.score == "accuracy"
