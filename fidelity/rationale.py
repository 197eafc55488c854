"""Whether the words ranked highest carry the decision, and are those that people name (ERASER, DeYoung et al. 2020)."""

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from fidelity.base import CheckpointResult, FidelityTest, Measurements, Score, means
from fidelity.classified import ClassifiedBatch
from fidelity.saliency import RANKINGS, Ranking, Saliency
from results import Table
from results.errors import UserError, check_numbers, check_values

PLAUSIBILITY = ("auprc", "average_precision", "token_f1")
COLUMNS = ("comprehensiveness", "sufficiency", *PLAUSIBILITY)


class Rationale(FidelityTest):
    """Rationales made of the words that a ranking puts first, at several lengths; `random` is what they must beat.

    With p the probability of the class that the full text gets, and r the words of a rationale: comprehensiveness is
    p(x) − p(x without r), high if r is needed; sufficiency p(x) − p(r alone), low if r is enough. Both are means over
    the fractions. The AOPC of DeYoung et al. (2020, §5) divides their sum by one more: with five fractions it is 5/6 of
    this. A rationale has at least one word, and leaves at least one.

    Where the corpus names the deciding words, plausibility: `auprc` and `average_precision`, the area under the
    precision–recall curve by trapezoids and by steps, as ERASER reports both; and `token_f1`, with as many words as are
    named; nan for texts that name none. At the level of sentences one that holds a deciding word is a deciding
    sentence.

    Columns and scores are `<ranking>.<one of these>`; scores are means over the texts. The column `gold` holds how many
    deciding words there are.

    Args:
        rankings: what words are ranked by, each once.
        fractions: lengths of the rationales, as shares of the words, between 0 and 1; rounded up.
        draws: of `random`, 1 or more; what it gets is the mean over them.
    """

    name = "rationale"
    headline = (".comprehensiveness",)

    def __init__(
        self,
        rankings: Sequence[Ranking] = RANKINGS,
        fractions: Sequence[float] = (0.01, 0.05, 0.1, 0.2, 0.5),
        draws: int = 5,
    ) -> None:
        check_values(self, rankings=rankings)
        if not rankings or len(set(rankings)) < len(rankings):
            raise UserError(f"rationale: name one or more rankings, each once, and not {list(rankings)}.")
        check_numbers(self, least=1, draws=draws)
        if not fractions or not all(0 < fraction < 1 for fraction in fractions):
            raise UserError(
                f"rationale: fractions {list(fractions)} of the words: give fractions between 0 and 1, for instance "
                f"[0.1, 0.5]."
            )
        self.rankings, self.fractions, self.draws = tuple(rankings), tuple(fractions), draws

    def columns(self, classes: int) -> Sequence[str]:
        return [*self._scores, "gold"]

    @property
    def _scores(self) -> list[str]:
        return [f"{ranking}.{column}" for ranking in self.rankings for column in COLUMNS]

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        words = classified.words
        by_ranking = [saliency.rankings(ranking, self.draws) for ranking in self.rankings]
        values = torch.cat(by_ranking).masked_fill(~words, -torch.inf)
        # [orders, batch, positions] from 0 for the highest; of equals the earlier word comes first.
        ranks = values.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        gold = classified.to_positions(classified.batch.rationale.float()) > 0
        found = {
            **self._erased(classified, ranks),
            "auprc": torch.stack([auprc(order, gold, words) for order in values]),
            "average_precision": torch.stack([average_precision(order, gold, words) for order in values]),
            # With as many words as are named precision, recall and F1 are one.
            "token_f1": (gold & (ranks < gold.sum(1)[:, None])).sum(-1) / gold.sum(1),
        }
        numbers = {"gold": gold.sum(1)}
        parts = [len(orders) for orders in by_ranking]
        for column, of_orders in found.items():
            for ranking, value in zip(self.rankings, torch.split(of_orders, parts), strict=True):
                numbers[f"{ranking}.{column}"] = value.mean(0)
        return Measurements(numbers)

    def _erased(self, classified: ClassifiedBatch, ranks: Tensor) -> Mapping[str, Tensor]:
        """Comprehensiveness and sufficiency `[orders, batch]`."""
        words = classified.words
        # The published formula also counts the rationale without a word, and divides by one more.
        top = ranks[:, None] < rationale_lengths(words.sum(1), self.fractions)[..., None]
        keep = torch.stack([words & ~top, words & top])  # [2, orders, fractions, batch, positions]
        probability = classified.of_predicted(classified.reread(keep.flatten(0, 2)))
        without, alone = (classified.confidence - probability.view(keep.shape[:-1])).mean(2)
        return {"comprehensiveness": without, "sufficiency": alone}

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        return means(self._scores)

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Plausibility by the number of deciding words; there is none where the corpus names none.

        Words that stand in for each other, or decide only together, are missed by measures of single words.
        """
        rows = [
            {"checkpoint": result.name, "deciding words": size, "texts": len(values), "ranking": ranking}
            | {name: values[f"{ranking}.{name}"].mean() for name in PLAUSIBILITY}
            for result in results
            for size, values in _by_size(result.of(self.name))
            for ranking in self.rankings
        ]
        table = Table(pd.DataFrame(rows), dict.fromkeys(PLAUSIBILITY, "fraction")) if rows else None
        return {f"{self.name}.plausibility": table} if table else {}


def _by_size(values: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The texts that name deciding words, by how many."""
    gold = values["gold"]
    for size, texts in (("1", gold == 1), ("2", gold == 2), ("3 or more", gold > 2)):
        if texts.any():
            yield size, values[texts]


def rationale_lengths(words: Tensor, fractions: Sequence[float]) -> Tensor:
    """How many words are these fractions of texts of so many, `[batch]` → int64 `[fractions, batch]`."""
    shares = torch.tensor(fractions, dtype=torch.float64, device=words.device)[:, None] * words
    # .07 · 100 is a little more than 7.
    lengths = (shares - 1e-9).ceil().long().clamp(min=1)
    return torch.minimum(lengths, words - 1)


def auprc(values: Tensor, gold: Tensor, words: Tensor) -> Tensor:
    """Area under the precision–recall curve by trapezoids, `[batch]`, as ERASER computes it; nan without a gold word.

    The curve begins at recall 0 with precision 1, as scikit-learn draws it. So words that all have one value get
    halfway between 1 and the share of gold words, and a single gold word that comes second .25; `average_precision` is
    .5 there. All arguments are `[batch, positions]`; words of equal value come together.
    """
    order = values.masked_fill(~words, -torch.inf).argsort(dim=-1, descending=True)
    # Behind the last word recall stays 1, so that padding adds nothing.
    precision, recall = (points.gather(-1, order) for points in precision_recall(values, gold, words))
    pad = torch.nn.functional.pad
    return torch.trapezoid(pad(precision, (1, 0), value=1.0), pad(recall, (1, 0)), dim=-1)


def average_precision(values: Tensor, gold: Tensor, words: Tensor) -> Tensor:
    """The mean over gold words of the precision down to each; arguments and result as for `auprc`."""
    precision, _ = precision_recall(values, gold, words)
    return torch.where(gold, precision, 0).sum(-1) / gold.sum(-1)


def precision_recall(values: Tensor, gold: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Precision and recall `[batch, positions]` of the words whose value is at least that of each; outside, of all."""
    values = values.masked_fill(~words, -torch.inf)
    as_high = (values[:, None, :] >= values[:, :, None]) & words[:, None, :]  # [batch, down to, positions]
    found = (as_high & gold[:, None, :]).sum(-1).double()
    return found / as_high.sum(-1), found / gold.sum(-1, keepdim=True)
