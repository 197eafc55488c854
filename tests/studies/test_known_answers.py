"""Rates of verdicts with known counts, classifiers written by hand, and a small run of the experiment."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binomtest
from transformers import PreTrainedTokenizerFast

from attention_probing.attention import Encoder, EncoderSpec, resolve
from attention_probing.corpora.sample import write_sample_treebank
from attention_probing.datamodules import DependencyDataModule
from attention_probing.fidelity.checkpoints import load_checkpoints
from attention_probing.metrics.shares import share_interval
from attention_probing.results import UserError
from studies import KnownAnswers
from studies.known_answers import rates, right, separation
from studies.known_cases import CASES, Case, Trial, ablation, causal, promised, quantities
from studies.natural import natural_model
from tests.trainers import scored


def verdicts(*found: tuple[int, bool, bool, float]) -> pd.DataFrame:
    """Verdicts of one test: seed, whether there is something to find, whether it is found, and its effect."""
    rows = [
        (seed, *Trial("e", "t", "m", "something" if positive else "nothing", positive, one, effect))
        for seed, positive, one, effect in found
    ]
    return pd.DataFrame(rows, columns=["seed", *Trial._fields])


def exact(count: int, trials: int) -> tuple[float, float]:
    """The interval of Clopper & Pearson, from another library function."""
    found = binomtest(count, trials).proportion_ci()
    return pytest.approx((found.low, found.high), abs=1e-12)  # type: ignore[return-value]


def test_rates_are_shares_of_verdicts_with_intervals_over_seeds() -> None:
    found = [(0, True, True, 3.0), (0, True, False, 1.0), (1, True, True, 2.5)]
    found += [(seed, False, False, 2.0) for seed in range(4)]
    something, nothing = rates(verdicts(*found).assign(test="p")).frame.to_dict("records")
    assert (something["power"], something["verdicts"], something["seeds"]) == (pytest.approx(2 / 3), 3, 2)
    assert (something["low"], something["high"]) == exact(2, 3)
    assert np.isnan(something["false_positive"])
    assert nothing["false_positive"] == 0
    assert (nothing["false_positive.low"], nothing["false_positive.high"]) == exact(0, 4)
    assert np.isnan(nothing["power"])
    assert something["promised"] == nothing["promised"] == 0.05


def test_intervals_of_one_verdict_a_seed_are_exact() -> None:
    for count in range(51):
        [row] = rates(verdicts(*[(seed, True, seed < count, 0.0) for seed in range(50)])).frame.to_dict("records")
        assert (row["low"], row["high"]) == exact(count, 50)


def test_intervals_of_verdicts_that_are_alike_within_a_seed_are_those_of_the_seeds() -> None:
    verdicts_of_seed = np.full(20, 6)
    for count in range(1, 20):
        alike = share_interval(np.repeat([6, 0], [count, 20 - count]), verdicts_of_seed)
        assert alike[1:] == exact(count, 20)
    # Spread over the seeds, as many findings say more; and they rise with the number of findings, from none to all.
    spread = [share_interval((np.arange(20) < count).astype(int), verdicts_of_seed) for count in range(21)]
    assert all(one[2] < other[2] and one[1] <= other[1] for one, other in pairwise(spread))
    assert spread[0][1:] == exact(0, 120)
    assert spread[20][2] - spread[20][1] < share_interval(np.repeat([6, 0], [3, 17]), verdicts_of_seed)[2] / 2


@pytest.mark.parametrize(
    ("test", "rate"),
    [("p", 0.05), ("p after Holm", 0.05), ("p_offset of the best head", 0.05), ("compression above 1", 0.025)],
)
def test_a_test_promises_the_rate_of_its_level(test: str, rate: float) -> None:
    assert promised(test) == rate
    assert np.isnan(promised("positional"))


def test_a_verdict_is_right_if_it_finds_what_is_there_and_nothing_else() -> None:
    found = [(0, True, True, 0.0), (0, False, True, 0.0), (0, False, False, 0.0), (1, True, False, 0.0)]
    share = right(verdicts(*found))
    assert share.value == pytest.approx(1 / 2)
    assert share.interval == exact(2, 4)


def test_effects_separate_positive_from_negative_verdicts() -> None:
    found = [(0, True, True, 3.0), (0, True, True, 1.0), (0, False, False, 2.0), (0, False, False, 0.0)]
    assert separation(verdicts(*found * 3)) == {"e.t": 0.75}
    assert separation(verdicts(*found * 2)) == separation(verdicts(*found[:2] * 9)) == {}


def test_written_classifiers_attend_where_they_should_and_decide_by_words_of_opinion(tmp_path: Path) -> None:
    case = Case(3, tmp_path, tmp_path / "cache")
    for target in ("opinion", "period"):
        path, data = case.attending(target)
        data.setup("test")
        [checkpoint] = load_checkpoints([Path(path)], data)
        test = data.splits["test"]
        batch = test[list(range(len(test)))]
        with torch.no_grad():
            output = checkpoint.model(batch)
        words = data.vocabulary.words
        signs = torch.tensor(
            [float(checkpoint.model.get_parameter("embedding.rows.weight")[i, 0]) for i in range(len(words))]
        )
        signs = torch.where(signs.abs() == 1, signs, 0)[batch.tokens] * batch.mask
        there = signs != 0 if target == "opinion" else batch.tokens == words.index(".")
        top = output.levels["word"].weights.argmax(1)
        assert there[torch.arange(len(top)), top][there.any(1)].all()
        opinions = signs.sum(1)
        decided = opinions != 0
        assert (output.logits.argmax(1)[decided] == (opinions[decided] > 0)).all()
        assert decided.sum() > 60
        shuffled = case.classifier("null", shuffled=True)[1]
        shuffled.setup("test")
        assert (shuffled.splits["test"].labels != test.labels).any()


# Tests that miss what is there, or find what is not, in some seeds of the published table.
UNSURE = [
    "p_shuffled of the best head",
    "p_offset of the best head",
    "selectivity above 0",
    "uniform weights lose F1",
    "adversary: no JSD above .3",
]
UNSURE += ["erasure: fewer words than random"]
FOUND_ANYWAY = ["compression above 1", "correlation: significant in most texts"]


@pytest.mark.slow
@pytest.mark.core
def test_a_run_of_one_seed_finds_the_planted_heads(tmp_path: Path) -> None:
    names = list(CASES)
    few = dict.fromkeys(names, 0) | {"heads": 1, "fidelity": 1, "statistics": 1, "probes": 1}
    data = DependencyDataModule("sample", encoder=None, cache=str(tmp_path))
    result = scored(KnownAnswers(few), data)
    table = result.tables["known_answers"].frame
    # What is found in every seed of the published table, and what in none.
    found, not_found = table.set_index("test")["power"].dropna(), table.set_index("test")["false_positive"].dropna()
    assert (found.drop(UNSURE) == 1).all(), found
    coins = not_found.pop("p of a comparison with a null model")  # of 125 verdicts
    assert coins < 0.15
    assert not_found.pop("two trained models differ by p") in (0, 1)  # one verdict; seeds differ
    assert (not_found.drop(UNSURE, errors="ignore").drop(FOUND_ANYWAY) == 0).all(), not_found
    assert (not_found[FOUND_ANYWAY] == 1).all()
    of_attention = {"heads", "surface", "patterns", "clusters", "fidelity"}
    assert set(table["experiment"]) == of_attention | {"attention-only probe", "control task", "description length"}
    assert result.audit["verdicts"] == table["verdicts"].sum()


@pytest.mark.slow
def test_the_config_says_the_same_on_one_and_two_processes(run_config: Callable[..., Any], cache: str) -> None:
    config = Path(__file__).parents[2] / "studies" / "known_answers.yaml"
    seeds = {name: 2 if name == "statistics" else 0 for name in CASES}
    arguments = ["measure", f"--config={config}", "--trust=studies", f"--data.cache={cache}"]
    arguments += [f"--model.seeds={json.dumps(seeds)}", "--trainer.devices=1"]
    _, one, at_one = run_config(*arguments, own_data=True)
    table = (at_one / one["tables"]["known_answers"]).read_bytes()
    (at_one / "results.json").unlink()
    _, two, at_two = run_config(*arguments, "--model.processes=2", own_data=True)
    assert one["audit"]["seeds"] == seeds
    assert one["audit"]["verdicts"] == two["audit"]["verdicts"] > 20
    assert table == (at_two / two["tables"]["known_answers"]).read_bytes()


@pytest.mark.slow
def test_ablations_find_what_is_needed_and_norms_reject_the_decoy(tmp_path: Path) -> None:
    case = Case(1, tmp_path, tmp_path / "cache")
    found = {(one.test, one.truth): one for run in (ablation, causal, quantities) for one in run(case)}
    for what in ("a planted", "an even"):
        assert found["p after Holm", f"the decision is read from {what} head"].found
    needed, not_needed = (
        found["loss beyond random heads", f"the head of {what} needed"] for what in ("obj is", "det is not")
    )
    assert needed.found
    assert not not_needed.found
    assert needed.effect > not_needed.effect
    rejected = {test: not one.found for (test, truth), one in found.items() if truth == "a head of obj moves nothing"}
    assert not rejected["attention"]
    assert rejected["norms"]
    assert rejected["value_zeroing (a layer)"]


def test_the_sentences_of_the_natural_model_are_not_those_of_the_sample(tmp_path: Path) -> None:
    read: list[str] = []

    def note(self: object, text: list[str], **options: object) -> object:
        read.extend(text)
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PreTrainedTokenizerFast, "__call__", note)
        with pytest.raises(InterruptedError):
            natural_model(0, steps=1)
    sample = {line for path in write_sample_treebank(tmp_path).values() for line in sentences_of(path)}
    assert len(read) > 3500
    assert len(sample) == 2500
    assert not sample & set(read)


def sentences_of(path: Path) -> list[str]:
    return [
        " ".join(row.split("\t")[1] for row in block.splitlines() if not row.startswith("#"))
        for block in path.read_text(encoding="utf-8").strip().split("\n\n")
    ]


@pytest.mark.slow
def test_a_natural_model_learns_and_is_a_model_folder(tmp_path: Path) -> None:
    folder = natural_model(0, steps=60).save(tmp_path / "natural")
    encoder = Encoder(resolve(EncoderSpec(str(folder))))
    assert (encoder.layers, encoder.heads) == (3, 4)
    assert encoder.language_model is not None
    losses = []
    for steps in (0, 60):
        made = natural_model(0, steps=steps)
        hidden = made.tokenizer("the dog met a cat [MASK]", return_tensors="pt")["input_ids"]
        assert hidden[0, -2] == made.tokenizer.mask_token_id
        with torch.no_grad():
            scores = made.model(input_ids=hidden).logits[0, -2].log_softmax(0)
        losses.append(-float(scores[made.tokenizer.convert_tokens_to_ids(".")]))
    assert losses[1] < 3 < 5 < losses[0]


def test_unknown_experiments_and_negative_numbers_are_refused() -> None:
    with pytest.raises(UserError, match=r"there is no experiment 'head' \(did you mean `heads`\?\)"):
        KnownAnswers({"head": 1})
    with pytest.raises(UserError, match=r"seeds is \{'heads': -1\}, but must be a mapping to at least 0"):
        KnownAnswers({"heads": -1})
    with pytest.raises(UserError, match=r"`seeds` leaves every experiment out"):
        KnownAnswers(dict.fromkeys(CASES, 0))
