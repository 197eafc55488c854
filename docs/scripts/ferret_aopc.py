"""Compare comprehensiveness and sufficiency with ferret's AOPC (Attanasio et al. 2023) under equal rules.

ferret-xai is needed for this comparison alone, and in a folder of its own:

    pip install --no-deps --target ferret ferret-xai
    PYTHONPATH=ferret python docs/scripts/ferret_aopc.py FOLDER test.tsv

FOLDER has a BERT sequence classifier, for instance from `probing export`; the texts are labelled (`text` and
`label`). The rules of both: gradient norms as scores, pieces removed from the text, the lengths of `FRACTIONS` rounded
up, the mean over lengths. ferret writes the remaining pieces as a text and cuts it again, and counts a length only
once: texts are therefore of 10 pieces or more, each a whole word.
"""

import argparse
import importlib.util
import sys
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from attention_probing.attention import EncoderSpec
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity import Rationale
from attention_probing.fidelity.checkpoints import Checkpoint
from attention_probing.fidelity.classified import classify
from attention_probing.fidelity.rationale import rationale_lengths
from attention_probing.fidelity.saliency import Saliency
from attention_probing.models import TransformerClassifier

FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5)
RANKING = "gradient_norm"  # never negative: ferret then ignores no word


def evaluators(model: Any, tokenizer: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return ferret's evaluators by name of our column, without its explainers, which need further packages."""
    found = importlib.util.find_spec("ferret")
    if found is None or not found.submodule_search_locations:
        sys.exit("ferret-xai is not there: see the head of this file.")
    package = ModuleType("ferret")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["ferret"] = package
    measures = importlib.import_module("ferret.evaluators.faithfulness_measures")
    return {
        "comprehensiveness": measures.AOPC_Comprehensiveness_Evaluation(model, tokenizer),
        "sufficiency": measures.AOPC_Sufficiency_Evaluation(model, tokenizer),
    }


def main(arguments: list[str] | None = None) -> None:
    """Print both numbers and the largest difference of a text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="a BERT sequence classifier")
    parser.add_argument("corpus", type=Path, help="labelled texts (TSV)")
    parser.add_argument("--texts", type=int, default=50, help="number of texts, from the first")
    given = parser.parse_args(arguments)
    model = AutoModelForSequenceClassification.from_pretrained(given.folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(given.folder)
    head, *lines = given.corpus.read_text(encoding="utf-8").splitlines()
    column, work = head.split("\t").index("text"), Path(mkdtemp())
    whole = [line for line in lines if _is_whole(tokenizer, line.split("\t")[column])][: given.texts]
    for split in ("train", "dev", "test"):
        (work / f"{split}.tsv").write_text("\n".join([head, *whole]) + "\n", encoding="utf-8")
    data = ClassificationDataModule(
        str(work / "{split}.tsv"), tokenizer=EncoderSpec(str(given.folder)), cache=str(work / "stores")
    )
    data.setup("test")
    classifier = TransformerClassifier()
    classifier.make_for(data)
    classifier.eval().requires_grad_(False)
    checkpoint = Checkpoint(given.folder, "0" * 64, {}, "exported", "exported", classifier)
    ours: dict[str, list[float]] = {"comprehensiveness": [], "sufficiency": []}
    theirs: dict[str, list[float]] = {name: [] for name in ours}
    of_ferret, test = evaluators(model, tokenizer), Rationale([RANKING])
    test.fractions = FRACTIONS
    explanation = importlib.import_module("ferret.explainers.explanation").Explanation
    for batch in data.test_dataloader()[1]:
        _, classified = classify(checkpoint, batch, seed=0, vocabulary=data.vocabulary)
        assert classified is not None
        saliency = Saliency(classified)
        numbers = test.measure(classified, saliency)
        for row, text in enumerate(classified.batch.index.tolist()):
            words = whole[text].split("\t")[column]
            pieces = tokenizer.convert_ids_to_tokens(tokenizer(words)["input_ids"])
            scores = saliency.signed_values(RANKING)[row, : len(pieces)].double().numpy()
            lengths = rationale_lengths(classified.words[row].sum()[None], FRACTIONS)[:, 0].tolist()
            target = int(classified.predicted[row])
            one = explanation(words, pieces, scores, RANKING, target)
            rule = {"remove_tokens": True, "based_on": "k", "thresholds": lengths}
            for name, evaluator in of_ferret.items():
                theirs[name].append(evaluator.compute_evaluation(one, target, removal_args=rule).score)
                ours[name].append(float(numbers[f"{RANKING}.{name}"][row]))
    print(f"{len(whole)} texts, lengths {FRACTIONS}, torch {torch.__version__}")
    for name in ours:
        gap = np.abs(np.subtract(ours[name], theirs[name]))
        print(
            f"{name}: ours {np.mean(ours[name]):.6f}, ferret {np.mean(theirs[name]):.6f}, at most {gap.max():.1e} apart"
        )


def _is_whole(tokenizer: Any, text: str) -> bool:  # noqa: ANN401
    """Return True for texts of 10 pieces or more that are words, which are cut alike after some have gone."""
    pieces = tokenizer.tokenize(text)
    return len(pieces) >= 10 and pieces == text.lower().split()


if __name__ == "__main__":
    main()
