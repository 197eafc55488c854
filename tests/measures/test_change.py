"""Change by fine-tuning, and analyses of norms in place of weights, against loops over cells."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial import distance
from torch import Tensor

from attention_probing.attention import Encoder, EncoderSpec
from attention_probing.attention.quantities import QuantityName
from attention_probing.datamodules import TextDataModule, TextSource
from attention_probing.measures import AttentionAnalyses, Bags, Change, Measure, Patterns, RepeatedSequences, Surface
from attention_probing.measures.change import change_answer
from attention_probing.metrics.attention_mass import STATISTICS, TokenKinds, surface_statistics
from attention_probing.metrics.p_values import holm
from attention_probing.results import Estimate, HeatMap, Result, UserError
from tests.measures.intervals import at_once_by_hand
from tests.measures.passes import batch_of
from tests.metrics.samples import student_of_log_odds
from tests.tiny import save_bert, save_gpt2
from tests.trainers import scored

TEXTS = [
    "the fox , the dogs .",
    "guests drink strong coffee",
    "the quick brown fox jumps over , and over . the fox sleeps",
    "dogs sleep .",
    "he missed yesterday , and the guests overslept",
    "the fox drinks coffee . the fox",
    "small naïve guests",
]


@pytest.fixture
def run(tmp_path: Path, cache: str) -> Callable[..., tuple[Result, TextDataModule]]:
    """Runs analyses over `TEXTS` on tiny encoders, each a folder; gives the result and the data."""
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS) + "\n", encoding="utf-8")

    def ran(
        *analyses: Measure[Any],
        encoder: Path,
        before: Path | None,
        **options: Any,  # noqa: ANN401
    ) -> tuple[Result, TextDataModule]:
        earlier = None if before is None else EncoderSpec(str(before))
        data = TextDataModule(str(path), EncoderSpec(str(encoder)), cache=cache, before=earlier, **options)
        experiment = AttentionAnalyses(list(analyses))
        return scored(experiment, data), data

    return ran


def attention(encoder: Encoder, text: str) -> list[list[list[list[float]]]]:
    """Weights of a text that is read alone, by layer and head."""
    batch, found = batch_of(encoder, text), []
    inputs = encoder.inputs(batch.tokens, batch.mask, batch.segments)
    encoder.capture(inputs, lambda _, weights: found.append(weights[0].double().tolist()), frozenset((0, 1)))
    return found


def cosine(one: list[list[float]], other: list[list[float]]) -> float:
    return 1 - float(distance.cosine(np.ravel(one), np.ravel(other)))


def divergence(one: list[list[float]], other: list[list[float]]) -> float:
    return float(np.mean(distance.jensenshannon(one, other, axis=1) ** 2))


@pytest.mark.parametrize("max_cells", [1, 10**6])
@pytest.mark.parametrize("save", [save_bert, save_gpt2])
def test_the_change_of_each_map_equals_a_loop_over_its_cells(
    save: Callable[..., Path], max_cells: int, run: Callable[..., tuple[Result, TextDataModule]], tmp_path: Path
) -> None:
    folders = save(tmp_path / "after", seed=0), save(tmp_path / "before", seed=1)
    result, data = run(Change(), encoder=folders[0], before=folders[1], max_cells=max_cells)
    read = [[attention(data.encoders[which], text) for text in TEXTS] for which in ("given", "before")]
    loops = {
        name: np.array(
            [
                [[measure(one[layer][head], other[layer][head]) for head in range(4)] for layer in range(2)]
                for one, other in zip(*read, strict=True)
            ]
        )
        for name, measure in (("cosine", cosine), ("divergence", divergence))
    }
    assert 0.01 < loops["divergence"].mean() < math.log(2)  # these encoders differ
    table, layers = result.tables["change"].frame, result.tables["change_layers"].frame
    for name, found in loops.items():
        assert table[name].tolist() == pytest.approx(found.mean(0).ravel().tolist(), abs=2e-6)
        assert layers[name].tolist() == pytest.approx(found.mean((0, 2)).tolist(), abs=2e-6)
        assert result.scores[f"change.{name}"].value == pytest.approx(found.mean(), abs=2e-6)
        low, high = ("low", "high") if name == "cosine" else ("divergence.low", "divergence.high")
        of_layer = student_of_log_odds(found[:, 1].mean(1), 0.0, 1.0 if name == "cosine" else math.log(2))
        assert layers[[low, high]].iloc[1].tolist() == pytest.approx(list(of_layer), abs=5e-6)
        score = result.scores[f"change.{name}.layer_2"]
        assert (score.low, score.high) == (layers[low][1], layers[high][1])
    assert result.audit["change.inputs"] == len(TEXTS)
    # The intervals that hold for both layers do not meet, so that one is named as the least, the other as the most.
    ends = []
    for row in layers.to_dict("records"):
        bottom, top = at_once_by_hand(row["cosine"], (row["low"], row["high"]), len(TEXTS), 2)
        shown_row = f"{row['layer']:.0f}, {row['cosine']:.2f} [{bottom:.2f}, {top:.2f}]"
        ends.append((row["cosine"], bottom, top, shown_row))
    least, most = sorted(ends)
    assert least[2] < most[1]
    named_ends = [re.sub(r", (\S+) \[.*", r" (\1)", one[3]) for one in (least, most)]  # without the intervals
    assert result.answer.endswith(
        f" over {len(TEXTS)} inputs, least in layer {named_ends[0]}, most in layer {named_ends[1]}."
    )
    order = np.argsort(loops["cosine"].mean((0, 2))) + 1
    assert result.audit["change.layers, the most changed first"] == " ".join(map(str, order))
    assert isinstance(shown := result.figures["change_cosine"], HeatMap)
    assert shown.values == pytest.approx(1 - loops["cosine"].mean(0), abs=2e-6)


def test_layers_are_named_if_they_are_clearly_ahead() -> None:
    start = "fine-tuning leaves attention with a cosine of {change.cosine:ratio} over {n} inputs"

    def estimate(value: float) -> Estimate:
        return Estimate(value, value - 0.05, value + 0.05, unit="fraction")

    layers = {"1": estimate(0.2), "2": estimate(0.5), "3": estimate(0.8)}
    both = "least in layer 1 (0.20), most in layer 3 (0.80)"
    assert change_answer(layers) == f"{start}, {both}"
    assert change_answer({**layers, "4": estimate(0.88)}) == f"{start}, {both.partition(', most')[0]}"
    assert change_answer({"1": estimate(0.2), "2": estimate(0.2)}) == start
    assert change_answer({"1": estimate(0.2)}) == start


def test_differences_are_those_of_a_paired_test_over_inputs(
    run: Callable[..., tuple[Result, TextDataModule]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attention_probing.measures.repeated.SEQUENCES", 5)
    folders = save_bert(tmp_path / "after", seed=0), save_bert(tmp_path / "before", seed=1)
    analyses = Surface(), Patterns(), RepeatedSequences(length=4), Change()
    result, data = run(*analyses, encoder=folders[0], before=folders[1])
    measured: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}
    for which in ("given", "before"):
        encoder, found = data.encoders[which], []
        for text in TEXTS:
            batch = batch_of(encoder, text)
            tokens = TokenKinds(batch.mask, batch.start, batch.end, batch.punctuation)
            weights = [torch.tensor(layer)[None].float() for layer in attention(encoder, text)]
            found.append(torch.stack([surface_statistics(one, tokens)[0] for one in weights]).double().numpy())
        measured[which] = np.stack(found)  # [inputs, layers, heads, statistics]
    table = result.tables["differences"].frame
    for quantity in ("previous", "entropy", "punctuation"):
        after, before = (measured[which][..., STATISTICS.index(quantity)] for which in ("given", "before"))
        expected = stats.ttest_rel(after, before, nan_policy="omit")
        rows = table[table["quantity"] == quantity]
        assert rows["difference"].tolist() == pytest.approx(np.nanmean(after - before, 0).ravel(), abs=2e-6)
        assert rows["p"].tolist() == pytest.approx(np.ravel(expected.pvalue), rel=2e-3)
        low = expected.confidence_interval().low
        if quantity != "entropy":  # whose differences have no bounds
            whole = ~np.isnan(after - before).any((1, 2))
            low, _ = student_of_log_odds((after - before)[whole], -1.0, 1.0)
        assert rows["low"].tolist() == pytest.approx(np.ravel(low), abs=5e-6)
        differing = int((holm(np.ravel(expected.pvalue).tolist()) < 0.05).sum())
        assert result.scores[f"differences.{quantity}"].value == differing
    # Of all analyses, those that read their own inputs among them; not of that which is of both encoders already.
    assert {"self", "vertical", "repeated_previous", "induction"} <= set(table["quantity"])
    assert not any(name.startswith("change") for name in table["quantity"])
    known = table.dropna()
    assert known["difference"].tolist() == pytest.approx((known["after"] - known["before"]).tolist(), abs=1e-8)
    assert (known["p"] < 1).sum() > 50
    repeated = result.tables["before.repeated"].frame["induction"]
    assert table[table["quantity"] == "induction"]["before"].tolist() == repeated.tolist()
    assert "before.change" not in result.tables
    surface = {name: one for name, one in result.figures.items() if name.startswith("difference_")}
    assert isinstance(shown := surface["difference_previous"], HeatMap)
    assert shown.diverging
    assert shown.limits == surface["difference_self"].limits  # type: ignore[attr-defined]


def test_nothing_changes_between_an_encoder_and_itself(
    run: Callable[..., tuple[Result, TextDataModule]], bert: Path
) -> None:
    result, _ = run(Change(), Surface(), encoder=bert, before=bert, random_init=True)
    change, differences = result.tables["change"].frame, result.tables["differences"].frame
    assert (change[["cosine", "low", "high"]] == 1).all(axis=None)
    assert (change[["divergence", "divergence.low", "divergence.high"]] == 0).all(axis=None)
    assert (differences["difference"].dropna() == 0).all()
    assert (differences["p"].dropna() == 1).all()
    assert {name: score.value for name, score in result.scores.items() if name.startswith("differences.")} == {
        f"differences.{quantity}": 0 for quantity in differences["quantity"]
    }
    assert not [name for name in result.figures if name.startswith("difference_")]
    own, before = (result.tables[name].frame for name in ("surface", "before.surface"))
    assert own.equals(before)
    assert not own.equals(result.tables["random_init.surface"].frame)
    assert "random_init.change" not in result.tables


def test_an_encoder_before_is_needed(run: Callable[..., tuple[Result, TextDataModule]], bert: Path) -> None:
    with pytest.raises(UserError, match=r"^Change compares .* with `before`\.$"):
        run(Change(), encoder=bert, before=None)


def texts(bert: Path, cache: Path, quantity: QuantityName) -> TextDataModule:
    return TextDataModule(
        [TextSource("sample", limit=9)], EncoderSpec(str(bert)), cache=str(cache), max_length=48, quantity=quantity
    )


def keep(weights: list[Tensor]) -> Callable[[int, Tensor], None]:
    return lambda _, own: weights.append(own.clone())


def test_rows_of_norms_are_divided_by_their_sums(bert: Path, tmp_path: Path) -> None:
    result = scored(AttentionAnalyses([Surface()]), texts(bert, tmp_path, "norms"))
    data = texts(bert, tmp_path, "attention")
    data.setup("test")
    encoder, found = data.encoders["given"], []
    model: Any = encoder.model
    for batch in data.test_dataloader()[0]:
        inputs = encoder.inputs(batch.tokens, batch.mask, batch.segments)
        with torch.inference_mode():
            states = model(**inputs, output_attentions=False, output_hidden_states=True).hidden_states
            weights: list[Tensor] = []
            encoder.capture(inputs, keep(weights), frozenset(range(encoder.layers)))
        for layer, block in enumerate(model.encoder.layer):
            values = block.attention.self.value(states[layer]).unflatten(2, (encoder.heads, -1))
            parts = block.attention.output.dense.weight.unflatten(1, (encoder.heads, -1))  # [size, heads, dim]
            sizes = torch.einsum("bthd,shd->bhts", values, parts).norm(dim=-1)
            for item, n in enumerate(batch.lengths.tolist()):
                norms = weights[layer][item, :, :n, :n] * sizes[item, :, None, :n]
                shares = norms / norms.sum(-1, keepdim=True)
                found.append(shares[..., batch.end[item, :n]].sum(-1).mean())
    assert result.scores["surface.end"].value == pytest.approx(float(torch.stack(found).mean()), abs=1e-6)
    assert result.audit["quantity"] == "norms, rows divided by their sums"


@pytest.mark.parametrize(
    ("analysis", "quantity"),
    [(Surface(), "effective"), (Bags(), "norms")],
)
def test_what_an_analysis_does_not_take_is_refused(
    analysis: Measure[Any], quantity: QuantityName, bert: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        UserError, match=rf"^`quantity` is {quantity}, but {type(analysis).__name__} takes only attention"
    ):
        scored(AttentionAnalyses([analysis]), texts(bert, tmp_path, quantity))
