"""Heads off and pruned, as the experiments score them, against loops over heads and texts."""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from attention_probing.attention.capture import Mixture, replacing
from attention_probing.attention.source import EncoderSpec, resolve
from attention_probing.commands import CONFIGS
from attention_probing.datamodules import ClassificationDataModule, TextDataModule
from attention_probing.measures import HeadAblation, measure
from attention_probing.measures.head_sets import random_sets
from attention_probing.measures.pruning import PRUNED_SHARES, Pruning, head_confidences, head_derivatives, normalise
from attention_probing.measures.task import LanguageModelling
from attention_probing.measures.task_loading import data_of_checkpoint, draw_texts, load_task
from attention_probing.metrics.p_values import holm
from attention_probing.metrics.stability import draw_resamples
from attention_probing.models import TransformerClassifier
from attention_probing.models.transformer import SequenceClassifier
from attention_probing.results import UserError, format_difference
from tests import tiny
from tests.measures.classifiers import arguments
from tests.measures.heads_off import off, scaled, seeing
from tests.measures.test_importance import language_model
from tests.models.corpora import write_texts
from tests.printed import share
from tests.tiny import TEXTS
from tests.trainers import scored

CONFIG = CONFIGS / "kovaleva2019/ablation.yaml"
HEADS = [(layer, head) for layer in range(2) for head in range(4)]


def logits_without(checkpoint: Path, data: ClassificationDataModule, heads: set[tuple[int, int]]) -> Tensor:
    """Logits of dev, one text at a time, with the columns of some heads read as zeros by the output projections."""
    model, dev = TransformerClassifier.load_from_checkpoint(checkpoint), data.splits["dev"]
    with off(model.classifier.model, heads), torch.no_grad():
        return torch.cat([model(dev[[item]]).logits for item in range(len(dev))])


def rows_of(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples())


