"""Each word alone, against texts of one word that are written by hand."""

from statistics import fmean, pstdev

import numpy as np
import pandas as pd
import pytest

from fidelity.single_token import SingleToken
from results import Spreads
from tests.fidelity import tiny
from tests.fidelity.tiny import SENTENCES, TEXTS, Kind, classified, classifier, measurements, scores_of
from tests.models.batches import batch_of


@pytest.mark.parametrize("kind", ["flat", "han"])
def test_the_decision_on_each_word_alone(kind: Kind) -> None:
    numbers = measurements(SingleToken(), classified(kind, time=9)).numbers
    agreements = []
    for row, text in enumerate(TEXTS):
        batch = batch_of([text], sentences=[SENTENCES[row]])
        full = classifier(kind)(batch).logits.softmax(-1)[0].tolist()
        label = full.index(max(full))
        groups = SENTENCES[row] if kind == "han" else range(len(text))
        parts = [
            [text[place] for place in range(len(text)) if groups[place] == position] for position in sorted(set(groups))
        ]
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


def test_scores_are_means_and_the_violins_are_of_all_seeds_of_a_variant() -> None:
    numbers = measurements(SingleToken(), classified("flat")).numbers
    scores = scores_of(SingleToken(), pd.DataFrame({name: values.numpy() for name, values in numbers.items()}))
    assert scores == pytest.approx({name: float(numbers[name].mean()) for name in ("spread", "mean", "full", "agree")})
    spreads = {("base", 0): [0.1, 0.2], ("tying", 0): [0.3, 0.4], ("base", 1): [0.5, np.nan]}
    figures = SingleToken().figures(
        [tiny.checkpoint_result("single_token", *of, {"spread": values}) for of, values in spreads.items()]
    )
    figure = figures["single_token.spread"]
    assert isinstance(figure, Spreads)
    assert figure.categories == ("base", "tying")
    np.testing.assert_equal(figure.series["texts"], [[0.1, 0.2, 0.5, np.nan], [0.3, 0.4]])
