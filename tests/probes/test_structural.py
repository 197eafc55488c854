"""Structural probes: their formulas term by term, their tables by hand, and training against a loop of one matrix."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from scipy import stats
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from attention_probing.attention import Encoder, EncoderSpec, Options
from attention_probing.datamodules import AttentionBatch, DependencyDataModule
from attention_probing.metrics.bootstrap import bootstrap_ratio
from attention_probing.models import Origin, TrainingError
from attention_probing.probes.frozen import Sizes
from attention_probing.probes.structural import (
    GAIN,
    Pair,
    StructuralDepthProbe,
    StructuralDistanceProbe,
    StructuralProbe,
    initial_matrix,
    score_counts,
    sweep_pairs,
    sweep_table,
)
from attention_probing.results import HeatMap
from attention_probing.results.errors import UserError
from tests.attention import reference
from tests.marked import with_documents
from tests.printed import share
from tests.probes.batches import random_batch
from tests.tiny import save_bert
from tests.trainers import CONTINUES, scored, trainer

pytestmark = CONTINUES

SIZE = 8
PAIRS = (Pair(1, 3), Pair(1, 8), Pair(2, 3))
PROBES = [StructuralDistanceProbe, StructuralDepthProbe]
LENGTHS = [5, 1, 7, 3, 6]
EPOCHS, RATE = 12, 0.03
MakeData = Callable[..., DependencyDataModule]
RunConfig = Callable[..., tuple[Any, dict[str, Any], Path]]


def batch(lengths: list[int] | None = None, seed: int = 0) -> AttentionBatch:
    return random_batch(lengths or LENGTHS, seed=seed, hidden=(2, SIZE))


def made(kind: type[StructuralProbe], pairs: tuple[Pair, ...] = PAIRS, size: int = SIZE) -> StructuralProbe:
    """A probe as if it had been trained, its matrices drawn."""
    probe = kind()
    probe.bind(Origin(Sizes(hidden=size, pairs=pairs)))
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for live, kept in zip(probe.matrices, probe.kept, strict=True):
            live.copy_(torch.randn(live.shape, generator=random) * 0.5)
            kept.copy_(live)
    probe.best_epoch.fill_(1)
    probe.trained = True
    return probe


def walked(batch: AttentionBatch, row: int) -> list[list[int]]:
    """Distances of all nodes of a tree, ROOT the first, each step taken by Floyd and Warshall."""
    n = int(batch.lengths[row])
    found = np.full((n + 1, n + 1), 10**6)
    np.fill_diagonal(found, 0)
    for word in range(1, n + 1):
        found[word, int(batch.heads[row, word - 1])] = found[int(batch.heads[row, word - 1]), word] = 1
    for via in range(n + 1):
        found = np.minimum(found, found[:, via, None] + found[None, via])
    return [[int(steps) for steps in line] for line in found]


def distance(matrix: Tensor, one: Tensor, other: Tensor) -> float:
    """`‖B(h_i − h_j)‖²`, number by number."""
    total = 0.0
    for line in matrix.tolist():
        total += sum(b * (x - y) for b, x, y in zip(line, one.tolist(), other.tolist(), strict=True)) ** 2
    return total


@pytest.mark.parametrize("kind", PROBES)
def test_predictions_equal_the_formula_term_by_term(kind: type[StructuralProbe]) -> None:
    probe, given = made(kind), batch()
    found, depths = probe(given), kind is StructuralDepthProbe
    assert found.shape == ((5, 3, 7) if depths else (5, 3, 7, 7))
    for k, pair in enumerate(PAIRS):
        for row, n in enumerate(LENGTHS):
            states = given.hidden[row, pair.layer - 1].float()
            for i, j in np.ndindex(n, 1 if depths else n):
                expected = distance(probe.kept[k], states[i], torch.zeros(SIZE) if depths else states[j])
                assert float(found[row, k, i] if depths else found[row, k, i, j]) == pytest.approx(expected, abs=1e-4)


def test_a_large_state_common_to_all_words_hides_no_distance() -> None:
    probe, given = made(StructuralDistanceProbe), batch()
    given.hidden[:, :, :, 5] += 1000.0 * given.mask[:, None]
    shifted = given.hidden.double()
    found = probe(given)
    for row, n in enumerate(LENGTHS):
        projected = shifted[row, 0, :n] @ probe.kept[1].double().T
        expected = (projected[:, None] - projected[None]).square().sum(-1)
        torch.testing.assert_close(found[row, 1, :n, :n].double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", PROBES)
def test_losses_equal_a_double_loop(kind: type[StructuralProbe]) -> None:
    probe, given = made(kind), batch()
    predicted = probe(given)
    losses = probe.losses(predicted, given)
    assert losses.shape == (5, 3)
    for row, n in enumerate(LENGTHS):
        gold = walked(given, row)
        for k in range(3):
            total = 0.0
            for i in range(n):
                if kind is StructuralDepthProbe:
                    total += abs(gold[0][i + 1] - 1 - float(predicted[row, k, i])) / n
                    continue
                for j in range(n):
                    total += abs(gold[i + 1][j + 1] - float(predicted[row, k, i, j])) / n**2
            assert float(losses[row, k]) == pytest.approx(total, rel=1e-4)


def test_edges_are_those_of_a_spanning_tree_without_punctuation() -> None:
    probe, given = made(StructuralDistanceProbe), batch([9, 4, 1, 12, 2], seed=4)
    predicted = probe(given)
    edges, found, correlation = probe.score_sentences(predicted, given)
    assert given.punctuation.any()
    for row, n in enumerate([9, 4, 1, 12, 2]):
        plain = [word for word in range(n) if not given.punctuation[row, word]]
        gold = {
            frozenset((word, int(given.heads[row, word]) - 1))
            for word in plain
            if int(given.heads[row, word]) - 1 in plain
        }
        assert int(edges[row]) == len(gold)
        for k in range(3):
            tree = minimum_spanning_tree(np.triu(predicted[row, k].numpy()[np.ix_(plain, plain)], 1)).tocoo()
            drawn = {frozenset((plain[a], plain[b])) for a, b in zip(tree.row, tree.col, strict=True)}
            assert int(found[row, k]) == len(gold & drawn)
            of_words = [
                stats.spearmanr(predicted[row, k, word, :n], walked(given, row)[word + 1][1:]).statistic
                for word in range(n)
                if n > 1
            ]
            assert float(correlation[row, k]) == pytest.approx(np.mean(of_words) if n > 1 else math.nan, nan_ok=True)


def test_the_root_is_the_word_of_least_depth_that_is_not_punctuation() -> None:
    given = batch([3, 2, 1, 2])
    given.heads[:, :3] = torch.tensor([[2, 0, 2], [0, 1, -1], [0, -1, -1], [0, 0, -1]])
    given.punctuation[:] = False
    given.punctuation[0, 0] = given.punctuation[2, 0] = True
    predicted = torch.tensor([[[0.1, 1.0, 2.0]], [[2.0, 1.0, 0.0]], [[1.0, 0.0, 0.0]], [[2.0, 1.0, 0.0]]])
    some, right, correlation = StructuralDepthProbe().score_sentences(predicted, given)
    # The second takes the wrong word, of the third nothing is left, and the fourth has two roots.
    assert some.tolist() == [True, True, False, True]
    assert right[:, 0].tolist() == [True, False, False, True]
    expected = [stats.spearmanr([0.1, 1.0, 2.0], [1, 0, 1]).statistic, -1.0]
    assert correlation[:2, 0].tolist() == pytest.approx(expected)
    assert correlation[2:].isnan().all()


@pytest.mark.parametrize("kind", PROBES)
def test_a_batch_without_a_sentence_finds_nothing(kind: type[StructuralProbe], data: MakeData) -> None:
    opened = data()
    opened.setup("validate")
    empty = opened.splits["dev"][[]]
    probe = made(kind, (Pair(0, 3), Pair(1, 3)), size=opened.hidden_size)
    total, right, correlation = probe.score_sentences(probe(empty), empty)
    assert (total.shape, right.shape, correlation.shape) == ((0,), (0, 2), (0, 2))
    assert probe.losses(probe(empty), empty).shape == (0, 2)


def test_nats_are_a_code_over_root_and_the_other_words() -> None:
    probe, given = made(StructuralDistanceProbe, PAIRS[:1]), batch()
    assert isinstance(probe, StructuralDistanceProbe)
    distances, nats = probe(given)[:, 0], probe.cross_entropy(given)
    assert nats.shape == given.heads.shape
    for row, n in enumerate(LENGTHS):
        for i in range(n):
            near = [math.exp(-float(distances[row, i, j])) if j != i else 0.0 for j in range(n)]
            chances = [1 / (n + 1), *((n - 1) / (n + 1) * value / sum(near) if n > 1 else 0.0 for value in near)]
            chances[i + 1] = 1 / (n + 1)
            assert sum(chances) == pytest.approx(1)
            assert float(nats[row, i]) == pytest.approx(-math.log(chances[int(given.heads[row, i])]), abs=1e-5)
        assert not nats[row, n:].any()


def test_there_is_no_code_of_several_pairs() -> None:
    several = made(StructuralDistanceProbe)
    assert isinstance(several, StructuralDistanceProbe)
    with pytest.raises(UserError, match=r"trains 3 probes, one for each layer and rank"):
        several.cross_entropy(batch())


def test_where_there_is_nothing_to_find_the_score_is_nan() -> None:
    rows = {"total": np.zeros(1), "right": np.zeros((1, 1)), "correlation": np.full((1, 1), np.nan)}
    dev, test = score_counts(rows, np.array([1]))
    table = sweep_table(PAIRS[:1], [1], dev, test, np.zeros(1, np.int64), share=True).frame
    assert table[["dev", "test", "low", "high"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("layers", "ranks", "held", "message"),
    [
        (None, None, (), r"needs hidden states: `hidden=\[0, 1\]` for the"),
        ((3,), None, (1, 2), r"of the layers 1, 2, but not of 3\. Add it to `hidden`"),
        (None, (0,), (1,), r"`ranks` contains 0, but ranks go from 1 to 16"),
        ((), None, (1,), "`layers` is empty"),
        (None, (2, 2), (1,), "`ranks` lists 2 more than once"),
    ],
)
def test_what_cannot_be_swept_is_refused(
    layers: tuple[int, ...] | None, ranks: tuple[int, ...] | None, held: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        sweep_pairs(layers, ranks, held, 16)


def test_each_pair_starts_from_numbers_of_its_own_within_the_bound() -> None:
    pairs = [Pair(1, 40), Pair(2, 40), Pair(1, 39)]
    starts = [initial_matrix(pair, 30, seed) for seed in (0, 1) for pair in pairs]
    assert [tuple(matrix.shape) for matrix in starts[:3]] == [(40, 30), (40, 30), (39, 30)]
    assert len({float(matrix[0, 0]) for matrix in starts}) == 6
    for matrix in starts:
        assert 0.049 < float(matrix.abs().max()) <= 0.05
        assert abs(float(matrix.mean())) < 0.004
    assert torch.equal(starts[0], initial_matrix(Pair(1, 40), 30, 0))


@pytest.fixture
def data(make_data: MakeData) -> MakeData:
    return lambda hidden=(0, 1, 2), **options: make_data(hidden=hidden, **options)


def fitted(probe: StructuralProbe, data: DependencyDataModule, run: Trainer) -> StructuralProbe:
    torch.manual_seed(0)
    run.fit(probe, datamodule=data)
    return probe


def by_hand(
    probe: StructuralProbe, data: DependencyDataModule, pair: int, start: Tensor
) -> tuple[Tensor, int, float, int]:
    """One matrix alone: its best state, the epoch and loss of it, and the epochs that were run."""
    matrix = torch.nn.Parameter(start.clone())
    adam = torch.optim.Adam([matrix], RATE)
    layer = data.hidden_layers.index(probe.pairs[pair].layer)

    def losses(batch: Any) -> Tensor:  # noqa: ANN401
        predicted = probe.predict(probe.states(batch)[:, layer] @ matrix.T)[:, None]
        return probe.losses(predicted, batch)[:, 0]

    best, kept, at, epoch = float("inf"), start, 0, 0
    loader = data.train_dataloader()
    for epoch in range(1, EPOCHS + 1):
        loader.sampler.set_epoch(epoch - 1)  # type: ignore[attr-defined]
        for batch in loader:
            adam.zero_grad()
            losses(batch).mean().backward()  # type: ignore[no-untyped-call]
            adam.step()
        with torch.no_grad():
            dev = float(torch.cat([losses(batch) for batch in data.val_dataloader()]).mean())
        if dev < best - GAIN:
            best, kept, at = dev, matrix.detach().clone(), epoch
        else:
            adam.param_groups[0]["lr"] *= 0.1
            if epoch - at == 2:
                break
    return kept, at, best, epoch


@pytest.mark.parametrize("kind", PROBES)
def test_every_pair_of_a_sweep_is_trained_as_if_it_were_alone(
    kind: type[StructuralProbe], data: MakeData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attention_probing.probes.structural.PATIENCE", 2)

    def make(layers: tuple[int, ...], ranks: tuple[int, ...]) -> StructuralProbe:
        return kind(layers, ranks, learning_rate=RATE)

    run = trainer(EPOCHS)
    sweep = fitted(make((0, 2), (3, 6)), data(), run)
    assert sweep.pairs == (Pair(0, 3), Pair(0, 6), Pair(2, 3), Pair(2, 6))
    table = scored(sweep, data()).tables["sweep"].frame
    opened = data()
    opened.setup("fit")
    ends = []
    for place, (layer, rank) in enumerate(sweep.pairs):
        alone = fitted(make((layer,), (rank,)), data(), trainer(EPOCHS))
        torch.testing.assert_close(alone.kept[0], sweep.kept[place], rtol=0, atol=1e-6)
        assert alone.best_epoch[0] == sweep.best_epoch[place]
        row = scored(alone, data()).tables["sweep"].frame.iloc[0]
        pd.testing.assert_series_equal(row, table.iloc[place], check_names=False, atol=1e-9)

        torch.manual_seed(0)
        untouched = make((layer,), (rank,))
        untouched.bind(Origin(Sizes(hidden=opened.hidden_size, pairs=((layer, rank),))))
        kept, at, best, last = by_hand(sweep, opened, place, untouched.matrices[0].detach())
        torch.testing.assert_close(sweep.kept[place].detach(), kept, rtol=0, atol=1e-4)
        assert int(sweep.best_epoch[place]) == at
        assert float(sweep.best_loss[place]) == pytest.approx(best, abs=1e-5)
        ends.append(last)
    # It ends with the pair that takes longest; that some end earlier is what leaving them out is tested by.
    assert run.current_epoch == max(ends)
    assert min(ends) < max(ends) or kind is StructuralDepthProbe


@pytest.mark.parametrize("kind", PROBES)
def test_the_pair_of_the_best_dev_score_is_reported(kind: type[StructuralProbe], data: MakeData) -> None:
    probe = fitted(kind(ranks=(2, 16), learning_rate=RATE), data(), trainer(3))
    result = scored(probe, data())
    table, scores, items = result.tables["sweep"].frame, result.numbers, result.items
    assert list(table) == ["layer", "rank", "epochs", "dev", "test", "low", "high"]
    assert list(zip(table["layer"], table["rank"], strict=True)) == [(k, r) for k in (0, 1, 2) for r in (2, 16)]
    chosen = table.iloc[int(table["dev"].argmax())]
    assert (result.audit["layer"], result.audit["rank"]) == (chosen["layer"], chosen["rank"])
    assert result.audit["epochs"] == chosen["epochs"]
    found = [scores[kind.headline + end] for end in ("", ".low", ".high")]
    np.testing.assert_array_equal(found, chosen[["test", "low", "high"]].tolist())
    assert items is not None
    assert items["id"].tolist() == [f"tiny-test-{index}" for index in range(17)]
    for name, (right, total) in result.ratios.items():
        assert scores[name] == pytest.approx(items[right].sum() / items[total].sum())
        low, high = scores[f"{name}.low"], scores[f"{name}.high"]
        few = name == kind.correlation and (items[total] > 0).sum() < 7  # then no subset of them is left for the ends
        assert np.isnan([low, high]).all() if few else low <= scores[name] <= high
    known = items[items["words"].between(5, 50) & items["spearman"].notna()]
    assert scores[kind.correlation] == pytest.approx(known.groupby("words")["spearman"].mean().mean())
    share_of, unit = kind.share[0], {"edges": "edges", "roots": "roots"}[kind.share[2]]
    rho = [scores[f"{kind.correlation}{end}"] for end in ("", ".low", ".high")]
    assert result.answer.startswith(
        f"Layer {chosen['layer']:.0f} at rank {chosen['rank']:.0f}, best of 6 on dev, finds "
        f"{share(result, share_of)} of "
        f"{items[kind.share[2]].sum()} {unit}; Spearman's ρ of {kind.correlation.removeprefix('spearman_')} is "
        + ("{:.2f} [{:.2f}, {:.2f}]" if rho[1] == rho[1] else "{:.2f}").format(*rho)
    )
    lowest = table["test"][0]
    shown = f"{lowest:.2f}" if kind.headline.startswith("spearman") else f"{100 * lowest:.1f} %"
    assert (f"; {kind.headline} of layer 0 is {shown}" in result.answer) == (chosen["layer"] > 0)
    figure = result.figures["sweep"]
    assert isinstance(figure, HeatMap)
    assert figure.marked is not None
    assert figure.values[figure.marked] == chosen["test"]
    assert (figure.row_labels, figure.column_labels) == (["0", "1", "2"], ["2", "16"])


def test_a_checkpoint_gives_the_same_scores_and_fits_nothing_else(data: MakeData, tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, "probe", monitor="val_loss", mode="min")
    probe = fitted(StructuralDistanceProbe((1, 2), (4,)), data(), trainer(3, keep))
    path = tmp_path / "probe.ckpt"
    expected = scored(probe, data())
    again = scored(StructuralDistanceProbe((1, 2), (4,)), data((1, 2)), path)
    assert again.numbers == pytest.approx(expected.numbers, rel=0, abs=0, nan_ok=True)
    pd.testing.assert_frame_equal(again.tables["sweep"].frame, expected.tables["sweep"].frame)
    assert again.audit == {name: value for name, value in expected.audit.items() if name != "warnings"}
    whole = scored(probe, data(), path)
    assert whole.numbers == pytest.approx(expected.numbers, rel=0, abs=0, nan_ok=True)
    loaded = StructuralDistanceProbe.load_from_checkpoint(path, weights_only=True)
    assert loaded.pairs == (Pair(1, 4), Pair(2, 4))
    assert torch.equal(loaded.kept[1], probe.kept[1])
    other = save_bert(tmp_path / "other", seed=5)
    for wrong, args in (
        (data(encoder=EncoderSpec(str(other))), ((1, 2), (4,))),
        (data(), ((1,), (4,))),
        (data(), ((1, 2), (5,))),
    ):
        with pytest.raises(TrainingError, match=r"difference in (encoder|layers and ranks of the matrices)\)"):
            scored(StructuralDistanceProbe(*args), wrong, path)


@pytest.mark.parametrize("kind", [StructuralDistanceProbe, StructuralDepthProbe])
def test_new_sentences(kind: type[StructuralProbe], data: MakeData, bert: Path, tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, "probe", monitor="val_loss", mode="min")
    probe = fitted(kind((2, 0), (4, 3)), data(), trainer(1, keep))
    loaded = kind.load_from_checkpoint(tmp_path / "probe.ckpt")
    sentences = [["the", "foxglove", "sleeps", "over", "the", "coffee", "."], ["fox"], ["guests", "drink"]]
    given: list[str | list[str]] = [" ".join(sentences[0]), *sentences[1:]]
    found = loaded.predict_sentences(given, EncoderSpec(str(bert)), options=Options(precision="float32"))
    tokenizer = Encoder(str(bert)).tokenizer
    for array, words in zip(found, sentences, strict=True):
        ids, positions = reference.split(tokenizer, words, "")
        states = reference.of_words(reference.hidden(bert, ids), positions, len(words))
        for place, pair in enumerate(probe.pairs):
            assert (int(array["layer"][place]), int(array["rank"][place])) == pair
            projected = states[pair.layer] @ probe.kept[place].double().numpy().T
            if kind is StructuralDepthProbe:
                expected = np.array([vector @ vector for vector in projected])
            else:
                expected = np.array([[(one - other) @ (one - other) for other in projected] for one in projected])
            np.testing.assert_allclose(array[place].to_numpy(), expected, rtol=1e-4, atol=1e-4)
        assert array[array.dims[-1]].to_numpy().tolist() == words
    other = save_bert(tmp_path / "other", seed=5)
    with pytest.raises(TrainingError, match="was trained on"):
        loaded.predict_sentences(["a fox"], EncoderSpec(str(other)))


def test_val_loss_is_the_mean_of_the_best_and_the_same_when_it_is_validated_again(data: MakeData) -> None:
    probe = StructuralDepthProbe(ranks=(4,), learning_rate=RATE)
    run = trainer(4)
    fitted(probe, data(), run)
    logged = float(run.callback_metrics["val_loss"])
    assert logged == pytest.approx(float(probe.best_loss.mean()))
    assert {"val_loss_layer0_rank4", "val_loss_layer1_rank4", "train_loss"} <= run.callback_metrics.keys()
    assert trainer(EPOCHS).validate(probe, datamodule=data(), verbose=False)[0]["val_loss"] == pytest.approx(logged)


def test_without_dev_the_last_weights_are_kept(data: MakeData) -> None:
    probe = fitted(StructuralDistanceProbe(), data((1,)), trainer(2, limit_val_batches=0))
    assert torch.equal(probe.kept[0], probe.matrices[0])
    assert probe.best_epoch.tolist() == [2]
    assert "sweep" not in scored(probe, data((1,))).figures


def test_a_dev_split_that_cannot_choose_among_pairs_is_named(data: MakeData, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = fitted(StructuralDistanceProbe(), data(), trainer(1))
    take = probe._dev.take
    monkeypatch.setattr(probe._dev, "take", lambda: {name: 0 * column for name, column in take().items()})
    with pytest.raises(UserError, match=r"No sentence of dev has a uuas, by which one of \d+ pairs is chosen"):
        scored(probe, data())


def test_what_cannot_be_run_is_refused(data: MakeData) -> None:
    probe = StructuralDistanceProbe()
    with pytest.raises(TrainingError, match="was not trained: train it with `fit`"):
        scored(probe, data())
    with pytest.raises(UserError, match=r"needs (attention|hidden states), but `encoder` is null"):
        fitted(StructuralDistanceProbe(), data((), encoder=None), trainer(EPOCHS))
    trained = fitted(StructuralDistanceProbe(), data(), trainer(1))
    with pytest.raises(UserError, match="`random_init` is true, but"):
        scored(trained, data(random_init=True))


def test_a_pair_whose_loss_was_never_a_number_is_named(data: MakeData) -> None:
    probe = fitted(StructuralDistanceProbe(ranks=(3,)), data(), trainer(1))
    probe.best_epoch[1] = 0
    with pytest.raises(UserError, match=r"loss on dev of layer 1 at rank 3 was never a finite number"):
        scored(probe, data())


def test_intervals_of_a_marked_treebank_are_over_documents(corpus: str, data: MakeData, tmp_path: Path) -> None:
    marked = with_documents(corpus, tmp_path, 2)
    probe = fitted(StructuralDistanceProbe((1,), (4,), learning_rate=RATE), data(), trainer(1))
    result = scored(probe, data(corpus=marked, cache=str(tmp_path)))
    alone = scored(probe, data())
    items = result.items
    assert items is not None
    assert items["document"].tolist() == [index // 2 for index in range(17)]
    assert alone.items is not None
    assert "document" not in alone.items
    assert (result.audit["units"], result.shares) == ("9 documents", ("uuas",))
    sums = items.groupby("document")[list(result.ratios["uuas"])].sum()
    expected = bootstrap_ratio(*sums.to_numpy(float).T, share=True)
    numbers = result.numbers
    assert (numbers["uuas.low"], numbers["uuas.high"]) == pytest.approx(expected.interval)
    assert numbers["uuas"] == alone.numbers["uuas"]
    assert numbers["uuas.low"] != alone.numbers["uuas.low"]
    row = result.tables["sweep"].frame.iloc[0]
    assert row["test"] == numbers[StructuralDistanceProbe.headline]
