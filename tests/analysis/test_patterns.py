from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from analysis import Patterns, RawMaps
from analysis.base import AnalysisError
from analysis.pattern_net import LONGEST, PatternNet, _trained, draw_map, draw_maps, masks_of, pictures, trained
from attention import Encoder
from datamodules import SegmentBatch, TextDataModule
from metrics.classification import class_f1, confusion, kappa
from metrics.patterns import PATTERNS, Structure, by_rules, structure
from results import Bars, Categories, Maps
from results.errors import OptionError
from tests.analysis.passes import ENCODERS, batches, encoder, make_even, sees, show, summed
from tests.metrics.test_patterns import SEES, mask, random_map, slow


@dataclass
class Corpora:
    """What the analysis asks of the data."""

    names: tuple[str, ...] = ("test", "other")


DATA = cast(TextDataModule, Corpora())


def begun(encoder: Encoder, cnn: bool = False) -> Patterns:
    patterns = Patterns(cnn)
    patterns.begin(DATA, encoder)
    return patterns


def of_two_corpora(model: Encoder) -> list[SegmentBatch]:
    *some, last = batches(model)
    return [*some, replace(last, corpus="other")]


def feed(model: Encoder, kind: str, batch: SegmentBatch, *analyses: Patterns) -> list[Tensor]:
    """Let analyses see maps of all patterns: tiny encoders have hardly any but heterogeneous ones."""
    time = batch.tokens.size(1)
    passed = [torch.full((len(batch.index), model.heads, time, time), 0.1) for _ in range(model.layers)]
    for layer, weights in enumerate(passed):
        for item, size in enumerate(batch.lengths.tolist()):
            for head in range(model.heads):
                random = np.random.default_rng([int(batch.index[item]), layer, head])
                own = random_map(random, batch.segments[item, :size].numpy(), partial(sees, kind, layer))
                weights[item, head, :size] = 0.0
                weights[item, head, :size, :size] = own
        for analysis in analyses:
            analysis.update(batch, layer, weights)
    for analysis in analyses:
        analysis.end(batch)
    return passed


def loops(model: Encoder, kind: str, batch: SegmentBatch, passed: list[Tensor]) -> Iterator[tuple[int, int, int, str]]:
    """Number of the input, layer, head, and pattern of every map."""
    for item, size in enumerate(batch.lengths.tolist()):
        delimiters = int((batch.start | batch.end)[item].sum())
        for layer, weights in enumerate(passed):
            for head in range(model.heads):
                rows = weights[item, head, :size, :size].double().tolist()
                _, pattern = slow(rows, delimiters, batch.segments[item, :size].tolist(), partial(sees, kind, layer))
                yield int(batch.index[item]), layer, head, pattern


@pytest.mark.parametrize("kind", ENCODERS)
def test_shares_equal_loops_over_cells(kind: str, tmp_path: Path) -> None:
    model = encoder(kind, tmp_path)
    patterns = begun(model)
    maps: list[tuple[str, int, int, int, str]] = []
    for batch in of_two_corpora(model):
        maps += [(batch.corpus, *one) for one in loops(model, kind, batch, feed(model, kind, batch, patterns))]
    result = patterns.result({})

    def shares(**wanted: object) -> list[float]:
        own = []
        for corpus, index, layer, head, pattern in maps:
            found = {"corpus": corpus, "layer": layer, "head": head, "half": index % 2}
            if {**found, **wanted} == found:
                own.append(pattern)
        return [own.count(pattern) / len(own) for pattern in PATTERNS]

    assert sum(share > 0 for share in shares()) > 1
    table, totals = result.tables["patterns"].frame, result.tables["patterns_total"].frame
    assert [name for name in map(str, table) if "." not in name] == ["corpus", "layer", *PATTERNS]
    assert list(zip(table["corpus"], table["layer"], strict=True)) == [
        (corpus, layer) for corpus in ("test", "other") for layer in (1, 2)
    ]
    for row in table.to_dict("records"):
        expected = shares(corpus=row["corpus"], layer=row["layer"] - 1)
        assert [row[pattern] for pattern in PATTERNS] == pytest.approx(expected)
        ends = [row[f"{pattern}.{end}"] for pattern in PATTERNS for end in ("low", "high")]
        assert np.isnan(ends).all() == (row["corpus"] == "other")  # one input
    for row in totals.to_dict("records"):
        assert [row[pattern] for pattern in PATTERNS] == pytest.approx(shares(corpus=row["corpus"]))
    known, [kinds] = patterns.by_head(), patterns.classes().values()
    for row in result.tables["head_patterns"].frame.to_dict("records"):
        place = row["layer"] - 1, row["head"] - 1
        expected = shares(layer=place[0], head=place[1])
        assert [row[pattern] for pattern in PATTERNS] == pytest.approx(expected)
        assert row["pattern"] == PATTERNS[int(np.argmax(expected))] == kinds[place[0] * model.heads + place[1]]
        for number, pattern in enumerate(PATTERNS):
            of_head = known[pattern]
            assert of_head.interval.value[place] == pytest.approx(expected[number])
            assert of_head.halves is not None
            for half, found in enumerate(of_head.halves):
                assert found[place] == pytest.approx(shares(layer=place[0], head=place[1], half=half)[number])
    assert result.audit["inputs"] == 7
    assert "kappa" not in result.scores
    assert {name: type(figure) for name, figure in result.figures.items()} == {
        "pattern_heads": Categories,
        "patterns_by_layer": Bars,
        "patterns_by_corpus": Bars,
        "pattern_gallery": Maps,
    }


