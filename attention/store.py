"""The store on disk: safetensors shards, one Parquet file of labels, and a manifest with their checksums.

Every file but the manifest carries the beginning of its own SHA-256 in its name, so that an interrupted run can tell
its finished shards from damaged ones without a manifest. Reading maps the shards into memory; nothing is copied.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from types import EllipsisType
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import hardshrink, leaky_relu_

from results.digests import Digests, digest
from results.errors import UserError, near
from results.files import commit

FORMAT = 5
"""Part of every store's key: raise it when the layout on disk, or what its numbers mean, changes."""
MANIFEST = "manifest.json"
_NAMED = 16  # hexadecimal digits of its digest in a file's name
_ALIGNMENT = 8
_TYPES = {torch.float16: "F16", torch.float32: "F32"}
_PART = re.compile(r"(labels-[0-9a-f]+\.parquet|[0-9]+-[0-9a-f]+\.safetensors)")

_SCALE, _SMALL, _RAISE = 2.0**15, 2.0**-29, 2.0**29

Index: TypeAlias = EllipsisType | tuple[EllipsisType | slice | int, ...]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """One file of a store, by name, length and SHA-256."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class HiddenLayers:
    """The layers whose hidden states a store keeps, 0 for the embeddings, and their size; 0 where none are kept."""

    layers: tuple[int, ...] = ()
    size: int = 0


NO_HIDDEN = HiddenLayers()


@dataclass(frozen=True)
class Manifest:
    """Contents of a store, with no time and place: on one device equal inputs give equal manifests.

    Attributes:
        key: name of the folder, a hash of `identity`.
        identity: everything the key is made from.
        encoder: what is known of the encoder, in words; empty without one.
        layers, heads: 0-based; the heads of each layer.
        delimiters: whether the tokenizer writes a start and an end delimiter; rows and columns are zero without.
        audit: counts of what was dropped, cut or replaced on the way.
        labels: the Parquet file with one row per item.
        shards: in order; their headers say which items they hold.
        hidden: the hidden states beside the attention.
    """

    key: str
    identity: Mapping[str, object]
    encoder: Mapping[str, object]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    delimiters: Mapping[str, bool]
    items: int
    audit: Mapping[str, int]
    labels: Part
    shards: tuple[Part, ...]
    hidden: HiddenLayers

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the quantities."""
        options = self.identity.get("options")
        return torch.float32 if isinstance(options, dict) and options["precision"] == "float32" else torch.float16

    @property
    def quantities(self) -> tuple[str, ...]:
        """Names of what is kept of each item, for `Store.read`; none without an encoder."""
        held = self.identity.get("quantities", ())
        assert isinstance(held, Iterable)
        return tuple(held)

    def dump(self) -> bytes:
        """Return the manifest as JSON, with a digest of itself."""
        body = asdict(self)
        return json.dumps(body | {"digest": _own(body)}, indent=1, sort_keys=True).encode()

    @classmethod
    def load(cls, content: bytes) -> "Manifest":
        """Read what `dump` wrote; a ValueError if it was cut short or changed, or names a file outside the folder."""
        body = json.loads(content)
        if not isinstance(body, dict) or body.pop("digest", None) != _own(body):
            raise ValueError("its digest does not match its content")
        labels, *shards = (Part(**part) for part in (body["labels"], *body["shards"]))
        for part in (labels, *shards):
            if _PART.fullmatch(part.file) is None:
                raise ValueError(f"it names {part.file!r}, which is no file of a store")
        hidden = HiddenLayers(tuple(body["hidden"]["layers"]), body["hidden"]["size"])
        axes = {name: tuple(body[name]) for name in ("layers", "heads")}
        return cls(**body | axes | {"labels": labels, "shards": tuple(shards), "hidden": hidden})


def store_key(identity: Mapping[str, object]) -> str:
    """Return the name of the folder of a store."""
    return digest(json.dumps(identity, sort_keys=True).encode())[:24]


def _own(body: Mapping[str, object]) -> str:
    return digest(json.dumps(body, sort_keys=True).encode())


def seal_part(partial: Path, sha256: str, stem: str, suffix: str, digests: Digests) -> None:
    """Give a finished file its name, with the beginning of its digest in it; see `results.files.commit`."""
    digests.remember(commit(partial, partial.with_name(f"{stem}-{sha256[:_NAMED]}{suffix}")), sha256)


