"""Each word alone, against texts of one word that are written by hand."""

from statistics import fmean, pstdev

import numpy as np
import pandas as pd
import pytest
import torch

from fidelity.base import Subject
from fidelity.single_token import SingleToken
from metrics.bootstrap import resample
from results import Spreads
from tests.fidelity.tiny import SENTENCES, TEXTS, Kind, classifier, close, one_by_one, reading
from tests.models.batches import batch_of


@pytest.mark.parametrize("kind", ["flat", "han"])
def test_the_decision_on_each_word_alone(kind: Kind) -> None:
    numbers = SingleToken().measure(reading(kind, time=9)).numbers
    assert set(numbers) == set(SingleToken().columns(3))
    agreements = []
    for row, text in enumerate(TEXTS):
        batch = batch_of([text], sentences=[SENTENCES[row]])
        full = classifier(kind)(batch).logits.softmax(-1)[0].tolist()
        label = full.index(max(full))
        groups = SENTENCES[row] if kind == "han" else range(len(text))
        parts = [[text[place] for place in range(len(text)) if groups[place] == slot] for slot in sorted(set(groups))]
        alone = [classifier(kind)(batch_of([part])).logits.softmax(-1)[0].tolist() for part in parts]
        of_label = [found[label] for found in alone]
        expected = {
            "full": full[label],
            "mean": fmean(of_label),
            "spread": pstdev(of_label),
            "min": min(of_label),
            "max": max(of_label),
            "agree": fmean(found.index(max(found)) == label for found in alone),
        }
        agreements.append(expected["agree"])
        for name, value in expected.items():
            assert numbers[name][row].item() == pytest.approx(value, abs=1e-6 if name == "agree" else 1e-9), name
    assert 0 < fmean(agreements) < 1


@pytest.mark.parametrize("kind", ["flat", "han", "transformer"])
def test_a_text_alone_has_the_same_as_in_a_padded_batch(kind: Kind) -> None:
    padded = SingleToken().measure(reading(kind, time=12)).numbers
    for row, alone in enumerate(one_by_one(kind)):
        for name, value in SingleToken().measure(alone).numbers.items():
            close(padded[name][row], value[0])


def subject(variant: str, seed: int, spreads: list[float]) -> Subject:
    return Subject(
        f"{variant}, seed {seed}", variant, seed, 2, 1, pd.DataFrame({"single_token.spread": spreads, "words": 3}), {}
    )


def test_scores_are_means_and_the_violins_are_of_all_seeds_of_a_variant() -> None:
    numbers = SingleToken().measure(reading("flat")).numbers
    for name, score in SingleToken().scores(3, None).items():
        values = torch.stack([numbers[column] for column in score.columns], 1).numpy()
        assert resample(score.statistic, values, score.unit).value == pytest.approx(np.mean(numbers[name].numpy()))
    figures = SingleToken().figures(
        [subject("base", 0, [0.1, 0.2]), subject("tying", 0, [0.3, 0.4]), subject("base", 1, [0.5, np.nan])]
    )
    figure = figures["single_token.spread"]
    assert isinstance(figure, Spreads)
    assert figure.categories == ("base", "tying")
    np.testing.assert_equal(figure.series["texts"], [[0.1, 0.2, 0.5, np.nan], [0.3, 0.4]])
