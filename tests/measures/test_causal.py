"""Heads of a relation off, against loops over sentences through transformers' own models and hooks made by hand."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import t as student
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from attention_probing.attention import Encoder, EncoderSpec, Options, resolve
from attention_probing.attention.alignment import AlignedPieces, split_words
from attention_probing.commands import CONFIGS
from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.sentence import Sentence
from attention_probing.datamodules import ClassificationDataModule, DependencyDataModule
from attention_probing.measures import CausalCheck, SingleHeads
from attention_probing.measures.causal import causal_answer
from attention_probing.measures.head_sets import random_sets
from attention_probing.metrics.differences import with_interval_and_p
from attention_probing.metrics.p_values import holm
from attention_probing.metrics.stability import draw_resamples
from attention_probing.models import TransformerClassifier
from attention_probing.probes import AttentionOnlyProbe, DistancesWordsProbe
from attention_probing.results import Bars, Estimate, Table, UserError
from tests.measures.heads_off import off, seeing
from tests.measures.intervals import p_at, sums_of_subsets
from tests.tiny import save_bert, save_gpt2
from tests.trainers import changed, scored, trained

CONFIG = CONFIGS / "clark2019" / "causal.yaml"
RELATIONS = ("det", "obj", "nmod:poss")
HEADS, RANDOM, SEED, RATE = 2, 3, 3, 0.3

Set = frozenset[tuple[int, int]]


def check(**options: Any) -> CausalCheck:  # noqa: ANN401
    given = {"probe": AttentionOnlyProbe(RATE), "relations": RELATIONS, "heads": HEADS, "random": RANDOM}
    return changed(CausalCheck(**{"max_epochs": 3, **given, **options}), patience=2, batches=1, seed=SEED)


def save_sharp(folder: Path, **options: int) -> Path:
    """A tiny BERT whose attention is far from uniform, so that heads matter to those above them."""
    model = AutoModel.from_pretrained(save_bert(folder, **options))
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight *= 10
            layer.attention.self.key.weight *= 10
    model.save_pretrained(folder)
    return folder


def sentences(corpus: str, split: str) -> Sequence[Sentence]:
    return read_treebank(Path(corpus.replace("{split}", split))).sentences


def means_of(model: PreTrainedModel, parts: Sequence[AlignedPieces]) -> list[Tensor]:
    """Mean output of the heads of each layer at each position of the sentences; the last is of all positions."""
    found: dict[int, list[Tensor]] = {}

    def see(layer: int, outputs: Tensor) -> Tensor:
        found.setdefault(layer, []).append(outputs[0].double())
        return outputs

    with seeing(model, see), torch.no_grad():
        for part in parts:
            model(ids_of(part))
    means = []
    for layer in sorted(found):
        own = found[layer]
        at = [torch.stack([one[i] for one in own if len(one) > i]).mean(0) for i in range(max(map(len, own)))]
        means.append(torch.stack([*at, torch.cat(own).mean(0)]).float())
    return means


def ids_of(part: AlignedPieces) -> Tensor:
    return torch.from_numpy(part.ids.astype(np.int64))[None]


def found_heads(probe: AttentionOnlyProbe, weights: Tensor, part: AlignedPieces) -> list[int]:
    """The head of every word by the formula of the probe, from weights `[heads, pieces, pieces]` of one layer."""
    positions, n = torch.from_numpy(part.positions.astype(np.int64)), part.words
    words = torch.zeros(len(weights), n + 2, n + 2)
    for i in range(n + 2):
        for j in range(n + 2):
            words[:, i, j] = weights[:, positions == i][:, :, positions == j].sum(2).mean(1)
    there, back = probe.weight.detach()[:, 0]
    found = []
    for word in range(1, n + 1):
        scores = [float(there @ words[:, word, head] + back @ words[:, head, word]) for head in range(n + 2)]
        root = probe.start.item() * scores[0] + probe.end.item() * scores[n + 1]
        found.append(int(np.argmax([root, *scores[1 : n + 1]])))
    return found


def best_heads(data: DependencyDataModule, relation: str, layers: int) -> list[tuple[int, int]]:
    """The best heads of lower layers by the table of `SingleHeads`."""
    table = scored(changed(SingleHeads(trees=False), permutations=1), data).tables["heads"].frame
    best = table[table["relation"] == relation].groupby("head", sort=False)["dev"].max()
    ordered = best.sort_values(ascending=False, kind="stable").index
    heads = [(int(one[0]) - 1, int(one[2]) - 1) for one in ordered]
    return [head for head in heads if head[0] < layers][:HEADS]


def sets_of(data: DependencyDataModule, relation: str, layers: int, heads: int) -> list[Set]:
    best = frozenset(best_heads(data, relation, layers))
    drawn = np.random.default_rng([SEED, RELATIONS.index(relation)])
    return [frozenset(), best, *random_sets(best, heads, RANDOM, drawn)]


def overlap_by_hand(data: DependencyDataModule, dev: Sequence[Sentence], relation: str, layers: int) -> float:
    """Mean overlap of the best heads of lower layers on dev with those on resamples of its sentences."""
    store = data.splits["dev"].store
    found = []
    words = []
    for item, sentence in enumerate(dev):
        weights = store.read("attention", item)[:layers, :, 1:-1, 1:-1].clone()
        weights.diagonal(dim1=2, dim2=3).fill_(-1)
        both = torch.stack([weights, weights.mT])
        ours = [place for place, label in enumerate(sentence.relations) if label == relation]
        governors = torch.tensor([sentence.heads[place] - 1 for place in ours], dtype=torch.int64)
        most, place = both.max(-1)
        right = (place[..., ours] == governors) & (most[..., ours] > 0)  # a weight of zero predicts nothing
        found.append(right.sum(-1).flatten(1).tolist())
        words.append(len(ours))

    def best(times: Sequence[int]) -> set[int]:
        if not sum(number * count for number, count in zip(times, words, strict=True)):
            return set()
        of_heads = []
        for head in range(len(found[0][0])):
            right = [sum(n * one[way][head] for n, one in zip(times, found, strict=True)) for way in (0, 1)]
            of_heads.append(max(right))
        return set(sorted(range(len(of_heads)), key=lambda head: -of_heads[head])[:HEADS])

    chosen = best([1] * len(dev))
    overlaps = []
    for times in draw_resamples(len(dev)).tolist():
        again = best(times)
        overlaps.append(len(chosen & again) / len(chosen | again))
    return float(np.mean(overlaps))


def hold(row: Mapping[Any, Any], values: Iterable[float], tolerance: float = 1e-9) -> None:
    """A row is of these scores: of the whole model, with the best heads off, and with each random set off."""
    whole, best, *random = values
    assert row["intact"] == pytest.approx(whole, abs=tolerance)
    assert row["best"] == pytest.approx(best - whole, abs=tolerance)
    assert row["random"] == pytest.approx(np.mean(random) - whole, abs=tolerance)
    assert row["random.sd"] == pytest.approx(np.std(random, ddof=1), abs=tolerance)
    assert row["beyond"] == pytest.approx(best - np.mean(random), abs=tolerance)
    if np.std(random) > tolerance:
        error = np.std(random, ddof=1) * (1 + 1 / len(random)) ** 0.5
        # Or the p-value of the sentences, if it is larger.
        assert row["p"] >= 2 * student.cdf(-abs(best - np.mean(random)) / error, len(random) - 1) * (1 - 1e-3)
    if np.isnan(row["beyond.low"]):  # too few sentences
        assert np.isnan(row["beyond.high"])
        assert row["p"] > 0.05
        return
    assert row["beyond.low"] - tolerance <= row["beyond"] <= row["beyond.high"] + tolerance
    assert (row["beyond.low"] <= 0 <= row["beyond.high"]) == (row["p"] > 0.05)


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_the_probe_reads_the_attention_of_an_encoder_whose_heads_are_off(
    kind: Literal["zero", "mean"], make_data: Callable[..., DependencyDataModule], corpus: str, tmp_path: Path
) -> None:
    folder = save_sharp(tmp_path / "bert", layers=3)
    data = make_data(seed=0, encoder=EncoderSpec(str(folder)))
    result = scored(check(kind=kind), data)
    frame = result.tables["causal"].frame

    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = Encoder(resolve(EncoderSpec(str(folder)))).tokenizer
    dev, test = ([(one, split_words(tokenizer, [one.words])[0]) for one in sentences(corpus, split)]
                 for split in ("dev", "test"))  # fmt: skip
    means = None if kind == "zero" else means_of(model, [part for _, part in dev])
    upper = data.variant(lowest=2)
    best = {"monitor": "val_uas", "mode": "max", "max_epochs": 3, "patience": 2}
    probe, training = trained(AttentionOnlyProbe(RATE), upper, **best, seed=SEED)
    assert result.audit["probe_dev"] == training.value
    assert result.audit["probe_reads_layers"] == "3-3"
    assert {*result.audit["left_blank"]} == {"task", "loss"}  # type: ignore[misc]

    moved = 0
    for relation in RELATIONS:
        sets = sets_of(data, relation, 2, 4)
        right, words = np.zeros(len(sets)), 0
        for sentence, part in test:
            ours = [place for place, label in enumerate(sentence.relations) if label == relation]
            words += len(ours)
            for number, heads in enumerate(sets):
                with off(model, heads, means), torch.no_grad():
                    weights = model(ids_of(part), output_attentions=True).attentions[2][0]
                predicted = found_heads(probe, weights, part)
                right[number] += sum(predicted[place] == sentence.heads[place] for place in ours)
        [row] = frame[(frame["measure"] == "probe") & (frame["relation"] == relation)].to_dict("records")
        assert row["n"] == words
        assert row["heads"].split() == [f"{layer + 1}-{head + 1}" for layer, head in best_heads(data, relation, 2)]
        by_hand = overlap_by_hand(data, [sentence for sentence, _ in dev], relation, 2)
        assert 0 < by_hand < 1
        assert row["overlap"] == pytest.approx(by_hand)
        hold(row, right / words)
        assert result.scores[f"probe.{relation}"].value == row["beyond"]
        moved += len(set(right)) > 1
    assert moved
    assert frame.loc[frame["measure"] != "probe", "intact"].isna().all()


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_loss_on_the_words_of_a_relation_is_that_of_a_loop(
    kind: str, make_data: Callable[..., DependencyDataModule], corpus: str, tmp_path: Path
) -> None:
    folder = save_bert(tmp_path / kind) if kind == "bert" else save_gpt2(tmp_path / kind)
    make = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    torch.manual_seed(0)
    make.from_pretrained(folder).save_pretrained(folder)
    data = make_data(seed=0, encoder=EncoderSpec(str(folder)))
    frame = scored(check(kind="zero", max_epochs=1), data).tables["causal"].frame

    model = make.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = Encoder(resolve(EncoderSpec(str(folder)))).tokenizer
    for relation in RELATIONS:
        sets = sets_of(data, relation, 1, 4)
        losses, pieces = np.zeros(len(sets)), 0
        for sentence in sentences(corpus, "test"):
            [part] = split_words(tokenizer, [sentence.words])
            for place, label in enumerate(sentence.relations):
                asked = torch.from_numpy(part.positions == place + 1)
                asked[0] &= kind == "bert"  # nothing tells a decoder its first piece
                if label != relation:
                    continue
                ids = ids_of(part)
                pieces += int(asked.sum())
                masked = ids.masked_fill(asked, tokenizer.mask_token_id) if kind == "bert" else ids
                for number, heads in enumerate(sets):
                    with off(model, heads), torch.no_grad():
                        logits = model(masked).logits[0]
                    if kind == "gpt2":
                        logits = torch.cat([logits[:1], logits[:-1]])
                    losses[number] += float(-logits.log_softmax(1)[asked, ids[0][asked]].double().sum())
        [row] = frame[(frame["measure"] == "loss") & (frame["relation"] == relation)].to_dict("records")
        assert row["n"] == sum(one.relations.count(relation) for one in sentences(corpus, "test"))
        assert abs(row["best"]) > 1e-4
        hold(row, losses / pieces, 1e-5)


def test_the_score_of_a_fine_tuned_task(
    make_data: Callable[..., DependencyDataModule], checkpoint: Path, data: ClassificationDataModule, tmp_path: Path
) -> None:
    """Of one and the same heads: `Classification` and its ablation have tests of their own."""
    dev = data.splits["dev"]
    result = scored(check(kind="zero", checkpoint=str(checkpoint), max_epochs=1), make_data(seed=0))
    frame = result.tables["causal"].frame
    model = TransformerClassifier.load_from_checkpoint(checkpoint)
    for relation in RELATIONS:
        right = []
        for heads in sets_of(make_data(seed=0), relation, 1, 4):
            with off(model.classifier.model, heads), torch.no_grad():
                found = [int(model(dev[[text]]).logits.argmax()) for text in range(len(dev))]
            right.append(float(np.mean(found == dev.labels)))
        [row] = frame[(frame["measure"] == "task") & (frame["relation"] == relation)].to_dict("records")
        assert row["n"] == len(dev)
        hold(row, right)
    assert {*result.audit["left_blank"]} == {"loss"}  # type: ignore[misc]
    assert frame["p_holm"].min() > 0.05
    assert result.answer == (
        "With the 2 best heads off, against random heads, none of 3 relations change the probe score (p < .05 after "
        "Holm); none of 3 relations change the task score (p < .05 after Holm)."
    )

    narrow = make_data(seed=0, encoder=EncoderSpec(str(save_bert(tmp_path / "narrow", heads=2))))
    with pytest.raises(UserError, match="it has 2 layers of 4 heads, and its layers"):
        scored(check(checkpoint=str(checkpoint), max_epochs=1), narrow)


def test_where_all_heads_are_best_there_is_nothing_to_compare(make_data: Callable[..., DependencyDataModule]) -> None:
    result = scored(check(kind="zero", heads=4, max_epochs=1), make_data(seed=0))
    frame = result.tables["causal"].frame
    assert frame[["p", "p_holm"]].isna().all(axis=None)
    scored_rows = frame.dropna(subset="intact")
    assert len(scored_rows) == len(RELATIONS)
    assert scored_rows[["random", "random.low", "beyond", "beyond.low", "beyond.high"]].isna().all(axis=None)
    assert scored_rows[["best", "best.low", "best.high"]].notna().all(axis=None)
    assert {"random and beyond, " + one for one in RELATIONS} < {*result.audit["left_blank"]}  # type: ignore[misc]
    assert result.audit["random_heads_among_best"] == {}
    assert result.answer == "With the 4 best heads off, against random heads, no difference is defined."


def test_a_relation_without_words_has_blank_rows(
    make_data: Callable[..., DependencyDataModule], corpus: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`flat` is nowhere; `vocative` is in dev alone, and `goeswith` in test alone."""
    files = {split: tmp_path / f"{split}.conllu" for split in ("train", "dev", "test")}
    for split, path in files.items():
        content = Path(corpus.replace("{split}", split)).read_text(encoding="utf-8")
        name = {"dev": "vocative", "test": "goeswith"}.get(split, "nsubj")
        path.write_text(content.replace("\tnsubj\t", f"\t{name}\t"), encoding="utf-8")
    data = {"corpus": {split: str(path) for split, path in files.items()}, "seed": 0}
    with caplog.at_level("WARNING"):
        result = scored(check(relations=("det", "flat", "vocative", "goeswith")), make_data(**data))
    alone = scored(check(relations=("det",)), make_data(**data))
    frame = result.tables["causal"].frame
    blank = frame[frame["relation"] != "det"]
    assert (blank["n"] == 0).all()
    assert blank.drop(columns=["measure", "relation", "n"]).isna().all(axis=None)
    words = frame[frame["relation"] == "det"].reset_index(drop=True)
    pd.testing.assert_frame_equal(words, alone.tables["causal"].frame, check_dtype=False)
    assert result.numbers == alone.numbers
    assert result.answer == alone.answer
    assert all(isinstance(bars, Bars) and bars.categories == ("det",) for bars in result.figures.values())
    reasons = {"flat": "dev", "vocative": "test", "goeswith": "dev"}
    expected = {name: f"no {split} word has the relation" for name, split in reasons.items()}
    assert expected.items() <= result.audit["left_blank"].items()  # type: ignore[attr-defined]
    assert "no word of the corpus has the relation 'flat': such rows are blank" in caplog.text
    assert "no test word has the relation 'vocative': such rows are blank" in caplog.text
    with pytest.raises(UserError, match=r"no relation can be scored \(vocative: no test word has the relation; goes"):
        scored(check(relations=("vocative", "goeswith")), make_data(**data))


