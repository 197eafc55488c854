"""Experiments on models with planted heads, and what each of their tests should find there.

A function for each experiment yields trials. A trial is one verdict of one test: it is positive if the model has
something to find, and negative otherwise.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import yaml
from numpy.typing import NDArray
from pytorch_lightning.utilities.seed import isolate_rng

from attention_probing.attention import EncoderSpec, Options
from attention_probing.attention.ablation import Kind
from attention_probing.attention.quantities import QUANTITIES, QuantityName
from attention_probing.attention.source import Weights
from attention_probing.corpora.sample import write_sample_reviews, write_sample_treebank
from attention_probing.corpora.sample_grammar import sample_vocabulary
from attention_probing.datamodules import (
    ClassificationDataModule,
    DependencyDataModule,
    PairDataModule,
    TextDataModule,
)
from attention_probing.fidelity import (
    Adversary,
    Correlation,
    ErrorPrediction,
    Fidelity,
    FidelityTest,
    PairErrorPrediction,
    Permutation,
    Perturbation,
    Rationale,
    SetErasure,
    SingleWeight,
)
from attention_probing.measures import (
    AttentionAnalyses,
    Clusters,
    ControlTask,
    DescriptionLength,
    Measure,
    MinimalPairAccuracy,
    Patterns,
    SingleHeads,
    Surface,
    measure,
)
from attention_probing.measures.ablation import HeadAblation
from attention_probing.measures.causal import CausalCheck
from attention_probing.measures.grammar_heads import GrammarHeads, GrammarKind
from attention_probing.measures.nested import best_copy, train_copy
from attention_probing.measures.trainings import nested_trainer, result_of
from attention_probing.metrics.attachment import ALL, PLAIN
from attention_probing.metrics.differences import paired_bootstrap
from attention_probing.models import TextClassifier, TrainedModule
from attention_probing.models.checkpoints import instantiate
from attention_probing.probes import AttentionOnlyProbe, StructuralDistanceProbe
from attention_probing.probes.frozen import MonitorMode
from attention_probing.results import Estimate, Result, Table
from attention_probing.results.progress import quiet
from studies.blank import Architecture, random_decoder
from studies.planted import BLAME, LABELS, PRAISE, PlantedHead, planted_model, unigram_decoder
from studies.planted_agreement import Paradigm, agreement_model, write_agreement_pairs

_REVIEWS = 150  # of train, dev and test
_DECODERS = 20  # seeds
_PARADIGMS, _PAIRS = 10, 40  # of the random decoder
_WORDS = [f"w{number}" for number in range(60)]
DECODER = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
}
_COINS = 125  # swapped pairs of one pair of models
_FEW = 150  # sentences of train, dev and test
_SIZE, _SMALL, _SHARP = 8, 0.01, 5.0  # of a written classifier: dimensions, noise, and score of the target


def paired_p(*counts: NDArray[np.float64], draws: int, seed: int = 0) -> float:
    """Return p of the difference of two runs on the same items; see `paired_bootstrap`."""
    p = paired_bootstrap(*counts, share=True, draws=draws, seed=seed).p
    return 1.0 if p is None else p


_OF_BEST = ("p_shuffled", "p_offset")

Scores = Mapping[str, Estimate]

LEVEL = 0.05
"""A p-value up to this level is a finding."""

ONE_SIDED = ("selectivity", "compression", "loss beyond", "uniform weights lose", "erasure")
"""Beginnings of the names of tests that look at one end of a 95 % interval, or at one sign of a two-sided p-value."""


def measured(measurement: Measure[Any], data: Any) -> Result:  # noqa: ANN401 - any datamodule
    """Return the result of a measurement on the CPU; random states are unchanged."""
    with isolate_rng():
        return measure(data, measurements=measurement)


def promised(test: str) -> float:
    """Return the false-positive rate that a test promises; nan if it promises none.

    Args:
        test: Name of the test, as in `Trial.test`.
    """
    if test.startswith(ONE_SIDED):
        return LEVEL / 2
    if test == "p" or test.startswith(("p ", "p_")):
        return LEVEL
    return np.nan


Planted = tuple[Architecture, tuple[PlantedHead, ...], str | None]

PLANTED: Mapping[str, Planted] = {
    "planted": (
        "bert",
        (
            PlantedHead("2-1", "relation", 0.5, relation="obj"),
            PlantedHead("2-2", "relation", 0.5, relation="det"),
            PlantedHead("3-1", "opinion", 0.9),
            PlantedHead("3-2", "offset", 0.9, offset=-1),
            PlantedHead("3-3", "delimiter", 0.9),
            PlantedHead("3-4", "evenly"),
        ),
        "3-1",
    ),
    "planted decoder": (
        "llama",
        (PlantedHead("2-1", "relation", 0.5, relation="nmod"), PlantedHead("2-2", "relation", 0.5, relation="xcomp")),
        None,
    ),
    "null": ("bert", (), None),
    "other null": ("bert", (), None),
    "alike in a layer": (
        "bert",
        (
            *(PlantedHead(f"1-{head}", "offset", 0.9, offset=-1) for head in (1, 2, 3, 4)),
            *(PlantedHead(f"2-{head}", "delimiter", 0.9) for head in (1, 2, 3, 4)),
            *(PlantedHead(f"3-{head}", "evenly") for head in (1, 2, 3, 4)),
        ),
        None,
    ),
    "even decision": ("bert", (PlantedHead("3-1", "evenly"), PlantedHead("3-2", "opinion", 0.9)), "3-1"),
    "needed and not": (
        "bert",
        (PlantedHead("2-1", "relation", 0.9, relation="obj"), PlantedHead("2-2", "relation", 0.9, relation="det")),
        "2-1",
    ),
    "repeats": ("bert", (PlantedHead("2-1", "same_word", 0.9), PlantedHead("3-1", "opinion", 0.9)), "3-1"),
    "repeats in a decoder": ("llama", (PlantedHead("2-1", "same_word", 0.9),), None),
    "with values": ("bert", (PlantedHead("2-1", "relation", 0.9, relation="obj"),), None),
    "zero values": ("bert", (PlantedHead("2-1", "relation", 0.9, relation="obj", values=False),), None),
}
"""Kinds of models: architecture, planted heads, and the head that the classifier reads. A null model has none."""


class Trial(NamedTuple):
    """One verdict of one test on one model.

    Attributes:
        experiment: Name of the experiment.
        test: Name of the test that decides if something is found.
        model: Kind of the model.
        truth: Description of what is to be found in it, or that nothing is.
        positive: True if there is something to find.
        found: True if the test finds it.
        effect: Size of the effect by which the test ranks, to separate positive from negative trials; nan
            if it has none.
    """

    experiment: str
    test: str
    model: str
    truth: str
    positive: bool
    found: bool
    effect: float = np.nan


class Case:
    """Models and corpora of one seed, made when they are asked for.

    Args:
        seed: The seed.
        folder: Folder for the files of this seed.
        cache: Folder for stores.
    """

    def __init__(self, seed: int, folder: Path, cache: Path) -> None:
        self.seed = seed
        self.folder = folder
        self.cache = str(cache)

    @cached_property
    def _sentences(self) -> dict[str, Path]:
        return write_sample_treebank(self.folder, seed=self.seed + 1)

    def model(self, kind: str) -> str:
        """Return the folder of the model of a kind."""
        path = self.folder / kind.replace(" ", "-")
        if not path.exists():
            architecture, heads, decision = PLANTED[kind]
            seed = self.seed
            if kind == "other null":
                seed += 500_000
            planted_model(architecture, heads, seed, decision=decision).save(path)
        return str(path)

    def treebank(
        self,
        kind: str,
        quantity: QuantityName = "attention",
        most: int | None = None,
        weights: Weights = "pretrained",
        **options: Any,  # noqa: ANN401 # of the datamodule
    ) -> DependencyDataModule:
        """Return a treebank of the sample grammar, drawn with the seed, read through the model of a kind.

        Args:
            kind: Kind of the model.
            quantity: Quantity between two words.
            most: Number of sentences of each split; None for all.
            weights: Weights of the model: its own, or others as in a null twin.
            options: Further options of the datamodule.
        """
        name = f"first-{most}" if most else "sample"
        for split, path in self._sentences.items():
            few = self.folder / f"{name}-{split}.conllu"
            if not few.exists():
                sentences = path.read_text(encoding="utf-8").split("\n\n")[:most]
                few.write_text("\n\n".join([*sentences, ""]), encoding="utf-8")
        corpus = str(self.folder / f"{name}-{{split}}.conllu")
        encoder = EncoderSpec(self.model(kind), weights)
        return DependencyDataModule(
            corpus, encoder=encoder, options=Options(quantity=quantity), cache=self.cache, **options
        )

    def texts(self, kind: str, limit: int) -> TextDataModule:
        """Return sentences of the sample grammar, read through the model of a kind."""
        source = {"corpus": str(self._sentences["test"]), "name": "sentences", "limit": limit}
        return TextDataModule([source], encoder=EncoderSpec(self.model(kind)), cache=self.cache)

    def classifier(self, kind: str, *, shuffled: bool = False) -> tuple[str, Any]:
        """Return the checkpoint of a classifier on the model of a kind, and sample reviews drawn with the seed.

        Args:
            kind: Kind of the model.
            shuffled: True to give the reviews the labels of others, so that no model can predict them.
        """
        model = {"class_path": "TransformerClassifier", "init_args": {"heads": ["3-1"]}}
        return self._save(kind, model, shuffled=shuffled, tokenizer=EncoderSpec(self.model(kind)))

    def attending(self, target: str) -> tuple[str, Any]:
        """Return the checkpoint of a word-by-word classifier whose weights are written by hand, and its reviews.

        It predicts `positive` if words of praise outweigh words of blame, each weighted by its attention.

        Args:
            target: The words that it attends to: `opinion` for words of praise and blame, or `period`, which does not
                enter the decision.
        """
        parts = {
            "encoder": {"class_path": "NoEncoder"},
            "attention": {"class_path": "DotAttention"},
            "embedding": {"size": _SIZE},
        }
        model = {"class_path": "AttentionClassifier", "init_args": parts}

        def write(module: Any, data: ClassificationDataModule) -> None:  # noqa: ANN401 # the classifier
            vocabulary = sample_vocabulary()
            rows = module.embedding.rows.weight
            rows.normal_(0, _SMALL, generator=torch.Generator().manual_seed(self.seed))
            for place, word in enumerate(data.vocabulary.words):
                symbols = vocabulary.get(word.lower(), frozenset())
                sign = (not symbols.isdisjoint(PRAISE)) - (not symbols.isdisjoint(BLAME))
                rows[place, 0] = sign
                # Added to noise, which breaks ties between the weights of other words.
                rows[place, 1:3] += torch.tensor([abs(sign), word == "."])
            dimension, slope = (1, 4) if target == "opinion" else (2, 100)
            module.attention.query.weight.zero_()[0, dimension] = _SHARP * _SIZE**0.5
            module.decision.weight.mul_(_SMALL)[:, 0] = torch.tensor([-1.0, 1.0]) * slope
            module.decision.bias.zero_()

        return self._save(target, model, write, min_count=1)

    def _save(
        self,
        name: str,
        model: Mapping[str, Any],
        write: Callable[[TextClassifier, ClassificationDataModule], None] | None = None,
        *,
        shuffled: bool = False,
        **options: Any,  # noqa: ANN401 # of the datamodule
    ) -> tuple[str, ClassificationDataModule]:
        """Save a classifier as the checkpoint of a run without training; `write` changes its weights before."""
        texts = self._reviews(shuffled)
        path = self.folder / f"{name.replace(' ', '-')}-{shuffled}.ckpt"
        given = dict[str, Any](corpus=str(texts / "{split}.tsv"), positive=LABELS[1], cache=self.cache, **options)
        data = ClassificationDataModule(**given)
        trainer = nested_trainer(None, max_epochs=0)
        module = instantiate(TextClassifier, path, deepcopy(model))  # type: ignore[type-abstract]
        with quiet():
            trainer.fit(module, datamodule=data)
        if write is not None:
            with torch.no_grad():
                write(module, data)
        trainer.save_checkpoint(path, weights_only=True)
        settings = {}
        for option, value in given.items():
            settings[option] = asdict(value) if isinstance(value, EncoderSpec) else value
        settings_of_data = {"class_path": "ClassificationDataModule", "init_args": settings}
        config = {"seed_everything": 0, "model": model, "data": settings_of_data}
        content = torch.load(path, weights_only=True)
        torch.save({**content, "hyper_parameters": {}, "config": yaml.safe_dump(config)}, path)
        return str(path), data

    def _reviews(self, shuffled: bool) -> Path:
        folder = self.folder / f"reviews-{shuffled}"
        if not folder.exists():
            folder.mkdir()
            random = np.random.default_rng(self.seed)
            for split, path in write_sample_reviews(self.folder, seed=self.seed + 1).items():
                reviews = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False).head(_REVIEWS)
                if shuffled:
                    reviews["label"] = random.permutation(reviews["label"])
                reviews.to_csv(folder / f"{split}.tsv", sep="\t", index=False)
        return folder


def single_heads(case: Case) -> Iterator[Trial]:
    """Yield verdicts of `SingleHeads`: the best head, its p-value, and the roles of heads."""
    planted = {"planted": {"obj": "2-1", "det": "2-2"}, "planted decoder": {"nmod": "2-1", "xcomp": "2-2"}, "null": {}}
    for kind, wanted in planted.items():
        if kind == "planted decoder" and case.seed >= _DECODERS:
            continue
        tables = measured(_small(SingleHeads(), case), case.treebank(kind)).tables
        best = _rows(tables["best_heads"], "relation")
        roles = _rows(tables["roles"], "head")
        for relation, head in wanted.items():
            truth = f"a head attends from {relation} to its head"
            row = best[relation]
            yield Trial("heads", "the best head is the planted one", kind, truth, True, row["head"] == head)
            for p in _OF_BEST:
                yield Trial("heads", f"{p} of the best head", kind, truth, True, row[p] <= LEVEL)
        if kind == "planted":
            yield Trial("heads", "positional", kind, "a head of offset -1", True, roles["3-2"]["positional"])
            for head in wanted.values():
                yield Trial("heads", "syntactic", kind, "a head of a relation", True, roles[head]["syntactic"])
        if kind == "null":
            yield from _nothing_in_heads(best, roles)


def _small(module: SingleHeads, case: Case, permutations: int = 100) -> SingleHeads:
    """Return a measurement of single heads without what no verdict reads, with the seed of the case."""
    module.ensemble = 1
    module.maps = 0
    module.permutations = permutations
    module.seed = case.seed
    return module


def _nothing_in_heads(best: Mapping[str, Any], roles: Mapping[str, Any]) -> Iterator[Trial]:
    for row in best.values():
        for p in _OF_BEST:
            if not np.isnan(row[p]):
                yield Trial("heads", f"{p} of the best head", "null", "nothing", False, row[p] <= LEVEL)
    for role in ("positional", "syntactic"):
        for row in roles.values():
            yield Trial("heads", role, "null", "nothing", False, row[role])


TWINS: Mapping[str, Mapping[str, Any]] = {
    "weights drawn anew": {"weights": "redrawn"},
    "arcs of other sentences": {"gold": "shuffled"},
}
"""Options of the treebank of each null twin."""


def null_twins(case: Case) -> Iterator[Trial]:
    """Yield verdicts of `SingleHeads` and `HeadAblation` on planted models, and on their null twins.

    Verdicts on heads leave out punctuation, as the answer of the measurement does.
    """
    worlds: dict[str, Mapping[str, Any]] = {"": {}, **TWINS}
    for world, options in worlds.items():
        module = _small(SingleHeads(trees=False), case)
        result = measured(module, case.treebank("planted", **options))
        best = _rows(result.tables["best_heads"], "relation")
        kind = f"planted, {world}" if world else "planted"
        truth = "nothing" if world else "heads attend from obj and det to their heads"
        relations = ["obj", "det"]
        if world:
            relations = [name for name in best if name not in (ALL, PLAIN, "punct")]
        for relation in relations:
            row = best[relation]
            if not np.isnan(row["p_shuffled"]):
                yield Trial("twins", "p_shuffled of a head", kind, truth, not world, row["p_shuffled"] <= LEVEL)
            if not np.isnan(row["p_holm"]):
                found = row["over_offset"] > 0 and row["p_holm"] <= LEVEL
                yield Trial("twins", "above the offset after Holm", kind, truth, not world, found)
    yield from _ablated_twins(case)


def _ablated_twins(case: Case) -> Iterator[Trial]:
    """Yield verdicts on the head that a classifier reads, with the labels of the texts and with those of others."""
    checkpoint, data = case.classifier("planted")
    for world, gold in (("", "given"), ("labels of other texts", "shuffled")):
        of_world = ClassificationDataModule(
            str(data.corpus), tokenizer=data.tokenizer, positive=LABELS[1], cache=case.cache, gold=gold
        )
        module = HeadAblation(checkpoint, kinds=["zero"], layers=False)
        module.seed = case.seed
        row = _rows(measured(module, of_world).tables["ablation"], "layer", "head")["3-1"]
        kind = f"planted, {world}" if world else "planted"
        truth = "nothing" if world else "the decision is read from a head"
        found = row["difference"] < 0 and row["p_holm"] <= LEVEL
        yield Trial("twins", "loss of a head after Holm", kind, truth, not world, found)


def attention_statistics(case: Case) -> Iterator[Trial]:
    """Yield verdicts of the analyses of attention: surface statistics, patterns and clusters."""
    planted = measured(AttentionAnalyses([Surface(), Patterns()]), case.texts("planted", 25)).tables
    surface = planted["surface"].frame
    names = (surface["layer"].astype(str) + "-" + surface["head"].astype(str)).to_numpy()
    for column, head in (("previous", "3-2"), ("end", "3-3"), ("entropy", "3-4")):
        found = bool(names[surface[column].to_numpy().argmax()] == head)
        yield Trial("surface", f"highest {column}", "planted", f"head {head} is made so", True, found)
    patterns = _rows(planted["head_patterns"], "layer", "head")
    # What the head of an offset leaves goes to the start, so its pattern may be vertical + diagonal.
    for head, pattern in (("3-2", "diagonal"), ("3-3", "vertical"), ("3-4", "heterogeneous")):
        found = pattern in patterns[head]["pattern"]
        yield Trial("patterns", f"pattern {pattern}", "planted", f"head {head} is made so", True, found)

    null = measured(AttentionAnalyses([Surface(), Patterns()]), case.texts("null", 25)).tables
    for pattern in null["head_patterns"].frame["pattern"]:
        found = pattern != "heterogeneous"
        yield Trial("patterns", "another pattern than heterogeneous", "null", "nothing", False, found)

    for kind, positive in (("alike in a layer", True), ("null", False)):
        p = measured(AttentionAnalyses([Surface(), Clusters()]), case.texts(kind, 12)).scores["p"].value
        truth = "heads of a layer are alike" if positive else "nothing"
        yield Trial("clusters", "p of distances within layers", kind, truth, positive, p <= LEVEL)


def _rows(table: Table, *key: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a table by the values of some columns, joined by `-`."""
    rows: list[dict[str, Any]] = table.frame.to_dict("records")  # type: ignore[assignment]
    by_key = {}
    for row in rows:
        name = "-".join(str(row[column]) for column in key)
        by_key[name] = row
    return by_key