def test_the_gallery_has_the_clearest_maps_of_different_heads(tmp_path: Path) -> None:
    model = encoder("bert", tmp_path)
    patterns = begun(model)
    every: list[list[tuple[float, int, int, int, Tensor]]] = [[] for _ in PATTERNS]
    for batch in reversed(of_two_corpora(model)):
        for layer, weights in enumerate(feed(model, "bert", batch, patterns)):
            found = _structure(batch, weights)
            own, margins = by_rules(found, batch.segments.any(1))
            for item, size in enumerate(batch.lengths.tolist()):
                for head in range(model.heads):
                    order = (-float(margins[item, head]), int(batch.index[item]), layer, head)
                    every[int(own[item, head])].append((*order, weights[item, head, :size, :size]))
    figure = patterns.result({}).figures["pattern_gallery"]
    assert isinstance(figure, Maps)
    kinds = [of for of in every if of]
    assert len(figure.maps) == len(kinds) > 3
    for row, names, of in zip(figure.maps, figure.names, kinds, strict=True):
        wanted: dict[tuple[int, int], Tensor] = {}
        for _, _, layer, head, map_ in sorted(of, key=lambda one: one[:4]):
            wanted.setdefault((layer, head), map_)
        expected = list(wanted.items())[:6]
        assert [name.split()[0] for name in names if name] == [f"{one + 1}-{two + 1}" for (one, two), _ in expected]
        for shown, (_, map_) in zip(row, expected, strict=False):
            assert shown is not None
            np.testing.assert_array_equal(shown, map_)


@pytest.mark.slow
def test_two_processes_have_the_sums_and_the_gallery_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoder("bert", tmp_path)
    whole, parts = begun(model, cnn=True), [begun(model, cnn=True), begun(model, cnn=True)]
    for place, batch in enumerate(of_two_corpora(model)):
        feed(model, "bert", batch, whole, parts[place % 2])
    states = [list(summed(patterns)) for patterns in (whole, *parts)]
    assert len(states[0]) == 10
    for one, first, second in zip(*states, strict=True):
        assert one.dtype == torch.int64
        assert torch.equal(one, first + second)
    alone = whole._gallery.of_all_devices()
    held = [[example for kept in part._gallery._kept for example in kept.values()] for part in parts]
    monkeypatch.setattr("analysis.patterns.gathered", lambda _: [*held[1], *held[0]])
    together = whole._gallery.of_all_devices()
    assert [[one[:3] for one in row] for row in alone] == [[one[:3] for one in row] for row in together]


@pytest.mark.slow
def test_both_opinions_are_compared(tmp_path: Path) -> None:
    model = encoder("bert", tmp_path)
    patterns = begun(model, cnn=True)
    drawn = trained(masks_of(model))
    net, counts = drawn.net, np.zeros((2, 5, 5), np.int64)
    for batch in of_two_corpora(model):
        for weights in feed(model, "bert", batch, patterns):
            found = _structure(batch, weights)
            rules = by_rules(found, batch.segments.any(1))[0].flatten().numpy()
            second = net(pictures(weights, batch.lengths, batch.segments)).argmax(-1).flatten().numpy()
            counts[int(batch.corpus == "other")] += confusion(rules, second, 5)
    result = patterns.result({})
    assert result.scores["kappa"].value == pytest.approx(float(kappa(counts.sum(0))))
    assert result.tables["patterns_total"].frame["kappa"].tolist() == pytest.approx(kappa(counts).tolist(), nan_ok=True)
    np.testing.assert_array_equal(result.tables["agreement"].frame.iloc[:, 1:], counts.sum(0))
    assert result.tables["agreement"].frame["rules"].tolist() == list(PATTERNS)
    assert result.scores["cnn_f1"].value == drawn.net_f1


def _structure(batch: SegmentBatch, weights: Tensor) -> Structure:
    """That of maps of a BERT."""
    allowed = batch.mask[:, None, None].expand(-1, 1, weights.size(-1), -1)
    return structure(weights, batch.lengths, (batch.start | batch.end).sum(1), batch.segments, allowed)


@pytest.mark.parametrize("kind", ENCODERS)
def test_even_attention_has_nothing_beyond_chance(kind: str, tmp_path: Path) -> None:
    model = encoder(kind, tmp_path)
    make_even(model)
    for batch in batches(model):
        delimiters = (batch.start | batch.end).sum(1)
        for layer, weights in enumerate(show(model, batch)):
            allowed = model.allowed(batch.mask).at(layer)
            found = structure(weights, batch.lengths, delimiters, batch.segments, allowed)
            for part in (found.vertical, found.diagonal, found.block):
                torch.testing.assert_close(part, torch.zeros_like(part), atol=1e-4, rtol=0)


