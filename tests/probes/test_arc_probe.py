from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from attention import EncoderSpec, Options
from datamodules import DependencyDataModule, VectorSpec
from heads.experiment import ExperimentError
from metrics.trees import maximum_arborescence
from probes import AttentionOnlyProbe, AttentionWordsProbe, DistancesWordsProbe
from probes.base import Sizes
from probes.head_selection import HeadSelectionProbe
from results import Result
from tests.probes.batches import random_batch
from training import TrainingError

pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")


@pytest.fixture
def data(bert: Path, corpus: str, cache: str) -> DependencyDataModule:
    return DependencyDataModule(
        corpus, encoder=EncoderSpec(str(bert)), cache=cache, max_sentences=4, vectors=VectorSpec("encoder")
    )


def trainer(folder: Path, epochs: int = 2, keep: bool = True) -> Trainer:
    return Trainer(
        max_epochs=epochs,
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[ModelCheckpoint(folder, "{epoch}", save_top_k=-1)] if keep else None,
        enable_checkpointing=keep,
    )


def fitted(
    probe: HeadSelectionProbe, data: DependencyDataModule, folder: Path, epochs: int = 2
) -> tuple[Trainer, Result]:
    run = trainer(folder, epochs)
    run.fit(probe, datamodule=data)
    run.test(probe, datamodule=data, verbose=False)
    assert probe.result is not None
    return run, probe.result


def test_nats_are_those_of_the_softmax_over_the_candidates() -> None:
    probe, batch = AttentionOnlyProbe(), random_batch([4, 2])
    probe.build(Sizes((0, 1), (0, 1, 2)))
    torch.nn.init.normal_(probe.weight)
    nats, scores = probe.cross_entropy(batch).detach(), probe(batch).detach()
    for row, n in enumerate(batch.lengths.tolist()):
        for word in range(n):
            over = scores[row, word, : n + 1].double().softmax(0)
            assert nats[row, word].item() == pytest.approx(-float(over[batch.heads[row, word]].log()), abs=1e-5)
        assert (nats[row, n:] == 0).all()


def test_trees_are_the_best_of_the_scores_and_are_scored_beside(data: DependencyDataModule, tmp_path: Path) -> None:
    probe = AttentionOnlyProbe(learning_rate=0.1)
    _, result = fitted(probe, data, tmp_path)
    right = total = 0
    for batch in data.batches("test"):
        for row, n in enumerate(batch.lengths.tolist()):
            tree = maximum_arborescence(probe(batch)[row, :n, : n + 1].detach().double().numpy())
            plain = ~batch.punctuation[row, :n].numpy()
            right += int((tree == batch.heads[row, :n].numpy())[plain].sum())
            total += int(plain.sum())
    assert result.numbers["tree.uas"] == pytest.approx(right / total)
    assert result.numbers["tree.uas.low"] <= result.numbers["tree.uas"] <= result.numbers["tree.uas.high"]
    assert result.items is not None
    for score, (numerator, denominator) in result.ratios.items():
        assert result.numbers[score] == result.items[numerator].sum() / result.items[denominator].sum()
    assert {"uas", "uuas", "tree.uas"} <= set(result.ratios)


def test_labels_are_scored_where_the_head_is_right(data: DependencyDataModule, tmp_path: Path) -> None:
    probe = AttentionOnlyProbe(learning_rate=0.1, labels=True)
    run, result = fitted(probe, data, tmp_path, 4)
    right = total = 0
    for batch in data.batches("test"):
        guess = probe.predict(batch, tree=False)
        assert guess.relations is not None
        scored = batch.mask & ~batch.punctuation
        right += int(((guess.heads == batch.heads) & (guess.relations == batch.relations))[scored].sum())
        total += int(scored.sum())
    assert result.numbers["las"] == pytest.approx(right / total)
    assert 0 < result.numbers["las"] <= result.numbers["uas"]
    run.predict(probe, datamodule=data, return_predictions=False)
    predictions = probe.predictions
    assert isinstance(predictions, pd.DataFrame)
    assert list(predictions) == ["id", "word", "form", "head", "tree_head", "relation"]
    # A word is root where ROOT heads it: the classifier has a feature that says so.
    assert set(predictions["relation"][predictions["head"] == 0]) == {"root"}


@pytest.mark.parametrize("kind", [AttentionOnlyProbe, AttentionWordsProbe])
def test_a_checkpoint_alone_predicts_new_sentences_as_the_trainer_does(
    kind: type[HeadSelectionProbe], data: DependencyDataModule, bert: Path, tmp_path: Path
) -> None:
    run = trainer(tmp_path)
    probe = kind(learning_rate=0.1, labels=True)
    run.fit(probe, datamodule=data)
    run.predict(probe, datamodule=data, return_predictions=False, ckpt_path=str(tmp_path / "epoch=1.ckpt"))
    expected = probe.predictions
    assert expected is not None
    sentences = [group["form"].tolist() for _, group in expected.groupby("id", sort=False)]
    loaded = kind.load_from_checkpoint(tmp_path / "epoch=1.ckpt")
    vectors = VectorSpec("encoder") if kind is AttentionWordsProbe else None
    found = loaded.predict_sentences([" ".join(sentences[0]), *sentences[1:]], EncoderSpec(str(bert)), vectors=vectors)
    pd.testing.assert_frame_equal(found.drop(columns="id"), expected.drop(columns="id"))
    assert found["id"].iloc[-1] == str(len(sentences))
    with pytest.raises(TrainingError, match=r"trained on pretrained weights .* 2 layers × 4 heads.*and the data come"):
        loaded.predict_sentences(["a fox"], EncoderSpec(str(bert)), options=Options(layers=(1,)), vectors=vectors)
    with pytest.raises(TrainingError, match="was not trained"):
        kind().predict_sentences(["a fox"], EncoderSpec(str(bert)), vectors=vectors)