def attention_probe(case: Case) -> Iterator[Trial]:
    """Yield verdicts on probes: pairs of runs, the control task and the description length."""
    probe = AttentionOnlyProbe(learning_rate=4e-2, decay=0.7)
    yield from _compare_runs(
        "attention-only probe", lambda kind: _counts(probe, case.treebank(kind, most=_FEW), "val_uas", "uas")
    )
    tests = (
        ("control task", ControlTask, "selectivity", 0),
        ("description length", DescriptionLength, "compression", 1),
    )
    for kind, positive in (("planted", True), ("null", False)):
        truth = "heads of obj and det" if positive else "nothing"
        for name, make, score, least in tests:
            module = make(probe, max_epochs=3)
            module.batches = 1
            module.seed = case.seed
            low = measured(module, case.treebank(kind, most=_FEW)).scores[score].low or 0
            yield Trial(name, f"{score} above {least}", kind, truth, positive, low > least)


def structural_probe(case: Case) -> Iterator[Trial]:
    """Yield verdicts on pairs of structural probes."""
    probe = StructuralDistanceProbe()
    options: dict[str, Any] = {"hidden": [3], "batch_size": 20}
    yield from _compare_runs(
        "structural probe", lambda kind: _counts(probe, case.treebank(kind, most=_FEW, **options), "val_loss", "uuas")
    )