MASKS = {kind: mask(LONGEST, of)[0].numpy() for kind, of in SEES.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rules_f1"), [("all", 0.95), ("causal", 0.85)])
def test_maps_of_known_pattern_are_recognised(kind: str, rules_f1: float) -> None:
    # Of a causal encoder the neighbours and the first tokens are most of what a row of a short input sees.
    net, gold, rules, second = trained(MASKS[kind]).net, list[int](), list[int](), list[int]()
    for drawn in draw_maps(17, 1000, MASKS[kind]):
        weights, lengths, delimiters, segments = drawn.tensors()
        gold.append(drawn.pattern)
        found = structure(weights, lengths, delimiters, segments, drawn.allowed)
        rules.append(int(by_rules(found, segments.any(1))[0]))
        second.append(int(net(pictures(weights, lengths, segments)).argmax(-1)))
    of_rules, of_net = (class_f1(confusion(np.array(gold), np.array(found), 5)).mean() for found in (rules, second))
    assert of_rules >= rules_f1
    assert of_net >= 0.95


@pytest.mark.slow
def test_the_network_is_the_same_in_every_process() -> None:
    first = trained(MASKS["all"]).net
    _trained.cache_clear()
    before = torch.random.get_rng_state()
    threads = torch.get_num_threads()
    with torch.inference_mode():
        again = trained(MASKS["all"])
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads
    for one, other in zip(first.parameters(), again.net.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_encoder_too_short_for_drawn_maps_is_refused() -> None:
    short = SimpleNamespace(max_length=15, source=SimpleNamespace(spec=SimpleNamespace(name="short")))
    with pytest.raises(AnalysisError, match="short reads at most 15 tokens"):
        masks_of(short)  # type: ignore[arg-type]


def test_drawn_maps_are_maps() -> None:
    both = np.concatenate([MASKS["causal"], MASKS["window"]])
    for masks in (MASKS["all"], MASKS["causal"], both):
        for number, drawn in enumerate(draw_maps(5, 100, masks)):
            np.testing.assert_allclose(drawn.weights.sum(1), 1.0)
            size = len(drawn.weights)
            np.testing.assert_array_equal(drawn.weights > 0, masks[number // 5 % len(masks)][:size, :size])
            assert drawn.pattern != PATTERNS.index("block") or set(drawn.segments) == {0, 1}
    one, other = (draw_map(2, np.random.default_rng(3), MASKS["all"][0]).weights for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_pictures_are_areas_of_the_map_whatever_the_padding() -> None:
    random = np.random.default_rng(0)
    for size in (5, 32, 77):
        weights = torch.full((2, 1, 90, 90), 0.3)
        own = torch.from_numpy(random.dirichlet(np.ones(size), size)).float()
        weights[1, 0, :size, :size] = own
        weights[0] = 1 / 90
        segments = torch.zeros(2, 90, dtype=torch.int64)
        segments[1, size // 3 : size] = 1
        mass, same = pictures(weights, torch.tensor([90, size]), segments)[1, 0]
        for cell in ((0, 0), (3, 17), (31, 30)):
            inside = alike = 0.0
            for i in range(size):
                for j in range(size):
                    height, width = (
                        max(0.0, min((at + 1) * size / 32, token + 1) - max(at * size / 32, token))
                        for at, token in zip(cell, (i, j), strict=True)
                    )
                    inside += height * width * float(own[i, j])
                    alike += height * width * float(segments[1, i] == segments[1, j])
            area = (size / 32) ** 2
            assert float(mass[cell]) == pytest.approx((inside / area * size) ** 0.5, abs=1e-4)
            assert float(same[cell]) == pytest.approx(alike / area, abs=1e-4)
    assert PatternNet()(pictures(weights, torch.tensor([90, 77]), segments)).shape == (2, 1, len(PATTERNS))


@pytest.mark.parametrize("wanted", [1, 6])
def test_raw_maps_are_those_of_one_input(wanted: int, tmp_path: Path) -> None:
    model = encoder("bert", tmp_path)
    raw, expected = RawMaps(wanted), list[list[np.ndarray]]()
    raw.begin(DATA, model)
    for batch in batches(model):
        passed = show(model, batch, raw)
        for place in (batch.index == wanted).nonzero().flatten().tolist():
            size = int(batch.lengths[place])
            expected = [list(weights[place, :, :size, :size].numpy()) for weights in passed]
    figure = raw.result({}).figures["maps"]
    assert isinstance(figure, Maps)
    assert ("guests drink | strong coffee" in figure.title) == (wanted == 1)
    for row, layer in zip(figure.maps, expected, strict=True):
        for shown, weights in zip(row, layer, strict=True):
            assert shown is not None
            np.testing.assert_array_equal(shown, weights)


def test_an_input_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    model = encoder("bert", tmp_path)
    with pytest.raises(OptionError, match="input is -1"):
        RawMaps(-1)
    raw = RawMaps(7)
    raw.begin(DATA, model)
    for batch in batches(model):
        show(model, batch, raw)
    with pytest.raises(AnalysisError, match="input 7, and the texts have fewer segments"):
        raw.result({})
