"""Probes that select heads: their formulas term by term, and their training on a tiny treebank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from attention_probing.attention import EncoderSpec, Options
from attention_probing.attention.quantities import QuantityName
from attention_probing.datamodules import AttentionBatch, DependencyDataModule, VectorSpec
from attention_probing.measures import Baselines
from attention_probing.metrics.antecedent_selection import ANTECEDENT_DIRECTIONS
from attention_probing.metrics.bootstrap import bootstrap_ratio
from attention_probing.metrics.trees import maximum_arborescence
from attention_probing.models import TrainingError
from attention_probing.probes import AttentionOnlyProbe, AttentionWordsProbe, DistancesWordsProbe
from attention_probing.probes.frozen import Sizes, weight_maps
from attention_probing.probes.head_selection import HeadSelectionProbe
from attention_probing.results import Bars, HeatMap, Result
from tests.marked import with_documents
from tests.printed import share
from tests.probes.batches import random_batch
from tests.tiny import save_bert
from tests.trainers import CONTINUES, scored, trainer

pytestmark = CONTINUES

DIM = 5
SIZES = Sizes((0, 1), (0, 1, 2), DIM)

MakeData = Callable[..., DependencyDataModule]
RunConfig = Callable[..., tuple[Any, dict[str, Any], Path]]
Probe = TypeVar("Probe", bound=HeadSelectionProbe)


def drawn(probe: Probe) -> Probe:
    """With parameters drawn at random, those that are fixed aside."""
    probe.build(SIZES)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in probe.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=random))
    return probe


def score(model: AttentionOnlyProbe, attention: Tensor, n: int, i: int, j: int) -> float:
    """Score of head i for word j, term by term as the paper writes it; i = 0 is ROOT."""
    total, weights, start, end = 0.0, model.weight.detach(), model.start.item(), model.end.item()
    for layer in range(attention.size(0)):
        for head in range(attention.size(1)):
            alpha = attention[layer, head].double()
            forth, back = (float(weight) for weight in weights[:, layer, head])
            if i:
                total += forth * float(alpha[j, i]) + back * float(alpha[i, j])
            else:
                total += forth * (start * float(alpha[j, 0]) + end * float(alpha[j, n + 1]))
                total += back * (start * float(alpha[0, j]) + end * float(alpha[n + 1, j]))
    return total


def test_scores_equal_the_formula_term_by_term() -> None:
    model, batch = drawn(AttentionOnlyProbe()), random_batch([5, 2, 1, 4])
    scores = model(batch).detach()
    assert scores.shape == (4, 5, 6)
    for row, n in enumerate(batch.lengths.tolist()):
        for j in range(1, n + 1):
            for i in range(n + 1):
                assert float(scores[row, j - 1, i]) == pytest.approx(
                    score(model, batch.attention[row], n, i, j), abs=1e-4
                )
            assert torch.isneginf(scores[row, j - 1, n + 1 :]).all()


def test_the_loss_is_that_of_the_softmax_over_the_candidates_summed_over_real_words() -> None:
    probe, batch = drawn(AttentionOnlyProbe()), random_batch([4, 2])
    nats, scores = probe.cross_entropy(batch).detach(), probe(batch).detach()
    for row, n in enumerate(batch.lengths.tolist()):
        for word in range(n):
            over = scores[row, word, : n + 1].double().softmax(0)
            assert nats[row, word].item() == pytest.approx(-float(over[batch.heads[row, word]].log()), abs=1e-5)
        assert (nats[row, n:] == 0).all()
    loss = probe.training_step(batch, 0)
    assert loss.item() == pytest.approx(nats.sum().item())
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in probe.parameters())


def test_figures_hold_the_weights_of_each_direction_with_labels_from_one() -> None:
    weight = torch.arange(12.0).view(2, 2, 3)
    figures = weight_maps(weight, ANTECEDENT_DIRECTIONS, Sizes((1, 4), (0, 2, 5)))
    expected = {"mention_to_antecedent": [[0, 1, 2], [3, 4, 5]], "antecedent_to_mention": [[6, 7, 8], [9, 10, 11]]}
    for name, values in expected.items():
        figure = figures[f"weights_{name}"]
        assert isinstance(figure, HeatMap)
        assert figure.values.tolist() == values
        assert (figure.row_labels, figure.column_labels) == (["2", "5"], ["1", "3", "6"])


def literal(model: AttentionWordsProbe, batch: AttentionBatch, row: int) -> torch.Tensor:
    """The paper's formula over the whole tensor of pairs, `[n+1, n+1, 2·dim]`, ROOT at place 0; `[n, n+1]`."""
    n, heads = int(batch.lengths[row]), 6
    alpha = batch.attention[row].double().flatten(0, 1)[:, : n + 2, : n + 2]
    start, end = model.start.double(), model.end.double()
    # ROOT's row and column are mixed from those of the two delimiters.
    mixed = torch.zeros(heads, n + 1, n + 1, dtype=torch.double)
    mixed[:, 1:, 1:] = alpha[:, 1:-1, 1:-1]
    mixed[:, 1:, 0] = start * alpha[:, 1:-1, 0] + end * alpha[:, 1:-1, n + 1]
    mixed[:, 0, 1:] = start * alpha[:, 0, 1:-1] + end * alpha[:, n + 1, 1:-1]
    words = torch.zeros(n + 1, DIM, dtype=torch.double)
    words[1:] = batch.vectors[row, :n].double()
    pairs = torch.cat([words[:, None].expand(-1, n + 1, -1), words[None].expand(n + 1, -1, -1)], dim=2)
    pairs[:, 0] = 0
    weight = torch.cat([model.dependent, model.head]).double()  # [2·dim, 2·heads]
    by_pair = (pairs @ weight).view(n + 1, n + 1, 2, heads) + model.bias.double()
    scores = torch.einsum("jik,kji->ji", by_pair[:, :, 0], mixed) + torch.einsum("jik,kij->ji", by_pair[:, :, 1], mixed)
    return scores[1:]


