import json
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from pytorch_lightning import Trainer

import train
from attention import EncoderSpec
from corpora.conllu import read_treebank
from corpora.sentence import Sentence
from datamodules import DependencyDataModule
from heads import Analyses, Baselines, SingleHeads
from heads.experiment import ExperimentError
from heads.single_heads import Drawing, Names
from metrics.heads import DIRECTIONS
from results import AttentionLines, Bars, HeatMap, Result

BEST = "relation n head direction dev test low high offset best_offset random_init p"
NAMES = Names((0, 1), (0, 1, 2, 3))

MakeData = Callable[..., DependencyDataModule]


@pytest.fixture(scope="module")
def data(bert: Path, corpus: str, cache: str) -> MakeData:
    def make(encoder: bool = True, random_init: bool = False, eval_cells: int = 65536) -> DependencyDataModule:
        spec = EncoderSpec(str(bert)) if encoder else None
        return DependencyDataModule(corpus, encoder=spec, cache=cache, random_init=random_init, eval_cells=eval_cells)

    return make


def trainer() -> Trainer:
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
    )


def scored(probe: SingleHeads | Baselines, data: DependencyDataModule) -> Result:
    trainer().test(probe, datamodule=data, verbose=False)
    assert probe.result is not None
    return probe.result


def probe(**options: object) -> SingleHeads:
    return SingleHeads(permutations=9, minimum=1, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def result(data: MakeData) -> Result:
    return scored(probe(), data(random_init=True))


@pytest.fixture(scope="module")
def paper(data: MakeData) -> Result:
    return scored(probe(mode="paper"), data())


def columns(result: Result) -> dict[str, str]:
    return {name: " ".join(map(str, table.frame)) for name, table in result.tables.items()}


class Counted:
    """A split, and what every head says in it, read off the store one word after the other."""

    def __init__(self, module: DependencyDataModule, corpus: str, name: str) -> None:
        path = Path(corpus.replace("{split}", name))
        self.sentences: tuple[Sentence, ...] = read_treebank(path).sentences
        store = module.splits["dev" if name == "dev" else "test"].store
        self.weights = [store.read("attention", item).flatten(0, 1).double().numpy() for item in range(len(store))]

    def names(self, predictor: int, item: int, word: int) -> int:
        transposed, head = divmod(predictor, 8)
        weights = self.weights[item][head]
        others = [other for other in range(1, len(self.sentences[item]) + 1) if other != word]
        weights = weights.T if transposed else weights
        best = max(others, key=lambda other: weights[word, other], default=-1)
        return best if best > 0 and weights[word, best] > 0 else -1

    def right(self, predictor: int, relation: str) -> tuple[int, int]:
        right = total = 0
        for item, sentence in enumerate(self.sentences):
            for word, (gold, label) in enumerate(zip(sentence.heads, sentence.relations, strict=True), start=1):
                if relation in ("all", label) or (relation == "all (no punctuation)" and label != "punct"):
                    total += 1
                    right += self.names(predictor, item, word) == gold
        return right, total

    def best(self, relation: str) -> int:
        counts = [self.right(k, relation)[0] for k in range(16)]
        return counts.index(max(counts))

    def accuracy(self, predictor: int, relation: str) -> float:
        right, total = self.right(predictor, relation)
        return right / total

    def tree_edges(self, head: int) -> tuple[int, int]:
        """Gold edges in the maximum spanning trees of a head, and all of them; without punctuation."""
        found = total = 0
        for item, sentence in enumerate(self.sentences):
            plain = [place for place, label in enumerate(sentence.relations, start=1) if label != "punct"]
            graph: nx.Graph[int] = nx.Graph()
            for i in plain:
                for j in plain:
                    if i < j:
                        weights = self.weights[item][head]
                        graph.add_edge(i, j, weight=weights[i, j] + weights[j, i])
            tree = {frozenset(edge) for edge in nx.maximum_spanning_tree(graph).edges}
            gold = [frozenset((word, sentence.heads[word - 1])) for word in plain if sentence.heads[word - 1] in plain]
            total += len(gold)
            found += sum(edge in tree for edge in gold)
        return found, total


@pytest.fixture(scope="module")
def splits(data: MakeData, corpus: str) -> tuple[Counted, Counted]:
    module = data()
    module.setup("test")
    return Counted(module, corpus, "dev"), Counted(module, corpus, "test")


def test_the_tables_have_the_columns_that_others_read(result: Result) -> None:
    assert columns(result) == {
        "best_heads": BEST,
        "best_heads_by_length": "relation length n head direction accuracy offset",
        "heads": "relation n direction head layer number dev test",
        "roles": "head confidence offset offset_share positional relation direction margin syntactic",
        "trees": "head dev test",
        "ensembles": "relation n direction heads dev test low high single",
    }
    assert len(result.tables["heads"].frame) == 16 * len(result.tables["best_heads"].frame)
    assert set(result.tables["heads"].frame["relation"]) == set(result.tables["best_heads"].frame["relation"])
    assert result.audit == {
        "mode": "held_out",
        "permutations": 9,
        "predictions_without_weight": {"dev": 0, "test": 0},
    }


def test_the_best_heads_equal_counting_in_the_store(result: Result, splits: tuple[Counted, Counted]) -> None:
    dev, test = splits
    table = result.tables["best_heads"].frame
    assert set(table["relation"]) == {
        "all",
        "all (no punctuation)",
        "det",
        "nsubj",
        "obj",
        "nmod:poss",
        "punct",
        "root",
    }
    for _, row in table.iterrows():
        k = dev.best(row["relation"])
        assert (row["head"], row["direction"]) == (NAMES.head(k % 8), DIRECTIONS[k // 8])
        assert (row["dev"], row["test"]) == (dev.accuracy(k, row["relation"]), test.accuracy(k, row["relation"]))
        assert row["n"] == test.right(k, row["relation"])[1]
    assert table["random_init"].between(0, 1).all()
    assert (table["random_init"] != table["test"]).any()
    assert table["p"].dropna().isin([n / 10 for n in range(1, 11)]).all()
    assert table["p"].notna().any()


def test_the_scores_are_those_of_the_head_chosen_on_dev(result: Result, splits: tuple[Counted, Counted]) -> None:
    dev, test = splits
    k = dev.best("all (no punctuation)")
    assert result.numbers["heads.uas"] == test.accuracy(k, "all (no punctuation)")
    assert result.numbers["heads.uas_with_punctuation"] == test.accuracy(k, "all")
    for name in ("heads.uas", "heads.uuas", "heads.tree_uuas", "random_init.uas"):
        assert result.numbers[f"{name}.low"] <= result.numbers[name] <= result.numbers[f"{name}.high"]
    items = result.items
    assert items is not None
    assert list(items["id"]) == [f"tiny-test-{index}" for index in range(17)]
    assert items["correct"].sum() / items["scored"].sum() == result.numbers["heads.uas"]


def test_the_tree_is_that_of_the_head_chosen_on_dev(result: Result, splits: tuple[Counted, Counted]) -> None:
    dev, test = splits
    on_dev = [dev.tree_edges(head) for head in range(8)]
    head = max(range(8), key=lambda k: (on_dev[k][0], -k))
    found, total = test.tree_edges(head)
    assert result.numbers["heads.tree_uuas"] == found / total
    assert result.tables["trees"].frame["dev"].tolist() == [found / total for found, total in on_dev]


def test_roles_are_read_off_dev(result: Result, splits: tuple[Counted, Counted]) -> None:
    dev = splits[0]
    words = sum(map(len, dev.sentences))
    table = result.tables["roles"].frame
    assert table["head"].tolist() == [NAMES.head(head) for head in range(8)]
    for head in range(8):
        peaks = sum(
            float(weights[head, word, 1 : len(sentence) + 1].max())
            for weights, sentence in zip(dev.weights, dev.sentences, strict=True)
            for word in range(1, len(sentence) + 1)
        )
        assert table["confidence"][head] == pytest.approx(peaks / words)


def test_the_baselines_stand_beside_them(result: Result, data: MakeData) -> None:
    baselines = Baselines()
    trainer().test(baselines, datamodule=data(encoder=False), verbose=False)
    assert baselines.result is not None
    assert {name: result.numbers[name] for name in baselines.result.numbers} == baselines.result.numbers


def test_the_figures(result: Result) -> None:
    kinds = {name: type(figure) for name, figure in result.figures.items()}
    assert kinds.pop("best_heads") is Bars
    drawn = [name for name in kinds if name.startswith("attention_")]
    assert all(kinds.pop(name) is AttentionLines for name in drawn)
    assert set(kinds.values()) == {HeatMap}
    assert {"heads_all", "heads_all_no_punctuation", "heads_det", "heads_nmod_poss"} <= set(kinds)


def test_the_relations_that_are_named_are_shown_with_the_same_numbers(result: Result, data: MakeData) -> None:
    chosen = ("nsubj", "det")
    found = scored(probe(relations=chosen), data(random_init=True))
    names = ["all", "all (no punctuation)", *chosen]
    for name in ("best_heads", "best_heads_by_length", "heads", "ensembles"):
        table = result.tables[name].frame
        rows = [row for relation in names for row in table[table["relation"] == relation].to_dict("records")]
        assert {row["relation"] for row in rows} == set(names[2:] if name == "ensembles" else names)
        pd.testing.assert_frame_equal(found.tables[name].frame, pd.DataFrame(rows, columns=list(table)))
    bars = found.figures["best_heads"]
    assert isinstance(bars, Bars)
    assert len(bars.categories) == 4
    maps = {name for name, figure in found.figures.items() if isinstance(figure, HeatMap)}
    assert maps == {"heads_all", "heads_all_no_punctuation", "heads_nsubj", "heads_det"}
    pd.testing.assert_frame_equal(found.tables["roles"].frame, result.tables["roles"].frame)
    assert found.numbers == result.numbers


def test_relations_that_the_corpus_does_not_have_are_refused(data: MakeData) -> None:
    with pytest.raises(
        ExperimentError, match=r"relations: the corpus has no 'nsbj', 'x'; its relations are .*det.*, nsubj"
    ):
        scored(probe(relations=("nsbj", "det", "x")), data())


def test_ensembles_begin_with_the_best_head(result: Result) -> None:
    table = result.tables["ensembles"].frame
    heads = result.tables["heads"].frame
    for _, row in table.iterrows():
        chosen = row["heads"].split(" + ")
        assert 1 <= len(chosen) <= 4
        among = heads[(heads["relation"] == row["relation"]) & (heads["direction"] == row["direction"])]
        first = among[among["head"] == chosen[0]].iloc[0]
        assert first["dev"] == among["dev"].max()
        assert row["single"] == first["test"]
        if len(chosen) == 1:
            assert (row["dev"], row["test"]) == (first["dev"], first["test"])
        else:
            assert row["dev"] > first["dev"]
    assert (table["heads"].str.count(r"\+") > 0).any()
    assert len(table) == 2 * (len(result.tables["best_heads"].frame) - 2)


def test_how_the_splits_are_divided_changes_nothing(result: Result, data: MakeData) -> None:
    small = scored(probe(), data(random_init=True, eval_cells=150))
    assert small.numbers == result.numbers
    for name, table in result.tables.items():
        pd.testing.assert_frame_equal(small.tables[name].frame, table.frame, check_exact=True)


def test_a_device_without_a_sentence_adds_nothing(data: MakeData, monkeypatch: pytest.MonkeyPatch) -> None:
    module, alone = probe(), scored(probe(), data())
    step = SingleHeads.test_step

    def with_an_empty_batch(self: SingleHeads, batch: object, batch_idx: int, dataloader_idx: int = 0) -> None:
        if batch_idx == 0:
            step(self, self.data.splits["dev"][[]], 0, dataloader_idx)
        step(self, batch, batch_idx, dataloader_idx)  # type: ignore[arg-type]

    monkeypatch.setattr(SingleHeads, "test_step", with_an_empty_batch)
    assert scored(module, data()).numbers == alone.numbers


def test_paper_mode_chooses_and_scores_on_dev(paper: Result, splits: tuple[Counted, Counted]) -> None:
    dev = splits[0]
    table = paper.tables["best_heads"].frame
    assert set(table) == set(BEST.split())
    for _, row in table.iterrows():
        right = [dev.right(k, row["relation"]) for k in range(16)]
        assert (row["n"], row["dev"]) == (right[0][1], max(right)[0] / right[0][1])
    assert table["test"].isna().all()
    assert paper.tables["heads"].frame["test"].isna().all()
    assert paper.tables["ensembles"].frame["test"].isna().all()
    k = dev.best("all (no punctuation)")
    assert paper.numbers["heads.uas"] == dev.accuracy(k, "all (no punctuation)")
    found, total = max(dev.tree_edges(head) for head in range(8))
    assert paper.numbers["heads.tree_uuas"] == found / total
    assert paper.items is not None
    assert list(paper.items["id"]) == [f"tiny-dev-{index}" for index in range(13)]
    assert paper.audit["mode"] == "paper"


def test_without_a_random_encoder_its_column_is_empty(paper: Result) -> None:
    assert paper.tables["best_heads"].frame["random_init"].isna().all()
    assert not [name for name in paper.scores if name.startswith("random_init")]


def test_paper_mode_compares_with_the_random_encoder_on_dev(data: MakeData) -> None:
    table = scored(probe(mode="paper", ensemble=1), data(random_init=True)).tables
    assert "ensembles" not in table
    # The best of sixteen on a split is at least as good as any one of them: never nothing on all words.
    assert table["best_heads"].frame["random_init"][0] > 0
    assert table["best_heads"].frame["random_init"].notna().all()


def test_attention_is_needed(data: MakeData) -> None:
    with pytest.raises(ExperimentError, match=r"SingleHeads needs attention: .*encoder must not be null"):
        scored(probe(), data(encoder=False))


def test_experiments_share_one_pass(data: MakeData) -> None:
    """Their numbers are those of runs of their own; what both have stands there once."""
    alone = [scored(probe(), data(random_init=True)), scored(Baselines(), data())]
    together = Analyses([probe(), Baselines()])
    trainer().test(together, datamodule=data(random_init=True), verbose=False)
    found = together.result
    assert found is not None
    for one in alone:
        for name, score in one.scores.items():
            np.testing.assert_equal(vars(found.scores[name]), vars(score))
        for name, table in one.tables.items():
            pd.testing.assert_frame_equal(found.tables[name].frame, table.frame)
    assert not [name for name in found.scores if name.startswith("baselines.")]
    assert {*alone[0].figures, *alone[1].figures} == set(found.figures)
    assert found.items is not None
    assert alone[0].items is not None
    assert found.items["heads.correct"].tolist() == alone[0].items["correct"].tolist()
    assert found.audit["heads.mode"] == "held_out"
    with pytest.raises(ExperimentError, match=r"analyses: name one or more, each once, and not \['baselines', 'base"):
        Analyses([Baselines(), Baselines()])


def test_experiments_without_a_use_for_random_weights_refuse_them(data: MakeData) -> None:
    with pytest.raises(
        ExperimentError, match=r"Baselines makes nothing of random weights: .*random_init must be false"
    ):
        trainer().test(Baselines(), datamodule=data(random_init=True), verbose=False)


@pytest.mark.parametrize(
    ("drawing", "message"),
    [
        (Drawing("9-1", "tiny-test-0"), "no head '9-1'"),
        (Drawing("1-1", "tiny-dev-0"), "no sentence 'tiny-dev-0'"),
    ],
)
def test_a_drawing_of_what_is_not_there_is_refused(data: MakeData, drawing: Drawing, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        scored(probe(drawings=(drawing,), ensemble=1), data())


@pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning")
@pytest.mark.filterwarnings("ignore:LightningCLI's args parameter is intended")
def test_the_command_line_names_heads_and_sentences_to_draw(
    result: Result, corpus: str, bert: Path, cache: str, tmp_path: Path
) -> None:
    train.main(
        [
            "test",
            "--model=SingleHeads",
            "--model.init_args.permutations=9",
            "--model.init_args.minimum=1",
            "--model.init_args.maps=1",
            "--model.init_args.drawings=[{head: 1-2, sentence: tiny-test-3, direction: head→dependent}]",
            "--data=DependencyDataModule",
            f"--data.init_args.corpus={corpus}",
            f"--data.init_args.cache={cache}",
            f"--data.init_args.encoder.name={bert}",
            "--data.init_args.random_init=true",
            f"--trainer.default_root_dir={tmp_path}",
            "--trainer.enable_progress_bar=false",
            "--trainer.accelerator=cpu",
        ]
    )
    [path] = tmp_path.rglob("results.json")
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["scores"] == result.numbers
    assert set(found["figures"]) == {"best_heads", "heads_all", "attention_1_1-2"}
    for name in found["figures"].values():
        assert (path.parent / name).stat().st_size > 0
    best = pd.read_csv(path.parent / found["tables"]["best_heads"])
    assert list(best) == BEST.split()
    np.testing.assert_allclose(best["test"], result.tables["best_heads"].frame["test"], atol=1e-3)