def find_part(folder: Path, stem: str, suffix: str, digests: Digests) -> Part | None:
    """Return the undamaged file of that stem; log and delete damaged ones (a UserError if that is impossible)."""
    for path in sorted(folder.glob(f"{stem}-*{suffix}")):
        try:
            part = Part(path.name, path.stat().st_size, digests.one(path))
        except FileNotFoundError:
            continue  # another process saw the damage and was quicker
        if path.stem == f"{stem}-{part.sha256[:_NAMED]}":
            return part
        _remove(path)
        log.warning("%s: damaged or truncated; it is rebuilt", path)
    return None


class Store:
    """Read access to a complete store, with `labels`, a row per item; safe to share with forked or spawned workers."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.labels: pa.Table = pq.read_table(folder / manifest.labels.file)
        self._open: dict[str, safe_open] = {}  # the shard of every tensor
        self._views: dict[str, Tensor] = {}

    @classmethod
    def open(cls, folder: Path, digests: Digests) -> "Store | None":
        """Open the store in `folder`; return None, with the reason in the log, unless it is whole and undamaged.

        What is damaged is deleted, and so are the files of another store that was copied over this one; a UserError
        says where it cannot be.
        """
        path = folder / MANIFEST
        try:
            manifest = Manifest.load(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            _rebuilt(path, error)
            return None
        if manifest.key != folder.name:
            for name in (MANIFEST, manifest.labels.file, *(part.file for part in manifest.shards)):
                _remove(folder / name)
            log.warning(
                "%s: holds the files of another store, %s; they are removed, and it is rebuilt", folder, manifest.key
            )
            return None
        whole = True
        for part in (manifest.labels, *manifest.shards):
            if not _sound(path := folder / part.file, part, digests):
                _remove(path)  # at once, before another process has it rebuilt
                log.warning("%s: missing, damaged or truncated; it is rebuilt", path)
                whole = False
        return cls(folder, manifest) if whole else None

    def __len__(self) -> int:
        return self.manifest.items

    @property
    def _tensors(self) -> Mapping[str, Any]:
        """The shard of every tensor, by its name."""
        if not self._open:
            for part in self.manifest.shards:
                shard = safe_open(self.folder / part.file, "pt")
                self._open |= dict.fromkeys(shard.keys(), shard)  # type: ignore[no-untyped-call]
        return self._open

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_open": {}, "_views": {}}

    def read(self, quantity: str, item: int, at: Index = ...) -> Tensor:
        """Return a quantity of an item, or the part of it that `at` indexes.

        Weights come in float32, a copy. Hidden states, which have no bound, are kept as they are and come as a view of
        the mapped file, in the precision of the store.

        For an item of n words `attention` is `[layers, heads, n+2, n+2]`, axes from and to, and `hidden` is
        `[layers, n, size]`, where `manifest.hidden` says which layers and what size. For one with U different
        head words of mentions `antecedent` is `[layers, heads, U, U]`, axes from and to, or, where all words are
        candidates, `[2, layers, heads, U, n]`: attention from the head words to all words, and to them from all.

        Raises:
            UserError: the store does not hold the quantity.
        """
        stored = self._view(quantity, item)[at]
        return stored if quantity == "hidden" else unpack_weights(stored)

    def read_batch(self, quantity: str, items: Sequence[int], batch: Tensor, lowest: int = 0) -> None:
        """Write items into the rows of a batch, each at the beginning of its axes; weights in float32.

        Args:
            quantity: as for `read`.
            items: positions of the items, one for each row.
            batch: `[items, layers, …]`, as large as the largest item; zeros where an item is smaller.
            lowest: place of the first layer that is read.
        """
        for row, item in zip(batch, items, strict=True):
            stored = self._view(quantity, item)[lowest:]
            # Most batches are of one length. Indexing takes as long as copying a short sentence.
            place = row if row.shape == stored.shape else row[tuple(map(slice, stored.shape))]
            place.copy_(stored)
        if quantity != "hidden" and self.manifest.dtype == torch.float16:
            unpack_half_(batch)  # all rows at once, so that PyTorch divides them among its threads

    def _view(self, quantity: str, item: int) -> Tensor:
        """Return a view of the mapped file; views are kept: making one takes longer than copying from it."""
        name = tensor_name(quantity, item)
        view = self._views.get(name)
        if view is None:
            if name not in self._tensors and quantity not in self.manifest.quantities:
                held = ", ".join(self.manifest.quantities) or "labels alone"
                raise UserError(f"{quantity!r}: the store holds {held}{near(quantity, self.manifest.quantities)}.")
            shard = self._tensors[name]
            # All of a shard at once: views that are made between batches keep the memory of the batches from reuse.
            self._views |= {other: shard.get_tensor(other) for other in shard.keys()}  # noqa: SIM118 - not a dict
            view = self._views[name]
        return view


def write_shard(
    path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, tensors: Iterable[tuple[str, Tensor]]
) -> str:
    """Write tensors of these names and shapes, which must come in this order, as they come; return the file's SHA-256.

    The safetensors library only writes tensors that are all in memory. The format
    (https://github.com/huggingface/safetensors#format) is the length of the header as eight bytes, a JSON header of
    name → type, shape and place, and the tensors one behind the other.

    Raises:
        OSError: the disk cannot hold it.
        ValueError: a tensor that is not the next one, by name, shape or type, or one that never came.
    """
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": _TYPES[dtype], "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    sha = hashlib.sha256()
    with path.open("wb") as file:
        for piece in (len(text).to_bytes(8, "little"), text):
            file.write(piece)
            sha.update(piece)
        expected = iter(shapes.items())
        for name, tensor in tensors:
            wanted = next(expected, None)
            if wanted != (name, tuple(tensor.shape)) or tensor.dtype != dtype:
                raise ValueError(f"{name} {tuple(tensor.shape)} of {tensor.dtype} came where {wanted} was to come.")
            content = tensor.contiguous().numpy().data.cast("B")
            file.write(content)
            sha.update(content)
        if (missing := next(expected, None)) is not None:
            raise ValueError(f"{missing[0]} never came.")
    return sha.hexdigest()


def pack_weights(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Pack weights of attention, float32 from zero to one, as a store of this precision keeps them.

    Half precision keeps eleven bits of numbers between 6.1e-5 and 65,504, and nothing of those below 3e-8, but a sharp
    head gives other words less than that. It also has a sign, which weights do not need. A weight w is kept as 2¹⁵w or,
    if it is at most 2⁻²⁹, as −2⁴⁴w: eleven bits of weights from 2⁻⁵⁸ (3.5e-18) on, fewer of those from 2⁻⁶⁸ on. Powers
    of two lose nothing. Single precision keeps weights as they are.
    """
    if dtype != torch.float16:
        return weights
    large = hardshrink(weights, _SMALL)  # zero up to _SMALL
    small = weights - large
    return large.mul_(_SCALE).sub_(small, alpha=_SCALE * _RAISE).half()


def unpack_weights(stored: Tensor) -> Tensor:
    """Return a float32 copy of packed weights; no zero has a sign."""
    return stored.clone() if stored.dtype != torch.float16 else unpack_half_(stored.float())


def unpack_half_(weights: Tensor) -> Tensor:
    """Unpack, in place, float32 copies of what `pack_weights` has made in half precision."""
    leaky_relu_(weights, -1 / _RAISE)
    # Zeros are negative now; scaled by adding to zero, which costs no more than `mul_`, they are positive.
    return torch.add(torch.zeros(()), weights, alpha=1 / _SCALE, out=weights)


def tensor_name(quantity: str, item: int) -> str:
    """Return the name of a tensor in its shard."""
    return f"{quantity}.{item}"


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"{path}: damaged, or not this store's, and it cannot be removed: {error.strerror}. Make its folder "
            f"writable, or put the stores elsewhere (--data.init_args.cache)."
        ) from error


def _rebuilt(path: Path, why: ValueError) -> None:
    _remove(path)
    log.warning("%s: damaged or truncated (%s); it is rebuilt", path, why)


def _sound(path: Path, part: Part, digests: Digests) -> bool:
    try:
        return path.stat().st_size == part.bytes and digests.one(path) == part.sha256
    except FileNotFoundError:
        return False
