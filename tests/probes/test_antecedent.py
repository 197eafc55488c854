"""Trained antecedent probes, against the formulas term by term, nested loops over the stores, and cases by hand."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from attention_probing.attention import Options
from attention_probing.attention.source import EncoderSpec
from attention_probing.commands import CONFIGS
from attention_probing.datamodules import AntecedentBatch, CoreferenceDataModule
from attention_probing.datamodules.vectors import VectorSpec
from attention_probing.measures import AntecedentHeads
from attention_probing.metrics.antecedent_selection import ANTECEDENT_GROUPS
from attention_probing.metrics.stability import warn_of_choice
from attention_probing.models import Origin
from attention_probing.probes import AntecedentAttentionProbe, AntecedentWordsProbe
from attention_probing.probes.antecedent import TrainedAntecedentProbe, antecedent_loss
from attention_probing.probes.antecedent_evaluation import links_of
from attention_probing.probes.frozen import Sizes
from attention_probing.results.errors import UserError
from tests import documents
from tests.printed import share
from tests.tiny import BROKEN, FAMILIAR
from tests.trainers import CONTINUES, scored, trainer

pytestmark = CONTINUES

LENGTHS = [[4] * 9, [6, 3, 5, 7], [9, 2, 4, 9, 5], [3] * 12, [8, 5, 9], [6, 4, 2, 7, 3, 8, 5]]
Kind = type[AntecedentAttentionProbe] | type[AntecedentWordsProbe]
KINDS: tuple[Kind, ...] = (AntecedentAttentionProbe, AntecedentWordsProbe)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Train, dev and test, six documents each, of more than one window."""
    return documents.write_splits(tmp_path_factory.mktemp("documents"), LENGTHS, ("train", "dev", "test"))