def test_without_data_a_checkpoint_is_measured_on_those_of_its_training(
    checkpoint: Path, data: ClassificationDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBING_CACHE", str(data.cache))
    result = measure(measurements=HeadAblation(str(checkpoint), heads=False))
    assert result.numbers == scored(HeadAblation(str(checkpoint), heads=False), data).numbers
    assert result.numbers["accuracy"] > 0


def test_every_score_is_that_of_a_loop_over_texts(checkpoint: Path, data: ClassificationDataModule) -> None:
    sets: dict[str, list[str | int]] = {"both": ["1-1", 2], "first": [1]}
    found = scored(HeadAblation(str(checkpoint), random=3, sets=sets), data)
    gold = torch.from_numpy(data.splits["dev"].labels)

    def right(heads: set[tuple[int, int]]) -> Any:  # noqa: ANN401
        return (logits_without(checkpoint, data, heads).argmax(1) == gold).double().numpy()

    whole = right(set())
    assert found.numbers["accuracy"] == pytest.approx(whole.mean())
    heads, layers, named = (found.tables[name].frame for name in ("ablation", "layers", "sets"))
    for row in rows_of(heads):
        own = right({(row.layer - 1, row.head - 1)})
        assert row.score == pytest.approx(own.mean())
        assert row.difference == pytest.approx(own.mean() - whole.mean())
        assert row.low <= row.score <= row.high
    np.testing.assert_allclose(heads["p_holm"], holm(heads["p"].tolist()))
    for row in rows_of(layers):
        assert row.score == pytest.approx(right({(row.layer - 1, head) for head in range(4)}).mean())
    named = named.set_index("set")
    both = {(0, 0), *((1, head) for head in range(4))}
    assert named.loc["both", "score"] == pytest.approx(right(both).mean())
    assert named["heads"].to_dict() == {"both": 5, "first": 4}
    # A whole layer has no other set of as many heads; a head and a whole layer have three.
    assert named.loc["first", ["random", "beyond_random", "beyond_random_p"]].isna().all()
    others = [{(0, head), *both - {(0, 0)}} for head in (1, 2, 3)]
    scores = np.array([right(one).mean() for one in (both, *others)])
    assert named.loc["both", "random"] == pytest.approx(scores[1:].mean())
    assert named.loc["both", "beyond_random"] == pytest.approx(scores[0] - scores[1:].mean())
    assert named["beyond_random_p"].between(0, 1).to_dict() == {"both": True, "first": False}
    counts = [found.numbers[f"zero.{name}"] for name in ("heads_that_help", "heads_that_hurt", "heads_undecided")]
    assert sum(counts) == len(HEADS)
    table = found.tables["sets"]
    (of_both,) = table.frame.index[table.frame["set"] == "both"]
    gain = format_difference(*(table.estimate(of_both, name) for name in ("beyond_random", "beyond_random_p_holm")))
    change = format_difference(table.estimate(of_both, "difference"))
    assert found.answer == (
        f"The accuracy of the intact model is {share(found, 'accuracy')} over 40 texts; ablated alone (zero), set "
        f"both changes it by {change}; against random heads of the same layers that is {gain}."
    )
    assert {"ablation_zero", "layers_zero"} <= set(found.figures)


@pytest.mark.slow
def test_all_kinds_are_the_same_on_two_processes(
    run_config: Callable[..., Any],
    checkpoint: Path,
    bert: Path,
    tmp_path: Path,
) -> None:
    kinds = ("--model.kinds=[uniform, zero, mean, resample, scale]", "--model.factors=[0.5]")
    given = arguments(CONFIG, checkpoint, bert, tmp_path / "one", *kinds)
    _, one, at_one = run_config(*given, own_data=True)
    _, two, at_two = run_config(
        *arguments(CONFIG, checkpoint, bert, tmp_path / "two", *kinds), own_data=True, processes=2
    )
    assert one["scores"] == two["scores"]
    for name in ("ablation", "layers"):
        assert (at_one / one["tables"][name]).read_bytes() == (at_two / two["tables"][name]).read_bytes()
    table = pd.read_csv(at_one / one["tables"]["ablation"])
    found = table.pivot(index=["layer", "head"], columns="kind", values="score")
    assert len(set(map(tuple, found.T.to_numpy()))) > 1  # kinds differ


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_loss_of_a_language_model_with_a_head_off_or_halved_is_that_of_a_loop_over_texts(
    kind: str, tmp_path: Path
) -> None:
    encoder = language_model(kind, tmp_path / "encoder")
    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(TEXTS[:9]), encoding="utf-8")
    data = TextDataModule(str(corpus), EncoderSpec(str(tmp_path / "encoder")))
    with pytest.warns(UserWarning, match="With 4 texts the smallest p is 0.12, so none of 8 heads can be significant"):
        result = scored(HeadAblation(layers=False), data)
    halved = HeadAblation(kinds=["scale"], factors=[0.5], layers=False)
    with pytest.warns(UserWarning, match="so none of 8 combinations of head and factor can be significant"):
        result_of_halved = scored(halved, data)

    task = LanguageModelling(encoder, 0)
    kind_of_model = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM

    def loop(heads: set[tuple[int, int]], factor: float = 0) -> float:
        model: Any = kind_of_model.from_pretrained(tmp_path / "encoder", attn_implementation="eager")
        nats = tokens = 0.0
        for batch in data.test_dataloader()[0]:
            inputs = task.inputs(batch)
            read, targets = inputs["input_ids"], inputs["targets"]
            for row, length in enumerate(batch.lengths.tolist()):
                with scaled(model, heads, factor), torch.no_grad():
                    logits = model(read[row : row + 1, :length]).logits[0]
                own = targets[row, :length]
                nats += float(nn.functional.cross_entropy(logits, own, reduction="sum"))
                tokens += int((own >= 0).sum())
        return nats / tokens

    assert result.numbers["loss"] == pytest.approx(loop(set()), rel=1e-4)
    for row in rows_of(result.tables["ablation"].frame):
        assert row.score == pytest.approx(loop({(row.layer - 1, row.head - 1)}), rel=1e-4)
    for row in rows_of(result_of_halved.tables["ablation"].frame):
        assert row.score == pytest.approx(loop({(row.layer - 1, row.head - 1)}, 0.5), rel=1e-4)


