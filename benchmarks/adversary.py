"""Adversarial attention for a whole test set, all texts and copies of a batch at once, against one text at a time.

`python -m benchmarks.adversary [--json FILE]`
"""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.classifier_training import HIDDEN, classifier, texts
from benchmarks.harness import Report, Settings, alternate, command, timed
from benchmarks.job import fit
from datamodules import ClassificationDataModule, TextBatch
from fidelity.adversary import DRAWN, Adversary, Farthest
from fidelity.checkpoints import Checkpoint
from fidelity.classified import ClassifiedBatch, classify, select_texts
from fidelity.saliency import Saliency
from models import RecurrentEncoder

SAMPLE = 24
"""Texts that are searched one at a time, evenly spread over the lengths."""
TRAJECTORY = 20
"""Steps in which both sides must walk the same way."""


class OneText:
    """What the code released with Jain & Wallace (2019) does, after its description, for a single text.

    The divergences of the copies from the attention, and of all K² pairs of them, each from its formula; automatic
    gradients through all of it; AMSGrad as PyTorch has it.

    Args:
        adversary: Whose options and starting points it has.
    """

    def __init__(self, adversary: Adversary) -> None:
        self._ours = adversary

    def search(self, text: ClassifiedBatch, steps: int) -> list[Tensor]:
        """The copies `[copies, positions]` after each step."""
        ours, own, before = self._ours, text.weights[0, 0], text.probabilities[0]
        logits = ours.drawn(text, ours.name, ours.copies)[:, 0, 0].requires_grad_()
        amsgrad = torch.optim.Adam([logits], ours.learning_rate, amsgrad=True)
        found = []
        for _ in range(steps):
            weights = logits.softmax(-1)
            distance = (text.decide(weights[:, None, None])[:, 0] - before).abs().sum(-1) / 2
            excess = torch.relu(distance - ours.epsilon)
            loss = (ours.penalty * excess - _jsd(weights, own)).sum()
            loss = loss - ours.diversity * _jsd(weights[:, None], weights).mean()
            amsgrad.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            amsgrad.step()
            found.append(logits.detach().softmax(-1))
        return found

    def max_jsd(self, text: ClassifiedBatch) -> float:
        """The largest divergence of a copy whose output is near enough; 0, that of the own attention, without one."""
        weights = self.search(text, self._ours.steps)[-1]
        distance = (text.decide(weights[:, None, None])[:, 0] - text.probabilities[0]).abs().sum(-1) / 2
        divergence = _jsd(weights, text.weights[0, 0])[distance <= self._ours.tolerance]
        return max(divergence.tolist(), default=0.0)


def _jsd(p: Tensor, q: Tensor) -> Tensor:
    middle = (p + q) / 2
    return (_kl(p, middle) + _kl(q, middle)) / 2


def _kl(p: Tensor, q: Tensor) -> Tensor:
    smallest = torch.finfo(p.dtype).tiny
    return (p * (p.clamp_min(smallest).log() - q.clamp_min(smallest).log())).sum(-1)


def trained(settings: Settings, folder: Path) -> tuple[str, ClassificationDataModule, Checkpoint]:
    """A classifier after an epoch on SST-2, where the data root has it, else on the embedded reviews; and its texts."""
    corpus, data = texts(settings, folder)
    torch.manual_seed(0)
    model = classifier(RecurrentEncoder(hidden=HIDDEN))
    fit(model, data, validate=False)
    data.setup("test")
    model.eval().requires_grad_(False)
    return corpus, data, Checkpoint(folder, "", {"seed_everything": 0}, "base, seed 0", "base", model)


def classified_batches(data: ClassificationDataModule, checkpoint: Checkpoint) -> list[ClassifiedBatch]:
    """Those of the test split, batch after batch."""
    found = (
        classify(checkpoint, batch, None, seed=0, vocabulary=data.vocabulary)[1] for batch in data.test_dataloader()[1]
    )
    return [classified for classified in found if classified is not None]