@pytest.fixture(scope="module")
def glove(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Vectors of five numbers for most of the words."""
    random = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("glove") / "vectors.txt"
    lines = [f"{word.lower()} {' '.join(map(str, random.normal(size=5).round(3)))}" for word in (*FAMILIAR, *BROKEN)]
    path.write_text("\n".join(lines[:-2]) + "\n", encoding="utf-8")
    return str(path)


MakeData = Callable[..., CoreferenceDataModule]
RunConfig = Callable[..., tuple[Any, dict[str, Any], Path]]


@pytest.fixture
def data(files: dict[str, str], bert: Path, glove: str, cache: str) -> MakeData:
    def make(encoder: Path | None = bert, vectors: str | None = glove, **options: Any) -> CoreferenceDataModule:  # noqa: ANN401
        spec, known = encoder and EncoderSpec(str(encoder)), vectors and VectorSpec(vectors)
        precise: dict[str, Any] = {"options": Options(precision="float32"), "cache": cache}
        return CoreferenceDataModule(files, encoder=spec, vectors=known, **precise | options)

    return make


def made(
    kind: Kind, layers: int = 2, heads: int = 3, vectors: int = 4
) -> AntecedentAttentionProbe | AntecedentWordsProbe:
    """A probe with random parameters."""
    probe = kind()
    probe.bind(Origin(Sizes(tuple(range(layers)), tuple(range(heads)), vectors)))
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in probe.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random))
    return probe


def batch_of(head_words: list[int], clusters: list[int], weights: Tensor, vectors: int = 4) -> AntecedentBatch:
    """A window of these mentions, all pronouns."""
    between = len(set(head_words))
    return AntecedentBatch(
        index=torch.tensor([0]),
        document=torch.tensor([0]),
        head_words=torch.tensor(head_words),
        clusters=torch.tensor(clusters),
        types=torch.zeros(len(head_words), dtype=torch.int64),
        weights=weights,
        vectors=torch.randn(between, vectors, generator=torch.Generator().manual_seed(2)),
        window=None,
        split="test",
    )


def random_batch(mentions: int = 9, layers: int = 2, heads: int = 3, seed: int = 0) -> AntecedentBatch:
    random = np.random.default_rng(seed)
    head_words = sorted(random.integers(0, 2 * mentions, mentions).tolist())
    between = len(set(head_words))
    weights = torch.rand(layers, heads, between, between, generator=torch.Generator().manual_seed(seed))
    return batch_of(head_words, random.integers(0, 3, mentions).tolist(), weights.half())


def literal(probe: AntecedentAttentionProbe | AntecedentWordsProbe, batch: AntecedentBatch, i: int, j: int) -> float:
    """Score of antecedent j for mention i: one term per layer, head and direction, `v_i ⊕ v_j` written out."""
    layers, heads = batch.weights.shape[:2]
    both = torch.cat([batch.vectors[i], batch.vectors[j]]).double()
    total = 0.0
    for k, (layer, head) in enumerate(np.ndindex(layers, heads)):
        alpha = batch.weights[layer, head].double()
        for direction, attention in enumerate((alpha[i, j], alpha[j, i])):
            if isinstance(probe, AntecedentAttentionProbe):
                weight = float(probe.weight[direction, layer, head].detach())
            else:
                place = direction * layers * heads + k
                joined = torch.cat([probe.mention[:, place], probe.antecedent[:, place]]).detach().double()
                weight = float(joined @ both) + float(probe.bias[place].detach())
            total += weight * float(attention)
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_the_formula_term_by_term(kind: Kind) -> None:
    probe, batch = made(kind), random_batch()
    scores = probe(batch).detach()
    size = batch.vectors.size(0)
    assert scores.shape == (size, size)
    for i, j in np.ndindex(size, size):
        assert float(scores[i, j]) == pytest.approx(literal(probe, batch, i, j), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_is_the_probability_of_all_gold_antecedents_summed_over_the_links(kind: Kind) -> None:
    probe, batch = made(kind), random_batch(12)
    heads, clusters = batch.head_words.tolist(), batch.clusters.tolist()
    places = sorted(set(heads))
    expected, links = 0.0, 0
    for m in range(len(heads)):
        candidates = {heads[e] for e in range(m)} - {heads[m]}
        gold = {heads[e] for e in range(m) if clusters[e] == clusters[m]} - {heads[m]}
        if gold:
            links += 1
            mass = {j: math.exp(literal(probe, batch, places.index(heads[m]), places.index(j))) for j in candidates}
            expected -= math.log(sum(mass[j] for j in gold) / sum(mass.values()))
    assert links > 5
    loss = probe.training_step(batch, 0)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    loss.backward()  # type: ignore[no-untyped-call]
    for parameter in probe.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_without_a_link_costs_nothing_and_moves_nothing(kind: Kind) -> None:
    probe = made(kind)
    loss = probe.training_step(batch_of([1, 4, 6], [0, 1, 2], torch.rand(2, 3, 3, 3)), 0)
    assert loss.item() == 0
    loss.backward()  # type: ignore[no-untyped-call]
    for parameter in probe.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_the_choice_is_the_candidate_of_the_highest_score_and_the_later_of_equals() -> None:
    probe = made(AntecedentAttentionProbe, 1, 1)
    assert isinstance(probe, AntecedentAttentionProbe)
    with torch.no_grad():
        probe.weight.copy_(torch.tensor([1.0, 0.0])[:, None, None])
    weights = torch.tensor([[0, 0, 0, 0], [0.9, 0, 0, 0], [0.2, 0.7, 0, 0], [0.4, 0.1, 0.4, 0.9]])[None, None]
    batch = batch_of([2, 5, 7, 8], [0, 0, 0, 0], weights)
    links = links_of(batch)
    assert links.source.tolist() == [1, 2, 3]
    assert probe.choose(batch, links).tolist() == [0, 1, 2]  # never itself, and 2 rather than 0, which has as much


def fitted(kind: Kind, data: CoreferenceDataModule, *callbacks: Callback, epochs: int = 3) -> TrainedAntecedentProbe:
    probe = kind(learning_rate=0.1)
    trainer(epochs, *callbacks).fit(probe, datamodule=data)
    return probe


def by_hand(probe: TrainedAntecedentProbe, data: CoreferenceDataModule, split: Literal["dev", "test"]) -> pd.DataFrame:
    """One row per link: its document, type, and whether the choice is right."""
    rows = []
    for index, window in enumerate(data.splits[split].windows):
        batch = data.splits[split][[index]]
        scores = probe(batch).detach().tolist()
        mentions, heads = window.text.mentions, window.mention_heads
        places = sorted(set(heads))
        for m, mention in enumerate(mentions):
            candidates = {heads[e] for e in range(m)} - {heads[m]}
            gold = {heads[e] for e in range(m) if mentions[e].cluster == mention.cluster} - {heads[m]}
            if gold:
                chosen = max(candidates, key=lambda word: (scores[places.index(heads[m])][places.index(word)], word))
                rows.append((window.text.id, mention.type, chosen in gold))
    return pd.DataFrame(rows, columns=["document", "type", "right"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_probe_is_scored_beside_the_best_head_and_the_baselines(kind: Kind, data: MakeData) -> None:
    module = data()
    probe = fitted(kind, module)
    result, alone = scored(probe, module), scored(AntecedentHeads(), data(vectors=None))
    # What stands beside is what the heads alone report.
    assert {name: result.numbers[name] for name in alone.numbers} == pytest.approx(alone.numbers, nan_ok=True)
    table = result.tables["antecedent"].frame
    pd.testing.assert_frame_equal(table[list(alone.tables["antecedent"].frame)], alone.tables["antecedent"].frame)
    assert list(table)[2:5] == ["trained", "trained.low", "trained.high"]
    links = by_hand(probe, module, "test")
    assert len(links) > 30
    for place, group in enumerate(ANTECEDENT_GROUPS):
        of_group = links if group == "all" else links[links["type"] == group]
        score = result.numbers[f"antecedent_trained.{group}"]
        if of_group.empty:
            assert math.isnan(score)
            continue
        assert score == table["trained"][place] == pytest.approx(of_group["right"].mean())
        low, high = (result.numbers[f"antecedent_trained.{group}.{end}"] for end in ("low", "high"))
        assert low <= score <= high or math.isnan(low)  # of links in one document alone there is no interval
    items = result.items
    assert items is not None
    right = links.groupby("document")["right"].sum()
    assert items.set_index("document")["antecedent_trained"].to_dict() == {
        name: int(right.get(name, 0)) for name in module.splits["test"].documents
    }
    for name, (numerator, denominator) in result.ratios.items():
        if items[denominator].sum():
            assert result.numbers[name] == pytest.approx(items[numerator].sum() / items[denominator].sum())
    assert {"antecedent_trained.all", "antecedent.nominal", "sieve.all"} <= result.ratios.keys()
    probed, head = (share(result, f"{name}.all") for name in ("antecedent_trained", "antecedent"))
    again = warn_of_choice(table["chosen"][0])
    assert again  # of so few mentions another sample would often choose another head
    assert result.answer.startswith(
        f"The probe is right on {probed} of {len(links)} mentions; head {table['head'][0]}{again} on {head}; the "
        "nearest mention "
    )


@pytest.mark.parametrize("kind", KINDS)
def test_validation_logs_accuracy_and_loss_on_dev(kind: Kind, data: MakeData) -> None:
    module = data()
    probe = fitted(kind, module)
    [metrics] = trainer().validate(probe, datamodule=module, verbose=False)
    assert metrics["val_accuracy"] == pytest.approx(by_hand(probe, module, "dev")["right"].mean())
    nats = [antecedent_loss(probe(batch), links_of(batch)).detach() for batch in module.val_dataloader()]
    assert metrics["val_loss"] == pytest.approx(torch.cat(nats).mean().item(), rel=1e-5)


def kept(kind: Kind, data: CoreferenceDataModule, folder: Path) -> tuple[TrainedAntecedentProbe, Path]:
    return fitted(kind, data, ModelCheckpoint(folder, "probe"), epochs=2), folder / "probe.ckpt"


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_tested_as_the_probe_that_wrote_it(kind: Kind, data: MakeData, tmp_path: Path) -> None:
    probe, path = kept(kind, data(), tmp_path)
    again = scored(kind(), data(), path)
    assert again.numbers == pytest.approx(scored(probe, data()).numbers, nan_ok=True)
    assert again.audit["epochs"] == 2
    alone = kind.load_from_checkpoint(path, weights_only=True)
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), probe.parameters(), strict=True))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (AntecedentWordsProbe, {}, "AntecedentWordsProbe needs word vectors. Set `vectors` to a name"),
        (AntecedentAttentionProbe, {"candidates": "words"}, "`candidates` is words. Set it to mentions"),
        (AntecedentAttentionProbe, {"encoder": None}, r"AntecedentAttentionProbe needs attention, but .*is null"),
    ],
)
def test_what_a_probe_cannot_read_is_refused(kind: Kind, options: dict[str, Any], message: str, data: MakeData) -> None:
    with pytest.raises(UserError, match=message):
        fitted(kind, data(vectors=None, **options))


@pytest.mark.parametrize("corpus", ["", "_litbank"])
@pytest.mark.parametrize("config", ["coreference", "coreference_attention", "coreference_glove"])
@pytest.mark.slow
def test_the_configs_run(config: str, corpus: str, files: dict[str, str], glove: str, run_config: RunConfig) -> None:
    # Without a template of splits dev gives all documents, which are one file.
    given = "{{train: {train}, dev: {dev}, test: {test}}}".format(**files) if corpus else files["dev"]
    shared = [f"--config={CONFIGS}/clark2019/{config}{corpus}.yaml", f"--data.corpus={given}"]
    shared += [f"--data.vectors.name={glove}"] if "glove" in config else []
    trained = config != "coreference"
    _, found, folder = run_config("fit" if trained else "measure", *shared, *["--trainer.max_epochs=2"] * trained)
    experiments = {"attention": "antecedent_attention", "glove": "antecedent_words"}
    assert found["experiment"] == experiments.get(config.removeprefix("coreference_"), "antecedent")
    assert 0 <= found["scores"]["antecedent_trained.all" if trained else "antecedent.all"] <= 1
    assert ("epochs" in found["audit"]) == trained
    assert found["tables"].keys() == {"antecedent", "antecedent_by_type", "heads"}
    if config + corpus == "coreference_glove_litbank":
        [checkpoint] = (folder / "checkpoints").glob("*.ckpt")
        _, again, _ = run_config("test", *shared, f"--ckpt_path={checkpoint}", processes=2)
        assert again["scores"] == found["scores"]