def beyond(gains: Sequence[float]) -> Estimate:
    """The difference of means of sentences, with a draw for each subset of them."""
    draws = sums_of_subsets(gains, [1] * len(gains))
    return with_interval_and_p(
        Estimate(float(np.mean(gains)), unit="fraction", draws=np.array(draws), units=len(gains))
    )


def causal_table(differences: Mapping[str, Estimate], numbers_of_words: Mapping[str, int]) -> Table:
    """The columns of the table `causal` that its answer reads."""
    rows = []
    for name, one in differences.items():
        measure, relation = name.split(".")
        row = {"measure": measure, "relation": relation, "n": numbers_of_words[relation], "beyond": one.value}
        rows.append({**row, "p": one.p})
    frame = pd.DataFrame(rows)
    frame["p_holm"] = holm(frame["p"].tolist())
    return Table(frame, {"beyond": "fraction", "p": "p", "p_holm": "p"})


CLEAR = [-0.5, -0.4, -0.6, -0.5, -0.4, -0.5, -0.6, -0.5, -0.45, -0.55]
NOTHING = [0.1, -0.1, 0.05, -0.05, 0.2, -0.2, 0.1, -0.12, 0.0, 0.03]


def test_the_largest_difference_is_named_with_an_interval_that_holds_for_all_relations() -> None:
    differences = {"probe.det": beyond(NOTHING), "probe.obj": beyond(CLEAR), "probe.nsubj": beyond(NOTHING[::-1])}
    words = {"det": 50, "obj": 40, "nsubj": 30}
    answer = causal_answer(2, causal_table(differences, words), differences)
    draws = sorted(sums_of_subsets(CLEAR, [1] * 10))
    place = int(0.025 / 3 * 1024) - 1
    low, high = 100 * draws[place], 100 * draws[-1 - place]
    assert 3 * p_at(0, draws) == pytest.approx(0.0059, abs=5e-5)
    assert answer == (
        "with the 2 best heads off, against random heads, 1 of 3 relations change the probe score (p < .05 after "
        f"Holm); the largest difference is that of `obj`, -50.0 points [{low:.1f}, {high:.1f}], p = .0059, n = 40"
    )


