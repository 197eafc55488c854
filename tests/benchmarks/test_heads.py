import json
from pathlib import Path

import pytest

from attention import EncoderSpec
from benchmarks import heads
from benchmarks.harness import first_sentences
from benchmarks.heads import HeadByHead, OnePass, check
from corpora.conllu import read_treebank
from corpora.sample import write_sample_treebank
from datamodules import DependencyDataModule

pytestmark = pytest.mark.usefixtures("_bundle")


@pytest.mark.slow
def test_it_runs_as_the_command_line_runs_it(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    options = ["--corpus", "sample", "--limit", "30", "--rounds", "1", "--no-memory"]
    assert heads.main(["--json", str(target), *options]) == 0
    content = json.loads(target.read_text())
    ratios, figures = content["ratios"], content["figures"]
    assert content["benchmark"] == "heads"
    assert ratios.keys() == {"over_reference"}
    assert ratios["over_reference"] == pytest.approx(figures["reference_s"] / figures["one_pass_s"])
    assert (figures["corpus"], figures["sentences"], figures["predictors"]) == ("sample", 30, 144)


def test_both_sides_equal_a_count_word_by_word(tmp_path: Path) -> None:
    dev = first_sentences([write_sample_treebank(tmp_path)["dev"]], tmp_path / "six.conllu", 6)
    data = DependencyDataModule({"dev": str(dev)}, encoder=EncoderSpec(), cache=str(tmp_path))
    data.setup("validate")
    ours, reference = OnePass(data), HeadByHead(data)
    for _ in range(2):  # a second round counts nothing twice
        ours()
        reference()
    store = data.splits["dev"].store
    right, total = [0] * 144, 0
    for item, sentence in enumerate(read_treebank(dev).sentences):
        weights = store.read("attention", item).flatten(0, 1).tolist()
        for word, (gold, label) in enumerate(zip(sentence.heads, sentence.relations, strict=True), start=1):
            if label != "det":
                continue
            total += 1
            others = [other for other in range(1, len(sentence) + 1) if other != word]
            for k in range(72):
                forth = max(others, key=lambda other: weights[k][word][other])
                back = max(others, key=lambda other: weights[k][other][word])
                right[k] += forth == gold and weights[k][word][forth] > 0
                right[72 + k] += back == gold and weights[k][back][word] > 0
    assert total > 0
    assert reference.counts["det"] == ours.counts["det"] == [(hits, total) for hits in right]
    assert reference.counts == ours.counts
    assert ours.counts["all"][0][1] == sum(map(len, read_treebank(dev).sentences))


def test_a_single_different_count_is_refused() -> None:
    ours = {"all": [(3, 9), (4, 9)], "det": [(1, 2), (2, 2)]}
    check(ours, {"det": [(1, 2), (2, 2)], "all": [(3, 9), (4, 9)]})
    with pytest.raises(RuntimeError, match="differ from the reference's on 1 relations, the first 'det'"):
        check(ours, ours | {"det": [(1, 2), (1, 2)]})
    with pytest.raises(RuntimeError, match=r"differ .* 'all'"):
        check(ours, ours | {"all": [(3, 9), (4, 10)]})
    with pytest.raises(RuntimeError, match=r"not counted \['obj'\]"):
        check(ours, ours | {"obj": [(0, 1), (0, 1)]})
