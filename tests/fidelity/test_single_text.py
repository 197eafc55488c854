"""Explanations of single texts: the numbers of a run over a corpus, and those of a slow loop."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from attention_probing import Explanation, explain
from attention_probing.attention import EncoderSpec
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity import Explainer, Fidelity, Rationale, single_text
from attention_probing.fidelity.checkpoints import load_one
from attention_probing.fidelity.classified import ClassifiedBatch
from attention_probing.measures import measure
from attention_probing.models import TextClassifier
from attention_probing.results.errors import UserError
from tests import tiny
from tests.fidelity.trained import fitted

GIVEN = ("attention", "integrated_gradients", "leave_one_out")
TEXT = "the film is great and the plot is dull ."


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a classifier of words, trained on `../texts` until it decides by them."""
    return fitted(tmp_path_factory.mktemp("trained"), "run", epochs=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face classifier of two classes, as others would have written it."""
    return tiny.add_head(tiny.save_bert(tmp_path_factory.mktemp("models") / "my-bert"), 2)


def write(folder: Path) -> str:
    """Texts of words that the tokenizer of `folder` knows, whole or in pieces."""
    random = np.random.default_rng(0)
    for split, size in (("train", 20), ("dev", 6), ("test", 4)):
        lines = ["label\ttext"]
        for number in range(size):
            words = random.choice([*tiny.FAMILIAR[:5], *tiny.BROKEN[:2]], random.integers(3, 8))
            lines.append(f"LABEL_{number % 2}\t{' '.join(words)}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "{split}.tsv")


def check_like_run(data: ClassificationDataModule, checkpoint: Path, corpus: str) -> None:
    """The first texts of test have the scores of a run over all of them; random orders those of the first text."""
    fidelity = Fidelity(str(checkpoint), [Rationale([*GIVEN, "random"])], seed=0)
    rows = measure(data, measurements=fidelity).items
    assert rows is not None
    texts = pd.read_csv(corpus.format(split="test"), sep="\t", quoting=3)["text"]
    tested = 0
    for place in range(4):
        row = rows[rows["id"] == data.splits["test"].ids[place]].iloc[0]
        own = explain(texts[place], checkpoint, GIVEN)
        assert own.decision == data.labels[int(row["predicted"])]
        for _, effect in own.effects.iterrows():
            if place and effect["ranking"] == "random":
                continue
            for score in ("comprehensiveness", "sufficiency"):
                expected = row[f"rationale.{effect['ranking']}.{score}"]
                assert effect[score] == pytest.approx(expected, abs=1e-5)
                tested += 1
    assert tested == 4 * 3 * 2 + 2


@pytest.mark.slow
def test_a_classifier_of_words_says_what_a_run_over_the_corpus_says(run: Path) -> None:
    corpus = str(run.parent / "texts" / "{split}.tsv")
    data = ClassificationDataModule(corpus, positive="good", cache=str(run.parent / "stores"))
    check_like_run(data, next(run.rglob("*.ckpt")), corpus)


@pytest.mark.slow
def test_a_folder_of_a_transformer_says_what_a_run_over_the_corpus_says(folder: Path, tmp_path: Path) -> None:
    corpus = write(tmp_path)
    data = ClassificationDataModule(
        corpus, positive="LABEL_1", tokenizer=EncoderSpec(str(folder)), cache=str(tmp_path / "stores")
    )
    check_like_run(data, folder, corpus)


def slow_effects(order: Sequence[int], words: Sequence[str], probability: Callable[[list[str]], float]) -> list[float]:
    """The probability of the decision without the first 1, 2, 3, … words, until one is left."""
    found = []
    for count in range(1, len(words)):
        left = [word for place, word in enumerate(words) if place not in order[:count]]
        found.append(probability(left))
    return found


def test_effects_are_those_of_texts_without_the_words(run: Path) -> None:
    """Read anew as strings, one after the other, with the decision of `predict_texts`."""
    model = TextClassifier.load_from_checkpoint(next(run.rglob("*.ckpt")))
    own, words = explain(TEXT, run, GIVEN, seed=3), TEXT.split()

    def probability(left: list[str]) -> float:
        row = model.predict_texts(" ".join(left)).iloc[0]
        return float(row[f"probability.{own.decision}"])

    assert own.probabilities[own.decision] == pytest.approx(probability(words), abs=1e-6)
    assert sum(own.probabilities.values()) == pytest.approx(1)
    assert own.words["word"].tolist() == words
    draws = np.random.default_rng((3, crc32(b"ranking"), 0)).random((5, len(words)))
    keys = {name: [own.words[name].to_numpy()] for name in GIVEN} | {"random": list(draws)}
    assert own.effects["ranking"].tolist() == list(keys)
    flipped = 0
    for name, orders in keys.items():
        falls = [slow_effects(np.argsort(-key, kind="stable").tolist(), words, probability) for key in orders]
        row = own.effects.set_index("ranking").loc[name]
        for count in (1, 2, 3):
            assert row[f"without_{count}"] == pytest.approx(np.mean([one[count - 1] for one in falls]), abs=1e-6)
        first = [next((n for n, p in enumerate(one, 1) if p < 0.5), np.inf) for one in falls]
        expected = np.median(first)
        assert row["flips_after"] == expected or (np.isnan(row["flips_after"]) and np.isinf(expected))
        flipped += int(np.isfinite(expected))
    assert flipped > 0


def test_no_more_words_than_a_bound_are_removed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_bound = explain(TEXT, run, GIVEN)
    latest = without_bound.effects["flips_after"].max()
    assert latest > 1
    monkeypatch.setattr(single_text, "FARTHEST", int(latest) - 1)
    found = explain(TEXT, run, GIVEN)
    after = without_bound.effects["flips_after"]
    pd.testing.assert_series_equal(found.effects["flips_after"], after.where(after < latest))
    assert f"stays without the first {int(latest) - 1}." in " ".join(str(found).split())


def test_attention_of_a_transformer_is_that_of_its_own_eager_pass(folder: Path) -> None:
    text = "the unlazy dogs overdrinks coffee"
    own = explain(text, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        found = model(**inputs, output_attentions=True)
    row = found.attentions[-1][0].mean(0)[0]  # of the last layer, from [CLS]
    assert own.words["attention"].to_numpy() == pytest.approx(row[1:-1].numpy(), abs=1e-6)
    assert own.words["number"].tolist() == [place + 1 for place in inputs.word_ids(0)[1:-1]]
    assert set(own.probabilities) == {"LABEL_0", "LABEL_1"}
    assert list(own.probabilities.values()) == pytest.approx(found.logits[0].softmax(-1).tolist(), abs=1e-6)
    elsewhere = 100 * float(row[0] + row[-1])
    assert f"{elsewhere:.1f} % of the attention goes to delimiters, which are no words." in own.notes


def test_it_prints_within_80_columns_and_shows_itself_in_a_notebook(run: Path) -> None:
    names = ["attention", "attention_norm", "attention_times_gradient", "integrated_gradients", "random"]
    own = explain(f"{TEXT} <script>alert(1)</script>", run, names)
    lines = str(own).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == own.title
    long = replace(own, text=("the film " * 20,))
    assert str(long).splitlines()[:2] == [f"{long.title[:79]}…", lines[1]]
    assert own.answer in " ".join(lines)
    first = own.words["token"][int(own.words["attention_norm"].argmax())]
    assert any(line.startswith("attention norm ") and f" {first} " in line for line in lines)
    without = 100 * own.effects["without_1"][1]
    assert sum(f"{without:.1f}" in line for line in lines if line.startswith("attention norm")) == 1
    html = own._repr_html_()
    assert "<iframe" in html
    assert "<script>alert" not in html
    assert "//" not in html  # nothing is read from elsewhere
    [text] = own.figure.texts
    assert list(text.rows) == names[:-1]
    assert text.rows["attention"] == own.words["attention"].tolist()


def test_it_is_text_in_a_notebook_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There rich would display it, and leave nothing to `repr`, which saved notebooks and their tests read."""
    explanation = explain(TEXT, run, ["attention"])
    outside = repr(explanation)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert repr(explanation) == outside
    assert "Decision without the first words" in outside


def test_what_is_unknown_and_cut_is_said(run: Path, tmp_path: Path) -> None:
    assert explain(f"{TEXT} xyzzy", run).notes == ("Unknown to the classifier: xyzzy.",)
    short = fitted(run.parent, "short", "--data.max_length=4", epochs=1)
    own = explain(TEXT, short)
    assert own.words["word"].tolist() == TEXT.split()[:4]
    assert "The text is too long: the last 6 tokens are cut, and 4 are read." in own.notes


@pytest.mark.slow
def test_a_hierarchical_classifier_ranks_the_words_of_all_sentences(run: Path) -> None:
    han = fitted(
        run.parent,
        "han",
        "--model=HierarchicalClassifier",
        "--model.encoder=RecurrentEncoder",
        "--model.attention=AdditiveAttention",
        "--model.sentence_encoder=RecurrentEncoder",
        "--model.sentence_attention=AdditiveAttention",
        epochs=1,
    )
    own = explain("the film is great . the plot is dull .", han)
    assert own.words["attention"][:5].sum() == pytest.approx(1, abs=1e-5)  # of each sentence
    assert own.words["attention"][5:].sum() == pytest.approx(1, abs=1e-5)


class LongWords(Explainer):
    name = "long_words"

    def scores(self, classified: ClassifiedBatch) -> Tensor:
        words = classified.vocabulary.words
        return classified.weights.new_tensor(
            [[len(words[token]) for token in text] for text in classified.batch.tokens.tolist()]
        )


def test_a_ranking_may_be_an_object(run: Path) -> None:
    own = explain(TEXT, load_one(run), [LongWords()])
    assert own.words["long_words"].tolist() == [len(word) for word in TEXT.split()]


@pytest.mark.parametrize(
    ("text", "rankings", "said"),
    [
        ("", GIVEN, r"The text to explain is empty\. Give a text of two words or more"),
        (["a", "b", "c"], GIVEN, r"The text is \['a', 'b', 'c'\]\. Give a string, or two strings"),
        ("xyzzy plugh", GIVEN, r"\.ckpt knows no word of the text\. Check its language"),
        ("film", GIVEN, r"\.ckpt reads fewer than two words of the text"),
        (("the film", "the plot"), GIVEN, r"\.ckpt was trained on single texts\. Give one string"),
        (TEXT, ["atention"], r"There is no ranking 'atention' of a single text \(did you mean `attention`"),
        (TEXT, ["planted"], r"There is no ranking 'planted' of a single text"),
        (TEXT, ["attention", "attention"], r"rankings lists attention more than once"),
        (TEXT, [], r"rankings is empty"),
        (TEXT, ["rollout"], r"The ranking rollout multiplies the attention of all layers of a transformer"),
    ],
)
def test_bad_input_is_one_line(text: str, rankings: list[str], said: str, run: Path) -> None:
    with pytest.raises(UserError, match=said) as caught:
        explain(text, run, rankings)
    assert "\n" not in str(caught.value)


def test_what_is_no_classifier_of_one_text_is_refused(run: Path, tmp_path: Path, bert: Path) -> None:
    def refused(checkpoint: Path, said: str) -> None:
        with pytest.raises(UserError, match=said) as caught:
            explain(TEXT, checkpoint)
        assert "\n" not in str(caught.value)

    refused(tmp_path / "none.ckpt", r"none\.ckpt: there is no such checkpoint")
    refused(bert, r"the files lack classifier\.bias, classifier\.weight.*would be random")
    [checkpoint] = run.rglob("*.ckpt")
    content = torch.load(checkpoint, weights_only=True)
    probe = {name: value for name, value in content.items() if name != TextClassifier.checkpoint_key}
    torch.save(probe, tmp_path / "probe.ckpt")
    refused(tmp_path / "probe.ckpt", r"probe\.ckpt: this is not a checkpoint of a text classifier")
    content["config"] = content["config"].replace("columns: null", "columns: {text: a, pair: b, label: c}")
    torch.save(content, tmp_path / "pairs.ckpt")
    refused(tmp_path / "pairs.ckpt", r"pairs\.ckpt was trained on pairs of texts\. Give two texts")
    assert explain(("the film is great", "the plot is dull"), tmp_path / "pairs.ckpt").words["number"].tolist() == [
        *range(1, 9)
    ]
    shutil.copy(checkpoint, tmp_path / "copy.ckpt")
    refused(tmp_path, r"the folder has several checkpoints, copy\.ckpt, pairs\.ckpt, probe\.ckpt\. Name one")


def test_a_regression_has_no_decision(tmp_path: Path) -> None:
    folder = tiny.add_head(tiny.save_bert(tmp_path / "numbers"), 1)
    with pytest.raises(UserError, match=r"numbers predicts a number, so that there is no decision to explain"):
        explain(TEXT, folder)


def test_the_answer_names_few_of_many_classes() -> None:
    labels = {f"class {number}": share for number, share in enumerate([0.1, 0.4, 0.2, 0.1, 0.1, 0.05, 0.05])}
    answer = Explanation(("a",), "a.ckpt", labels, pd.DataFrame(), pd.DataFrame()).answer
    assert answer == (
        "a.ckpt decides 'class 1' with probability 40.0 % (class 2 20.0 %, class 0 10.0 %, class 3 10.0 %, "
        "class 4 10.0 %, 2 more)."
    )
