from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from attention import Encoder
from corpora.texts import Passage
from datamodules import SegmentBatch
from measures import Linguistic
from measures.linguistic import TokenClass
from results.errors import UserError
from tests.measures.passes import ENCODERS, encoder, show, uniform
from tests.measures.segments import batch_of
from tests.measures.trees import TREES, passage

NEGATION = ("not", "never")
SUBJECTS, OBJECTS = ("nsubj", "nsubj:pass"), ("obj",)
CLASSES = ("nouns", "verbs", "pronouns", "subjects", "objects", "negation")


def begun(encoder: Encoder, passages: Iterable[Passage] = TREES) -> Linguistic:
    analysis = Linguistic()
    analysis.begin(SimpleNamespace(passages=lambda: ((one,) for one in passages)), encoder)  # type: ignore[arg-type]
    return analysis


def batches(encoder: Encoder) -> list[SegmentBatch]:
    """The last segment holds two passages where the tokenizer knows two."""
    two = "bert" in type(encoder.tokenizer).__name__.lower()
    return [batch_of(encoder, *TREES[:3]), batch_of(encoder, TREES[3:] if two else TREES[4], first=3)]


def by_hand(weights: NDArray[np.float64], batch: SegmentBatch, row: int) -> dict[str, float]:
    """What one head `[from, to]` gives each class and pair that the segment has."""
    n = int(batch.lengths[row])
    words = [(one, place) for one in batch.passages[row] for place in range(len(one.words))]
    classes: dict[str, set[int]] = {name: set() for name in CLASSES}
    heads: dict[int, int] = {}
    for number, (one, place) in enumerate(words):
        assert one.sentence is not None
        upos, relation, head = one.sentence.upos[place], one.sentence.relations[place], one.sentence.heads[place]
        member = [upos == "NOUN", upos == "VERB", upos == "PRON", relation in SUBJECTS, relation in OBJECTS,
                  one.words[place] in NEGATION]  # fmt: skip
        for name, holds in zip(CLASSES, member, strict=True):
            if holds:
                classes[name].add(number)
        if head:
            heads[number] = number - place + head - 1
    tokens = {name: [t for t in range(n) if int(batch.words[row, t]) in own] for name, own in classes.items()}
    tokens["start"] = [t for t in range(n) if batch.start[row, t]]
    tokens["end"] = [t for t in range(n) if batch.end[row, t]]
    found = {
        name: max(sum(float(weights[i, j]) for i in range(n)) / n for j in own) for name, own in tokens.items() if own
    }
    pairs: dict[str, list[tuple[int, int]]] = {}
    for source, target in (("subjects", "verbs"), ("objects", "verbs")):
        arcs = [(word, heads[word]) for word in classes[source] if heads.get(word) in classes[target]]
        pairs[f"{source}_to_{target}"] = [
            (i, j) for i in range(n) for j in range(n) if (int(batch.words[row, i]), int(batch.words[row, j])) in arcs
        ]
    pairs["nouns_to_pronouns"] = list(product(tokens["nouns"], tokens["pronouns"]))
    pairs |= {f"start_to_{name}": list(product(tokens["start"], tokens[name])) for name in CLASSES}
    return found | {name: max(float(weights[i, j]) for i, j in cells) for name, cells in pairs.items() if cells}


@pytest.mark.parametrize("kind", ENCODERS)
def test_attention_is_that_of_a_loop_over_tokens(kind: str, tmp_path: Path) -> None:
    one = encoder(kind, tmp_path)
    analysis = begun(one)
    measured: list[list[list[dict[str, float]]]] = []
    even: list[list[dict[str, float]]] = []
    for batch in batches(one):
        passed = show(one, batch, analysis)
        for row in range(len(batch.index)):
            measured.append(
                [[by_hand(w[row, h].double().numpy(), batch, row) for h in range(one.heads)] for w in passed]
            )
            n = int(batch.lengths[row])
            even.append([by_hand(np.array(uniform(kind, layer, n)), batch, row) for layer in range(one.layers)])

    tables = {name: table.frame for name, table in analysis.result({}).tables.items()}
    names = {name for each in even for name in each[0]}
    assert {"subjects_to_verbs", "nouns_to_pronouns", "negation", *CLASSES} <= names
    for name in sorted(names):
        label = "pair" if "_to_" in name else "class"
        frame = tables["token_to_token" if label == "pair" else "linguistic"]
        rows = frame[frame[label] == name].reset_index()
        if not any(layer.get(name) for each in even for layer in each):  # behind a mask
            assert not len(rows)
            continue
        for layer, head in product(range(one.layers), range(one.heads)):
            having = [place for place, each in enumerate(even) if each[layer].get(name)]
            values = [measured[place][layer][head].get(name, 0.0) for place in having]
            found = rows.iloc[layer * one.heads + head]
            if not having:
                assert np.isnan(found[["attention", "low", "high", "uniform"]].astype(float)).all()
                continue
            assert (found["layer"], found["head"], found["inputs"]) == (layer + 1, head + 1, len(having))
            assert found["attention"] == pytest.approx(np.mean(values), abs=1e-6)
            assert found["uniform"] == pytest.approx(
                np.mean([even[place][layer].get(name, 0.0) for place in having]), abs=1e-6
            )
    to_nouns = analysis.by_head()["to_nouns"]
    assert to_nouns.over().value[1, 2] == pytest.approx(
        tables["linguistic"].query("layer == 2 and head == 3")["attention"].iloc[0]
    )


def test_a_class_is_of_tags_relations_and_forms() -> None:
    words = TokenClass(upos=("ADV",), relations=("nsubj",), words=("fox",))
    assert words.holds("ADV", "x", "y")
    assert words.holds("X", "nsubj:pass", "y")
    assert words.holds("X", "x", "Fox")
    assert not words.holds("X", "obj", "y")
    assert not TokenClass(relations=("nsubj:pass",)).holds("X", "nsubj", "y")


def test_texts_without_the_tags_are_refused(tmp_path: Path) -> None:
    one = encoder("bert", tmp_path)
    with pytest.raises(UserError, match=r"some texts have no tags\. Give only treebanks"):
        begun(one, [replace(passage("a/X/x/0", tree=False), line=7)])
    # Relations alone are known: with other tags there is neither noun, verb nor pronoun.
    with pytest.raises(
        UserError, match="class negation or nouns or pronouns or verbs. The texts have the tags NE, NN, VV"
    ):
        begun(one, [passage("Mara/NE/nsubj/2 mag/VVFIN/root/0 Boot/NN/obj/2")])


def test_texts_without_any_pair_have_a_table_without_rows(tmp_path: Path) -> None:
    one = encoder("gpt2", tmp_path)  # it writes no start delimiter
    analysis = begun(one, [passage("fox/NOUN/x/2 dogs/NOUN/root/0")])
    show(one, batch_of(one, passage("fox/NOUN/x/2 dogs/NOUN/root/0")), analysis)
    result = analysis.result({})
    assert set(result.tables["linguistic"].frame["class"]) == {"nouns"}
    assert list(result.tables["token_to_token"].frame) == [
        "layer", "head", "pair", "attention", "low", "high", "inputs", "uniform",
    ]  # fmt: skip
    assert result.audit["absent_classes"] == "negation, objects, pronouns, subjects, verbs"