def test_the_factored_score_is_the_literal_formula() -> None:
    model = drawn(AttentionWordsProbe())
    batch = random_batch([5, 2, 1, 4], vectors=DIM)
    scores = model(batch).detach()
    assert scores.shape == (4, 5, 6)
    for row, n in enumerate(batch.lengths.tolist()):
        torch.testing.assert_close(
            scores[row, :n, : n + 1].double(), literal(model, batch, row).detach(), atol=1e-5, rtol=1e-5
        )
        assert (scores[row, :, n + 1 :] == -torch.inf).all()


@pytest.mark.parametrize("kind", [AttentionWordsProbe, DistancesWordsProbe])
def test_words_tell_apart_what_attention_does_not(kind: type[HeadSelectionProbe]) -> None:
    batch = random_batch([4] * 6, vectors=DIM, seed=3)
    batch.attention.fill_(1 / 6)
    batch.heads[:] = torch.tensor([0, 1, 1, 1])
    batch.vectors[:] = torch.eye(DIM)[:4]
    torch.manual_seed(0)
    probe = kind()
    probe.build(SIZES)
    adam = torch.optim.Adam(probe.parameters(), 0.05)
    for _ in range(100):
        adam.zero_grad()
        probe.cross_entropy(batch).sum().backward()  # type: ignore[no-untyped-call]
        adam.step()
    assert (probe(batch).argmax(-1) == batch.heads).all()


def by_hand(n: int, dependent: int, head: int) -> list[float]:
    """Ahead, behind, −2…+2, ROOT."""
    if head == 0:
        return [0.0] * 7 + [1.0]
    apart = head - dependent
    near = [float(apart == k) for k in (-2, -1, 0, 1, 2)]
    return [max(apart, 0) / n, max(-apart, 0) / n, *near, 0.0]


def test_the_sum_of_terms_is_one_layer_over_the_concatenation() -> None:
    torch.manual_seed(0)
    model, batch = DistancesWordsProbe(), random_batch([6, 3], vectors=3)
    model.build(Sizes((), (), 3))
    scores = model(batch).detach()
    assert scores.shape == (2, 6, 7)
    layer = torch.cat([model.dependent.weight, model.head.weight, model.distance.weight], dim=1)
    for row, n in enumerate(batch.lengths.tolist()):
        for dependent in range(1, n + 1):
            for head in range(n + 1):
                of_head = batch.vectors[row, head - 1] if head else torch.zeros(3)
                whole = torch.cat(
                    [batch.vectors[row, dependent - 1], of_head, torch.tensor(by_hand(n, dependent, head))]
                )
                expected = model.score((layer @ whole + model.dependent.bias).tanh()).item()
                assert abs(scores[row, dependent - 1, head].item() - expected) < 1e-5
        assert (scores[row, :, n + 1 :] == -torch.inf).all()