def _counts(
    probe: TrainedModule[Any, Any], data: DependencyDataModule, monitor: str, score: str
) -> list[NDArray[np.float64]]:
    """Train a probe; return numerator and denominator of a score for each test sentence."""
    mode: MonitorMode = "min" if monitor == "val_loss" else "max"
    best = train_copy(probe, data, monitor=monitor, mode=mode, max_epochs=3, patience=3, batches=1, seed=0)
    result = result_of(best_copy(probe, best), data)
    assert result.items is not None
    return [result.items[column].to_numpy(dtype=np.float64) for column in result.ratios[score]]


def _compare_runs(experiment: str, counts_of: Callable[[str], Sequence[NDArray[np.float64]]]) -> Iterator[Trial]:
    """Yield verdicts of paired tests of two probes.

    Args:
        experiment: Name of the experiment.
        counts_of: Function of the kind of a model that returns numerator and denominator of a probe's score for each
            test sentence.
    """
    planted = np.stack(counts_of("planted"))
    null = np.stack(counts_of("null"))
    other = np.stack(counts_of("other null"))
    test = "p of a comparison with a null model"
    better = planted[0].sum() / planted[1].sum() > null[0].sum() / null[1].sum()
    found = bool(better and paired_p(*planted, *null, draws=1000) <= LEVEL)
    yield Trial(experiment, test, "planted", "heads of obj and det", True, found)
    # Two models that are trained alike differ by their seeds, and p is of the sentences: it promises nothing here.
    p = paired_p(*other, *null, draws=1000)
    yield Trial(experiment, "two trained models differ by p", "other null", "two null models", False, p <= LEVEL)
    # The null hypothesis of the permutation itself, where p keeps its level by construction: a check of the code.
    for seed in range(_COINS):
        coin = np.random.default_rng(seed).integers(2, size=null.shape[1]) == 1
        p = paired_p(*np.where(coin, null, other), *np.where(coin, other, null), draws=1000, seed=seed)
        yield Trial(experiment, test, "other null", "two null models, swapped by a coin", False, p <= LEVEL)


