import errno
import hashlib
import itertools
import json
import math
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import AutoModel

from attention_probing.attention.specification import Options, Precision
from attention_probing.attention.store import (
    MANIFEST,
    HiddenLayers,
    Manifest,
    Part,
    Store,
    find_part,
    pack_weights,
    seal_part,
    unpack_weights,
    write_shard,
)
from attention_probing.metrics.heads import most_attended
from attention_probing.results.digests import Digests, digest
from attention_probing.results.errors import UserError
from tests import tiny
from tests.attention.extractions import LENGTHS, Extraction

PRECISIONS: tuple[Precision, ...] = ("float16", "float32")


@pytest.fixture
def digests(tmp_path: Path) -> Digests:
    return Digests(tmp_path / "index")


def test_a_manifest_comes_back_as_it_was_from_json_in_a_fixed_order(extraction: Extraction) -> None:
    plain = extraction.prepare().manifest
    for manifest in (plain, replace(plain, hidden=HiddenLayers((0, 2), 384))):
        content = manifest.dump()
        assert Manifest.load(content) == manifest
        assert replace(manifest, audit=dict(reversed([*manifest.audit.items()]))).dump() == content
        body = json.loads(content)
        assert list(body) == sorted(body)
        assert body["shards"][1] == vars(manifest.shards[1])
        assert body["hidden"] == {"layers": list(manifest.hidden.layers), "size": manifest.hidden.size}
    for damaged in (b"[]", b"\xff" + content, content.replace(b'"digest": "', b'"digest": "0')):
        with pytest.raises(ValueError, match=r"digest|decode|fields"):
            Manifest.load(damaged)


@pytest.mark.parametrize("name", ["../../thesis.tex", "/etc/x", "labels-1.parquet/..", "manifest.json"])
def test_a_manifest_that_names_other_files_is_rebuilt_and_they_are_not_touched(
    name: str, extraction: Extraction, digests: Digests, caplog: pytest.LogCaptureFixture
) -> None:
    manifest, path = extraction.prepare().manifest, extraction.folder / MANIFEST
    (outside := extraction.folder.parents[1] / "thesis.tex").write_text("years of work")
    for forged in (
        replace(manifest, labels=replace(manifest.labels, file=name)),
        replace(manifest, shards=(Part(name, 10, "1" * 64),)),
    ):
        path.write_bytes(forged.dump())
        assert Store.open(extraction.folder, digests) is None
        message = f"{path}: damaged or truncated (it lists {name!r}, which cannot be a file of a store)"
        assert caplog.records[-1].getMessage().startswith(message)
    assert outside.read_text() == "years of work"


def write_part(folder: Path, content: bytes) -> None:
    (folder / "partial").write_bytes(content)
    seal_part(folder / "partial", digest(content), "00000", ".safetensors", Digests(folder / "index"))


def test_the_undamaged_one_of_two_is_found(tmp_path: Path, digests: Digests, caplog: pytest.LogCaptureFixture) -> None:
    damaged = tmp_path / "00000-0000000000000000.safetensors"  # sorts before the sound one
    damaged.write_bytes(b"damaged")
    write_part(tmp_path, b"content")
    found = find_part(tmp_path, "00000", digests)
    assert found is not None
    assert found.sha256 == digest(b"content")
    assert not damaged.exists()
    assert [record.getMessage() for record in caplog.records] == [f"{damaged}: damaged or truncated; it is rebuilt"]