def test_labels_are_known_by_name_whatever_splits_are_open(
    data: DependencyDataModule, bert: Path, cache: str, corpus: str, tmp_path: Path
) -> None:
    """A corpus with one more relation gives the others other numbers; the one that was not trained is never right."""
    text = Path(corpus.replace("{split}", "test")).read_text(encoding="utf-8")
    other = tmp_path / "other.conllu"
    other.write_text(text.replace("\tdet\t", "\tacl\t"), encoding="utf-8")
    files = {"dev": corpus.replace("{split}", "dev"), "test": str(other)}
    probe = AttentionOnlyProbe(learning_rate=0.1, labels=True)
    _, result = fitted(probe, data, tmp_path / "first", 4)
    changed = DependencyDataModule(files, encoder=EncoderSpec(str(bert)), cache=cache)
    checkpoint = str(tmp_path / "first" / "epoch=3.ckpt")
    again = AttentionOnlyProbe(labels=True)
    trainer(tmp_path, keep=False).test(again, datamodule=changed, ckpt_path=checkpoint, verbose=False)
    assert again.result is not None
    before, after = result.items, again.result.items
    assert before is not None
    assert after is not None
    assert changed.relations.index("root") != data.relations.index("root")
    dets = np.array(
        [
            sum(line.split("\t")[7] == "det" for line in block.splitlines() if "\t" in line)
            for block in text.strip().split("\n\n")
        ]
    )
    assert (after["labelled_correct"] <= before["labelled_correct"]).all()
    assert (before["labelled_correct"] - after["labelled_correct"] <= dets).all()
    assert after["labelled_correct"].sum() > 0


def test_the_rate_falls_on_a_plateau_of_the_loss_on_dev(data: DependencyDataModule, tmp_path: Path) -> None:
    probe = AttentionOnlyProbe(learning_rate=30.0, decay=0.1, schedule="plateau")  # far too high: the loss must rise
    run, _ = fitted(probe, data, tmp_path, 4)
    assert run.optimizers[0].param_groups[0]["lr"] < 30.0


def test_the_epoch_of_the_tested_checkpoint_is_told(data: DependencyDataModule, tmp_path: Path) -> None:
    probe = AttentionOnlyProbe()
    run, result = fitted(probe, data, tmp_path, 3)
    assert "epochs" not in result.audit
    run.test(probe, datamodule=data, ckpt_path=str(tmp_path / "epoch=1.ckpt"), verbose=False)
    assert probe.result is not None
    assert probe.result.audit["epochs"] == 2


def test_a_probe_over_words_learns_and_is_scored(data: DependencyDataModule, tmp_path: Path) -> None:
    _, result = fitted(AttentionWordsProbe(learning_rate=0.05), data, tmp_path, 6)
    assert result.numbers["uas"] > 0.2
    _, result = fitted(DistancesWordsProbe(learning_rate=0.05), data, tmp_path / "distances", 6)
    assert result.numbers["uas"] > 0.2


def test_a_probe_over_words_needs_words(bert: Path, corpus: str, cache: str, tmp_path: Path) -> None:
    data = DependencyDataModule(corpus, encoder=EncoderSpec(str(bert)), cache=cache)
    with pytest.raises(ExperimentError, match=r"AttentionWordsProbe needs word vectors: .*vectors.name"):
        trainer(tmp_path).fit(AttentionWordsProbe(), datamodule=data)


def test_a_checkpoint_of_other_vectors_is_refused(
    data: DependencyDataModule, bert: Path, corpus: str, cache: str, tmp_path: Path
) -> None:
    fitted(AttentionWordsProbe(), data, tmp_path / "first", 1)
    size = data.vectors_size
    words = sorted({word for split in data.splits.values() for i in range(len(split)) for word in split.words(i)})
    text = tmp_path / "vectors.txt"
    text.write_text("".join(f"{word.lower()} {' '.join(['0.5'] * size)}\n" for word in words), encoding="utf-8")
    other = DependencyDataModule(
        corpus, encoder=EncoderSpec(str(bert)), cache=str(tmp_path / "cache"), vectors=VectorSpec(str(text))
    )
    with pytest.raises(
        TrainingError, match=r"trained on pretrained weights .* and vectors of .*, and the data come from"
    ):
        trainer(tmp_path, keep=False).test(
            AttentionWordsProbe(), datamodule=other, ckpt_path=str(tmp_path / "first" / "epoch=0.ckpt"), verbose=False
        )