def ablation(case: Case) -> Iterator[Trial]:
    """Yield verdicts of `HeadAblation`; nothing can be lost on labels that no model predicts."""
    for kind, shuffled in (("planted", False), ("even decision", False), ("null", True)):
        checkpoint, data = case.classifier(kind, shuffled=shuffled)
        module = HeadAblation(checkpoint, kinds=["zero"], layers=False)
        module.seed = case.seed
        table = _rows(measured(module, data).tables["ablation"], "layer", "head")
        if not shuffled:
            head = "an even" if kind == "even decision" else "a planted"
            truth = f"the decision is read from {head} head"
            row = table["3-1"]
            lost = row["difference"] < 0
            yield Trial("ablation", "p", kind, truth, True, lost and row["p"] <= LEVEL)
            yield Trial("ablation", "p after Holm", kind, truth, True, lost and row["p_holm"] <= LEVEL)
        else:
            for row in table.values():
                yield Trial("ablation", "p", f"{kind}, shuffled labels", "nothing", False, row["p"] <= LEVEL)
            found = min(row["p_holm"] for row in table.values()) <= LEVEL
            yield Trial("ablation", "p after Holm", f"{kind}, shuffled labels", "nothing in any head", False, found)


def causal(case: Case) -> Iterator[Trial]:
    """Yield verdicts of `CausalCheck` on heads that a classifier needs, and does not need."""
    probe = AttentionOnlyProbe(learning_rate=4e-2, decay=0.7)
    is_needed = {"obj": True, "det": False}
    for kind, shuffled in (("needed and not", False), ("null", True)):
        checkpoint, _ = case.classifier(kind, shuffled=shuffled)
        module = CausalCheck(probe, tuple(is_needed), checkpoint, heads=1, random=3, max_epochs=1)
        module.batches = 1
        module.seed = case.seed
        result = measured(module, case.treebank(kind, most=_FEW))
        for row in _rows(result.tables["causal"], "measure", "relation").values():
            if shuffled and not np.isnan(row["p"]):
                yield Trial("causal check", f"p of the {row['measure']}", kind, "nothing", False, row["p"] <= LEVEL)
            elif not shuffled and row["measure"] == "task":
                relation = row["relation"]
                needed = is_needed[relation]
                truth = f"the head of {relation} is {'' if needed else 'not '}needed"
                found = row["beyond"] < 0 and row["p"] <= LEVEL
                yield Trial("causal check", "loss beyond random heads", kind, truth, needed, found, -row["beyond"])