@pytest.mark.parametrize(
    ("others", "words", "count"),
    [
        pytest.param({"probe.obj": NOTHING}, {}, "none of 2", id="none significant"),
        pytest.param({"probe.obj": CLEAR}, {"obj": 19}, "1 of 2", id="few words"),
        pytest.param({"probe.obj": CLEAR, "probe.nsubj": [-one for one in CLEAR]}, {}, "2 of 3", id="a tie"),
    ],
)
def test_no_relation_is_named_that_is_not_clearly_ahead(
    others: Mapping[str, list[float]], words: Mapping[str, int], count: str
) -> None:
    differences = {"probe.det": beyond(NOTHING), **{name: beyond(gains) for name, gains in others.items()}}
    table = causal_table(differences, {"det": 50, "obj": 40, "nsubj": 30, **words})
    answer = causal_answer(2, table, differences)
    assert answer.endswith(f"heads, {count} relations change the probe score (p < .05 after Holm)")


@pytest.mark.slow
def test_one_and_two_processes_say_the_same(run_config: Callable[..., Any], corpus: str) -> None:
    options = {"heads": 2, "relations": "[det, obj]", "max_epochs": 2}
    arguments = ["measure", f"--config={CONFIG}", f"--data.corpus={corpus}"]
    arguments += [f"--model.{name}={value}" for name, value in options.items()]
    _, one, at_one = run_config(*arguments)
    _, two, at_two = run_config(*arguments, processes=2)
    assert {"probe.det", "probe.obj"} <= set(one["scores"])
    assert one["scores"] == two["scores"]
    assert (at_one / "causal.csv").read_bytes() == (at_two / "causal.csv").read_bytes()


@pytest.mark.parametrize(
    ("options", "of_data", "message"),
    [
        ({"relations": ("dative",)}, {}, "no word of the corpus has the relation 'dative'; the relations are"),
        ({"heads": 5}, {}, "`heads` is 5, but only 4 heads are in the 1 layers below"),
        ({"random": 1}, {}, "random is 1, but must be at least 2"),
        ({"probe": DistancesWordsProbe()}, {}, "reads attention; DistancesWordsProbe does not"),
        ({}, {"options": Options(quantity="norms")}, "needs those of all heads: leave out"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    options: dict[str, Any], of_data: dict[str, Any], message: str, make_data: Callable[..., DependencyDataModule]
) -> None:
    with pytest.raises(UserError, match=message):
        scored(check(**options), make_data(seed=0, **of_data))
