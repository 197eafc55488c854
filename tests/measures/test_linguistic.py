"""Attention to classes of words and along links, against loops over tokens."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import special

from attention_probing.attention import Encoder
from attention_probing.corpora.texts import Link, Passage, read_enhanced
from attention_probing.datamodules import SegmentBatch
from attention_probing.measures import Linguistic, Relations
from attention_probing.measures.linguistic import PLACES, attention_at_places
from attention_probing.metrics.stability import draw_resamples
from attention_probing.results.errors import UserError
from tests.measures.intervals import at_once_by_hand
from tests.measures.passes import ENCODERS, TREES, batch_of, begin, encoder, passage, show, uniform

NEGATION = ("not", "never")
SUBJECTS, OBJECTS = ("nsubj", "nsubj:pass"), ("obj",)
CLASSES = ("nouns", "verbs", "pronouns", "subjects", "objects", "negation")


def begun(encoder: Encoder, passages: Iterable[Passage] = TREES) -> Linguistic:
    analysis = Linguistic()
    begin(analysis, encoder, SimpleNamespace(passages=lambda: ((one,) for one in passages)))
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

    tables = {name: table.frame for name, table in analysis.result().tables.items()}
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


def test_intervals_of_the_best_heads_hold_for_all_heads(tmp_path: Path) -> None:
    one = encoder("bert", tmp_path)
    analysis = begun(one)
    for batch in batches(one):
        show(one, batch, analysis)
    result = analysis.result()
    parts = []
    frame = result.tables["linguistic"].frame
    for name in frame["class"].unique().tolist():
        rows = frame[frame["class"] == name]
        [best] = rows.nlargest(1, "attention").to_dict("records")
        ends = at_once_by_hand(best["attention"], (best["low"], best["high"]), best["inputs"], len(rows))
        score = result.scores[f"linguistic.{name}"]
        assert (score.value, *score.interval) == pytest.approx((best["attention"], *ends))
        value, low, high, alike = (100 * number for number in (best["attention"], *ends, best["uniform"]))
        head = f"head {best['layer']}-{best['head']}"
        if name in CLASSES:
            parts.append(f"{value:.1f} % [{low:.1f}, {high:.1f}] to {name} ({head}, uniform {alike:.1f} %)")
    inputs = frame["inputs"].max()
    assert len(parts) == len(CLASSES)
    assert result.answer == f"On up to {inputs} inputs the best heads give {', '.join(parts)}."
    assert len(result.answer) <= 400


def test_texts_without_the_tags_are_refused(tmp_path: Path) -> None:
    one = encoder("bert", tmp_path)
    with pytest.raises(UserError, match=r"some texts have no tags\. Give only treebanks"):
        begun(one, [replace(passage("a/X/x/0", tree=False), line=7)])
    # Relations alone are known: with other tags there is neither noun, verb nor pronoun.
    with pytest.raises(UserError, match=r"class negation or nouns or pronouns or verbs\. .* have the tags NE, NN, VV"):
        begun(one, [passage("Mara/NE/nsubj/2 mag/VVFIN/root/0 Boot/NN/obj/2")])


def test_texts_without_any_pair_have_a_table_without_rows(tmp_path: Path) -> None:
    one = encoder("gpt2", tmp_path)  # it writes no start delimiter
    analysis = begun(one, [passage("fox/NOUN/x/2 dogs/NOUN/root/0")])
    show(one, batch_of(one, passage("fox/NOUN/x/2 dogs/NOUN/root/0")), analysis)
    result = analysis.result()
    assert set(result.tables["linguistic"].frame["class"]) == {"nouns"}
    assert list(result.tables["token_to_token"].frame) == [
        "layer", "head", "pair", "attention", "low", "high", "inputs", "uniform",
    ]  # fmt: skip
    assert result.audit["absent_classes"] == "negation, objects, pronouns, subjects, verbs"


WORDS = "the/X/x/2 foxglove/X/x/0 drinks/X/x/2 smallest/X/x/2 coffee/X/x/2 ,/X/x/2"
LINKED = (
    passage(WORDS, (Link("agent", (1,), (3, 4)), Link("agent", (5,), (0,)), Link("theme", (3,), (0, 1)))),
    passage("dogs/X/x/2 sleep/X/x/0 overdrinks/X/x/2", (Link("theme", (2,), (0,)),)),
    passage("guests/X/x/2 drink/X/x/0"),
)


@pytest.fixture(autouse=True)
def of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention_probing.measures.linguistic.MAX_WORDS", 99)


def begun_linked(encoder: Encoder, passages: Iterable[Passage]) -> Relations:
    analysis = Relations()
    begin(analysis, encoder, SimpleNamespace(passages=lambda: ((one,) for one in passages)))
    return analysis


def nanmean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nansum(values, 0) / np.count_nonzero(~np.isnan(values), 0))


def batches_linked(encoder: Encoder) -> list[SegmentBatch]:
    """The last segment holds two passages where the tokenizer knows two."""
    two = "bert" in type(encoder.tokenizer).__name__.lower()
    last = (LINKED[1], TREES[0]) if two else TREES[0]
    return [batch_of(encoder, *LINKED[:2], TREES[4]), batch_of(encoder, last, first=3)]


def links_of(batch: SegmentBatch, row: int) -> list[tuple[str, list[int], list[int]]]:
    """Label and both sides of links within the bounds, in words of the segment; the arcs of the tree without links."""
    found, before = [], 0
    for one in batch.passages[row]:
        links = [(link.label, list(link.start), list(link.end)) for link in one.links or ()]
        if one.links is None:
            assert one.sentence is not None
            for word, (head, relation) in enumerate(zip(one.sentence.heads, one.sentence.relations, strict=True)):
                if head > 0:
                    links.append((relation, [word], [head - 1]))
        for label, start, end in links:
            near = min(abs(i - j) for i, j in product(start, end)) < 2
            if not near and max(len(start), len(end)) <= 3:
                found.append((label, [before + word for word in start], [before + word for word in end]))
        before += len(one.words)
    return found


@pytest.mark.parametrize("kind", ENCODERS)
def test_attention_is_that_of_a_loop_over_linked_tokens(kind: str, tmp_path: Path) -> None:
    one = encoder(kind, tmp_path)
    analysis = begun_linked(one, [*LINKED, *TREES])
    expected: dict[str, list[list[list[tuple[float, float, float]]]]] = {}
    even: dict[str, list[list[float]]] = {}
    reached: dict[str, list[list[tuple[bool, ...]]]] = {}
    for batch in batches_linked(one):
        passed = show(one, batch, analysis)
        for row in range(len(batch.index)):
            links = links_of(batch, row)
            for label in {"all", *(label for label, _, _ in links)}:
                cells = [
                    (i, j)
                    for own, start, end in links
                    for i, j in product(range(int(batch.lengths[row])), repeat=2)
                    if label in ("all", own) and int(batch.words[row, i]) in start and int(batch.words[row, j]) in end
                ]
                values = []
                for weights in passed:
                    heads = []
                    for head in weights[row]:
                        forward = max(float(head[i, j]) for i, j in cells)
                        backward = max(float(head[j, i]) for i, j in cells)
                        heads.append((max(forward, backward), forward, backward))
                    values.append(heads)
                expected.setdefault(label, []).append(values)
                spread = [uniform(kind, layer, int(batch.lengths[row])) for layer in range(one.layers)]
                most = [max(max(rows[i][j], rows[j][i]) for i, j in cells) for rows in spread]
                even.setdefault(label, []).append(most)
                ways = [[any(rows[i][j] for i, j in some) for some in (cells, [(j, i) for i, j in cells])]
                        for rows in spread]  # fmt: skip
                reached.setdefault(label, []).append([(any(each), *each) for each in ways])

    frame = analysis.result().tables["relations"].frame
    assert set(expected) > {"all", "agent", "theme", "obj"}
    expected = {label: one for label, one in expected.items() if np.any(reached[label])}
    assert set(frame["label"]) == set(expected)
    for label, measured in expected.items():
        rows = frame[frame["label"] == label]
        found = rows[["attention", "forward", "backward"]].to_numpy(dtype=np.float64)
        known = np.array(reached[label])[:, :, None]  # a way behind a mask is left out, where it could only be 0
        assert rows["passages"].tolist() == known[:, :, 0, 0].sum(0).repeat(one.heads).tolist()
        expected_means = nanmean(np.where(known, measured, np.nan)).reshape(-1, 3)
        assert np.allclose(found, expected_means, atol=1e-6, equal_nan=True)
        even_means = nanmean(np.where(known[:, :, 0, 0], even[label], np.nan))
        assert np.allclose(rows["uniform"], even_means.repeat(one.heads), atol=1e-6, equal_nan=True)
    theme = frame[frame["label"] == "theme"]
    known = np.array(reached["theme"])[:, :, None, 1]
    forwards = np.array(expected["theme"])[..., 1]
    spread = forwards.std(0, ddof=1).ravel() * np.where(known.all(0), 1.0, np.nan).repeat(one.heads)
    n = len(expected["theme"])
    quantile = {2: 12.706205, 3: 4.302653}[n]  # Student's t
    mean, margin = theme["forward"].to_numpy(dtype=np.float64), quantile * spread / np.sqrt(n)
    whole = ~np.isnan(spread)  # every link can be attended along
    mean, margin = mean[whole], margin[whole]
    for end, side in (("low", -1), ("high", 1)):
        bound = special.expit(special.logit(mean) + side * margin / (mean * (1 - mean)))
        ends = theme[f"forward.{end}"].to_numpy(dtype=np.float64)
        assert np.allclose(ends[whole], bound, atol=1e-5)
        assert np.isnan(ends[theme["forward"].isna()]).all()


def test_heads_above_the_percentile_are_listed(tmp_path: Path) -> None:
    one = encoder("bert", tmp_path)
    analysis = begun_linked(one, LINKED)
    show(one, batch_of(one, *LINKED), analysis)
    result = analysis.result()
    frame = result.tables["relations"].frame
    listed = result.tables["relation_heads"].frame

    assert len(listed) == frame["label"].nunique()  # of eight heads, one
    for label, best in frame.groupby("label")["attention"].max().items():
        assert listed[listed["label"] == label]["attention"].tolist() == [best]
    [best] = frame[frame["label"] == "all"].nlargest(1, "attention").to_dict("records")
    ends = at_once_by_hand(best["attention"], (best["attention.low"], best["attention.high"]), best["passages"], 8)
    score = result.scores["relations.all"]
    assert (score.value, *score.interval) == pytest.approx((best["attention"], *ends))


def linked_passages() -> list[Passage]:
    """Passages of six words with one link each, of two labels, in both halves."""
    animals = ("fox", "dogs", "guests", "coffee")
    words = [f"the/X/x/2 {first}/X/x/0 {verb}/X/x/2 the/X/x/2 {second}/X/x/2 ,/X/x/2"
             for first, second in product(animals, animals) for verb in ("drinks", "overslept")]  # fmt: skip
    links = (Link("agent", (1,), (3, 4)), Link("theme", (5,), (0, 1)))
    return [passage(text, (links[place % 3 % 2],)) for place, text in enumerate(words)]


@pytest.mark.parametrize(("kind", "documents"), [("bert", 0), ("gpt2", 0), ("bert", 12)])
def test_the_best_head_of_one_half_is_tested_on_the_other(kind: str, documents: int, tmp_path: Path) -> None:
    one = encoder(kind, tmp_path)
    passages = linked_passages()
    if documents:
        passages = [replace(text, document=str(place % documents)) for place, text in enumerate(passages)]
    analysis = begun_linked(one, passages)
    batch = batch_of(one, *passages)
    passed = torch.stack(show(one, batch, analysis), 1).double().numpy()  # [batch, layers, heads, from, to]

    halves: list[list[NDArray[np.float64]]] = [
        [],
        [],
    ]  # heads, uniform, distances 1 to 11, first word
    units = []  # of the half on which heads are chosen
    for row in range(len(passages)):
        key = f"document {passages[row].document}" if documents else " ".join(passages[row].words)
        digest = hashlib.sha256(key.encode()).digest()
        if not digest[0] % 2:
            units.append(row % documents if documents else row)
        cells = [
            (i, j)
            for _, start, end in links_of(batch, row)
            for i, j in product(range(int(batch.lengths[row])), repeat=2)
            if int(batch.words[row, i]) in start and int(batch.words[row, j]) in end
        ]
        n = int(batch.lengths[row])
        maps = list(passed[row].reshape(-1, *passed.shape[3:]))
        maps.append(np.array(uniform(kind, 0, n)))
        maps += [np.eye(n, k=-distance) for distance in range(1, 12)]
        first = batch.words[row].tolist().index(0)
        maps.append(np.array([[float(j == first != i) for j in range(n)] for i in range(n)]))
        most = [max(max(weights[i, j], weights[j, i]) for i, j in cells) for weights in maps]
        halves[digest[0] % 2].append(np.array(most))
    dev, test = (np.array(half) for half in halves)
    heads = one.layers * one.heads
    best = int(dev[:, :heads].mean(0).argmax())
    place = int(dev[:, heads + 1 :].mean(0).argmax())
    of_head = test[:, best]
    at_place = test[:, heads + 1 + place]

    result = analysis.result()
    scores = {name.removeprefix("relations."): score for name, score in result.scores.items()}
    assert min(len(dev), len(test)) > 8
    assert 0 < at_place.mean() < 1
    assert scores["test"].value == pytest.approx(of_head.mean(), abs=1e-6)
    assert scores["uniform"].value == pytest.approx(test[:, heads].mean(), abs=1e-6)
    assert scores["place"].value == pytest.approx(at_place.mean())
    for name, beside in (("beyond_uniform", test[:, heads]), ("beyond_place", at_place)):
        score = scores[name]
        margin = special.stdtrit(len(test) - 1, 0.975) * (of_head - beside).std(ddof=1) / np.sqrt(len(test))
        assert score.value == pytest.approx((of_head - beside).mean(), abs=1e-6)
        assert score.low is not None
        assert score.high is not None
        assert score.low <= score.value <= score.high
        assert (score.high - score.low) / 2 == pytest.approx(margin, rel=0.1)  # on a scale within −1 and 1

    times = [0] * heads
    known = sorted(set(units))
    assert not documents or 1 < len(known) < 7
    for drawn in draw_resamples(len(known)).tolist():
        of_unit = dict(zip(known, drawn, strict=True))
        weights = np.array([of_unit[unit] for unit in units])
        times[int((weights @ dev[:, :heads] / weights.sum()).argmax())] += 1
    assert scores["chosen"].value == times[best]
    second = max((number, -place) for place, number in enumerate(times) if place != best)
    layer, head = divmod(-second[1], one.heads)
    rival = f"{layer + 1}-{head + 1} {second[0]}" if second[0] else ""
    assert str(result.audit["rivals"]).startswith(rival)
    assert (times[best] < 100) == (kind == "bert")
    assert ("of 100 resamples of this half)" in result.answer) == (times[best] < 50)

    table = result.tables["relation_tests"].frame
    [of_all] = table[table["label"] == "all"].to_dict("records")
    assert (of_all["layer"] - 1) * one.heads + of_all["head"] - 1 == best
    assert (of_all["place"], of_all["passages"]) == (PLACES[place], len(test))
    assert of_all["at_place"] == pytest.approx(at_place.mean())
    assert (of_all["dev"], of_all["attention"]) == pytest.approx((dev[:, best].mean(), of_head.mean()), abs=1e-6)
    assert set(table["label"]) == {"all", "agent", "theme"}
    assert f"on the {len(test)} of the other half" in result.answer
    assert f"always attends to one place ({PLACES[place]})" in result.answer


@pytest.mark.parametrize(("kind", "first"), [("bert", 1), ("gpt2", 0)])
def test_the_first_word_is_no_delimiter(kind: str, first: int, tmp_path: Path) -> None:
    one = encoder(kind, tmp_path)
    batch = batch_of(one, *linked_passages()[:2])
    to_first = attention_at_places(batch)[:, -1]
    expected = torch.zeros_like(to_first)
    expected[:, :, first] = 1
    expected[:, first, first] = 0
    torch.testing.assert_close(to_first, expected)


def test_a_sink_is_no_head_for_links_at_the_first_word(tmp_path: Path) -> None:
    """A head that attends to the first word alone has what the place has: its difference is 0."""
    one = encoder("gpt2", tmp_path)
    words = [f"the/X/x/2 fox/X/x/0 {verb}/X/x/2 coffee/X/x/2" for verb in ("drinks", "overslept", "guests", "dogs")]
    passages = [passage(text, (Link("agent", (3,), (0,)),)) for text in words]
    analysis = begun_linked(one, passages)
    batch = batch_of(one, *passages)
    sink = torch.zeros(len(passages), one.heads, batch.tokens.size(1), batch.tokens.size(1))
    sink[..., 0] = 1
    for layer in range(one.layers):
        analysis.update_layer(batch, layer, sink)
    analysis.update(batch)
    scores = analysis.result().scores
    assert scores["relations.place"].value == scores["relations.test"].value == 1
    assert scores["relations.beyond_place"].value == 0


def test_links_of_one_half_alone_have_no_tested_head(tmp_path: Path) -> None:
    one = encoder("bert", tmp_path)
    [first, *_] = linked_passages()
    analysis = begun_linked(one, [first])
    show(one, batch_of(one, first, first), analysis)
    result = analysis.result()
    assert np.isnan(result.scores["relations.test"].value)
    assert not len(result.tables["relation_tests"].frame)
    assert "attends most along links on these 2 passages" in result.answer


WIDE = passage(WORDS, (Link("wide", (0,), (2, 3, 4, 5)), Link("near", (2, 3), (4,)), Link("far", (0,), (2,))))


def test_a_sentence_whose_edges_all_lead_to_empty_nodes_has_no_links(tmp_path: Path) -> None:
    """As in *dogs sleep, guests too*: the basic arcs of such a sentence are not among the enhanced edges."""
    words = (("dogs", 3, "nsubj", 0), ("also", 3, "advmod", 0), ("sleep", 0, "root", 1))
    lines = [
        f"{place}\t{form}\t_\tX\t_\t_\t{head}\t{label}\t{{{edge}}}:{label}\t_\n"
        for place, (form, head, label, edge) in enumerate(words, start=1)
    ]
    rows = "".join([*lines, "\n"])
    path = tmp_path / "enhanced.conllu"
    path.write_text(rows.format(3, 0) + rows.format("3.1", "3.1"), encoding="utf-8")
    both = [one for (one,) in read_enhanced(path, Counter())]
    assert [one.whole for one in both] == [True, True]

    one = encoder("bert", tmp_path)
    analysis = begun_linked(one, both)
    show(one, batch_of(one, *both), analysis)
    result = analysis.result()
    assert result.audit["links"] == 2
    assert (result.tables["relations"].frame["passages"] == 1).all()


def test_segments_without_a_link_are_refused(tmp_path: Path) -> None:
    one = encoder("bert", tmp_path)
    analysis = begun_linked(one, LINKED)
    show(one, batch_of(one, Passage("1", ("the", "fox"), 1)), analysis)
    with pytest.raises(UserError, match="segments that were read contain no link"):
        analysis.result()


@pytest.mark.parametrize(
    ("passages", "most", "labels", "counts"),
    [
        (LINKED[:2], 99, {"agent", "theme"}, (4, 0, 0, 0)),
        (LINKED[:2], 3, {"theme"}, (4, 3, 0, 0)),
        ((WIDE,), 99, {"far"}, (3, 0, 1, 1)),
    ],
)
def test_links_out_of_bounds_are_counted(
    passages: tuple[Passage, ...],
    most: int,
    labels: set[str],
    counts: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("attention_probing.measures.linguistic.MAX_WORDS", most)
    one = encoder("bert", tmp_path)
    analysis = begun_linked(one, passages)
    show(one, batch_of(one, *passages), analysis)
    result = analysis.result()
    assert set(result.tables["relations"].frame["label"]) == {"all", *labels}
    assert tuple(result.audit[name] for name in ("links", "long_passage", "long_element", "near")) == counts


def test_texts_without_links_are_refused(tmp_path: Path) -> None:
    one = encoder("bert", tmp_path)
    near = passage(WORDS, (Link("near", (2, 3), (4,)), Link("wide", (0,), (2, 3, 4, 5))))
    for some, counts in ((Passage("1", ("the", "fox"), 1), "links: 0"), (near, "links: 2, .*long_element: 1, near: 1")):
        with pytest.raises(UserError, match=f"no links between words.*{counts}"):
            begun_linked(one, [some])