@pytest.fixture
def data(make_data: MakeData) -> DependencyDataModule:
    return make_data(vectors=VectorSpec("encoder"))


def kept(folder: Path, epochs: int = 2) -> Trainer:
    """A trainer that keeps the checkpoint of every epoch."""
    return trainer(epochs, ModelCheckpoint(folder, "{epoch}", save_top_k=-1))


def fitted(
    probe: HeadSelectionProbe, data: DependencyDataModule, folder: Path, epochs: int = 2
) -> tuple[Trainer, Result]:
    run = kept(folder, epochs)
    run.fit(probe, datamodule=data)
    run.test(probe, datamodule=data, verbose=False)
    assert probe.result is not None
    return run, probe.result


def test_a_trained_probe_and_its_trees(data: DependencyDataModule, make_data: MakeData) -> None:
    probe = AttentionOnlyProbe(learning_rate=0.1)
    trainer(3).fit(probe, datamodule=data)
    [validated] = trainer().validate(probe, datamodule=data, verbose=False)
    result, baselines = scored(probe, data), scored(Baselines(), make_data(encoder=None))
    shares = {}
    for split in ("dev", "test"):
        right = in_trees = total = 0
        for batch in data.batches(split):
            for row, n in enumerate(batch.lengths.tolist()):
                scores = probe(batch)[row, :n, : n + 1].detach().double().numpy()
                plain, gold = ~batch.punctuation[row, :n].numpy(), batch.heads[row, :n].numpy()
                right += int((scores.argmax(1) == gold)[plain].sum())
                in_trees += int((maximum_arborescence(scores) == gold)[plain].sum())
                total += int(plain.sum())
        shares[split] = right / total, in_trees / total
    assert validated["val_uas"] == pytest.approx(shares["dev"][0])
    assert (result.numbers["uas"], result.numbers["tree.uas"]) == pytest.approx(shares["test"])
    assert result.items is not None
    assert list(result.items["id"]) == [f"tiny-test-{index}" for index in range(17)]
    for score, (numerator, denominator) in result.ratios.items():
        assert result.numbers[score] == result.items[numerator].sum() / result.items[denominator].sum()
        assert result.numbers[f"{score}.low"] <= result.numbers[score] <= result.numbers[f"{score}.high"]
    assert {"uas", "uuas", "tree.uas"} <= set(result.ratios)
    assert "epochs" not in result.audit
    assert set(result.figures) == {"relations", "weights_dependent_to_head", "weights_head_to_dependent"}
    assert {name: result.numbers[name] for name in baselines.numbers} == baselines.numbers
    assert baselines.items is None
    beside, alone = (one.tables["relations"].frame for one in (result, baselines))
    pd.testing.assert_series_equal(beside["offset"], alone["offset"])
    assert alone["probe"].isna().all()
    names = ("uas", "offset.uas", "uniform.uas", "right_branching.uas", "left_branching.uas")
    probed, offset, uniform, right_one, left_one = (share(result, name) for name in names)
    rest = f"; right branching {right_one}; left branching {left_one}."
    assert (
        result.answer == f"The probe finds the governors of {probed} of 54 words; the best fixed offset {offset}{rest}"
    )
    assert baselines.answer == (
        f"The best fixed offset finds the governors of {offset} of 54 words; uniform attention {uniform}{rest}"
    )