def test_random_sets_are_all_different_and_each_other_set_is_as_likely() -> None:
    own = frozenset({(0, 0), (0, 3), (2, 1), (2, 2), (2, 0)})
    every = {
        frozenset([*((0, head) for head in two), *((2, head) for head in three)])
        for two in combinations(range(4), 2)
        for three in combinations(range(4), 3)
    }
    drawn = Counter(heads for seed in range(800) for heads in random_sets(own, 4, 5, np.random.default_rng(seed)))
    assert drawn.keys() == every - {own}
    expected = 800 * 5 / 23
    assert max(abs(number - expected) for number in drawn.values()) < 4 * expected**0.5
    everything = random_sets(own, 4, 100, np.random.default_rng(0))
    assert len(everything) == len(set(everything)) == 23


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sets": {"a": ["3-1"]}}, r"^`sets`\.a: 3-1 does not exist; there are 2 layers of 4 heads"),
        ({"checkpoint": None}, "HeadAblation without a checkpoint needs .*, but ClassificationDataModule has none"),
        ({"kinds": ()}, "^`kinds` is empty"),
        ({"heads": False, "layers": False}, "Nothing is ablated"),
        ({"random": 1}, "random is 1, but must be at least 2"),
        ({"factors": [1, 0.5, 1]}, "^`factors` lists 1 more than once"),
        ({"factors": [-1]}, "factors is .*, but must be a list, each at least 0"),
        (
            {"kinds": ["zero", "patch"]},
            r"^The kind of ablation `patch` takes .* but the data are no minimal pairs\. Leave it out of",
        ),
    ],
)
def test_what_cannot_be_ablated_is_refused(
    options: dict[str, Any], message: str, checkpoint: Path, data: ClassificationDataModule
) -> None:
    with pytest.raises(UserError, match=message):
        scored(HeadAblation(**{"checkpoint": str(checkpoint), **options}), data)


