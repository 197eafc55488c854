"""Minimal pairs: log-probabilities against loops and against lm-evaluation-harness, and heads that pairs need."""

import importlib
import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from scipy.stats import binomtest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from attention_probing.attention import Encoder, resolve
from attention_probing.attention.ablation import Ablation, Kind, ReferenceOutputs
from attention_probing.attention.heads import Head, parse_heads
from attention_probing.attention.source import EncoderSpec
from attention_probing.commands import CONFIGS
from attention_probing.corpora.pairs import PairColumns
from attention_probing.datamodules import DependencyDataModule, PairDataModule, PairSplit
from attention_probing.measures import HeadAblation, MinimalPairAccuracy, measure
from attention_probing.measures.head_sets import make_ablation
from attention_probing.measures.loop import _BatchProgress
from attention_probing.measures.pair_tasks import MinimalPairs
from attention_probing.measures.pairs import _accuracy_at_once, pairs_answer
from attention_probing.metrics.p_values import holm
from attention_probing.results import Estimate, Result, UserError
from studies.planted_agreement import AgreementModel, Paradigm, agreement_model, write_agreement_pairs
from tests.attention.test_ablation import slow_partner
from tests.measures.heads_off import off, patched, scaled, seeing
from tests.measures.test_ablation import rows_of
from tests.measures.test_causal import HEADS, RELATIONS, check, sets_of
from tests.measures.test_importance import language_model
from tests.printed import share
from tests.tiny import TEXTS, save_llama
from tests.trainers import scored

AT_CHANCE = pytest.mark.filterwarnings("ignore:The model without ablation is right in")
"""Tiny models with random weights are."""
pytestmark = AT_CHANCE
Rows = list[tuple[str, str, str, str]]
WORDS = " ".join(TEXTS).split()


def some_pairs(number: int = 12) -> Rows:
    """Paradigm, field and two sentences: the second has two words exchanged; the last pair has equal sentences."""
    rows = []
    for place in range(number):
        good = WORDS[place : place + 4 + place % 5]
        bad = [*good[1::-1], *good[2:]] if place < number - 1 else good
        rows.append((f"p{place % 3}", "syntax" if place % 3 else "semantics", " ".join(good), " ".join(bad)))
    return rows