def quantities(case: Case) -> Iterator[Trial]:
    """Yield verdicts of single heads under each quantity on a head of a relation, with values and without.

    `attention_without_first` is left out because its weights are those of attention.
    """
    for quantity in QUANTITIES.values():
        if quantity.name == "attention_without_first":
            continue
        for kind, positive in (("with values", True), ("zero values", False)):
            module = _small(SingleHeads(), case, permutations=1)
            tables = measured(module, case.treebank(kind, quantity.name, most=20)).tables
            row = _rows(tables["best_heads"], "relation")["obj"]
            # A map of a layer is that of layer 2.
            found = row["head"] == "2-1" and row["test"] > row["offset"] + MARGIN
            truth = "a head of obj moves something" if positive else "a head of obj moves nothing"
            name = quantity.name if quantity.has_heads else f"{quantity.name} (a layer)"
            yield Trial("quantities", name, kind, truth, positive, found, row["test"] - row["offset"])


MARGIN = 0.1
"""A head finds a relation if its accuracy is this much above that of the best fixed offset."""


def fidelity(case: Case) -> Iterator[Trial]:
    """Yield verdicts of the tests of attention as explanation, on a classifier that is explained, and another."""
    for target, positive in (("opinion", True), ("period", False)):
        checkpoint, data = case.attending(target)
        kinds = (Perturbation, Permutation, Adversary, SetErasure, SingleWeight, Correlation, Rationale)
        tests: list[FidelityTest] = [kind() for kind in kinds]
        scores = measured(Fidelity([checkpoint], tests, seed=case.seed), data).scores
        truth = f"the decision is {'' if positive else 'not '}read from the words attended to"
        for name, verdict in VERDICTS.items():
            yield Trial("fidelity", name, f"attends to {target}", truth, positive, verdict(scores))
        found = scores["erasure.attention_norm.below_random"].interval[0] > 0
        truth = "the decision is read from the words with large norms"
        yield Trial("fidelity", "erasure by norm: fewer words than random", f"attends to {target}", truth, True, found)


