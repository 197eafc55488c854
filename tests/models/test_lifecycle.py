"""Classifiers from their checkpoints alone, without Trainer or datamodule."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from attention_probing.commands import launch
from attention_probing.models import AttentionClassifier, HierarchicalClassifier, TextClassifier, TransformerClassifier
from tests import tiny
from tests.fidelity.trained import fitted
from tests.models.corpora import write_vectors
from tests.trainers import CONTINUES

pytestmark = CONTINUES

HIERARCHICAL = [
    "--model=HierarchicalClassifier",
    *(f"--model.{part}encoder=AverageEncoder" for part in ("", "sentence_")),
    *(f"--model.{part}attention=AdditiveAttention" for part in ("", "sentence_")),
]


def fit(folder: Path, kind: str) -> tuple[type[TextClassifier], Path]:
    if kind == "hierarchical":
        return HierarchicalClassifier, fitted(folder, kind, *HIERARCHICAL, epochs=1)
    if kind == "transformer":
        encoder = tiny.save_bert(folder / "bert")
        options = [f"--data.tokenizer.name={encoder}", "--model=TransformerClassifier"]
        return TransformerClassifier, fitted(folder, kind, *options, epochs=1)
    options = [
        f"--data.vectors.name={write_vectors(folder / 'vectors.txt', 8)}",
        "--data.delimiters=true",
        "--model.embedding={size: null}",
        "--model.regularizers=[{class_path: Tying}, {class_path: Residual}]",
    ]
    return AttentionClassifier, fitted(folder, kind, *options, epochs=1)


@pytest.mark.parametrize("kind", ["flat", "hierarchical", "transformer"])
def test_a_checkpoint_alone_predicts_as_train_py_does(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, run = fit(tmp_path, kind)
    (checkpoint,) = run.rglob("*.ckpt")
    config = next(run.rglob("config.yaml"))
    launch.main(["predict", f"--config={config}", f"--ckpt_path={run}"])  # the folder of the checkpoint
    expected = pd.read_parquet(next(run.rglob("predictions.parquet")))
    texts = pd.read_csv(tmp_path / "texts" / "test.tsv", sep="\t")["text"].tolist()
    before = torch.random.get_rng_state()
    model = made.load_from_checkpoint(checkpoint)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not model.training
    found = model.predict_texts(texts)
    assert [*found] == [name for name in expected if name != "gold"]
    for name in found.columns.drop("id"):
        for one, other in zip(found[name], expected[name], strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)
    pair = model.predict_texts([("a fine film", "a dull plot"), "good"])
    assert len(pair) == 2
    one = model.predict_texts(texts[0])
    assert one["predicted"].tolist() == found["predicted"].tolist()[:1]
    said = "texts: in 2 of 2 texts (100%) every token is unknown, so a classifier cannot distinguish them"
    assert said not in caplog.text
    if kind == "flat":
        model.predict_texts(["qwertz asdf", "yxcv"])
        assert said in caplog.text