def test_a_part_that_vanishes_while_it_is_looked_at_is_missing(
    tmp_path: Path, digests: Digests, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_part(tmp_path, b"content")

    def vanish(self: Digests, path: Path) -> str:
        path.unlink()
        raise FileNotFoundError(path)

    monkeypatch.setattr(Digests, "of_file", vanish)
    assert find_part(tmp_path, "00000", digests) is None
    assert caplog.records == []


SHAPES = {"attention.0": (1, 1, 3, 3), "attention.10": (2, 3, 1, 5), "attention.2": (1, 1, 1, 1), "attention.1": (7,)}
"""Odd numbers of cells, so that in half precision no tensor but the first begins at a multiple of four bytes."""


def drawn(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        yield name, torch.randn(shape[::-1], generator=generator).to(dtype).permute(*reversed(range(len(shape))))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_what_is_written_is_what_safetensors_reads(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "shard.safetensors"
    sha = write_shard(path, SHAPES, dtype, drawn(SHAPES, dtype))
    assert sha == hashlib.sha256(path.read_bytes()).hexdigest()
    found, expected = load_file(path), {name: tensor.contiguous() for name, tensor in drawn(SHAPES, dtype)}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert path.stat().st_size == len(save(expected))


def test_tensors_begin_at_a_multiple_of_eight_bytes(tmp_path: Path) -> None:
    for count in range(1, 9):
        shapes = {"attention.0": (1, 1, 3, 3), "x" * count: (1,)}
        write_shard(tmp_path / "shard", shapes, torch.float32, drawn(shapes, torch.float32))
        content = (tmp_path / "shard").read_bytes()
        length = int.from_bytes(content[:8], "little")
        assert length % 8 == 0
        assert json.loads(content[8 : 8 + length])["x" * count]["data_offsets"] == [36, 40]


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ([("y", torch.zeros(2)), ("x", torch.zeros(1))], r"tensor y has shape \(2,\) .*; expected x with shape \(1,\)"),
        ([("x", torch.zeros(1).half())], r"tensor x has .* type torch\.float16; .* type torch\.float32"),
        ([("x", torch.zeros(1)), ("y", torch.zeros(2)), ("z", torch.zeros(1))], "shorter"),
        ([("x", torch.zeros(1))], "longer"),
    ],
    ids=["order", "type", "too many", "too few"],
)
def test_other_tensors_than_announced_are_refused(
    tensors: list[tuple[str, Tensor]], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=named):
        write_shard(tmp_path / "shard", {"x": (1,), "y": (2,)}, torch.float32, tensors)


@pytest.mark.parametrize("quantity", ["attention", "hidden"])
@pytest.mark.parametrize("lowest", [0, 1])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_batch_holds_its_items_and_zeros_without_a_sign(
    precision: Precision, lowest: int, quantity: str, bert: Path, tmp_path: Path
) -> None:
    store = Extraction(tmp_path, bert, options=Options(precision=precision), hidden=(0, 2)).prepare()
    items = [5, 0, 3, 5]
    read = [store.read(quantity, item)[lowest:] for item in items]
    largest = [max(sizes) for sizes in zip(*(one.shape for one in read), strict=True)]
    for _ in range(2):  # the views that a second reading finds are those of the file
        batch = torch.zeros(len(items), *largest, dtype=read[0].dtype)
        store.read_batch(quantity, items, batch, lowest)
        expected = torch.zeros_like(batch)
        for row, one in enumerate(read):
            for place in itertools.product(*map(range, one.shape)):
                expected[(row, *place)] = one[place]
        assert torch.equal(batch, expected)
        if quantity == "attention":
            assert not batch.signbit().any()
            store.read(quantity, 5).zero_()  # a copy


def test_a_quantity_that_is_not_kept_is_refused_with_those_that_are(bert: Path, tmp_path: Path) -> None:
    store = Extraction(tmp_path, bert).prepare()
    with pytest.raises(UserError, match=r"no 'hidden'; it has attention\."):
        store.read("hidden", 0)


def as_half(weight: float) -> float:
    """What becomes of a weight, in steps of eleven bits, and of 2⁻⁶⁸ at the bottom."""
    if weight == 0:
        return 0.0
    step = 2.0 ** max(math.frexp(weight)[1] - 11, -68)
    return round(weight / step) * step


def test_half_precision_keeps_eleven_bits_of_small_weights() -> None:
    edges = [0.0, 1.0, *(2.0**-k * near for k in range(70) for near in (1 - 2.0**-12, 1, 1 + 2.0**-12, 1.5))]
    drawn = torch.rand(2000, generator=torch.Generator().manual_seed(0)).double() * 60
    weights = torch.cat([torch.tensor(edges).double().clamp(max=1), 2**-drawn]).float()
    found = unpack_weights(pack_weights(weights, torch.float16))
    assert found.dtype == torch.float32
    assert found.tolist() == [as_half(weight) for weight in weights.tolist()]
    assert (found == 0).any()
    assert not found.signbit().any()  # the order of their bits is that of the numbers
    assert torch.equal(unpack_weights(pack_weights(weights, torch.float32)), weights)


def test_a_sharp_head_chooses_as_in_single_precision(tmp_path: Path) -> None:
    folder = tiny.save_bert(tmp_path / "sharp")
    model = AutoModel.from_pretrained(folder)
    for layer in model.encoder.layer:
        layer.attention.self.query.weight.data *= 30
    model.save_pretrained(folder)
    half, single = (
        Extraction(tmp_path / precision, folder, options=Options(precision=precision)).prepare()
        for precision in PRECISIONS
    )
    tiny_rows = 0
    for item, length in enumerate(LENGTHS):
        lengths = torch.tensor([length])
        chosen, exact = (most_attended(store.read("attention", item)[None], lengths)[0] for store in (half, single))
        weights = single.read("attention", item)
        for word, direction, layer, head in itertools.product(range(length), (0, 1), (0, 1), range(4)):
            row = weights[layer, head, word + 1] if direction == 0 else weights[layer, head, :, word + 1]
            best, taken = (int(found[word, direction, layer, head]) for found in (exact, chosen))
            if length > 1 and row[best] > 2**-58:
                assert taken > 0
                assert row[taken] > row[best] * (1 - 2**-10)
                tiny_rows += int(row[best] < 2e-8)
    assert tiny_rows > 20


def change(manifest: Manifest, **fields: object) -> bytes:
    """A manifest with other fields, under a digest that matches; None takes a field away."""
    body = json.loads(manifest.dump())
    del body["digest"]
    body = {name: value for name, value in {**body, **fields}.items() if value is not None}
    return json.dumps({**body, "digest": digest(json.dumps(body, sort_keys=True).encode())}).encode()


FORGED: dict[str, tuple[Callable[[Manifest], bytes], str]] = {
    "deep": (lambda _: b"[" * 200_000, "recursion"),
    "another identity": (lambda one: change(one, identity={}), "its key does not match its `identity`"),
    "no items": (lambda one: change(one, items=None), "'items'"),
    "an unknown field": (lambda one: change(one, x=1), "'x'"),
    "names for shards": (lambda one: change(one, shards=["00000-1.safetensors"]), "must be a mapping"),
}


@pytest.mark.parametrize(("forge", "wrong"), FORGED.values(), ids=FORGED)
def test_a_forged_manifest_with_a_right_digest_is_set_aside_and_rebuilt(
    forge: Callable[[Manifest], bytes], wrong: str, extraction: Extraction, caplog: pytest.LogCaptureFixture
) -> None:
    extraction.prepare()
    before, path = extraction.files(), extraction.folder / MANIFEST
    path.write_bytes(forge(Manifest.load(before[MANIFEST])))
    extraction.prepare()
    assert extraction.files() == before
    aside, record = (record.getMessage() for record in caplog.records)
    assert aside.startswith(f"What was there is now {path}.old-")
    assert record.startswith(f"{path}: damaged or truncated (")
    assert wrong in record


def test_a_damaged_link_is_removed_and_its_target_is_not(
    extraction: Extraction, digests: Digests, tmp_path: Path
) -> None:
    extraction.prepare()
    outside = tmp_path / "outside"
    outside.write_bytes(b"years of work")
    for path in (extraction.file("00001"), extraction.folder / MANIFEST):
        path.unlink()
        path.symlink_to(outside)
    assert Store.open(extraction.folder, digests) is None
    extraction.prepare()
    assert outside.read_bytes() == b"years of work"
    assert not extraction.file("00001").is_symlink()


def test_the_files_of_another_store_are_not_taken_for_this_ones(
    extraction: Extraction, bert: Path, tmp_path: Path
) -> None:
    extraction.prepare()
    other = Extraction(tmp_path / "other", bert, lengths=(3, 2)).prepare()
    shutil.copytree(other.folder, extraction.folder, dirs_exist_ok=True)
    files = extraction.files()
    with pytest.raises(UserError, match=rf"holds the files of another store. Move them to .* {other.folder.name}\.$"):
        extraction.prepare()
    assert extraction.files() == files, "nothing is lost"


def test_a_file_of_the_user_in_a_store_is_not_deleted(extraction: Extraction) -> None:
    extraction.folder.mkdir(parents=True)
    for name in (MANIFEST, "labels-mine.parquet", "00000-mine.safetensors"):
        (extraction.folder / name).write_bytes(b"years of work")
    extraction.prepare()
    assert [path.read_bytes() for path in extraction.folder.iterdir()].count(b"years of work") == 3


@pytest.mark.parametrize("kind", ["folder", "pipe"])
@pytest.mark.parametrize("stem", ["00001", "labels", "manifest"])
def test_what_is_no_file_in_the_place_of_one_is_an_error_with_a_remedy(
    stem: str, kind: str, extraction: Extraction, digests: Digests
) -> None:
    extraction.prepare()
    path = extraction.file(stem)
    path.unlink()
    if kind == "folder":
        (path / "mine").mkdir(parents=True)
    else:
        os.mkfifo(path)
    fault = "it is a folder, not a file" if kind == "folder" else "it is a pipe, not a regular file"
    with pytest.raises(UserError, match=rf"^{path}: this file of a store cannot be read \({fault}\)\. Move away"):
        Store.open(extraction.folder, digests)
    assert path.exists()


@pytest.mark.parametrize("stem", ["00001", "labels", "manifest"])
def test_damage_in_a_store_that_cannot_be_written_is_an_error_with_a_remedy(
    stem: str, extraction: Extraction, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    extraction.prepare()
    path = extraction.file(stem)
    path.write_bytes(path.read_bytes()[:-1])

    def refuse(path: Path, *_: object, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "rename" if stem == "manifest" else "unlink", refuse)
    with pytest.raises(
        UserError, match=r"cannot be removed \(Read-only file system\)\. Make its folder writable, or put"
    ) as error:
        extraction.prepare()
    assert str(error.value).startswith(f"{path}: ")


def test_a_store_goes_to_a_worker(extraction: Extraction) -> None:
    store = extraction.prepare()
    before = store.read("attention", 4)  # a shard is open already
    sent = pickle.loads(pickle.dumps(store))
    assert torch.equal(sent.read("attention", 4), before)
    assert sent.labels == store.labels
    assert sent.manifest == store.manifest
