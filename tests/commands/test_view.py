"""`python train.py view` on tiny encoders and corpora; its pages are read by what they hold for their scripts."""

import base64
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from attention import Encoder, Options
from attention.store import MANIFEST, store_key
from commands.view import main
from corpora.conllu import read_treebank
from corpora.document import Documents
from datamodules import DependencyDataModule
from models import TextClassifier
from results.errors import UserError
from tests import documents
from tests.fidelity.trained import fitted

TEXT = "the fox sleeps ."


@pytest.fixture
def show(tmp_path: Path, bert: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Runs the command on the tiny BERT, and gives what its page holds."""

    def shown(*arguments: object, encoder: bool = True) -> dict[str, Any]:
        out = tmp_path / "view.html"
        named = ["--encoder", str(bert)] if encoder else []
        assert main([*named, *map(str, arguments), "--out", str(out)]) == 0
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
    with pytest.raises(UserError, match=r"--id tale:5-3: sentence 5 is after sentence 3\."):
        names("tale:5-3")
    with pytest.raises(UserError, match=r"--id tale:5-9: tale has sentences 1 to 6\."):
        names("tale:5-9")


def test_what_there_is_is_listed(
    corpus: str,
    tale: Path,
    store: Any,  # noqa: ANN401
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
    assert [line.split()[1] for line in lines("--store", store.folder)] == [str(n) for n in range(1, len(store) + 1)]
    assert not (tmp_path / "no.html").exists()


@pytest.mark.slow
def test_saliency_of_a_word_is_that_of_its_tokens(tmp_path: Path, show: Callable[..., dict[str, Any]]) -> None:
    """A classifier that reads `isn't` as two words: together they have what each has where they stand apart."""
    [checkpoint] = fitted(tmp_path, "run", "--data.init_args.punctuation=apart").rglob("*.ckpt")
    together, apart = (
        show("--text", text, "--saliency", checkpoint)["texts"][0]
        for text in ("the film isn't great .", "the film is n't great .")
    )
    assert set(together["saliency"]) == {"input x gradient", "gradient norm", "integrated gradients", "leave one out"}
    for name, values in together["saliency"].items():
        split = apart["saliency"][name]
        assert values == pytest.approx([*split[:3], split[3] + split[4], *split[5:]], abs=1e-6)
        assert any(values)
        assert values[0] == values[-1] == 0
    prediction = TextClassifier.load_from_checkpoint(checkpoint).predict_texts(["the film is n't great ."]).iloc[0]
    best = prediction["predicted"]
    told = f"decides {best!r}, with probability {prediction[f'probability.{best}']:.3f}"
    assert any(told in note for note in together["notes"])


@pytest.fixture
def store(make_data: Callable[..., DependencyDataModule]) -> Any:  # noqa: ANN401
    data = make_data(options=Options(layers=(2,)), hidden=(0, 1))
    data.setup("test")
    return data.splits["dev"].store


def test_items_of_a_store(store: Any, show: Callable[..., dict[str, Any]]) -> None:  # noqa: ANN401
    [text] = show("--store", store.folder, "--item", 3, encoder=False)["texts"]
    expected = store.read("attention", 2)[0].numpy()
    np.testing.assert_allclose(text["grids"]["words"]["values"], expected, atol=1 / 255)
    assert text["layers"] == [2]
    assert text["arcs"]
    [text] = show("--store", store.folder, "--item", 3, "--quantity", "hidden", encoder=False)["texts"]
    states = store.read("hidden", 2).float()
    for layer, found in enumerate(text["grids"]["words"]["values"]):
        expected = cosine_similarity(states[layer, :, None], states[layer, None], dim=-1).clamp(min=0).numpy()
        np.testing.assert_allclose(found, expected, atol=1 / 255 + 1e-3)
    assert (text["layers"], text["heads"]) == ([0, 1], [1])
    assert torch.isfinite(states).all()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Nothing to show is given. Give --text, --corpus"),
        (("--text", " "), "contains no word"),
        (("--text", "a", "--corpus", "b"), "--text, --corpus and --store exclude each other"),
        (("--text", "a", "--layers", "3"), "--layers 3: the encoder has 2 layers"),
        (("--text", "a", "--heads", "1", "0"), "--layers and --heads count from 1, but 0 is given"),
        (("--text", "the fox " * 40), "82 pieces, but .* reads at most 64"),
        (("--text", "a", "--quantity", "hidden"), "is only in stores"),
        (("--text", "a", "--saliency", "none.ckpt"), "none.ckpt: there is no such file. Give a checkpoint"),
        (("--text", "a", "--budget", "0.0001"), "100 are allowed"),
        (("--corpus", "{corpus}", "--id", "tiny-dev-99"), "no such id .did you mean `tiny-dev-9`.*; --list shows all"),
        (
            ("--corpus", "{corpus}", "--id", "tiny-dev-3:2"),
            "--id tiny-dev-3:2: .* no such id .did you mean `tiny-dev-3`",
        ),
        (("--corpus", "ud_english_ewtt"), "no corpus has this name .did you mean `ud_english_ewt`"),
        (("--corpus", "{folder}"), "this is a folder. Name a file in it"),
        (("--list", "--text", "a"), "--list needs a corpus or a store. Give --corpus NAME or FILE, or --store FOLDER"),
        (("--text", "a", "--saliency", "{folder}"), "the folder and its subfolders contain no checkpoint"),
        (("--corpus", "no.conllu", "--id", "s1"), "no.conllu.*no such file"),
        (("--corpus", __file__), "test_view.py: this is neither a treebank .* nor a CoNLL-2012 file"),
        (("--store", "{folder}"), "is not an attention store"),
        (("--store", "{folder}", "--pieces"), "need --text or --corpus"),
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


def test_a_store_says_what_it_holds(store: Any, tmp_path: Path) -> None:  # noqa: ANN401
    with pytest.raises(UserError, match=r"the store has no antecedent\. Choose attention or hidden"):
        main(["--store", str(store.folder), "--quantity", "antecedent", "--out", str(tmp_path / "view.html")])
    with pytest.raises(UserError, match="items 1 to"):
        main(["--store", str(store.folder), "--item", "0", "--out", str(tmp_path / "view.html")])


def test_a_store_of_another_format_is_refused(store: Any, tmp_path: Path) -> None:  # noqa: ANN401
    identity = {**store.manifest.identity, "format": 4}
    folder = store.folder.rename(store.folder.with_name(store_key(identity)))
    (folder / MANIFEST).write_bytes(replace(store.manifest, key=folder.name, identity=identity).dump())
    with pytest.raises(UserError, match="the store was made by another version"):
        main(["--store", str(folder), "--out", str(tmp_path / "view.html")])