def sampled(classified_batches: list[ClassifiedBatch]) -> list[ClassifiedBatch]:
    """Each of `SAMPLE` texts alone, evenly spread over the lengths of all."""
    places = [
        (batch, row)
        for batch, classified in enumerate(classified_batches)
        for row in range(len(classified.batch.index))
    ]
    places.sort(key=lambda place: int(classified_batches[place[0]].batch.lengths[place[1]]))
    chosen = places[:: max(len(places) // SAMPLE, 1)][:SAMPLE]
    return [_alone(classified_batches[batch], row) for batch, row in chosen]


def _alone(classified: ClassifiedBatch, row: int) -> ClassifiedBatch:
    batch = select_texts(classified.batch, torch.tensor([row]))
    time = int(batch.lengths)
    cut: dict[str, Any] = {
        name: value[:, :time] for name, value in vars(batch).items() if isinstance(value, Tensor) and value.dim() == 2
    }
    return _read(classified, replace(batch, **cut), classified.checkpoint)


def _read(classified: ClassifiedBatch, batch: TextBatch, checkpoint: Checkpoint) -> ClassifiedBatch:
    found = classify(checkpoint, batch, None, seed=classified.seed, vocabulary=classified.vocabulary)[1]
    assert found is not None
    return found


def trajectory_difference(adversary: Adversary, whole: ClassifiedBatch, steps: int) -> float:
    """Largest difference of a weight between both sides in the first steps, in double precision.

    Args:
        adversary: The options.
        whole: A batch, all texts of which are searched.
        steps: Of both.
    """
    checkpoint = replace(whole.checkpoint, model=deepcopy(whole.checkpoint.model).double())
    whole = _read(whole, whole.batch, checkpoint)
    ours = []
    for step in range(1, steps + 1):
        search = deepcopy(adversary)
        search.steps = step
        ours.append(search.published(whole)[:, 0])
    worst = 0.0
    for row in range(len(whole.batch.index)):
        text = _alone(whole, row)
        for mine, theirs in zip(ours, OneText(adversary).search(text, steps), strict=True):
            worst = max(worst, float((mine[:, row, : theirs.size(1)] - theirs).abs().max()))
    return worst


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Adversarial attention for a whole test set, all texts of a batch at once, against one text at a time."""
    corpus, data, checkpoint = trained(settings, folder)
    report.figure("corpus", corpus, "the test split, under a classifier that was trained for an epoch")
    adversary, batches = Adversary(search="published"), classified_batches(data, checkpoint)
    texts, reference = sampled(batches), OneText(adversary)
    count = sum(len(classified.batch.index) for classified in batches)
    report.figure("texts", count, f"{adversary.copies} copies of each, {adversary.steps} steps")
    report.figure("reference_texts", len(texts), "of these searched one at a time, evenly spread over the lengths")

    chosen = select_texts(batches[0].batch, torch.arange(min(SAMPLE, len(batches[0].batch.index))))
    difference = trajectory_difference(adversary, _read(batches[0], chosen, checkpoint), TRAJECTORY)
    meaning = f"of any weight, {TRAJECTORY} steps in double precision"
    report.figure("trajectory_difference", difference, meaning, wanted="≤ 1e-6")

    found: dict[int, float] = {}
    theirs: list[float] = []

    def together() -> None:
        for classified in batches:
            values = adversary.measure(classified, Saliency(classified)).numbers["max_jsd"]
            found.update(zip(classified.batch.index.tolist(), values.tolist(), strict=True))

    def one_by_one() -> None:
        theirs[:] = [reference.max_jsd(text) for text in texts]

    both = alternate(settings.rounds, ours=timed(together), reference=timed(one_by_one))
    scaled = [seconds * count / len(texts) for seconds in both["reference"]]
    report.seconds("search_s", both["ours"], "all texts, in batches bounded by tokens")
    report.seconds("reference_s", scaled, "one at a time, the seconds of the sample × texts ÷ sample")
    report.ratio("over_reference", scaled, both["ours"], "the one ÷ the other", wanted="≥ 30")
    ours = [found[int(text.batch.index)] for text in texts]
    report.figure("max_jsd", sum(found.values()) / count, "mean over all texts")
    means = sum(ours) / len(texts), sum(theirs) / len(texts)
    report.figure("max_jsd_difference", abs(means[0] - means[1]), "of the means over the sample", wanted="≤ .005")
    measure_best(settings, batches, count, both["ours"], report)


def measure_best(
    settings: Settings, batches: list[ClassifiedBatch], count: int, published: list[float], report: Report
) -> None:
    """The default, the best of all searches, against the published one; its draws against bare evaluations.

    Args:
        settings: The rounds.
        batches: All texts.
        count: Their number.
        published: Seconds of the published search.
        report: Where the figures go.
    """
    adversary, found = Adversary(), [0.0]

    def best() -> None:
        measured = [adversary.measure(classified, Saliency(classified)).numbers["max_jsd"] for classified in batches]
        found[0] = float(torch.cat(measured).mean())

    def draws() -> None:
        for classified in batches:
            adversary.draw(classified, Farthest(classified, [adversary.tolerance], adversary.tolerance))

    @torch.no_grad()
    def forwards() -> None:
        for classified in batches:
            start = adversary.drawn(classified, "floor", 1)
            for _ in range(adversary.draws // DRAWN):
                classified.decide(start.expand(DRAWN, *start.shape[1:]).softmax(-1))

    sides = alternate(settings.rounds, best=timed(best), draws=timed(draws), forwards=timed(forwards))
    report.seconds("best_s", sides["best"], "all texts, by the best of all searches, the published one among them")
    report.ratio("best_over_published", sides["best"], published, "the one ÷ the other")
    report.seconds("draws_s", sides["draws"], f"of it the draws, {adversary.draws} for each of {count} texts")
    report.seconds("forwards_s", sides["forwards"], "as many softmaxes and decisions, and nothing else")
    report.ratio("draws_over_forwards", sides["draws"], sides["forwards"], "the one ÷ the other")
    report.figure("best_max_jsd", found[0], "mean over all texts")


main = command("adversary", measure)
