"""Minimal pairs by pseudo-log-likelihood: against one token at a time, and against minicons."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM

from attention_probing.attention import Encoder, resolve
from attention_probing.attention.source import EncoderSpec
from attention_probing.commands import CONFIGS
from attention_probing.datamodules import PairDataModule, PairSplit
from attention_probing.datamodules.pairs import Masking
from attention_probing.measures import HeadAblation, MinimalPairAccuracy
from attention_probing.measures.head_sets import make_ablation
from attention_probing.measures.pair_tasks import MaskedPairs, MinimalPairs, pair_task
from attention_probing.results import UserError
from tests.measures.heads_off import off
from tests.measures.test_importance import language_model
from tests.measures.test_pairs import AT_CHANCE, Rows, data_of, items_of, some_pairs
from tests.tiny import BROKEN, SIZES, save, save_bert
from tests.trainers import scored

pytestmark = AT_CHANCE
HEADS = [(0, 1), (1, 2)]


def broken_pairs(number: int = 8) -> Rows:
    """Pairs as in `some_pairs`, each with a word of several pieces; the sentences of the last are equal."""
    rows = []
    for place, (paradigm, field, good, bad) in enumerate(some_pairs(number)):
        word = BROKEN[place % len(BROKEN)]
        rows.append((paradigm, field, f"{good} {word}", f"{bad} {word}"))
    return rows


@cache
def loaded(folder: Path) -> tuple[Any, Encoder]:
    """The language model of a folder, and its encoder."""
    model = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager")
    return model, Encoder(resolve(EncoderSpec(str(folder))))


def slow(folder: Path, sentence: str, masking: Masking, heads: Sequence[tuple[int, int]] = ()) -> float:
    """Pseudo-log-likelihood of a sentence: a pass for each of its tokens."""
    model, encoder = loaded(folder)
    encoded = encoder.tokenizer(sentence)
    ids, words = encoded["input_ids"], encoded.word_ids()
    total = 0.0
    for place, (target, word) in enumerate(zip(ids, words, strict=True)):
        if word is None:
            continue
        masked = list(ids)
        masked[place] = encoder.tokenizer.mask_token_id
        for later in range(place + 1, len(ids)):
            if masking == "word_l2r" and words[later] == word:
                masked[later] = encoder.tokenizer.mask_token_id
        with off(model, set(heads)) if heads else nullcontext(), torch.no_grad():
            logits = model(torch.tensor([masked])).logits[0, place].double()
        total += float(logits.log_softmax(0)[target])
    return total


@pytest.mark.parametrize("masking", ["word_l2r", "original"])
@pytest.mark.parametrize("kind", ["bert", "modernbert", "roberta"])
def test_the_accuracy_is_that_of_a_pass_for_each_token(kind: str, masking: Masking, tmp_path: Path) -> None:
    language_model(kind, tmp_path / "model")
    rows = broken_pairs()
    found = scored(MinimalPairAccuracy(), data_of(tmp_path, rows, masking=masking))
    good, bad = (np.array([slow(tmp_path / "model", row[which], masking) for row in rows]) for which in (2, 3))
    np.testing.assert_allclose(items_of(found)["good"], good, rtol=1e-5)
    np.testing.assert_allclose(items_of(found)["bad"], bad, rtol=1e-5)
    assert found.numbers["pairs.accuracy"] == pytest.approx((good[:-1] > bad[:-1]).sum() / 8 + 1 / 8)
    assert found.audit == {"pairs": 8, "ties": 1, "equal_sentences": 1, "masking": masking}
    assert found.answer is not None
    assert found.answer.endswith(
        " of 8 acceptable sentences are at least as probable as their pair by pseudo-log-likelihood (1 pair equally "
        "probable)."
    )


@pytest.mark.parametrize("kind", ["bert", "modernbert", "roberta"])
def test_a_head_that_reads_other_positions_too_is_given_all_states(kind: str, tmp_path: Path) -> None:
    """One that does not computes the logits of the masked positions alone."""
    language_model(kind, tmp_path / "model")
    data = data_of(tmp_path, broken_pairs())
    data.setup("test")
    inputs_of = data.splits["test"][list(range(8))]
    by_place = pair_task(data.splits["test"])
    head = by_place._language_model.get_output_embeddings()  # type: ignore[no-untyped-call]
    sizes = []
    head.register_forward_hook(lambda _, args, output: sizes.append(output.shape[:-1].numel()))
    inputs = by_place.inputs(inputs_of)
    expected = by_place.outputs(inputs)
    assert sum(sizes) == len(inputs["place"])

    def count_positions(_: Any, args: Any) -> Any:  # noqa: ANN401
        return (args[0] + float(args[0].size(1) == 1),)

    counting = head.register_forward_pre_hook(count_positions)
    of_whole = pair_task(data.splits["test"])
    sizes.clear()
    np.testing.assert_allclose(of_whole.outputs(inputs), expected, rtol=1e-5)
    assert sum(sizes) == inputs["input_ids"].numel()
    counting.remove()


@pytest.mark.parametrize(("rows", "are_equal"), [(some_pairs(), True), (broken_pairs(), False)])
def test_both_ways_to_mask_differ_by_words_of_several_pieces_alone(rows: Rows, are_equal: bool, tmp_path: Path) -> None:
    language_model("bert", tmp_path / "model")
    by_word = items_of(scored(MinimalPairAccuracy(), data_of(tmp_path, rows)))
    by_token = items_of(scored(MinimalPairAccuracy(), data_of(tmp_path, rows, masking="original")))
    assert np.isclose(by_word["good"], by_token["good"], rtol=1e-6).any() == are_equal
    assert np.allclose(by_word["good"], by_token["good"], rtol=1e-6) == are_equal


def test_texts_are_read_in_parts_within_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    language_model("bert", tmp_path / "model")
    data = data_of(tmp_path, broken_pairs())
    whole = items_of(scored(MinimalPairAccuracy(), data))
    bounds = {"max_cells": 50, "max_items": 3, "cells": "tokens"}
    monkeypatch.setattr(PairSplit, "bounds", property(lambda split: bounds))
    task = pair_task(data.splits["test"])
    assert isinstance(task, MaskedPairs)
    sizes = []
    run = task._language_model.forward

    def forward(**inputs: Tensor) -> Any:  # noqa: ANN401
        sizes.append(inputs["input_ids"].numel())
        return run(**inputs)

    monkeypatch.setattr(task._language_model, "forward", forward)
    inputs = task.inputs(data.splits["test"][list(range(8))])
    found = task.outputs(inputs)
    names = [f"p{place % 3}/{place}" for place in range(8)]
    np.testing.assert_allclose(found, whole.set_index("id").loc[names, ["good", "bad"]], rtol=1e-5)
    assert max(sizes) <= 50
    assert len(sizes) > 8
    assert float(found[7, 0]) == float(found[7, 1])  # equal sentences in different parts are a tie
    drawn = task.draw(data, "test", 40, 0)
    texts = sum(len(part["index"]) for part in drawn)
    assert 20 < texts <= 40
    assert max(part["input_ids"].numel() for part in drawn) <= 50
    np.testing.assert_array_equal(task.gold(inputs), range(8))


def test_heads_off_are_those_of_a_pass_for_each_token(tmp_path: Path) -> None:
    language_model("bert", tmp_path / "model")
    rows = broken_pairs()
    data = data_of(tmp_path, rows)
    found = scored(HeadAblation(layers=False, heads=False, sets={"own": ["1-2", "2-3"]}, random=2), data)
    model = tmp_path / "model"

    def right(heads: Sequence[tuple[int, int]]) -> Any:  # noqa: ANN401
        both = [[slow(model, row[which], "word_l2r", heads) for which in (2, 3)] for row in rows[:-1]]
        return np.array([good >= bad for good, bad in both] + [True], float)

    whole, own = right([]), right(HEADS)
    [row] = found.tables["sets"].frame.to_dict("records")
    assert row["score"] == pytest.approx(own.mean())
    assert row["difference"] == pytest.approx(own.mean() - whole.mean())
    task = pair_task(data.splits["test"])
    ablation = make_ablation("zero", task.outputs, list, 0)
    inputs = task.inputs(data.splits["test"][[0, 1, 2]])
    ablated = task.rows(inputs, {ablation: [frozenset(HEADS)]})["zero"]
    expected = [[slow(model, row[which], "word_l2r", HEADS) for which in (2, 3)] for row in rows[:3]]
    np.testing.assert_allclose(ablated, expected, rtol=1e-5)


def test_replacements_are_from_masked_texts_of_other_pairs(tmp_path: Path) -> None:
    language_model("bert", tmp_path / "model")
    data = data_of(tmp_path, broken_pairs())
    data.setup("test")
    task = pair_task(data.splits["test"])
    ablation = make_ablation("resample", task.outputs, lambda: task.draw(data, "test", 1000, 0), 0)
    assert ablation.reference is not None
    assert ablation.reference.texts == data.splits["test"].texts.sum()
    inputs = task.inputs(data.splits["test"][[0, 7]])
    sets = [frozenset[tuple[int, int]](), frozenset(HEADS)]
    intact, ablated = task.rows(inputs, {ablation: sets})["resample"].reshape(2, 2, 2).unbind(1)
    assert (intact != ablated).all()
    assert ablated[1, 0] == ablated[1, 1]
    assert ablation.reference.numbers is not None
    texts, _ = ablation.reference.positions([0, 7], 6, 0)
    for number, row in zip([0, 7], texts, strict=True):
        assert number not in ablation.reference.numbers[row]


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_pairs_in_another_language_with_columns_of_their_own_run_from_the_command_line(
    kind: str, run_config: Callable[..., Any], tmp_path: Path
) -> None:
    language_model(kind, tmp_path / "model")
    rows = [
        {"richtig": "Die Katzen schlafen heute .", "falsch": "Die Katzen schläft heute .", "regel": "numerus"},
        {"richtig": "Er fährt nach Köln .", "falsch": "Er fahren nach Köln .", "regel": "person"},
        {"richtig": "Ich sehe den Hund .", "falsch": "Ich sehe der Hund .", "regel": "kasus"},
    ]
    path = tmp_path / "paare.jsonl"
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = "{good: richtig, bad: falsch, paradigm: regel, field: null, id: null}"
    arguments = ["measure", f"--config={CONFIGS / 'sashida2026/pairs.yaml'}", f"--data.corpus={path}"]
    arguments += [f"--data.encoder.name={tmp_path / 'model'}", f"--data.cache={tmp_path}", f"--data.columns={columns}"]
    _, result, folder = run_config(*arguments, own_data=True)
    assert result["audit"]["pairs"] == 3
    paradigms = (folder / result["tables"]["paradigms"]).read_text(encoding="utf-8")
    assert all(row["regel"] in paradigms for row in rows)
    if kind == "bert":
        good = [slow(tmp_path / "model", row["richtig"], "word_l2r") for row in rows]
        bad = [slow(tmp_path / "model", row["falsch"], "word_l2r") for row in rows]
        assert result["scores"]["pairs.accuracy"] == pytest.approx(np.mean(np.array(good) >= bad))


def test_what_cannot_be_masked_is_refused(tmp_path: Path) -> None:
    save_bert(tmp_path / "model")
    reason = (
        r"model has no language-modelling head, which minimal pairs need\. Name a decoder \(gpt2\) or a masked "
        r"language model \(bert-base-uncased\) with a language-modelling head with `encoder`\."
    )
    with pytest.raises(UserError, match=reason):
        scored(MinimalPairAccuracy(), data_of(tmp_path, some_pairs()))
    language_model("bert", tmp_path / "model")
    rows = [*some_pairs(2), ("p9", "syntax", "\u0301", "the dogs")]  # an accent alone, which the tokenizer removes
    with pytest.raises(UserError, match=r"jsonl:3: \S+model reads no token in a sentence, so nothing can be masked\. "):
        data_of(tmp_path, rows).setup("test")
    data = data_of(tmp_path, some_pairs())
    data.setup("test")
    with pytest.raises(TypeError, match="call pair_task"):
        MinimalPairs(data.splits["test"])
    data.splits["test"].encoder.tokenizer.mask_token = None
    with pytest.raises(UserError, match="has no mask token in its tokenizer"):
        pair_task(data.splits["test"])
    with pytest.raises(UserError, match="masking is 'all', but must be one of word_l2r, original"):
        data_of(tmp_path, some_pairs(), masking="all")
    language_model("gpt2", tmp_path / "decoder")
    data = PairDataModule(str(data.corpus), EncoderSpec(str(tmp_path / "decoder")), masking="original")
    with pytest.raises(UserError, match=r"`masking='original'` is for masked language models, but \S+ is a decoder"):
        data.setup("test")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("masking", ["word_l2r", "original"])
def test_pseudo_log_likelihoods_are_those_of_minicons(
    masking: Masking, public_data: Callable[..., Path], tmp_path: Path
) -> None:
    why = "minicons is not installed: it is a dependency of this test alone (pip install minicons)"
    scorer = pytest.importorskip("minicons.scorer", reason=why)
    lines = public_data("blimp", "pairs.jsonl").read_text(encoding="utf-8").splitlines()[::134]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    encoder = Encoder(resolve(EncoderSpec()))
    torch.manual_seed(0)
    config = AutoConfig.for_model("bert", vocab_size=len(encoder.tokenizer), initializer_range=0.3, **SIZES)
    model: Any = AutoModelForMaskedLM.from_config(config)  # type: ignore[no-untyped-call]
    model.train(False)
    folder = save(tmp_path / "model", model, encoder.tokenizer)
    pairs = [json.loads(line) for line in lines]
    assert len(pairs) == 100
    minicons = scorer.MaskedLMScorer(model, "cpu", tokenizer=encoder.tokenizer)
    metric = "within_word_l2r" if masking == "word_l2r" else "original"
    both = []
    for pair in pairs:
        encoded = encoder.tokenizer([pair["sentence_good"], pair["sentence_bad"]], padding="longest")
        both.append(minicons.sequence_score(encoded, lambda scores: float(scores.sum()), PLL_metric=metric))
    data = PairDataModule(str(path), EncoderSpec(str(folder)), cache=str(tmp_path), masking=masking)
    found = scored(MinimalPairAccuracy(), data)
    items = items_of(found).set_index("id").loc[[f"{pair['UID']}/{pair['pairID']}" for pair in pairs]]
    np.testing.assert_allclose(items[["good", "bad"]], both, rtol=1e-5)
    good, bad = np.transpose(both)
    assert found.numbers["pairs.accuracy"] == pytest.approx(np.mean(good >= bad), abs=1e-6)
