"""Heads over seeds: agreement of choices that are known, and a small run of the study."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from attention_probing.attention import Encoder, EncoderSpec, resolve
from studies.natural import natural_decoder
from studies.seeds import Choices, agreement, describe_agreement, main, relations_table, repeated_table


def table(heads: dict[str, str], p_holm: float = 0.01, n: int = 30) -> pd.DataFrame:
    """A table `best_heads` with these heads by relation, and rows that are to be left out."""
    rows = [{"relation": "all", "head": "1-1", "n": 900, "n_dev": 900}, {"relation": "rare", "head": "1-1", "n": 19}]
    for relation, head in heads.items():
        row = {"relation": relation, "head": head, "n": n, "n_dev": n, "test": 0.6, "offset": 0.5, "over_offset": 0.1}
        rows.append({**row, "p_holm": p_holm, "chosen": 90, "direction": "dependent→head"})
    return pd.DataFrame(rows)


def test_agreement_is_that_of_loops_over_pairs_of_seeds() -> None:
    choices = np.array([["1-1", "1-1", "2-1"], ["2-2", "2-2", "2-2"], ["1-1", "3-3", "1-1"]])
    same: list[bool] = []
    others: list[bool] = []
    for one in range(3):
        for other in range(3):
            if one == other:
                continue
            for relation in range(3):
                for of in range(3):
                    is_same = choices[relation, one] == choices[of, other]
                    (same if relation == of else others).append(is_same)
    assert agreement(choices) == pytest.approx((np.mean(same), np.mean(others)))
    # If all relations have the same head in every seed, the agreement says nothing, and the second number tells so.
    assert agreement(np.full((4, 3), "1-1")) == (1, 1)
    assert agreement(np.array([["a", "a"], ["b", "b"]])) == (1, 0)


def test_relations_are_those_that_are_frequent_in_every_seed() -> None:
    one = table({"obj": "2-1", "det": "1-2"})
    other = table({"obj": "2-1", "det": "3-2", "cc": "1-1"}, p_holm=0.2)
    choices = Choices.from_tables([one, other])
    assert choices.relations == ["obj", "det"]
    assert choices.heads.tolist() == [["2-1→", "2-1→"], ["1-2→", "3-2→"]]
    assert choices.layers.tolist() == [["2", "2"], ["1", "3"]]
    assert choices.is_above.tolist() == [[True, False], [True, False]]
    text = describe_agreement(choices)
    assert "another seed has the same head for 50 %" in text
    assert "a resample of dev has the same head for 90 %" in text
    assert "above the offset in all 2 seeds for 0 relations, in some for 2, in none for 0" in text
    rows = relations_table(choices).set_index("relation")
    assert rows.loc["det", "head in each seed"] == "1-2→, 3-2→"
    assert rows.loc["det", "above the offset"] == "1 of 2"
    assert "random weights" not in rows


def test_a_role_needs_half_of_the_attention_beyond_doubt() -> None:
    roles = []
    for low in (0.55, 0.45):
        row: dict[str, object] = {
            "role": "previous",
            "head": "1-2",
            "score": 0.6,
            "low": low,
            "high": 0.7,
            "uniform": 0.04,
        }
        roles.append(pd.DataFrame([{**row, "random_init": 0.05}]))
    [printed] = repeated_table(roles).to_dict("records")
    assert printed["half of the attention"] == "1 of 2"
    assert printed["best head in each seed"] == "1-2 60 [55, 70]; 1-2 60 [45, 70]"


@pytest.mark.slow
def test_a_decoder_learns_and_is_a_model_folder(tmp_path: Path) -> None:
    losses = []
    for steps in (0, 60):
        made = natural_decoder(0, steps)
        tokens = made.tokenizer("the dog met a cat.", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = made.model(input_ids=tokens).logits[0, :-1]
        losses.append(float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:])))
    assert losses[1] < losses[0] - 1.5
    encoder = Encoder(resolve(EncoderSpec(str(made.save(tmp_path / "decoder")))))
    assert (encoder.layers, encoder.heads, encoder.causal) == (4, 4, True)
    assert encoder.language_model is not None


@pytest.mark.slow
def test_the_tables_of_runs_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for number, head in enumerate(("2-1", "2-1", "2-3")):
        run = tmp_path / f"{number}"
        run.mkdir()
        table({"obj": head, "det": "1-2"}).to_csv(run / "best_heads.csv", index=False)
        runs.append(str(run))
    assert main(["runs", *runs]) == 0
    printed = capsys.readouterr().out
    assert "| obj | 30 | 2-1→, 2-1→, 2-3→ |" in printed
    assert "another seed has the same head for 67 %" in printed
