"""Heads off, as the experiment scores them."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from attention.encoder import EncoderSpec
from datamodules import ClassificationDataModule, TextDataModule
from measures import HeadAblation
from measures.ablation import random_sets
from measures.task import LanguageModelling
from metrics.bootstrap import holm
from models import TransformerClassifier
from results import UserError
from tests.measures.classifiers import arguments
from tests.measures.heads_off import off
from tests.measures.test_importance import language_model
from tests.tiny import TEXTS
from tests.trainers import scored

CONFIG = Path(__file__).parents[2] / "configs/kovaleva2019/ablation.yaml"
HEADS = [(layer, head) for layer in range(2) for head in range(4)]


def logits_without(checkpoint: Path, data: ClassificationDataModule, heads: set[tuple[int, int]]) -> Tensor:
    """Logits of dev, one text at a time, with the columns of some heads read as zeros by the output projections."""
    model, dev = TransformerClassifier.load_from_checkpoint(checkpoint), data.splits["dev"]
    with off(model.classifier.model, heads), torch.no_grad():
        return torch.cat([model(dev[[item]]).logits for item in range(len(dev))])


def rows_of(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples())


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
    assert {"ablation_zero", "layers_zero"} <= set(found.figures)


@pytest.mark.slow
def test_all_kinds_are_the_same_on_two_processes(
    run_config: Callable[..., Any],
    checkpoint: Path,
    bert: Path,
    tmp_path: Path,
) -> None:
    kinds = "--model.init_args.kinds=[uniform, zero, mean, resample]"
    given = arguments(CONFIG, checkpoint, bert, tmp_path / "one", kinds)
    _, one, at_one = run_config(*given, own_data=True)
    _, two, at_two = run_config(
        *arguments(CONFIG, checkpoint, bert, tmp_path / "two", kinds), own_data=True, processes=2
    )
    assert one["scores"] == two["scores"]
    for name in ("ablation", "layers"):
        assert (at_one / f"{name}.csv").read_bytes() == (at_two / f"{name}.csv").read_bytes()
    table = pd.read_csv(at_one / "ablation.csv")
    found = table.pivot(index=["layer", "head"], columns="kind", values="score")
    assert len(set(map(tuple, found.T.to_numpy()))) > 1  # kinds differ


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_loss_of_a_language_model_with_a_head_off_is_that_of_a_loop_over_texts(kind: str, tmp_path: Path) -> None:
    encoder = language_model(kind, tmp_path / "encoder")
    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(TEXTS[:9]), encoding="utf-8")
    data = TextDataModule(str(corpus), EncoderSpec(str(tmp_path / "encoder")))
    result = scored(HeadAblation(layers=False), data)

    task = LanguageModelling(encoder, 0)
    kind_of_model = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM

    def loop(heads: set[tuple[int, int]]) -> float:
        model: Any = kind_of_model.from_pretrained(tmp_path / "encoder", attn_implementation="eager")
        nats = tokens = 0.0
        for batch in data.test_dataloader()[0]:
            inputs = task.inputs(batch)
            read, targets = inputs["input_ids"], inputs["targets"]
            for row, length in enumerate(batch.lengths.tolist()):
                with off(model, heads), torch.no_grad():
                    logits = model(read[row : row + 1, :length]).logits[0]
                own = targets[row, :length]
                nats += float(nn.functional.cross_entropy(logits, own, reduction="sum"))
                tokens += int((own >= 0).sum())
        return nats / tokens

    assert result.numbers["loss"] == pytest.approx(loop(set()), rel=1e-4)
    for row in rows_of(result.tables["ablation"].frame):
        assert row.score == pytest.approx(loop({(row.layer - 1, row.head - 1)}), rel=1e-4)


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
        ({"sets": {"a": ["3-1"]}}, r"sets\.a: 3-1 does not exist; the model has 2 layers of 4 heads"),
        ({"checkpoint": None}, "HeadAblation without a checkpoint needs .*, but ClassificationDataModule has none"),
        ({"kinds": ()}, "kinds is empty"),
        ({"heads": False, "layers": False}, "Nothing is ablated"),
        ({"random": 1}, "random is 1, but must be at least 2"),
    ],
)
def test_what_cannot_be_ablated_is_refused(
    options: dict[str, Any], message: str, checkpoint: Path, data: ClassificationDataModule
) -> None:
    with pytest.raises(UserError, match=message):
        scored(HeadAblation(**{"checkpoint": str(checkpoint), **options}), data)