def test_patch_is_refused_before_texts_are_read(
    checkpoint: Path, data: ClassificationDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(stage: str) -> None:
        raise AssertionError(f"the texts are read for {stage}")

    monkeypatch.setattr(data, "setup", read)
    with pytest.raises(UserError, match=r"name a decoder and minimal pairs: `?PairDataModule"):
        measure(data, measurements=HeadAblation(str(checkpoint), kinds=["patch"]))


MICHEL = CONFIGS / "michel2019"
LABELS = torch.tensor([0, 1, 1])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("save", [tiny.save_bert, tiny.save_gpt2])
def test_derivatives_are_finite_differences_text_by_text(
    save: Callable[[Path], Path], padded: bool, tmp_path: Path
) -> None:
    classifier = SequenceClassifier(resolve(EncoderSpec(str(tiny.add_head(save(tmp_path), 2)))), 2).double().eval()
    tokens = torch.arange(5, 26).view(3, 7)
    mask = torch.ones_like(tokens)
    if padded:
        mask[1, 3:] = mask[2, 5:] = 0
    off = frozenset({(0, 2), (1, 1)})

    def losses(inputs: Mapping[str, Tensor]) -> Tensor:
        logits = classifier.logits(inputs["input_ids"], inputs["attention_mask"].bool(), 0 * inputs["input_ids"])
        return nn.functional.cross_entropy(logits, LABELS, reduction="none")

    found = head_derivatives(losses, {"input_ids": tokens, "attention_mask": mask}, off)
    assert found.shape == (3, 2, 4)
    step = 1e-5
    for place in HEADS:
        ends = []
        for change in (step, -step):
            moved = {place: change}

            def scale(
                layer: int, _: nn.Module, mixture: Mixture, moved: Mapping[tuple[int, int], float] = moved
            ) -> Tensor:
                factors = [((layer, head) not in off) + moved.get((layer, head), 0.0) for head in range(4)]
                return mixture.outputs * torch.tensor(factors, dtype=torch.float64)[:, None, None]

            one_by_one = []
            for row in range(3):
                size = int(mask[row].sum())
                alone = {"input_ids": tokens[row : row + 1, :size], "attention_mask": mask[row : row + 1, :size]}
                with torch.no_grad(), replacing(scale):
                    logits = classifier.logits(
                        alone["input_ids"], alone["attention_mask"].bool(), 0 * alone["input_ids"]
                    )
                one_by_one.append(nn.functional.cross_entropy(logits, LABELS[row : row + 1]))
            ends.append(torch.stack(one_by_one))
        expected = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close(found[:, place[0], place[1]], expected, atol=1e-8, rtol=1e-5)
    assert found.abs().max() > 1e-3


def test_confidence_is_the_largest_weight_between_words(bert: Path) -> None:
    classifier = SequenceClassifier(resolve(EncoderSpec(str(bert))), 2).eval()
    tokens = torch.tensor([[2, 7, 8, 9, 3], [2, 10, 3, 0, 0]])
    words = torch.tensor([[0, 1, 1, 1, 0], [0, 1, 0, 0, 0]]).bool()
    inputs = {"input_ids": tokens, "attention_mask": (tokens > 0).long(), "words": words}

    def run(inputs: Mapping[str, Tensor]) -> Tensor:
        return classifier.logits(inputs["input_ids"], inputs["attention_mask"].bool(), 0 * inputs["input_ids"])

    found = head_confidences(run, inputs)
    model = AutoModel.from_pretrained(bert, attn_implementation="eager").eval()
    with torch.no_grad():
        own = model(tokens, inputs["attention_mask"], output_attentions=True).attentions
    for text, place in words.nonzero().tolist():
        for layer, head in HEADS:
            expected = max(float(own[layer][text, head, place, to]) for to in words[text].nonzero().flatten().tolist())
            assert found[text, place, layer, head].item() == pytest.approx(expected, abs=1e-6)
    assert found[~words].isnan().all()


def slow_importance(
    checkpoint: Path, data: ClassificationDataModule, gone: list[tuple[int, int]]
) -> NDArray[np.float64]:
    """Mean |output · gradient of the output| over single texts of train, `[layers, heads]`."""
    mean: NDArray[np.float64] = np.mean([*slow_importances(checkpoint, data, gone).values()], axis=0)
    return mean


def slow_importances(
    checkpoint: Path, data: ClassificationDataModule, gone: list[tuple[int, int]]
) -> dict[tuple[int, ...], NDArray[np.float64]]:
    """|output · gradient of the output| `[layers, heads]` by the tokens of each text of train."""
    model: Any = TransformerClassifier.load_from_checkpoint(checkpoint).classifier.model
    read: list[Tensor] = []

    def keep(layer: int, outputs: Tensor) -> Tensor:
        read.append(outputs.requires_grad_())
        return read[-1]

    texts = data.splits["train"]
    found = {}
    for text in range(len(texts)):
        read.clear()
        of_text = np.zeros((2, 4))
        with off(model, gone), seeing(model, keep):
            loss = nn.functional.cross_entropy(model(texts[[text]].tokens).logits, texts[[text]].labels)
        for layer, gradient in enumerate(torch.autograd.grad(loss, read)):
            of_text[layer] = (gradient * read[layer]).view(-1, 4, 8).sum((0, 2)).abs().detach().numpy()
        found[tuple(texts[[text]].tokens[0].tolist())] = of_text
    assert len(found) == len(texts)
    return found


def place_of(importance: pd.DataFrame) -> dict[tuple[int, int], int]:
    """When each head goes, from 1."""
    heads = zip(importance["layer"] - 1, importance["head"] - 1, strict=True)
    return dict(zip(heads, importance["order"], strict=True))


def accuracy(model: nn.Module, data: ClassificationDataModule) -> float:
    right = []
    for text in range(len(data.splits["test"])):
        batch = data.splits["test"][[text]]
        with torch.no_grad():
            right.append(int(model(batch.tokens).logits.argmax()) == int(batch.labels))
    return float(np.mean(right))


def test_the_curve_is_that_of_zeroed_heads(checkpoint: Path, data: ClassificationDataModule) -> None:
    result = scored(Pruning(str(checkpoint), seeds=2), data)
    table, importance = (result.tables[name].frame for name in ("pruning", "importance"))
    assert {"pruning", "importance", "confidence"} == set(result.figures)
    mean = slow_importance(checkpoint, data, [])
    assert np.allclose(importance["importance"], mean.ravel(), rtol=1e-3, atol=1e-7)
    ranked = sorted(HEADS, key=lambda head: normalise(mean)[head])
    assert sorted(HEADS, key=lambda head: place_of(importance)[head]) == ranked

    curve = {float(row["pruned"]): row for row in table[table["ranking"] == "importance"].to_dict("records")}
    scores, whole = {}, TransformerClassifier.load_from_checkpoint(checkpoint).classifier.model
    for pruned in PRUNED_SHARES:
        with off(whole, ranked[: int(8 * pruned)]):
            scores[pruned] = accuracy(whole, data)
        assert curve[pruned]["score"] == pytest.approx(scores[pruned])
    assert curve[1.0]["heads"] == 8
    low = result.numbers["accuracy.low"]
    expected = min((pruned for pruned in PRUNED_SHARES if scores[pruned] < low), default=np.nan)
    assert result.numbers["pruning.importance.leaves_at"] == pytest.approx(expected, nan_ok=True)
    assert result.finding is not None
    assert result.finding.score == "pruning.importance.leaves_at"
    leaves = [
        f"{100 * result.numbers[f'pruning.{name}.leaves_at']:.1f} % by {name}"
        for name in ("importance", "confidence", "random")
    ]
    assert result.answer == (
        f"The accuracy of the intact model is {share(result, 'accuracy')} over 29 texts; heads pruned when "
        "it falls "
        f"below this interval: {', '.join(leaves)}."
    )


def test_the_overlap_is_that_of_heads_pruned_on_resampled_texts(
    checkpoint: Path, data: ClassificationDataModule
) -> None:
    frame = scored(Pruning(str(checkpoint), seeds=2), data).tables["pruning"].frame
    importances = slow_importances(checkpoint, data, [])
    task = load_task("Pruning", checkpoint, data, torch.device("cpu"), 0)
    of_texts = []
    for batch in draw_texts(task, data, "train", 1000, 0):
        for tokens, real in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            of_texts.append(importances[tuple(tokens[real.bool()].tolist())])
    assert len(of_texts) == len(importances)

    def ranked(weights: NDArray[Any]) -> list[tuple[int, int]]:
        mean = normalise(np.tensordot(weights, np.array(of_texts), 1) / weights.sum())
        return sorted(HEADS, key=lambda head: mean[head])

    whole = ranked(np.ones(len(of_texts)))
    for row in frame[frame["ranking"] == "importance"].to_dict("records"):
        pruned = {*whole[: row["heads"]]}
        overlaps = []
        for times in draw_resamples(len(of_texts), 0):
            again = {*ranked(times)[: row["heads"]]}
            overlaps.append(len(pruned & again) / len(pruned | again) if pruned else 1.0)
        assert row["overlap"] == pytest.approx(np.mean(overlaps), abs=0.02)  # a near tie may be broken by rounding
    assert frame.loc[frame["ranking"] == "random", "overlap"].isna().all()
    for ranking in ("importance", "confidence"):
        overlaps = frame[frame["ranking"] == ranking]["overlap"].tolist()
        assert overlaps[0] == overlaps[-1] == 1  # no head, and all heads
        assert 0 < min(overlaps) < 1
    exact = scored(Pruning(str(checkpoint), ["importance"], exact=True), data).tables["pruning"].frame
    assert exact["overlap"].isna().all()


def test_exact_importance_is_estimated_without_the_heads_that_are_gone(
    checkpoint: Path, data: ClassificationDataModule
) -> None:
    result = scored(Pruning(str(checkpoint), ["importance"], exact=True), data)
    order: list[tuple[int, int]] = []
    for pruned in PRUNED_SHARES[1:]:
        importance = normalise(slow_importance(checkpoint, data, order))
        left = sorted((head for head in HEADS if head not in order), key=lambda head: importance[head])
        order += left[: int(8 * pruned) - len(order)]
    assert sorted(HEADS, key=lambda head: place_of(result.tables["importance"].frame)[head]) == order


@pytest.mark.slow
def test_one_and_two_processes_write_the_same(
    run_config: Callable[..., Any], checkpoint: Path, bert: Path, tmp_path: Path
) -> None:
    given = arguments(MICHEL / "pruning.yaml", checkpoint, bert, tmp_path / "one", "--model.seeds=2")
    _, one, at_one = run_config(*given, own_data=True)
    given[-2] = f"--data.cache={tmp_path / 'two'}"
    _, two, at_two = run_config(*given, own_data=True, processes=2)
    assert one["scores"] == two["scores"]
    assert (at_one / "pruning.csv").read_bytes() == (at_two / "pruning.csv").read_bytes()


def test_a_folder_stands_for_its_only_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    run = checkpoint.parent.parent
    assert Pruning(str(run)).checkpoint == HeadAblation(str(checkpoint)).checkpoint == checkpoint
    implied = data_of_checkpoint(SimpleNamespace(checkpoint=str(run)), None)
    assert implied is not None
    assert implied.class_path.endswith("ClassificationDataModule")
    with pytest.raises(UserError, match=r"contain no checkpoint \(\*\.ckpt\) of a finished training\. Give a file"):
        HeadAblation(str(tmp_path))
    (tmp_path / "state-1").mkdir()
    for name in ("a", "b", "state-1/last"):
        shutil.copy(checkpoint, tmp_path / f"{name}.ckpt")
    with pytest.raises(UserError, match=r"the folder has several checkpoints, a\.ckpt, b\.ckpt\. Name one of them\."):
        HeadAblation(str(tmp_path))


def test_what_cannot_be_pruned_is_refused(checkpoint: Path, data: ClassificationDataModule, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.ckpt: there is no such checkpoint"):
        Pruning("absent.ckpt")
    corpus = write_texts(tmp_path, sizes=(20, 10, 10), labels=("bad", "odd"))
    other = ClassificationDataModule(corpus, tokenizer=data.tokenizer, positive="odd", cache=str(tmp_path))
    with pytest.raises(UserError, match=r"bad, good, but those of the data are bad, odd"):
        scored(Pruning(str(checkpoint)), other)
