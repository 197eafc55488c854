import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from attention.digest import Digests
from attention.encoder import EncoderSpec, resolve
from attention.options import Options
from attention.quantity import Antecedent, Attention
from attention.request import Request, key
from corpora.sentence import Treebank
from tests import tiny


def unread(path: Path) -> Treebank:
    raise AssertionError("a key needs no parsing")


@pytest.fixture
def request_(bert: Path, tmp_path: Path) -> Request:
    corpus = tmp_path / "corpus.conllu"
    corpus.write_text("1\tthe\n")
    return Request(corpus, unread, {"format": "conllu", "version": 1}, resolve(EncoderSpec(str(bert))), Options())


@pytest.fixture
def digests(tmp_path: Path) -> Digests:
    return Digests(tmp_path / "stores")


def other_corpus(request: Request, tmp_path: Path) -> Request:
    path = tmp_path / "other.conllu"
    path.write_text("1\ta\n")
    return replace(request, corpus=path)


def other_encoder(request: Request, tmp_path: Path) -> Request:
    return replace(request, encoder=resolve(EncoderSpec(str(tiny.save_bert(tmp_path / "other", seed=1)))))


def random_encoder(request: Request, seed: int) -> Request:
    assert request.encoder is not None
    return replace(request, encoder=resolve(EncoderSpec(request.encoder.spec.name, weights="random", seed=seed)))


CHANGES: dict[str, Callable[[Request, Path], Request]] = {
    "nothing": lambda request, _: request,
    "corpus": other_corpus,
    "reader": lambda request, _: replace(request, reader={"format": "conllu", "version": 2}),
    "encoder": other_encoder,
    "random weights": lambda request, _: random_encoder(request, 0),
    "another seed": lambda request, _: random_encoder(request, 1),
    "no encoder": lambda request, _: replace(request, encoder=None),
    "layers": lambda request, _: replace(request, options=Options(layers=(1,))),
    "other layers": lambda request, _: replace(request, options=Options(layers=(2,))),
    "heads": lambda request, _: replace(request, options=Options(heads=(1,))),
    "precision": lambda request, _: replace(request, options=Options(precision="float32")),
    "too long": lambda request, _: replace(request, options=Options(too_long="window")),
    "companion": lambda request, tmp_path: replace(request, companion=other_corpus(request, tmp_path).corpus),
    "mentions": lambda request, _: replace(request, quantity=Antecedent("mentions")),
    "words": lambda request, _: replace(request, quantity=Antecedent("words")),
    "hidden": lambda request, _: replace(request, quantity=Attention((1,))),
    "other hidden": lambda request, _: replace(request, quantity=Attention((0, 1))),
    "also too long": lambda request, _: replace(request, options=Options(too_long="skip")),
    "pieces": lambda request, _: replace(request, options=Options(from_pieces="first")),
}


def test_every_ingredient_changes_the_key(request_: Request, digests: Digests, tmp_path: Path) -> None:
    keys = {name: key(change(request_, tmp_path).identity(digests)) for name, change in CHANGES.items()}
    assert len(set(keys.values())) == len(CHANGES)
    assert all(len(bytes.fromhex(name)) == 12 for name in keys.values())


@pytest.mark.parametrize("version", ["FORMAT", "ALIGNMENT_VERSION"])
def test_every_version_changes_the_key(
    version: str, request_: Request, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key(request_.identity(digests))
    monkeypatch.setattr(f"attention.request.{version}", 99)
    assert key(request_.identity(digests)) != before


def test_names_and_times_do_not_change_the_key(request_: Request, digests: Digests, tmp_path: Path) -> None:
    before = key(request_.identity(digests))
    moved = request_.corpus.rename(tmp_path / "moved.conllu")
    os.utime(moved, (1, 1))
    encoder = resolve(EncoderSpec(str(tiny.save_bert(tmp_path / "copy"))))
    assert key(replace(request_, corpus=moved, encoder=encoder).identity(digests)) == before


def test_labels_alone_do_not_depend_on_what_is_taken_from_an_encoder(request_: Request, digests: Digests) -> None:
    alone = replace(request_, encoder=None)
    assert key(alone.identity(digests)) == key(replace(alone, options=Options(layers=(1,))).identity(digests))


def test_identity_is_plain_json(request_: Request, digests: Digests) -> None:
    identity = replace(request_, options=Options(layers=(1, 2))).identity(digests)
    again = json.loads(json.dumps(identity))
    assert key(again) == key(identity)
    assert again["corpus_sha256"] == digests.one(request_.corpus)
    assert again["quantities"] == ["attention"]


def test_a_companion_is_known_by_its_content(request_: Request, digests: Digests, tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text("a")
    (tmp_path / "b.conllu").write_text("a")
    (tmp_path / "c.conllu").write_text("c")
    first, same, other = (
        key(replace(request_, encoder=None, companion=tmp_path / f"{name}.conllu").identity(digests)) for name in "abc"
    )
    assert first == same != other
    assert "companion_sha256" not in request_.identity(digests)


def test_candidates_are_part_of_the_identity(request_: Request, digests: Digests) -> None:
    identity = replace(request_, quantity=Antecedent("words")).identity(digests)
    assert (identity["quantities"], identity["candidates"]) == (["antecedent"], "words")


def test_hidden_states_of_no_layer_leave_the_key_as_it_was(request_: Request, digests: Digests) -> None:
    none = replace(request_, quantity=Attention(()))
    assert key(none.identity(digests)) == key(request_.identity(digests))
    alone = [replace(request_, encoder=None, quantity=Attention(hidden)) for hidden in ((), (1,))]
    assert key(alone[0].identity(digests)) == key(alone[1].identity(digests))


def test_the_key_of_a_treebank_is_what_it_was(tmp_path: Path) -> None:
    """Stores that lie about stay valid, until FORMAT rises."""
    identity = {"format": 3, "corpus_sha256": "c", "reader": {"name": "r"}, "encoder": None}
    corpus = tmp_path / "corpus"
    corpus.write_text("c")
    found = Request(corpus, unread, {"name": "r"}, None, Options()).identity(Digests(tmp_path))
    assert found == identity | {"corpus_sha256": found["corpus_sha256"]}
    assert key(identity) == "0bfdc3df3a4e11315a30858c"