def test_intervals_of_a_marked_treebank_are_over_documents(
    make_data: MakeData, corpus: str, data: DependencyDataModule, tmp_path: Path
) -> None:
    marked = with_documents(corpus, tmp_path, 2)
    probe = AttentionOnlyProbe(learning_rate=0.1)
    trainer(1).fit(probe, datamodule=data)
    result, alone = scored(probe, make_data(corpus=marked, cache=str(tmp_path))), scored(probe, data)
    items = result.items
    assert items is not None
    assert list(items)[:3] == ["document", "sentence", "id"]
    assert items["document"].tolist() == [index // 2 for index in range(17)]
    assert result.audit["units"] == "9 documents"
    assert str(alone.audit["units"]).startswith("17 sentences, taken as independent")
    assert set(result.shares) == set(result.ratios)
    for name, columns in result.ratios.items():
        sums = items.groupby("document")[list(columns)].sum()
        expected = bootstrap_ratio(*sums.to_numpy(float).T, share=True)
        ends = result.numbers[f"{name}.low"], result.numbers[f"{name}.high"]
        assert ends == pytest.approx(expected.interval)
        assert result.numbers[name] == alone.numbers[name]
    assert result.numbers["uas.low"] != alone.numbers["uas.low"]


def test_the_relations_that_are_named_are_in_table_and_figure(make_data: MakeData) -> None:
    full = scored(Baselines(), make_data())
    some = scored(Baselines(relations=("nsubj", "det")), make_data())
    by_name = full.tables["relations"].frame.set_index("relation")
    names = ["all", "all (no punctuation)", "nsubj", "det"]
    pd.testing.assert_frame_equal(some.tables["relations"].frame, by_name.loc[names].reset_index())
    bars = some.figures["relations"]
    assert isinstance(bars, Bars)
    assert list(bars.categories) == names


@pytest.mark.parametrize("kind", [AttentionOnlyProbe, AttentionWordsProbe])
def test_a_checkpoint_predicts_sentences(
    kind: type[HeadSelectionProbe], data: DependencyDataModule, bert: Path, tmp_path: Path
) -> None:
    run = kept(tmp_path)
    probe = kind(learning_rate=0.1)
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
    other = save_bert(tmp_path / "other", seed=5)
    for encoder, options in ((bert, Options(layers=(1,))), (other, Options())):
        with pytest.raises(TrainingError, match=r"trained on other data \(difference in (layers|encoder)"):
            loaded.predict_sentences(["a fox"], EncoderSpec(str(encoder)), options=options, vectors=vectors)
    with pytest.raises(TrainingError, match="was not trained"):
        kind().predict_sentences(["a fox"], EncoderSpec(str(bert)), vectors=vectors)


@pytest.mark.slow
def test_a_checkpoint_of_a_run_knows_what_it_was_trained_on(run_config: RunConfig, corpus: str) -> None:
    options = ["--trainer.max_epochs=1", f"--data.corpus={corpus}", "--data.options.layers=[2]"]
    config = "configs/clark2019/attention_glove.yaml"
    cli, _, folder = run_config("fit", "--config", config, *options, "--data.vectors.name=encoder")
    [path] = folder.glob("checkpoints/*.ckpt")
    probe = HeadSelectionProbe.load_from_checkpoint(path)
    spec, vectors = cli.datamodule.encoder, VectorSpec("encoder")
    given = probe.predict_sentences(["the fox sleeps"], spec, options=Options(layers=(2,)), vectors=vectors)
    pd.testing.assert_frame_equal(probe.predict_sentences(["the fox sleeps"]), given)


@pytest.mark.parametrize("quantity", ["norms", "effective", "rollout"])
def test_a_probe_reads_the_quantity_of_the_options_and_its_checkpoint_no_other(
    quantity: QuantityName, make_data: MakeData, tmp_path: Path
) -> None:
    data = make_data(options=Options(quantity=quantity))
    runner = trainer(1)
    runner.fit(AttentionOnlyProbe(), datamodule=data)
    runner.save_checkpoint(tmp_path / "trained.ckpt")
    batch = data.splits["dev"][[0]]
    assert torch.equal(batch.attention[0], data.splits["dev"].store.read(quantity, 0))
    assert batch.attention.size(2) == (1 if quantity == "rollout" else 4)
    again = make_data(options=Options(heads=(1,) if quantity == "rollout" else None))
    with pytest.raises(TrainingError, match=r"trained on other data .*options\.quantity"):
        scored(AttentionOnlyProbe(), again, tmp_path / "trained.ckpt")