def write_errors(folder: Path, seed: int, *, told: float, texts: int = 150) -> str:
    """Write texts of which the model `repeats` gets some labels wrong; return their path with `{split}`.

    Each text has nine different words, one of which is of praise or blame, so the model is right about its label. In
    a third of the texts one of the others occurs twice, which head 2-1 attends to, and no decision depends on. Labels
    that are to be missed are turned.

    Args:
        folder: Folder for the files.
        seed: Seed of the texts.
        told: Share of the texts with a repeated word whose labels are turned; 0 to turn those of a third of all texts
            at random.
        texts: Number of texts of dev, and of test.
    """
    random = np.random.default_rng(seed)
    symbols = sample_vocabulary()
    blame = [word for word, of_word in symbols.items() if not of_word.isdisjoint(BLAME)]
    praise = [word for word, of_word in symbols.items() if not of_word.isdisjoint(PRAISE)]
    others = sorted(word for word in symbols if word.isalpha() and word not in blame + praise)
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in (("train", 20), ("dev", texts), ("test", texts)):
        rows = []
        for _ in range(number):
            words = random.permutation(others)[:8].tolist()
            is_repeated = random.random() < 1 / 3
            if is_repeated:
                words[1] = words[5]
            label = int(random.integers(2))
            place = int(random.integers(9))
            words.insert(place, str(random.choice(praise if label else blame)))
            is_turned = False
            if is_repeated:
                is_turned = random.random() < told
            if not told:
                is_turned = random.random() < 1 / 3
            rows.append({"label": LABELS[label != is_turned], "text": " ".join(words)})
        pd.DataFrame(rows).to_csv(folder / f"{split}.tsv", sep="\t", index=False)
    return str(folder / "{split}.tsv")


def errors(case: Case) -> Iterator[Trial]:
    """Yield verdicts of `ErrorPrediction` on texts whose errors a head tells, and on texts whose errors are random."""
    model = case.model("repeats")
    for told in (True, False):
        corpus = write_errors(case.folder / f"errors-{told}", case.seed, told=0.9 * told)
        data = ClassificationDataModule(corpus, tokenizer=EncoderSpec(model), positive=LABELS[1], cache=case.cache)
        module = ErrorPrediction(model)
        module.seed = case.seed
        result = measured(module, data)
        kind = "errors told by a head" if told else "random errors"
        truth = "a head attends to what is repeated in errors" if told else "nothing"
        found = bool(result.scores["attention.auroc"].interval[0] > 0.5)
        yield Trial("errors", "AUROC of attention above 50", kind, truth, told, found)
        gain = result.scores["attention_confidence.minus_confidence"]
        p = 1.0 if gain.p is None else gain.p
        yield Trial("errors", "p of what attention adds", kind, truth, told, gain.value > 0 and p <= LEVEL)
        if told:
            best = result.tables["heads"].frame["head"].iloc[0]
            test = "the largest coefficient is of the planted head"
            yield Trial("errors", test, kind, truth, True, best == "2-1")


