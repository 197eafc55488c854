"""Every head of a classifier off, one at a time: ours, layers below computed once, against one forward pass per head.

`python -m benchmarks.ablation [--json FILE]`
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from attention_probing.attention.ablation import PIECES, AblatedModel, Ablation
from attention_probing.attention.source import EncoderSpec, resolve
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.models.transformer import SequenceClassifier
from benchmarks.harness import Report, Settings, alternate, command, found, timed

TEXTS = 96
TOLERANCE = 1e-4


class Shared:
    """What `HeadAblation` does with its batches.

    Attributes:
        inputs: Of all batches, in memory beforehand.
        found: Logits `[heads, texts, classes]`.
    """

    def __init__(self, classifier: SequenceClassifier, inputs: list[dict[str, Tensor]]) -> None:
        self._classifier, self.inputs = classifier, inputs
        self._model = AblatedModel(classifier.model.base_model, classifier.layers, classifier.heads)
        self._sets = [
            frozenset({(layer, head)}) for layer in range(classifier.layers) for head in range(classifier.heads)
        ]
        self.found = torch.empty(0)

    def _measure(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return self._classifier.logits(inputs["input_ids"], inputs["attention_mask"].bool(), inputs["token_type_ids"])

    def __call__(self) -> None:
        """All batches, every head off once."""
        ablation = Ablation("zero")
        runs = [self._model.run(self._measure, inputs, ablation, self._sets) for inputs in self.inputs]
        self.found = torch.cat(runs, 1)


class HeadByHead:
    """transformers alone: a whole pass for each head, whose columns the output projection reads as zeros."""

    def __init__(self, ours: Shared, classifier: SequenceClassifier, folder: Path) -> None:
        classifier.model.save_pretrained(folder)
        self._model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="sdpa").eval()
        self._inputs = ours.inputs
        self.found = torch.empty(0)

    @torch.inference_mode()
    def __call__(self) -> None:
        """All batches, every head off once."""
        heads = self._model.config.num_attention_heads
        found = []
        for block in self._model.base_model.encoder.layer:
            for head in range(heads):
                hook = block.attention.output.dense.register_forward_pre_hook(_zeros(head, heads))
                found.append(torch.cat([self._model(**inputs).logits for inputs in self._inputs]))
                hook.remove()
        self.found = torch.stack(found)


def _zeros(head: int, heads: int) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    """A hook of the output projection by which it reads zeros of one head."""

    def hook(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        read = args[0].clone()
        size = read.size(-1) // heads
        read[..., head * size : (head + 1) * size] = 0
        return (read, *args[1:])

    return hook


def inputs_of(data: ClassificationDataModule, most: int) -> list[dict[str, Tensor]]:
    """The first texts of dev in batches as `HeadAblation` has them."""
    texts = data.splits["dev"]
    found = texts.batches(PIECES["cpu"] // 2, range(min(most, len(texts))))
    return [
        {"input_ids": one.tokens, "attention_mask": one.mask.long(), "token_type_ids": one.segments} for one in found
    ]


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Every head off, one at a time: ours against one forward pass per head."""
    corpus = found(settings.corpus or "sst2")
    data = ClassificationDataModule(corpus, tokenizer=EncoderSpec(), max_length=128, cache=str(folder))
    data.setup("test")
    torch.manual_seed(0)
    classifier = SequenceClassifier(resolve(EncoderSpec()), len(data.labels)).eval().requires_grad_(False)
    ours = Shared(classifier, inputs_of(data, settings.limit or TEXTS))
    reference = HeadByHead(ours, classifier, folder / "classifier")
    seconds = alternate(settings.rounds, reference=timed(reference), ours=timed(ours))
    difference = float((ours.found - reference.found).abs().max())
    if not difference <= TOLERANCE:  # also when it is not a number
        raise RuntimeError(f"A logit differs from the reference's by {difference:.1e}.")
    layers, heads = classifier.layers, classifier.heads
    report.figure("corpus", corpus, "labelled texts")
    meaning = "a whole pass for each head, by transformers (sdpa) ÷ layers below an ablated one computed once"
    report.ratio("over_reference", seconds["reference"], seconds["ours"], meaning, wanted="≥ 1.6")
    report.figure("texts", ours.found.size(1), "of dev")
    report.figure("heads", layers * heads, "each off once")
    report.figure("limit", limit(layers), "layer passes saved, with queries, keys and values of the ablated layer kept")
    report.figure("logit_difference", difference, "the greatest", wanted="≤ 1e-4")
    report.seconds("ablation_s", seconds["ours"], "all heads")
    report.seconds("reference_s", seconds["reference"], "a whole pass for each")


def limit(layers: int) -> float:
    """How many times fewer layer passes there can be: from the ablated layer on, and two thirds of that one."""
    return layers * layers / (layers * (layers + 1) / 2 - layers / 3)


main = command("ablation", measure)
