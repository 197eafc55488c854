"""Tables of all scores, against numpy over seeds that are written out; and the page of example texts."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fidelity.base import CheckpointResult
from fidelity.experiment import (
    Example,
    comparison_table,
    example_page,
    examples_of,
    fidelity_table,
    result_scores,
    summary_table,
)
from metrics.bootstrap import Resampled, difference, holm, mean, median, resample, weights_of
from tests.fidelity import tiny
from tests.fidelity.tiny import Kind, classified, saliency_of

TEXTS = 40


def result(variant: str, seed: int, gain: float, *, skipped: int = 3, extra: bool = False) -> CheckpointResult:
    """Values that differ by a gain; the first texts are too short."""
    common = np.random.default_rng(0).normal(size=TEXTS)
    spread = gain + common + 0.3 * np.random.default_rng([seed, len(variant)]).normal(size=TEXTS)
    spread[:skipped] = np.nan
    frame = pd.DataFrame({"words": 5.0, "correct": 1.0, "single_token.spread": spread, "erasure.x": np.nan})
    values = spread[:, None]
    scores = {
        "single_token.spread": resample(mean, values, "ratio"),
        "erasure.middle": resample(median, values, "fraction"),
    }
    if extra:
        scores["adversary.max_jsd"] = resample(mean, np.abs(values), "nats")
    return CheckpointResult(f"{variant}, seed {seed}", variant, seed, 2, 1, frame, scores)


SUBJECTS = [
    result("base", 0, 0.0, extra=True),
    result("tying", 0, 0.9),
    result("base", 1, 0.1, extra=True),
    result("mlm", 0, 0.05, extra=True),
    result("tying", 1, 1.1),
    result("tying", 2, 1.0),
]


def test_every_checkpoint_has_a_row_with_all_scores_and_what_was_skipped() -> None:
    table = fidelity_table([*SUBJECTS, result("late", 4, 0.0, skipped=7)]).frame
    assert table["checkpoint"].tolist()[:3] == ["base, seed 0", "tying, seed 0", "base, seed 1"]
    assert table["variant"].tolist()[-2:] == ["tying", "late"]
    assert table["seed"].tolist() == [0, 0, 1, 0, 1, 2, 4]
    assert table["texts"].tolist() == [37] * 6 + [33]
    assert table["skipped"].tolist() == [3] * 6 + [7]
    for row, one in zip(table.to_dict("records"), SUBJECTS, strict=False):
        for name, score in one.scores.items():
            found = score.estimate.named(name)
            assert {end: row[end] for end in found} == found
            assert found[f"{name}.low"] < found[name] < found[f"{name}.high"]
    assert table["adversary.max_jsd"].isna().tolist() == [False, True, False, False, True, True, True]


def slow_means(variant: str, gain_of: dict[str, list[CheckpointResult]]) -> np.ndarray:
    """Mean spread of each resample over all seeds of a variant: the texts are drawn once for all."""
    weights = weights_of(TEXTS)
    rows = []
    for row in weights:
        picks = [text for text in range(3, TEXTS) for _ in range(row[text])]
        columns = [one.values["single_token.spread"].to_numpy()[picks].mean() for one in gain_of[variant]]
        rows.append(np.mean(columns))
    return np.array(rows)


def test_variants_are_compared_with_the_first_over_their_seeds() -> None:
    table = comparison_table(SUBJECTS).frame
    assert table["score"].tolist() == [
        *["single_token.spread"] * 3, *["erasure.middle"] * 3, *["adversary.max_jsd"] * 2,
    ]  # fmt: skip
    assert table["variant"].tolist() == ["base", "tying", "mlm", "base", "tying", "mlm", "base", "mlm"]
    assert table["seeds"].tolist() == [2, 3, 1, 2, 3, 1, 2, 1]
    groups = {name: [one for one in SUBJECTS if one.variant == name] for name in ("base", "tying", "mlm")}
    means = {name: slow_means(name, groups) for name in groups}
    rows = {row["variant"]: row for row in table[table["score"] == "single_token.spread"].to_dict("records")}
    for name, ours in groups.items():
        values = [float(one.values["single_token.spread"].mean()) for one in ours]
        assert rows[name]["mean"] == pytest.approx(np.mean(values))
        assert [rows[name]["low"], rows[name]["high"]] == pytest.approx(np.quantile(means[name], [0.025, 0.975]))
        if len(values) > 1:
            assert rows[name]["sd"] == pytest.approx(np.std(values, ddof=1))
        else:
            assert np.isnan(rows[name]["sd"])
    for name in ("tying", "mlm"):
        apart = means[name] - means["base"]
        assert rows[name]["difference"] == pytest.approx(rows[name]["mean"] - rows["base"]["mean"])
        found = [rows[name]["difference.low"], rows[name]["difference.high"]]
        assert found == pytest.approx(np.quantile(apart, [0.025, 0.975]))
        assert rows[name]["p"] == pytest.approx(min(1, 2 * (1 + min((apart <= 0).sum(), (apart >= 0).sum())) / 1001))
    # Of the two p-values of a score the smaller is doubled.
    assert rows["tying"]["p"] < rows["mlm"]["p"] < 1
    assert rows["tying"]["p_holm"] == pytest.approx(2 * rows["tying"]["p"])
    assert rows["mlm"]["p_holm"] == pytest.approx(max(rows["mlm"]["p"], 2 * rows["tying"]["p"]))
    alone = ["difference", "difference.low", "difference.high", "p", "p_holm"]
    assert np.isnan([rows["base"][column] for column in alone]).all()
    # One against one other: nothing to adjust for.
    (last,) = table[table["score"] == "adversary.max_jsd"].to_dict("records")[1:]
    expected = difference(
        [SUBJECTS[3].scores["adversary.max_jsd"]], [SUBJECTS[place].scores["adversary.max_jsd"] for place in (0, 2)]
    )
    assert last["p"] == last["p_holm"] == expected.p
    assert last["difference"] == expected.value


def test_a_score_that_the_first_variant_lacks_is_compared_with_nothing() -> None:
    table = comparison_table([result("tying", 0, 1.0), result("base", 0, 0.0, extra=True)]).frame
    last = table.to_dict("records")[-1]
    assert (last["score"], last["variant"]) == ("adversary.max_jsd", "base")
    assert last["mean"] > 0
    assert np.isnan([last["difference"], last["p"], last["p_holm"]]).all()


def test_undefined_scores_stay_undefined() -> None:
    nowhere = Resampled(np.nan, np.full(1000, np.nan), "ratio")
    results = [
        CheckpointResult(name, name, 0, 2, 1, pd.DataFrame({"a.b": [1.0]}), {"correlation.x": nowhere})
        for name in ("a", "b")
    ]
    rows = comparison_table(results).frame.to_dict("records")
    assert [np.isnan([value for value in row.values() if isinstance(value, float)]).all() for row in rows] == [True] * 2
    assert all(np.isnan(list(score.named(name).values())).all() for name, score in result_scores(results).items())


def test_scores_carry_the_variant_but_those_of_the_first() -> None:
    alone = SUBJECTS[0]
    assert result_scores([alone]) == {name: found.estimate for name, found in alone.scores.items()}
    two = result_scores([SUBJECTS[0], SUBJECTS[2]])
    assert two.keys() == result_scores([alone]).keys()
    values = [SUBJECTS[place].scores["erasure.middle"].value for place in (0, 2)]
    assert two["erasure.middle"].value == pytest.approx(np.mean(values))
    several = result_scores(SUBJECTS)
    assert {name: several[name] for name in two} == two
    assert not any(name.startswith("base.") for name in several)
    rows = comparison_table(SUBJECTS).frame.to_dict("records")
    for name in ("single_token.spread", "erasure.middle"):
        (row,) = [one for one in rows if (one["score"], one["variant"]) == (name, "tying")]
        found = several[f"tying.{name}"]
        assert [found.value, found.low, found.high] == [row["mean"], row["low"], row["high"]]
    assert "tying.adversary.max_jsd" not in several


def test_holm_is_over_the_variants_of_one_score() -> None:
    table = comparison_table(SUBJECTS).frame
    for _, rows in table.groupby("score"):
        np.testing.assert_allclose(rows["p_holm"], holm(rows["p"].tolist()))


def test_seeds_that_a_test_leaves_out_do_not_undo_the_others() -> None:
    nowhere = Resampled(np.nan, np.full(1000, np.nan), "ratio")
    left_out = replace(SUBJECTS[2], scores={**SUBJECTS[2].scores, "single_token.spread": nowhere})
    found, alone = (comparison_table([SUBJECTS[0], *more, SUBJECTS[1]]).frame for more in ([left_out], []))
    spread, middle = (found[found["score"] == score] for score in ("single_token.spread", "erasure.middle"))
    pd.testing.assert_frame_equal(
        spread.reset_index(drop=True), alone[alone["score"] == "single_token.spread"].reset_index(drop=True)
    )
    assert middle["seeds"].tolist() == [2, 1]
    own = SUBJECTS[0].scores["single_token.spread"].value
    assert result_scores([SUBJECTS[0], left_out])["single_token.spread"].value == own


def test_the_summary_has_what_the_comparison_has_a_column_for_each_variant() -> None:
    found, rows = summary_table(SUBJECTS).frame, comparison_table(SUBJECTS).frame
    assert found["score"].tolist() == rows["score"].drop_duplicates().tolist()
    assert list(found.columns[:4]) == ["score", "base", "base.low", "base.high"]
    for _, row in rows.iterrows():
        (line,) = found[found["score"] == row["score"]].to_dict("records")
        for end, column in (("", "mean"), (".low", "low"), (".high", "high")):
            assert line[f"{row['variant']}{end}"] == row[column]


@pytest.mark.parametrize("kind", ["flat", "han", "transformer"])
def test_a_chosen_text_has_a_number_for_each_token_that_of_its_position(kind: Kind) -> None:
    found = classified(kind, time=12)
    positions = torch.arange(found.mask.numel(), dtype=torch.float64).view(found.mask.shape)
    examples = examples_of(found, saliency_of(found), {"places": positions}, {2, 4, 99})
    assert [example.text for example in examples] == [2, 4]
    for example in examples:
        units = found.token_to_position[example.text, : int(found.batch.lengths[example.text])].tolist()
        expected = [float(positions[example.text, unit]) if unit >= 0 else 0.0 for unit in units]
        assert list(example.rows["places"]) == expected
        assert set(example.rows) == {"attention", "input_x_gradient", "places"}
        assert example.predicted == int(found.predicted[example.text])
        assert example.confidence == pytest.approx(float(found.confidence[example.text]))


def test_texts_are_known_by_their_place_in_the_split_and_not_in_the_batch() -> None:
    found = classified("flat", [3, 1])
    moved = replace(found, batch=replace(found.batch, index=torch.tensor([70, 50])))
    (example,) = examples_of(moved, saliency_of(moved), {}, {50})
    assert example.text == 50
    assert len(example.rows["attention"]) == len(tiny.TEXTS[1])
    assert example.rows["attention"] == moved.attention[1, : len(tiny.TEXTS[1])].tolist()


def test_a_heading_names_the_text_its_class_and_what_each_variant_predicts() -> None:
    split = SimpleNamespace(ids=("3", "17"), labels=[0, 1], forms=lambda text: [None, "Xyz"])
    data: Any = SimpleNamespace(
        splits={"test": split}, labels=("bad", "good"), tokenizer=None, text=lambda split, text: (None, ["a", "<unk>"])
    )
    checkpoints: list[Any] = [SimpleNamespace(name=f"{name}-0", variant=name) for name in ("base", "tying")]
    found = [
        Example(1, "tying-0", 1, 0.9, {"attention": [0.2, 0.8]}),
        Example(1, "base-0", 0, 0.75124, {"attention": [0.5, 0.5]}),
    ]
    (text,) = example_page(found, data, checkpoints).texts
    assert text.name == "Text 17 of test"
    assert text.caption == "gold good, base predicts bad (P = 0.751), tying predicts good (P = 0.900)"
    assert text.words == ("a", "Xyz")
    assert text.rows == {"base: attention": [0.5, 0.5], "tying: attention": [0.2, 0.8]}