def write(folder: Path, rows: Rows) -> Path:
    path = folder / "pairs.jsonl"
    keys = ("UID", "field", "sentence_good", "sentence_bad")
    lines = [json.dumps({**dict(zip(keys, row, strict=True)), "pairID": str(place)}) for place, row in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@cache
def loaded(folder: Path) -> tuple[Any, Encoder]:
    """The language model of a folder, and its encoder."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    return model, Encoder(resolve(EncoderSpec(str(folder))))


def ids_of(folder: Path, sentence: str) -> list[int]:
    """Tokens of a sentence, with the start token."""
    _, encoder = loaded(folder)
    return [encoder.tokenizer.bos_token_id, *encoder.tokenizer(f" {sentence}", add_special_tokens=False)["input_ids"]]


def slow(
    folder: Path,
    sentence: str,
    heads: Sequence[tuple[int, int]] = (),
    factor: float = 0.0,
    partner: str | None = None,
) -> float:
    """Log-probability of a sentence, from a pass of its own and a loop over its tokens.

    The heads are multiplied by a factor, or, with a partner, they write what they write in the partner.
    """
    model, _ = loaded(folder)
    ids = ids_of(folder, sentence)
    others: list[Tensor] = []

    def keep(layer: int, outputs: Tensor) -> Tensor:
        others.append(outputs.clone())
        return outputs

    changing: Any = scaled(model, set(heads), factor) if factor else off(model, set(heads))
    if partner is not None:
        other = ids_of(folder, partner)
        with seeing(model, keep), torch.no_grad():
            model(torch.tensor([other]))
        changing = patched(model, heads, others, [slow_partner(ids, other, place) for place in range(len(ids))])
    with changing if heads else nullcontext(), torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    return sum(float(logits[place - 1].log_softmax(0)[ids[place]]) for place in range(1, len(ids)))


def items_of(found: Result) -> pd.DataFrame:
    assert found.items is not None
    return found.items


def data_of(folder: Path, rows: Rows, **options: Any) -> PairDataModule:  # noqa: ANN401
    return PairDataModule(str(write(folder, rows)), EncoderSpec(str(folder / "model")), cache=str(folder), **options)


def test_pairs_of_another_project_have_the_same_numbers(tmp_path: Path) -> None:
    language_model("gpt2", tmp_path / "model")
    rows = some_pairs()
    one, other = data_of(tmp_path, rows), tmp_path / "other.jsonl"
    names = {"sentence_good": "grammatical", "sentence_bad": "ungrammatical", "UID": "rule", "field": "area"}
    content = one.files()["test"].read_text(encoding="utf-8")
    for name, new in names.items():
        content = content.replace(f'"{name}"', f'"{new}"')
    other.write_text(content, encoding="utf-8")
    columns = PairColumns("grammatical", "ungrammatical", "rule", "area")
    renamed = PairDataModule(str(other), EncoderSpec(str(tmp_path / "model")), cache=str(tmp_path), columns=columns)
    assert scored(MinimalPairAccuracy(), renamed).numbers == scored(MinimalPairAccuracy(), one).numbers


def test_a_limit_scores_the_pairs_that_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    language_model("gpt2", tmp_path / "model")
    data = data_of(tmp_path, some_pairs())
    bounds = {"max_cells": 10_000, "max_items": 5, "cells": "tokens"}
    monkeypatch.setattr(PairSplit, "bounds", property(lambda split: bounds))
    whole = items_of(scored(MinimalPairAccuracy(), data)).set_index("id")
    result = measure(data, measurements=MinimalPairAccuracy(), limit=1)
    some = items_of(result).set_index("id")
    assert 0 < len(some) < len(whole)
    assert result.audit["pairs"] == len(some)
    pd.testing.assert_frame_equal(some[["field", "good", "bad"]], whole.loc[some.index, ["field", "good", "bad"]])
    heads = measure(data, measurements=HeadAblation(heads=False, sets={"two": ["1-1", "1-2"]}, random=2), limit=1)
    assert set(heads.tables["fields"].frame.groupby("field")["n"].first()) == set(some["field"].value_counts())


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_pairs_that_may_be_read_wrongly_are_in_the_audit_and_warned_of(
    suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    language_model("gpt2", tmp_path / "model")
    path = tmp_path / f"pairs.{suffix}"
    rows = 'He said ""hi"" to me,He say ""hi"" to me\n"He sleeps,He sleep\nWe go",We goes\n'
    if suffix == "tsv":
        rows = '"He said ""hi"" to me"\tHe say\nWe go\tWe goes\n'
    path.write_text(f"good{',' if suffix == 'csv' else chr(9)}bad\n{rows}", encoding="utf-8")
    columns = PairColumns("good", "bad", None, None, None)
    data = PairDataModule(str(path), EncoderSpec(str(tmp_path / "model")), cache=str(tmp_path), columns=columns)
    data.setup("test")
    counts = {"quoted_texts": 1}
    told = "1 text in double quotes, as in CSV, but these quotes were read as words"
    if suffix == "csv":
        counts = {"multiline_records": 1, "longest_record_lines": 2, "longest_record_line": 3}
        told = "1 record over several lines; the longest has 2, from line 3"
    assert data.provenance.audit == {"test": {"all": 2, **counts}}
    [warned] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warned.startswith(f"{path}: {told}. ")


def test_sentences_that_the_tokenizer_does_not_know_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = some_pairs()
    language_model("gpt2", tmp_path / "model")
    known = dict.fromkeys(word for *_, good, bad in rows for word in f"{good} {bad}".split())
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[BOS]", *known])}
    words = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", bos_token="[BOS]", pad_token="[UNK]")  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(tmp_path / "model")
    data_of(tmp_path, rows).setup("test")
    assert "contain the unknown token" not in caplog.text
    data_of(tmp_path, [(*row[:3], "otherwise") for row in rows]).setup("test")
    assert "12 of 24 sentences (50%) contain the unknown token" in caplog.text


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_accuracy_is_that_of_a_loop_over_tokens(kind: str, tmp_path: Path) -> None:
    language_model(kind, tmp_path / "model")
    rows = some_pairs()
    found = scored(MinimalPairAccuracy(), data_of(tmp_path, rows))
    good, bad = (np.array([slow(tmp_path / "model", row[which]) for row in rows]) for which in (2, 3))
    np.testing.assert_allclose(items_of(found)["good"], good, rtol=1e-5)
    np.testing.assert_allclose(items_of(found)["bad"], bad, rtol=1e-5)
    right = good >= bad
    assert 0 < right.mean() < 1
    assert found.numbers["pairs.accuracy"] == pytest.approx(right.mean())
    fields = np.array([row[1] for row in rows])
    for field in ("semantics", "syntax"):
        assert found.numbers[f"pairs.{field}.accuracy"] == pytest.approx(right[fields == field].mean())
        above, below = (items_of(found)[column].sum() for column in found.ratios[f"pairs.{field}.accuracy"])
        assert (above, below) == (right[fields == field].sum(), (fields == field).sum())
    table = found.tables["paradigms"].frame.set_index("paradigm")
    assert table["n"].to_dict() == {"p0": 4, "p1": 4, "p2": 4}
    assert table["accuracy"].to_dict() == pytest.approx({f"p{one}": right[one::3].mean() for one in range(3)})
    assert (found.audit["ties"], found.audit["equal_sentences"]) == (1, 1)
    assert table["ties"].to_dict() == {"p0": 0, "p1": 0, "p2": 1}
    accuracy = share(found, "pairs.accuracy")
    assert (
        found.answer
        == f"{accuracy} of 12 acceptable sentences are at least as probable as their pair (1 pair equally probable)."
    )


def of_field(right: int, pairs: int, fields: int) -> Estimate:
    """Accuracy with an exact interval that holds for several fields at once."""
    ends = binomtest(right, pairs).proportion_ci(1 - 0.05 / fields, "exact")
    return Estimate(right / pairs, ends.low, ends.high, unit="fraction")


def test_fields_are_named_if_they_are_clearly_ahead_or_behind() -> None:
    whole = "{pairs.accuracy} of {n} acceptable sentences are at least as probable as their pair"
    fields = {"a": of_field(95, 100, 3), "b": of_field(60, 100, 3), "c": of_field(55, 100, 3)}
    low, high = (100 * end for end in fields["a"].interval)
    assert pairs_answer(fields) == f"{whole}, most in the field a, 95.0 % [{low:.1f}, {high:.1f}]"
    fields["c"] = of_field(20, 100, 3)
    low, high = (100 * end for end in fields["c"].interval)
    assert pairs_answer(fields).endswith(f", fewest in the field c, 20.0 % [{low:.1f}, {high:.1f}]")
    # Equal fields, and fields whose intervals meet.
    assert pairs_answer({"a": fields["a"], "b": fields["a"]}) == whole
    assert pairs_answer({"a": of_field(7, 10, 2), "b": of_field(4, 10, 2)}) == whole
    assert pairs_answer({"a": fields["a"]}) == whole


def test_the_interval_of_a_field_in_the_answer_holds_for_all_fields() -> None:
    outputs = Mock()
    for right, pairs, fields in ((8, 8, 2), (0, 4, 3), (3, 7, 1)):
        outputs.outputs = {("zero", frozenset()): np.array([[0.0, -1.0]] * right + [[-1.0, 0.0]] * (pairs - right))}
        found, expected = _accuracy_at_once(outputs, fields), of_field(right, pairs, fields)
        assert (found.value, *found.interval) == pytest.approx((expected.value, *expected.interval))


def test_fields_and_the_first_pairs_of_each_paradigm_are_chosen(tmp_path: Path) -> None:
    language_model("gpt2", tmp_path / "model")
    found = scored(MinimalPairAccuracy(), data_of(tmp_path, some_pairs(), fields=["syntax"], per_paradigm=2))
    assert items_of(found)["id"].tolist() == ["p1/1", "p2/2", "p1/4", "p2/5"]
    assert found.tables["fields"].frame[["field", "n"]].to_numpy().tolist() == [["syntax", 4]]


def test_heads_off_are_those_of_a_loop_by_field(tmp_path: Path) -> None:
    language_model("gpt2", tmp_path / "model")
    rows = some_pairs(9)
    found = scored(
        HeadAblation(layers=False, heads=False, sets={"own": ["1-2", "2-3"]}, random=2), data_of(tmp_path, rows)
    )

    def right(heads: Sequence[tuple[int, int]]) -> Any:  # noqa: ANN401
        model = tmp_path / "model"
        return np.array([slow(model, row[2], heads) >= slow(model, row[3], heads) for row in rows], float)

    whole, own, fields = right([]), right([(0, 1), (1, 2)]), np.array([row[1] for row in rows])
    [row] = found.tables["sets"].frame.to_dict("records")
    assert row["score"] == pytest.approx(own.mean())
    assert row["difference"] == pytest.approx(own.mean() - whole.mean())
    table = found.tables["fields"].frame
    assert table[["field", "n"]].to_numpy().tolist() == [["semantics", 3], ["syntax", 6]]
    for name, score, difference in table[["field", "score", "difference"]].itertuples(index=False):
        of = fields == name
        assert score == pytest.approx(own[of].mean())
        assert difference == pytest.approx((own - whole)[of].mean())
    np.testing.assert_allclose(table["beyond_random_p_holm"], holm(table["beyond_random_p"].tolist()))


def test_scaled_and_patched_heads_are_those_of_a_loop(tmp_path: Path) -> None:
    language_model("gpt2", tmp_path / "model")
    rows = some_pairs()
    rows[3] = (*rows[3][:3], f"{rows[3][3]} dogs")  # of unequal length
    data = data_of(tmp_path, rows)
    kinds: tuple[Kind, ...] = ("zero", "scale", "patch")
    heads = HeadAblation(kinds=kinds, layers=False, sets={"own": ["1-2", "2-3"]}, random=2, factors=[0.5, 2])
    found = scored(heads, data)
    model = tmp_path / "model"

    def both(**given: Any) -> Any:  # noqa: ANN401
        """Log-probabilities of both sentences with the first head and its partner's output, `[pairs, 2]`."""
        with_partner = given.pop("patch", False)
        rows_of_both = []
        for _, _, good, bad in rows:
            partners = (bad, good) if with_partner else (None, None)
            rows_of_both.append(
                [slow(model, one, partner=other, **given) for one, other in zip((good, bad), partners, strict=True)]
            )
        return np.array(rows_of_both)

    def accuracy(values: Any) -> float:  # noqa: ANN401
        return float((values[:, 0] >= values[:, 1]).mean())

    def log_ratio(values: Any) -> float:  # noqa: ANN401
        return float((values[:, 0] - values[:, 1]).mean())

    intact = both()
    assert found.numbers["pairs.log_ratio"] == pytest.approx(log_ratio(intact), abs=1e-5)
    expected: dict[tuple[str, float | None], dict[str, Any]] = {
        ("zero", None): {},
        ("scale", 0.5): {"factor": 0.5},
        ("scale", 2): {"factor": 2.0},
        ("patch", None): {"patch": True},
    }
    for table, chosen, off_heads in (
        ("ablation", "layer == 2 and head == 3", [(1, 2)]),
        ("sets", "heads == 2", [(0, 1), (1, 2)]),
    ):
        frame = found.tables[table].frame.query(chosen)
        assert len(frame) == 4
        for row, ((kind, factor), given) in zip(frame.to_dict("records"), expected.items(), strict=True):
            values = both(heads=off_heads, **given)
            assert row["kind"] == kind
            assert row["factor"] == factor or (factor is None and np.isnan(row["factor"]))
            assert row["score"] == pytest.approx(accuracy(values))
            assert row["difference"] == pytest.approx(accuracy(values) - accuracy(intact))
            assert row["log_ratio"] == pytest.approx(log_ratio(values), abs=1e-5)
            assert row["log_ratio_change"] == pytest.approx(log_ratio(values) - log_ratio(intact), abs=1e-5)
            assert row["log_ratio_change"] != 0
    frame = found.tables["ablation"].frame
    for kind in kinds:  # the family of `scale` has all factors
        of_kind = frame[frame["kind"] == kind]
        np.testing.assert_allclose(of_kind["p_holm"], holm(of_kind["p"].tolist()))
    assert {"scale_0.5.lowest_difference", "patch.lowest_difference"} <= found.numbers.keys()
    assert {"ablation_scale_0.5", "ablation_scale_2", "ablation_patch"} <= found.figures.keys()
    assert found.audit["pairs_of_unequal_length"] == 1
    assert found.audit["positions_without_partner"] == 1
    assert found.audit["pairs_patch_cannot_change"] == 1  # the equal sentences
    can_change, predicted = 0, 0
    for pair in rows:
        good, bad = ids_of(model, pair[2]), ids_of(model, pair[3])
        predicted += len(good) + len(bad) - 2
        differing = [place for place, (a, b) in enumerate(zip(good, bad, strict=False)) if a != b]
        if differing:
            can_change += len(good) + len(bad) - 2 * (differing[0] + 1)
    assert found.audit["tokens_patch_can_change"] == f"{can_change} of {predicted}"


@pytest.mark.parametrize(("model", "kinds"), [("gpt2", ("zero", "patch")), ("bert", ("zero", "uniform"))])
def test_the_shares_of_a_batch_that_are_finished_are_one_in_sum(
    model: str, kinds: tuple[Kind, Kind], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of many heads takes long: each part of it moves the progress on."""
    language_model(model, tmp_path / "model")
    shares: list[float] = []
    # As they are given: the progress cuts off what is more than a batch, and adds what lacks at its end.
    monkeypatch.setattr(_BatchProgress, "advance", lambda _, share: shares.append(share))
    monkeypatch.setattr(_BatchProgress, "end_batch", lambda _: None)
    monkeypatch.setattr("attention_probing.attention.ablation.pieces_at_once", lambda *_: 0)
    monkeypatch.setattr("attention_probing.datamodules.pairs.pieces_at_once", lambda *_: 80)
    data = data_of(tmp_path, some_pairs())
    scored(HeadAblation(kinds=kinds, layers=False), data)
    [loader] = data.test_dataloader()
    assert len(loader) > 1
    assert sum(shares) == pytest.approx(len(loader))
    assert len(shares) > 16 * len(loader)  # one for each kind and head


def test_a_task_tells_what_is_finished_only_to_who_asks(tmp_path: Path) -> None:
    language_model("gpt2", tmp_path / "model")
    data = data_of(tmp_path, some_pairs())
    data.setup("test")
    task = MinimalPairs(data.splits["test"])
    inputs = task.inputs(data.splits["test"][[2, 5]])
    sets = {Ablation("zero"): [frozenset({(0, 0)})], Ablation("uniform"): [frozenset({(1, 0)}), frozenset[Head]()]}
    shares: list[float] = []
    task.rows(inputs, sets, shares.append)
    assert sum(shares) == pytest.approx(1)
    told = len(shares)
    task.rows(inputs, sets)
    assert len(shares) == told


def test_a_masked_language_model_is_not_patched(tmp_path: Path) -> None:
    language_model("bert", tmp_path / "model")
    with pytest.raises(
        UserError, match=r"^The kind of ablation `patch` .* but a masked language model reads a sentence"
    ):
        scored(HeadAblation(kinds=["patch"]), data_of(tmp_path, some_pairs()))
    found = scored(HeadAblation(kinds=["scale"], factors=[0]), data_of(tmp_path, some_pairs()))
    off = scored(HeadAblation(kinds=["zero"]), data_of(tmp_path, some_pairs()))
    for column in ("score", "log_ratio"):
        np.testing.assert_allclose(
            found.tables["ablation"].frame[column], off.tables["ablation"].frame[column], atol=1e-5
        )


def test_factor_1_changes_nothing(tmp_path: Path) -> None:
    language_model("llama", tmp_path / "model")
    found = scored(HeadAblation(kinds=["scale"], factors=[1]), data_of(tmp_path, some_pairs()))
    for table in ("ablation", "layers"):
        frame = found.tables[table].frame
        np.testing.assert_allclose(frame[["difference", "log_ratio_change"]], 0, atol=1e-6)


def test_a_sentence_of_a_pair_is_patched_whatever_the_other_becomes(tmp_path: Path) -> None:
    """Each sentence of a pair is changed as if it alone were patched; so one batch measures both directions."""
    language_model("gpt2", tmp_path / "model")
    data = data_of(tmp_path, some_pairs())
    data.setup("test")
    task = MinimalPairs(data.splits["test"])
    sets = [frozenset[Head](), frozenset({(0, 0)})]
    inputs = task.inputs(data.splits["test"][[2, 5]])
    both = task.rows(inputs, {Ablation("patch"): sets})["patch"].reshape(2, 2, 2)
    rows, places = task.partners(inputs)
    places[1::2] = -1  # the second sentences keep their own outputs
    one = task.ablated_model.run(task.outputs, inputs, Ablation("patch"), sets, partners=(rows, places))
    torch.testing.assert_close(one[1, :, 0], both[:, 1, 0])
    torch.testing.assert_close(one[1, :, 1], both[:, 0, 1])


@pytest.mark.slow
def test_the_causal_check_takes_pairs_as_its_task(
    make_data: Callable[..., DependencyDataModule], corpus: str, tmp_path: Path
) -> None:
    language_model("gpt2", tmp_path / "model")
    rows = some_pairs(6)
    data = make_data(seed=0, encoder=EncoderSpec(str(tmp_path / "model")))
    result = scored(check(kind="zero", max_epochs=1, pairs=str(write(tmp_path, rows))), data)
    frame = result.tables["causal"].frame
    model = tmp_path / "model"
    for relation in RELATIONS:
        sets = sets_of(data, relation, 1, 4)
        right = [
            np.mean([slow(model, one[2], [*heads]) >= slow(model, one[3], [*heads]) for one in rows]) for heads in sets
        ]
        [row] = frame[(frame["measure"] == "task") & (frame["relation"] == relation)].to_dict("records")
        assert row["n"] == len(rows)
        assert row["intact"] == pytest.approx(right[0])
        assert row["best"] == pytest.approx(right[1] - right[0])
        assert row["random"] == pytest.approx(np.mean(right[2:]) - right[0])
    assert len(sets[1]) == HEADS
    assert "task" not in result.audit["left_blank"]  # type: ignore[operator]


def test_both_sentences_of_a_pair_have_the_same_replacements_from_other_pairs(tmp_path: Path) -> None:
    language_model("gpt2", tmp_path / "model")
    data = data_of(tmp_path, some_pairs())
    data.setup("test")
    task = MinimalPairs(data.splits["test"])
    ablation = make_ablation("resample", task.outputs, lambda: task.draw(data, "test", 100, 0), 0)
    sets = [frozenset[Head](), frozenset({(0, 0), (1, 1)})]
    batch = data.splits["test"][[10, 11]]  # of which the last has two equal sentences
    intact, ablated = task.rows(task.inputs(batch), {ablation: sets})["resample"].reshape(2, 2, 2).unbind(1)
    assert ablated[1, 0] == ablated[1, 1]
    assert (intact != ablated).all()
    one = data_of(tmp_path, some_pairs()[:1])
    one.setup("test")
    with pytest.raises(UserError, match="`resample` replaces head outputs by those of other texts"):
        make_ablation("resample", task.outputs, lambda: task.draw(one, "test", 100, 0), 0)


def test_a_model_that_is_not_above_chance_is_told(tmp_path: Path) -> None:
    language_model("gpt2", tmp_path / "model")
    told = r"is right in .* % \[.*\] of the pairs, which is not above chance \(50\.0 %\), so effects on it say little"
    with pytest.warns(UserWarning, match=told):
        scored(HeadAblation(layers=False), data_of(tmp_path, some_pairs()))


def planted(folder: Path, paradigm: Paradigm) -> tuple[AgreementModel, PairDataModule]:
    """A model that one head of layer 2 decides, and pairs that differ in the verb or in the subject."""
    model = agreement_model(1)
    model.save(folder / "model")
    pairs = write_agreement_pairs(folder / "pairs.jsonl", paradigm)
    return model, PairDataModule(str(pairs), EncoderSpec(str(folder / "model")), cache=str(folder))


def test_the_head_that_a_pair_needs_costs_20_points_and_no_other_2(tmp_path: Path) -> None:
    model, data = planted(tmp_path, "verb")
    kinds: tuple[Kind, ...] = ("mean", "uniform", "zero")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is above chance
        found = scored(HeadAblation(kinds=kinds, layers=False, sets={"needed": [model.needed]}, random=3), data)
    assert found.numbers["pairs.accuracy"] == 1
    for row in rows_of(found.tables["ablation"].frame):
        assert row.difference <= -0.2 if f"{row.layer}-{row.head}" == model.needed else row.difference >= -0.02
    for row in rows_of(found.tables["fields"].frame):
        assert row.beyond_random <= -0.2
        assert row.beyond_random_p_holm < 0.05
    assert found.audit["reference"] == "120 texts of the pairs, 0 to resample"
    assert found.audit["means_include_scored_texts"] is True


def test_patching_the_needed_head_reverses_the_log_ratio_and_no_other_changes_it(tmp_path: Path) -> None:
    model, data = planted(tmp_path, "subject")
    found = scored(HeadAblation(kinds=["patch", "scale"], factors=[0.5], layers=False), data)
    intact = found.numbers["pairs.log_ratio"]
    assert intact > 20
    for row in rows_of(found.tables["ablation"].frame):
        is_needed = f"{row.layer}-{row.head}" == model.needed
        if row.kind == "patch" and is_needed:
            assert row.difference == -1
            assert row.log_ratio == pytest.approx(-intact, rel=0.02)
        elif row.kind == "patch":
            assert row.difference == 0
            assert abs(row.log_ratio_change) < 0.02 * intact
        elif is_needed:  # half of the output
            assert row.difference == 0
            assert row.log_ratio == pytest.approx(intact / 2, rel=0.1)


def test_the_intact_output_of_the_needed_head_restores_a_model_without_it(tmp_path: Path) -> None:
    """A damaged copy, whose agreement head reads nothing, gets the output of the intact model back."""
    model, data = planted(tmp_path, "verb")
    data.setup("test")
    task = MinimalPairs(data.splits["test"])
    [needed, *decoys] = [parse_heads([name], 2, 4, "") for name in (model.needed, *model.decoys)]
    [(layer, head)] = needed
    values = task.model.layers[layer].self_attn.v_proj.weight  # type: ignore[union-attr, index]
    whole = values.detach().clone()
    for place in range(6):
        inputs = task.inputs(data.splits["test"][[place]])
        with torch.no_grad():
            values.copy_(whole)
            intact = task.outputs(inputs)
            # The two sentences share all that precedes the verb, so the mean over both is the output in each.
            reference = ReferenceOutputs.from_batches(task.outputs, [inputs])
            values[8 * head : 8 * head + 8] = 0
        sets = [frozenset[Head](), needed, *decoys]
        given = {Ablation("mean", reference): sets}
        damaged, restored, *others = task.rows(inputs, given)["mean"].view(5, 2)
        assert abs(damaged[0] - damaged[1]) < 1
        torch.testing.assert_close(restored, intact[0], atol=1e-3, rtol=0)
        assert intact[0, 0] - intact[0, 1] > 20
        for other in others:
            assert abs(other[0] - other[1]) < 1


def test_a_sentence_with_the_head_of_its_partner_is_as_probable_as_the_partner(tmp_path: Path) -> None:
    """A sentence is restored by the agreement head alone, and not at all if the pair differs in the verb."""
    model, data = planted(tmp_path, "subject")
    data.setup("test")
    task = MinimalPairs(data.splits["test"])
    names = (model.needed, *model.decoys)
    sets = [frozenset[Head](), *(parse_heads([name], 2, 4, "") for name in names)]
    inputs = task.inputs(data.splits["test"][[*range(60)]])
    intact, needed, *decoys = task.rows(inputs, {Ablation("patch"): sets})["patch"].view(60, 5, 2).unbind(1)
    assert ((intact[:, 0] - intact[:, 1]) > 20).all()
    torch.testing.assert_close(needed, intact.flip(1), atol=1.5, rtol=0)
    for decoy in decoys:
        torch.testing.assert_close(decoy, intact, atol=1.5, rtol=0)
    (tmp_path / "verb").mkdir()
    _, data = planted(tmp_path / "verb", "verb")
    found = scored(HeadAblation(kinds=["patch"], layers=False), data)
    assert (found.tables["ablation"].frame["log_ratio_change"] == 0).all()
    assert found.audit["pairs_patch_cannot_change"] == 60
    assert found.audit["tokens_patch_can_change"] == "0 of 480"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"model has no language-modelling head, which minimal pairs need\. Name a decoder \(gpt2\) or a"),
        (
            {"fields": ["syntx"]},
            r"no pair has the field 'syntx'\. Give one of semantics, syntax \(did you mean",
        ),
        ({"fields": []}, r"^`fields` is empty"),
        ({"per_paradigm": 0}, "per_paradigm is 0, but must be at least 1"),
    ],
)
def test_what_has_no_probability_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_llama(tmp_path / "model")
    with pytest.raises(UserError, match=message):
        scored(MinimalPairAccuracy(), data_of(tmp_path, some_pairs(), **options))


def test_pairs_too_long_and_tokenizers_without_a_start_are_refused(tmp_path: Path) -> None:
    language_model("gpt2", tmp_path / "model")
    long = (*some_pairs()[0][:2], " ".join(WORDS * 9), "dogs")
    with pytest.raises(UserError, match=r"jsonl:13: a sentence has \d+ tokens, but \S+ reads 64\. Remove the pair"):
        scored(MinimalPairAccuracy(), data_of(tmp_path, [*some_pairs(), long]))
    encoder = Encoder(resolve(EncoderSpec(str(tmp_path / "model"))))
    encoder.tokenizer.bos_token = encoder.tokenizer.eos_token = None
    pairs = data_of(tmp_path, some_pairs()).read()
    with pytest.raises(UserError, match="the tokenizer has no start and no end token"):
        PairSplit(tmp_path / "pairs.jsonl", pairs, encoder)


def test_a_task_of_two_kinds_and_a_number_of_no_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"give `checkpoint` or `pairs`, not both"):
        check(checkpoint=str(write(tmp_path, some_pairs())), pairs="blimp")
    with pytest.raises(UserError, match=r"^`per_paradigm` limits minimal pairs: give `pairs='blimp'` too"):
        check(per_paradigm=3)
    with pytest.raises(UserError, match=r"^`pair_columns` is of a file of minimal pairs: name it with `pairs`\.$"):
        check(pair_columns=PairColumns())


@pytest.mark.slow
@pytest.mark.parametrize("config", ["sashida2026/pairs.yaml", "sashida2026/heads_off.yaml", "kumon2026/patch.yaml"])
def test_the_configs_run_and_two_processes_write_what_one_does(
    config: str, run_config: Callable[..., Any], tmp_path: Path
) -> None:
    language_model("gpt2", tmp_path / "model")
    arguments = ["measure", f"--config={CONFIGS / config}", f"--data.corpus={write(tmp_path, some_pairs(40))}"]
    arguments += [f"--data.encoder.name={tmp_path / 'model'}", f"--data.cache={tmp_path}"]
    if "heads_off" in config:  # the heads of the config are those of a larger model
        arguments += ["--model.sets={own: [1-2]}"]
    _, one, at_one = run_config(*arguments, own_data=True)
    assert "pairs.accuracy" in one["scores"]
    if "pairs" not in config:
        return
    _, two, at_two = run_config(*arguments, own_data=True, processes=2)
    assert one["scores"] == two["scores"]
    assert one["tables"] == two["tables"]
    for file in one["tables"].values():
        assert (at_one / file).read_bytes() == (at_two / file).read_bytes()


def harness(model: Path, pairs: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Log-probabilities `[pairs, 2]`, and whether each pair is right, by lm-evaluation-harness's template of BLiMP."""
    why = "lm-eval is not installed: it is a dependency of this test alone (pip install lm-eval)"
    lm_eval = pytest.importorskip("lm_eval", reason=why)
    for name, value in {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}.items():
        monkeypatch.setenv(name, value)
    config = yaml.safe_load((Path(lm_eval.__file__).parent / "tasks/blimp/_template_yaml").read_text())
    config |= {"task": "blimp", "dataset_path": "json", "dataset_kwargs": {"data_files": {"train": str(pairs)}}}
    run = importlib.import_module("lm_eval.models.huggingface").HFLM
    read = run(pretrained=str(model), dtype="float32", device="cpu", batch_size=16)
    given = {
        "task_manager": importlib.import_module("lm_eval.tasks").TaskManager(include_defaults=False),
        "log_samples": True,
    }
    found = lm_eval.simple_evaluate(model=read, tasks=[config], bootstrap_iters=0, **given)
    samples = sorted(found["samples"]["blimp"], key=lambda one: one["doc_id"])
    assert found["results"]["blimp"]["acc,none"] == pytest.approx(np.mean([one["acc"] for one in samples]))
    return np.array([[ll for ll, _ in one["filtered_resps"]] for one in samples]), [one["acc"] for one in samples]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma3"])
def test_the_accuracy_is_that_of_the_harness(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    language_model(kind, tmp_path / "model")
    rows = some_pairs(30)
    both, right = harness(tmp_path / "model", write(tmp_path, rows), tmp_path, monkeypatch)
    found = scored(MinimalPairAccuracy(), data_of(tmp_path, rows))
    np.testing.assert_allclose(items_of(found)[["good", "bad"]], both, rtol=1e-5)
    assert items_of(found)["right"].tolist() == right  # one pair is a tie
    assert found.numbers["pairs.accuracy"] == pytest.approx(np.mean(right), abs=1e-6)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma-3-270m"])
def test_the_accuracy_of_a_real_model_is_that_of_the_harness(
    name: str,
    pretrained: Callable[[str], Path],
    public_data: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = pretrained(name)
    lines = public_data("blimp", "pairs.jsonl").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join([*lines[::200], lines[8162]]) + "\n", encoding="utf-8")  # one of each, and a tie
    both, right = harness(model, path, tmp_path, monkeypatch)
    data = PairDataModule(str(path), EncoderSpec(str(model)), cache=str(tmp_path))
    found = scored(MinimalPairAccuracy(), data)
    np.testing.assert_allclose(items_of(found)[["good", "bad"]], both, rtol=1e-4)
    assert items_of(found)["right"].tolist() == right
    assert found.numbers["pairs.accuracy"] == pytest.approx(np.mean(right), abs=1e-6)
    assert found.audit["ties"] == 1


@pytest.mark.parametrize(
    ("paradigms", "fields", "printed"),
    [
        (["a", "b"], ["syntax", "semantics"], {"fields"}),
        (["a", "b"], ["syntax", "syntax"], {"paradigms"}),
        (["a", "a"], ["syntax", "syntax"], set()),
    ],
)
def test_an_accuracy_is_printed_once(
    paradigms: list[str], fields: list[str], printed: set[str], tmp_path: Path
) -> None:
    """A table of one row would have the accuracy of all pairs again."""
    language_model("gpt2", tmp_path / "model")
    rows = some_pairs(8)
    rows = [(paradigms[place % 2], fields[place % 2], *row[2:]) for place, row in enumerate(rows)]
    found = scored(MinimalPairAccuracy(), data_of(tmp_path, rows))
    assert {name for name, table in found.tables.items() if table.main} == printed
    assert list(found.headline) == ["pairs.accuracy"]
    assert found.tables.keys() == {"fields", "paradigms"}
