"""`probing view` on tiny encoders and corpora; its pages are read by what they hold for their scripts."""

import base64
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_probing.attention import Encoder, EncoderError, Options
from attention_probing.commands.view import main, read_items
from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.document import Documents
from attention_probing.fidelity import explain
from attention_probing.fidelity.single_text import DEFAULT_RANKINGS, spaced
from attention_probing.results.errors import UserError
from tests import documents, tiny
from tests.fidelity.trained import fitted
from tests.own_code import save_own

TEXT = "the fox sleeps ."


@pytest.fixture
def show(tmp_path: Path, bert: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Runs the command on the tiny BERT, and gives what its page holds."""

    def shown(*arguments: object) -> dict[str, Any]:
        out = tmp_path / "view.html"
        assert main(["--encoder", str(bert), *map(str, arguments), "--out", str(out)]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == str(out)
        page = out.read_text(encoding="utf-8")
        held: dict[str, Any] = json.loads(re.findall(r'application/json" id="view">(.*?)</script>', page)[0])
        for one in held["texts"]:
            for grid in one["grids"].values():
                n = len(grid["names"])
                grid["values"] = [decoded(page, f"{grid['id']}-{at}", top, n) for at, top in enumerate(grid["tops"])]
        return held

    return shown


def decoded(page: str, name: str, top: float, n: int) -> np.ndarray:
    [block] = re.findall(rf'id="{name}">(.*?)</script>', page)
    codes = np.frombuffer(zlib.decompress(base64.b64decode(block)), np.uint8)
    return top * (codes.reshape(n, n) / 255) ** 2


def test_texts_with_their_pieces(bert: Path, show: Callable[..., dict[str, Any]]) -> None:
    held = show("--text", TEXT, "--text", "unlazy dogs", "--pieces", "--layers", 2, "--heads", 1, 3)
    first, second = held["texts"]
    assert (first["title"], first["layers"], first["heads"], first["delimiters"]) == (TEXT, [2], [1, 3], [0, 5])
    assert second["grids"]["pieces"]["of"] == [0, *[1] * (len(second["grids"]["pieces"]["of"]) - 3), 2, 3]
    expected = Encoder(str(bert)).attention([TEXT], options=Options(precision="float32"))[0].to_numpy()[1, [0, 2]]
    np.testing.assert_allclose(first["grids"]["words"]["values"], expected, atol=1 / 255)


def test_code_among_the_files_of_an_encoder_is_run_if_the_command_says_so(
    own_code_cache: None, show: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    folder = save_own(tmp_path / "own", tmp_path / "ran")
    with pytest.raises(EncoderError, match=r"in `view` --trust_remote_code"):
        show("--text", TEXT, "--encoder", folder)
    assert not (tmp_path / "ran").exists()
    assert show("--text", TEXT, "--encoder", folder, "--trust_remote_code")["texts"][0]["layers"] == [1, 2]


def test_sentences_of_a_treebank_bring_their_arcs(corpus: str, show: Callable[..., dict[str, Any]]) -> None:
    path = Path(corpus.replace("{split}", "dev"))
    sentence = read_treebank(path).sentences[3]
    [text] = show("--corpus", path, "--id", sentence.id)["texts"]
    expected = [
        [word, head, relation]
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True), start=1)
        if head
    ]
    assert text["arcs"] == expected
    assert text["grids"]["words"]["names"] == ["[CLS]", *sentence.words, "[SEP]"]


def test_documents_bring_their_clusters(tmp_path: Path, show: Callable[..., dict[str, Any]]) -> None:
    mentions = [(0, 0, 2, 1, 0), (1, 0, 1, 0, 0), (1, 3, 5, 4, 1)]  # the last is alone in its cluster
    document = documents.document("story", ["the fox sleeps .", "he likes the dogs ."], mentions)
    path = documents.write(tmp_path / "story.conll", Documents((document,), {}))
    [text] = show("--corpus", path, "--id", "story")["texts"]
    assert text["clusters"] == [[[1, 3], [5, 6]]]
    [part] = show("--corpus", path, "--id", "story:2-2")["texts"]
    assert part["clusters"] == []
    assert part["grids"]["words"]["names"][1:-1] == ["he", "likes", "the", "dogs", "."]


def test_the_first_is_shown_where_none_is_named(corpus: str, show: Callable[..., dict[str, Any]]) -> None:
    path = Path(corpus.replace("{split}", "dev"))
    [text] = show("--corpus", path)["texts"]
    assert text["title"].startswith(f"{read_treebank(path).sentences[0].id}: ")


@pytest.fixture
def tale(tmp_path: Path) -> Path:
    """A document of six sentences."""
    tale = documents.document("tale", [f"the fox {place} ." for place in range(6)])
    return documents.write(tmp_path / "tale.conll", Documents((tale,), {}))


def test_a_document_is_shown_from_its_beginning_or_in_part(tale: Path, show: Callable[..., dict[str, Any]]) -> None:
    def names(*ids: str) -> list[str]:
        given = ["--id", *ids] if ids else []
        found: list[str] = show("--corpus", tale, *given)["texts"][0]["grids"]["words"]["names"]
        return found[1:-1]

    assert names() == names("tale:1-5") == " ".join(f"the fox {place} ." for place in range(5)).split()
    assert names("tale:3") == names("tale:3-3") == ["the", "fox", "2", "."]
    for wrong in ("tale:5-3", "tale:5-9"):
        with pytest.raises(UserError, match=rf"--id {wrong}: tale has sentences 1 to 6\. Give one"):
            names(wrong)


def test_what_there_is_is_listed(
    corpus: str,
    tale: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def lines(*source: object) -> list[str]:
        assert main(["--list", *map(str, source), "--out", str(tmp_path / "no.html")]) == 0
        return capsys.readouterr().out.splitlines()

    path = Path(corpus.replace("{split}", "dev"))
    for found, one in zip(lines("--corpus", path), read_treebank(path).sentences, strict=True):
        assert found.startswith(f"{one.id}: {one.words[0]}")
    [document] = lines("--corpus", tale)
    assert document.startswith("tale: the fox 0 .")
    assert document.endswith(" (6 sentences)")
    assert not (tmp_path / "no.html").exists()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a classifier that reads `isn't` as two words."""
    return fitted(tmp_path_factory.mktemp("trained"), "run", "--data.punctuation=apart")


@pytest.mark.slow
def test_saliency_of_a_word_is_that_of_its_tokens(classifier: Path, show: Callable[..., dict[str, Any]]) -> None:
    """Two tokens of a word together have what each has where they stand apart."""
    rankings = ("attention", "leave_one_out")
    together, apart = (
        show("--text", text, "--checkpoints", classifier, "--rankings", *rankings)["texts"][0]
        for text in ("the film isn't great .", "the film is n't great .")
    )
    assert set(together["saliency"]) == {"attention", "leave one out"}
    for name, values in together["saliency"].items():
        split = apart["saliency"][name]
        assert values == pytest.approx([*split[:3], split[3] + split[4], *split[5:]], abs=1e-6)
        assert any(values)
        assert values[0] == values[-1] == 0


@pytest.mark.slow
def test_decisions_of_classifiers_are_printed_and_stand_on_the_page(
    classifier: Path, tmp_path: Path, bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two: a run, and a folder of a Hugging Face classifier."""
    folder = tiny.add_head(tiny.save_bert(tmp_path / "my-bert"), 2)
    out, text = tmp_path / "view.html", "the film isn't great ."
    capsys.readouterr()
    given = ["--text", text, "--encoder", str(bert), "--checkpoints", str(classifier), str(folder)]
    assert main([*given, "--out", str(out)]) == 0
    own = [explain(text, checkpoint) for checkpoint in (classifier, folder)]
    assert capsys.readouterr().out == f"{own[0]}\n\n{own[1]}\n\n{out}\n"
    page = out.read_text(encoding="utf-8")
    held = json.loads(re.findall(r'application/json" id="view">(.*?)</script>', page)[0])["texts"][0]
    assert held["notes"][1:] == [own[0].answer, *own[0].notes, own[1].answer, *own[1].notes]
    names = [f"{name}: {ranking}" for name in ("base, seed 0", "my-bert") for ranking in map(spaced, DEFAULT_RANKINGS)]
    assert list(held["saliency"]) == names
    sums = own[1].words.groupby("number")["attention"].sum()
    assert len(own[1].words) > len(sums) == len(text.split())
    assert held["saliency"]["my-bert: attention"] == pytest.approx([0, *sums, 0], abs=1e-6)


def test_a_corpus_may_be_the_sample_or_a_path_of_splits(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBING_CACHE", str(tmp_path))
    path, sentences = read_items("sample", "test")
    assert path.name == "sample-test.conllu"
    assert len(sentences) == 250
    with pytest.raises(UserError, match="sample has no all split"):
        read_items("sample", "all")
    assert "{split}" in corpus
    assert read_items(corpus, "dev")[1].keys() == read_items(corpus.replace("{split}", "dev"), "test")[1].keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Nothing to show is given, or two things are. Give either --text or --corpus"),
        (("--text", " "), "contains no word"),
        (("--text", "a", "--corpus", "b"), "Give either --text or --corpus"),
        (("--text", "a", "--layers", "3"), "--layers 3: the encoder has 2 layers"),
        (("--text", "a", "--heads", "1", "0"), "--layers and --heads count from 1, but 0 is given"),
        (("--text", "the fox " * 40), "82 pieces, but .* reads at most 64"),
        (("--text", "a", "--checkpoints", "none.ckpt"), "none.ckpt: there is no such checkpoint"),
        (("--text", "a", "--rankings", "attention"), "--rankings needs a classifier. Give --checkpoints"),
        (("--text", "a", "--budget", "0.0001"), "100 are allowed"),
        (("--corpus", "{corpus}", "--id", "tiny-dev-99"), "no such id .did you mean `tiny-dev-9`.*; --list shows all"),
        (("--list", "--text", "a"), "--list and --id need a corpus. Give --corpus NAME or FILE"),
        (("--corpus", __file__), "test_view.py: this is neither a treebank .* nor a CoNLL-2012 file"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(
    arguments: tuple[str, ...], said: str, tmp_path: Path, bert: Path, corpus: str
) -> None:
    places = {"corpus": corpus.replace("{split}", "dev"), "folder": str(tmp_path)}
    out = tmp_path / "view.html"
    with pytest.raises((UserError, OSError), match=said) as caught:
        main(["--encoder", str(bert), *(one.format(**places) for one in arguments), "--out", str(out)])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