def write_pair_errors(folder: Path, seed: int, *, told: float, pairs: int = 300, by_paradigm: bool = False) -> str:
    """Write a decoder, and minimal pairs some of which it gets wrong; return the folder.

    Both sentences have the same eight words, and one more, which is a word of praise in one and a word of blame in the
    other. The decoder prefers praise, so it is right where the sentence with praise is called acceptable. In a third
    of the pairs one of the eight words occurs twice, which head 2-1 attends to, and no probability depends on. Where an
    error is wanted, the sentences are exchanged.

    Args:
        folder: Folder for the files `model` and `pairs.jsonl`.
        seed: Seed of the decoder and the pairs.
        told: Share of the pairs with a repeated word that are decided wrongly; 0 for a third of all pairs at random.
        pairs: Number of pairs, of two paradigms.
        by_paradigm: True if one paradigm has all pairs with a repeated word, and no others. Then six in ten of its
            pairs are wrong, and one in ten of the other, whatever `told` is.
    """
    random = np.random.default_rng(seed)
    symbols = sample_vocabulary()
    blame = sorted(word for word, of_word in symbols.items() if of_word & BLAME)
    praise = sorted(word for word, of_word in symbols.items() if of_word & PRAISE)
    others = sorted(word for word in symbols if word.isalpha() and word not in blame + praise)
    log_odds = dict(zip(praise, random.uniform(2, 6, len(praise)), strict=True))
    log_odds |= dict(zip(blame, random.uniform(-2, 2, len(blame)), strict=True))
    kind, heads, _ = PLANTED["repeats in a decoder"]
    unigram_decoder(planted_model(kind, heads, seed), log_odds).save(folder / "model")
    lines = []
    for number in range(pairs):
        words = random.permutation(others)[:8].tolist()
        is_repeated = random.random() < 1 / 3
        if is_repeated:
            words[1] = words[5]
        paradigm = ["one", "two"][number % 2]
        is_wrong = random.random() < (told if is_repeated else 0)
        if by_paradigm:
            paradigm = "repeated" if is_repeated else "plain"
            is_wrong = random.random() < (0.6 if is_repeated else 0.1)
        elif not told:
            is_wrong = random.random() < 1 / 3
        place = int(random.integers(2, 8))
        good = [*words[:place], str(random.choice(praise)), *words[place:]]
        bad = [*words[:place], str(random.choice(blame)), *words[place:]]
        if is_wrong:
            good, bad = bad, good
        pair = {"sentence_good": " ".join(good), "sentence_bad": " ".join(bad), "pairID": str(number)}
        lines.append(json.dumps({**pair, "UID": paradigm, "field": "opinion"}))
    (folder / "pairs.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return str(folder)


def pair_errors(case: Case) -> Iterator[Trial]:
    """Yield verdicts of `PairErrorPrediction` on pairs whose errors a head, the paradigm alone, or nothing tells."""
    kinds = {
        "pairs whose errors a head tells": "a head attends to what is repeated in errors",
        "pairs with random errors": "nothing",
        "pairs of a hard paradigm": "nothing beyond the paradigm",
    }
    for kind, truth in kinds.items():
        told = 0.9 if "head" in kind else 0.0
        name = kind.replace(" ", "-")
        folder = write_pair_errors(case.folder / name, case.seed, told=told, by_paradigm="hard" in kind)
        data = PairDataModule(f"{folder}/pairs.jsonl", EncoderSpec(f"{folder}/model"), cache=case.cache)
        module = PairErrorPrediction()
        module.seed = case.seed
        result = measured(module, data)
        gains = {
            "p of what attention adds to confidence and paradigm": "paradigm_confidence",
            "p of what it adds beyond random weights": "random_weights_paradigm_confidence",
        }
        for test, base in gains.items():
            gain = result.scores[f"attention_paradigm_confidence.minus_{base}"]
            p = 1.0 if gain.p is None else gain.p
            yield Trial("pair_errors", test, kind, truth, bool(told), gain.value > 0 and p <= LEVEL)
        if "hard" not in kind:
            found = bool(result.scores["attention.auroc"].interval[0] > 0.5)
            yield Trial("pair_errors", "AUROC of attention above 50", kind, truth, bool(told), found)
        if told:
            best = result.tables["heads"].frame["head"].iloc[0]
            test = "the largest coefficient is of the planted head"
            yield Trial("pair_errors", test, kind, truth, True, best == "2-1")


def agreement(case: Case) -> Iterator[Trial]:
    """Yield verdicts of `HeadAblation` on minimal pairs that one head decides, with heads that are off or patched.

    The pairs differ in the verb for heads that are off. For patching they differ in the subject, as nothing before the
    first difference can be patched. The other heads attend to the subject too, or write where nothing reads.
    """
    model = agreement_model(case.seed)
    encoder = EncoderSpec(str(model.save(case.folder / "agreement")))
    kinds: Mapping[Paradigm, Kind] = {"verb": "zero", "subject": "patch"}
    for paradigm, kind in kinds.items():
        pairs = write_agreement_pairs(case.folder / f"{paradigm}.jsonl", paradigm, case.seed)
        module = HeadAblation(kinds=[kind], layers=False)
        module.seed = case.seed
        result = measured(module, PairDataModule(str(pairs), encoder, cache=case.cache))
        intact = result.scores["pairs.log_ratio"].value
        rows = result.tables["ablation"].frame
        is_needed = rows["layer"].astype(str) + "-" + rows["head"].astype(str) == model.needed
        for positive, truth in ((True, "the agreement head is needed"), (False, "no other head is needed")):
            heads = rows[is_needed == positive]
            change = heads["log_ratio_change"] / intact
            least_loss, least_change = (-0.2, -1.9) if positive else (-0.02, -0.02)
            lost = bool((heads["difference"] <= least_loss).any())
            found = bool((heads["p_holm"] <= LEVEL).any())
            yield Trial("agreement", f"{kind}: 20 points are lost (other heads: 2)", "agreement", truth, positive, lost)
            yield Trial("agreement", f"p after Holm, {kind}", "agreement", truth, positive, found)
            if kind == "patch":
                test = "patch: the log-ratio is reversed (other heads: 2 %)"
                is_reversed = bool((change < least_change).any())
                yield Trial("agreement", test, "agreement", truth, positive, is_reversed)


def _above(one: str, other: str) -> Callable[[Scores], bool]:
    """Return a verdict: the interval of a score lies above the interval of another."""
    return lambda scores: bool(scores[one].interval[0] > scores[other].interval[1])


VERDICTS: Mapping[str, Callable[[Scores], bool]] = {
    "permutation: median TVD above .1": lambda scores: scores["permutation.median_tvd"].value > 0.1,
    "uniform weights lose F1": lambda scores: scores["perturbation.uniform_drop"].interval[0] > 0,
    "adversary: no JSD above .3": lambda scores: scores["adversary.max_jsd_strict"].value < 0.3,
    "erasure: fewer words than random": lambda scores: scores["erasure.attention.below_random"].interval[0] > 0,
    "single weight: flips more than a random one": _above("single_weight.flips_top", "single_weight.flips_random"),
    "correlation: significant in most texts": lambda s: s["correlation.leave_one_out.significant"].value > 0.5,
    "correlation: Pearson above .5": lambda scores: scores["correlation.leave_one_out.pearson"].value > 0.5,
    "comprehensiveness above random": _above(
        "rationale.attention.comprehensiveness", "rationale.random.comprehensiveness"
    ),
    "sufficiency below random": _above("rationale.random.sufficiency", "rationale.attention.sufficiency"),
}
"""When the scores of a test say that attention explains the decision.

`SingleToken` is left out: it reads words without their attention.
"""


def grammar(case: Case) -> Iterator[Trial]:
    """Yield verdicts of `GrammarHeads` on pairs that one head decides, and on pairs of decoders with random weights.

    A paradigm of a random decoder contrasts two words in random sentences; the acceptable one is the word that the
    model prefers in more sentences. So some paradigms are above chance. Its heads are all alike, but each of them does
    something to the log-ratio: only p beyond other heads has nothing to find. In a second decoder the heads do nothing,
    as their output weights are zero. A verdict is positive if any of the paradigms that are tested has a finding, as
    Holm's correction promises this for the family.
    """
    model = agreement_model(case.seed)
    encoder = EncoderSpec(str(model.save(case.folder / "grammar")))
    kinds: Mapping[Paradigm, GrammarKind] = {"verb": "zero", "subject": "patch"}
    for paradigm, kind in kinds.items():
        pairs = write_agreement_pairs(case.folder / f"{paradigm}.jsonl", paradigm, case.seed)
        measurement = GrammarHeads([kind])
        measurement.seed = case.seed
        found_of_pairs = measured(measurement, PairDataModule(str(pairs), encoder, cache=case.cache))
        rows = found_of_pairs.tables[f"heads_{kind}"].frame
        test = f"the chosen head is the planted one, {kind}"
        yield Trial("grammar", test, "agreement", "the agreement head", True, rows["head"][0] == model.needed)
        found = bool(rows["beyond_random_p_holm"][0] <= LEVEL)
        test = f"p beyond random heads after Holm, {kind}"
        yield Trial("grammar", test, "agreement", "the agreement head", True, found)
    with isolate_rng():
        torch.manual_seed(case.seed)
        decoder = random_decoder(_WORDS, DECODER)
    rows = _heads_of_contrasts(case, EncoderSpec(str(decoder.save(case.folder / "random_decoder"))))
    truth = "random weights"
    for column, test in (("p_holm", "an effect"), ("beyond_random_p_holm", "p beyond random heads")):
        found = bool((rows[column] <= LEVEL).any())
        yield Trial("grammar", f"{test} after Holm, zero, any paradigm", "random decoder", truth, False, found)
    for name, parameter in decoder.model.named_parameters():
        if name.endswith("o_proj.weight"):
            parameter.data.zero_()
    rows = _heads_of_contrasts(case, EncoderSpec(str(decoder.save(case.folder / "idle_decoder"))))
    found = bool(rows["head"].notna().any())
    yield Trial("grammar", "a head is tested, zero, any paradigm", "random decoder", "heads do nothing", False, found)


def _heads_of_contrasts(case: Case, encoder: EncoderSpec) -> pd.DataFrame:
    """Return the chosen heads of contrasts of two words, of which the acceptable one is what the decoder prefers."""
    contrasts = _contrasts(case)
    intact = measured(MinimalPairAccuracy(), _pairs_of(case, encoder, contrasts)).items
    assert intact is not None
    prefers = intact.groupby(intact["id"].str.partition("/")[0])["right"].mean() >= 0.5
    preferred = []
    for name, one, other in contrasts:
        preferred.append((name, one, other) if prefers[name] else (name, other, one))
    measurement = GrammarHeads(["zero"])
    measurement.seed = case.seed
    return measured(measurement, _pairs_of(case, encoder, preferred)).tables["heads_zero"].frame


def _contrasts(case: Case) -> list[tuple[str, str, str]]:
    """Return the paradigm and the two sentences of each pair of the random decoder."""
    random = np.random.default_rng(case.seed)
    contrasts = []
    for paradigm in range(_PARADIGMS):
        words = random.choice(_WORDS, 2, replace=False).tolist()
        for _ in range(_PAIRS):
            first, second, *rest = random.choice(_WORDS, 4).tolist()
            one, other = (" ".join([first, second, word, *rest]) for word in words)
            contrasts.append((f"contrast_{paradigm}", one, other))
    return contrasts


def _pairs_of(case: Case, encoder: EncoderSpec, contrasts: Sequence[tuple[str, str, str]]) -> PairDataModule:
    """Return the pairs whose first sentence is the acceptable one."""
    rows = []
    for place, (paradigm, good, bad) in enumerate(contrasts):
        names = {"UID": paradigm, "field": "contrasts", "pairID": str(place)}
        rows.append(json.dumps({**names, "sentence_good": good, "sentence_bad": bad}))
    path = case.folder / "contrasts.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return PairDataModule(str(path), encoder, cache=case.cache)


CASES: Mapping[str, tuple[Callable[[Case], Iterator[Trial]], int]] = {
    "heads": (single_heads, 50),
    "twins": (null_twins, 25),
    "statistics": (attention_statistics, 50),
    "probes": (attention_probe, 8),
    "structural": (structural_probe, 5),
    "ablation": (ablation, 15),
    "causal": (causal, 10),
    "quantities": (quantities, 5),
    "fidelity": (fidelity, 10),
    "errors": (errors, 10),
    "pair_errors": (pair_errors, 10),
    "agreement": (agreement, 10),
    "grammar": (grammar, 10),
}
"""Experiments by name: the function that yields the trials of one seed, and the number of seeds."""
