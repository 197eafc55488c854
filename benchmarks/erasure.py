"""Erasure until the decision flips, whole batches at once under all rankings, against one forward per erased weight.

`python -m benchmarks.erasure [--json FILE]`
"""

from pathlib import Path

import torch
from torch import Tensor

from benchmarks.adversary import classified_batches, trained
from benchmarks.harness import Report, Settings, alternate, command, timed
from fidelity.classified import ClassifiedBatch
from fidelity.erasure import SetErasure, first_flips
from fidelity.saliency import Saliency

FORWARDS = 24
"""Texts of which the whole model runs for each erased weight, evenly spread over the lengths."""


def one_by_one(text: ClassifiedBatch, rankings: Tensor, *, whole_model: bool = False) -> list[int]:
    """Erased weights at the first flip under each order, 0 for none: after each of them the text is decided anew.

    Args:
        text: One alone, without padding.
        rankings: `[orders, 1, positions]`, the highest goes first.
        whole_model: Whether the encoder runs too, as where hidden states are not kept; else the decision alone.
    """
    own, found = int(text.predicted), []
    for order in rankings[:, 0].argsort(dim=-1, descending=True, stable=True).tolist():
        weights, flip = text.weights.clone(), 0
        for count, position in enumerate(order, 1):
            weights[..., position] = 0
            left = weights / weights.sum(-1, keepdim=True) if count < len(order) else weights
            if whole_model:
                decided = text.checkpoint.model(text.batch, imposed=dict(zip(text.names, left, strict=True))).logits
            else:
                decided = text.decide(left)
            if int(decided.argmax()) != own:
                flip = count
                break
        found.append(flip)
    return found


def rankings_of(classified: ClassifiedBatch, test: SetErasure) -> Tensor:
    """Every order of every text, `[orders, batch, positions]`."""
    saliency = Saliency(classified)
    return torch.cat([saliency.rankings(ranking, test.draws).detach() for ranking in test.rankings])


@torch.no_grad()
def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Erasure until the decision flips, whole batches at once, against one forward per erased weight."""
    corpus, data, checkpoint = trained(settings, folder)
    report.figure("corpus", corpus, "the test split, under a classifier that was trained for an epoch")
    batches = classified_batches(data, checkpoint)
    data.eval_tokens = 1  # from here on each text is a batch of its own
    texts = classified_batches(data, checkpoint)
    rankings: list[Tensor] = []

    def rank() -> None:
        with torch.enable_grad():
            rankings[:] = [rankings_of(classified, SetErasure()) for classified in batches]

    ranked = timed(rank)()
    places = {
        int(index): (batch, row)
        for batch, classified in enumerate(batches)
        for row, index in enumerate(classified.batch.index.tolist())
    }
    chosen = [places[int(text.batch.index)] for text in texts]
    # Both sides are given the same orders.
    alone = [
        rankings[batch][:, row : row + 1, : text.mask.size(1)] for text, (batch, row) in zip(texts, chosen, strict=True)
    ]
    ours, theirs = list[Tensor](), list[list[int]]()

    def together() -> None:
        ours[:] = [first_flips(classified, orders) for classified, orders in zip(batches, rankings, strict=True)]

    def single() -> None:
        theirs[:] = [one_by_one(text, orders) for text, orders in zip(texts, alone, strict=True)]

    sample = range(0, len(texts), max(len(texts) // FORWARDS, 1))

    def forwards() -> None:
        for at in sample:
            one_by_one(texts[at], alone[at], whole_model=True)

    both = alternate(settings.rounds, ours=timed(together), reference=timed(single), forwards=timed(forwards))
    scaled = [seconds * len(texts) / len(sample) for seconds in both["forwards"]]
    meaning = "text by text, the decision anew for each erased weight, hidden states kept ÷ all at once"
    report.ratio("over_reference", both["reference"], both["ours"], meaning, wanted="≥ 20")
    report.ratio("over_forwards", scaled, both["ours"], "the same with the whole model for each erased weight ÷ ours")
    report.figure("texts", len(texts), "of at least two words, all of them on both sides")
    report.figure("orders", len(rankings[0]), "of each text: five random ones, one of each other ranking")
    report.seconds("erasure_s", both["ours"], "all flips of all texts under all orders")
    report.seconds("reference_s", both["reference"], "the same, one erased weight at a time")
    report.seconds("forwards_s", scaled, f"the seconds of {len(sample)} texts × texts ÷ {len(sample)}")
    report.seconds("rankings_s", [ranked], "the rankings themselves, of which no ratio is made: both sides need them")
    flips = torch.stack([ours[batch][:, row] for batch, row in chosen], 1)
    positions = torch.cat([text.mask.sum(1) for text in texts])
    report.figure("erased_weights", int(torch.where(flips == 0, positions, flips).sum()), "until the flip, or the last")
    report.figure("different_flips", int((flips != torch.tensor(theirs).T).sum()), "between the two sides", wanted="0")


main = command("erasure", measure)
