"""The store of attention on disk: safetensors shards, a Parquet file of labels, and a manifest with their checksums.

The name of every file but the manifest contains the beginning of its SHA-256, so that an interrupted run recognises its
finished shards without a manifest. Reading maps the shards into memory, without a copy.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import hardshrink, leaky_relu_

from attention_probing.results.digests import Digests, digest
from attention_probing.results.errors import UserError, setting
from attention_probing.results.files import check_regular, commit, set_aside

STORE_FORMAT = 5
"""Part of every store's key: raise it when the layout on disk or the meaning of its numbers changes."""
MANIFEST = "manifest.json"
LABELS = "labels"
_DIGITS = 16  # hexadecimal digits of the SHA-256 in a file's name
_ALIGNMENT = 8
_TYPES = {torch.float16: "F16", torch.float32: "F32"}
_PART = re.compile(r"(labels-[0-9a-f]+\.parquet|[0-9]+-[0-9a-f]+\.safetensors)")

# See `pack_weights`.
_SCALE = 2.0**15
_SMALL = 2.0**-29
_RAISE = 2.0**29

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """One file of a store.

    Attributes:
        file: Name of the file in the folder of the store.
        bytes: Size in bytes.
        sha256: SHA-256, in hexadecimal.
    """

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class HiddenLayers:
    """Hidden states that a store holds.

    Attributes:
        layers: Layers in ascending order, 0 for the embeddings and k for the output of layer k.
        size: Size of a hidden state; 0 if there are none.
    """

    layers: tuple[int, ...] = ()
    size: int = 0


NO_HIDDEN = HiddenLayers()


@dataclass(frozen=True)
class Manifest:
    """List of the contents of a store: extraction settings, layers, heads, and files with hashes.

    It holds no time and no location, so equal inputs on one device give equal manifests.

    Attributes:
        key: Name of the folder, a hash of `identity`.
        identity: Values that the key is a hash of, from `Extraction.identity`.
        encoder: Description of the encoder; empty without an encoder.
        layers: Stored layers, 0-based.
        heads: Stored heads of each layer, 0-based.
        delimiters: For `start` and for `end`, True if the tokenizer writes this delimiter. If not, the
            rows and columns of the delimiter are stored as 0.
        items: Number of items.
        audit: Counts of what was found, dropped, cut or replaced in the corpus.
        labels: The Parquet file with one row per item.
        shards: The files of tensors, in order.
        hidden: Layers and size of the hidden states stored beside the attention.
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
        """Type of the stored tensors."""
        options = self.identity.get("options")
        if isinstance(options, dict) and options["precision"] == "float32":
            return torch.float32
        return torch.float16

    @property
    def quantity(self) -> str:
        """Name of what is measured between two words, such as `attention` or `norms`."""
        return str(self.identity.get("quantity", "attention"))

    @property
    def maps_name(self) -> str:
        """Name of the tensors with the maps between words: the quantity, or `antecedent` in stores of coreference."""
        [name] = [name for name in self.quantities if name != "hidden"]
        return name

    @property
    def quantities(self) -> tuple[str, ...]:
        """Names of the quantities that the store holds, such as `attention` and `hidden`; none without an encoder."""
        quantities = self.identity.get("quantities", ())
        assert isinstance(quantities, Iterable)
        return tuple(quantities)

    def dump(self) -> bytes:
        """Return the manifest as JSON with its own SHA-256, which `load` checks."""
        body = asdict(self)
        body["digest"] = _digest_of(body)
        return json.dumps(body, indent=1, sort_keys=True).encode()

    @classmethod
    def load(cls, content: bytes) -> "Manifest":
        """Return the manifest from the output of `dump`.

        Raises:
            ValueError: The content was cut short or changed, has other fields, or names a file that no store has.
        """
        try:
            fields = json.loads(content)
            if fields.pop("digest", None) != _digest_of(fields):
                raise ValueError("its digest does not match its content")
            fields["layers"] = tuple(fields["layers"])
            fields["heads"] = tuple(fields["heads"])
            fields["hidden"] = HiddenLayers(tuple(fields["hidden"]["layers"]), fields["hidden"]["size"])
            fields["labels"] = Part(**fields["labels"])
            fields["shards"] = tuple(Part(**shard) for shard in fields["shards"])
            manifest = cls(**fields)
            for part in (manifest.labels, *manifest.shards):
                if _PART.fullmatch(part.file) is None:  # a path would lead out of the folder
                    raise ValueError(f"it lists {part.file!r}, which cannot be a file of a store")
        except (AttributeError, KeyError, RecursionError, TypeError) as error:
            raise ValueError(f"its fields are not those of a manifest: {error}") from None
        if store_key(manifest.identity) != manifest.key:
            raise ValueError("its key does not match its `identity`")
        return manifest


def store_key(identity: Mapping[str, object]) -> str:
    """Return the key of a store, which is also the name of its folder: a hash of `Extraction.identity`."""
    return digest(json.dumps(identity, sort_keys=True).encode())[:24]


def _digest_of(body: Mapping[str, object]) -> str:
    return digest(json.dumps(body, sort_keys=True).encode())


def seal_part(partial: Path, sha256: str, stem: str, suffix: str, digests: Digests) -> None:
    """Rename a finished file of a store to its final name, `<stem>-<beginning of its SHA-256><suffix>`.

    The file is flushed to disk first. If flushing or renaming fails, the file is deleted.

    Args:
        partial: The finished file.
        sha256: Its SHA-256, in hexadecimal.
        stem: Beginning of the new name.
        suffix: End of the new name.
        digests: Cache of the SHA-256 of files, to which this file is added.
    """
    path = commit(partial, partial.with_name(f"{stem}-{sha256[:_DIGITS]}{suffix}"))
    digests.remember(path, sha256)


def find_part(folder: Path, stem: str, digests: Digests) -> Part | None:
    """Find an undamaged file of a store by its name; return None if there is none.

    The name is `<stem>-<beginning of its SHA-256>` with a suffix. A file whose SHA-256 differs from its name is
    damaged: it is deleted at once, before another process rebuilds it, with a warning in the log.

    Args:
        folder: Folder of the store.
        stem: Beginning of the name.
        digests: Cache of the SHA-256 of files.

    Raises:
        UserError: A damaged file cannot be deleted, or something else than a file has its name.
    """
    for path in sorted(folder.glob(f"{stem}-*")):
        if _PART.fullmatch(path.name) is None:
            continue
        try:
            part = Part(path.name, path.stat().st_size, digests.of_file(path))
        except FileNotFoundError:
            continue  # another process has deleted the damaged file, or it is a link to nothing
        except OSError as error:
            raise _unreadable(path, error) from error
        if path.stem == f"{stem}-{part.sha256[:_DIGITS]}":
            return part
        _remove(path)
        log.warning("%s: damaged or truncated; it is rebuilt", path)
    return None


class Store:
    """A complete store of attention, opened for reading; `labels` is a table with one row per item.

    A store can be shared with forked or spawned workers.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.labels: pa.Table = pq.read_table(folder / manifest.labels.file)
        self._open: dict[str, safe_open] = {}  # shard by name of tensor
        self._views: dict[str, Tensor] = {}

    @classmethod
    def open(cls, folder: Path, digests: Digests) -> "Store | None":
        """Open the store in `folder`; return None if it is missing, incomplete or damaged.

        Damaged files are logged and deleted; a manifest that this program did not write is set aside.

        Args:
            folder: Folder of the store.
            digests: Cache of the SHA-256 of files.

        Raises:
            UserError: A file cannot be deleted or read, or the folder holds another store.
        """
        path = folder / MANIFEST
        try:
            manifest = Manifest.load(check_regular(path).read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
        except ValueError as error:
            _remove(path, aside=True)
            log.warning("%s: damaged or truncated (%s); it is rebuilt", path, error)
            return None
        if manifest.key != folder.name:
            raise UserError(f"{folder}: holds the files of another store. Move them to a folder named {manifest.key}.")
        complete = True
        for part in (manifest.labels, *manifest.shards):  # all of them, to name every damaged file
            stem = part.file.partition("-")[0]
            if find_part(folder, stem, digests) != part:
                complete = False
        return cls(folder, manifest) if complete else None

    def __len__(self) -> int:
        return self.manifest.items

    @property
    def device(self) -> torch.device:
        """Device of the batches that `read_batch` fills."""
        return torch.device("cpu")

    @property
    def _tensors(self) -> Mapping[str, Any]:
        """Shard by name of tensor."""
        if not self._open:
            for part in self.manifest.shards:
                shard = safe_open(self.folder / part.file, "pt")
                self._open |= dict.fromkeys(shard.keys(), shard)  # type: ignore[no-untyped-call]
        return self._open

    def __getstate__(self) -> dict[str, object]:
        state = dict(self.__dict__)
        state["_open"] = {}
        state["_views"] = {}
        return state

    def read(self, quantity: str, item: int) -> Tensor:
        """Return a quantity of an item of the store.

        Maps between words are returned as a float32 copy, hidden states as a view of the memory-mapped file in the
        precision of the store.

        - `attention`, or another quantity, of an item of n words is `[layers, heads, n+2, n+2]`, axes from and to;
          heads is 1 for a quantity with one map for each layer.
        - `hidden` is `[layers, n, size]`, for the layers of `manifest.hidden`.
        - `antecedent` of an item with U distinct head words of mentions is `[layers, heads, U, U]`, axes from and to.
          With all words as candidates it is `[2, layers, heads, U, n]`: from head words to all words, and to head
          words from all words.

        Raises:
            UserError: The store does not hold the quantity.
        """
        stored = self._view(quantity, item)
        return stored if quantity == "hidden" else unpack_weights(stored)

    def each(self, quantity: str, items: Iterable[int]) -> Iterator[tuple[int, Tensor]]:
        """Yield the index and a quantity of each item once, in any order; see `read`."""
        for item in items:
            yield item, self.read(quantity, item)

    def read_batch(self, quantity: str, items: Sequence[int], batch: Tensor, lowest: int = 0) -> None:
        """Copy a quantity of several items into a padded batch, one item for each row.

        The values of an item start at index 0 of every axis of its row. The rest of the row is padding and
        stays zero. Attention weights are unpacked to float32.

        Args:
            quantity: `manifest.maps_name` or `hidden`, as for `read`.
            items: Index of the item for each row.
            batch: Zeros `[items, …]`, with the axes of `read` after the first; float32 unless
                `hidden` is read. It receives the values. Every axis must be as long as that of the
                largest item.
            lowest: Except for coreference: index of the first stored layer to read; all later ones
                are read too.
        """
        for row, item in zip(batch, items, strict=True):
            stored = self._view(quantity, item)[lowest:]
            # Most batches have one length, and indexing takes as long as copying a short sentence.
            if row.shape != stored.shape:
                row = row[tuple(map(slice, stored.shape))]
            row.copy_(stored)
        if quantity != "hidden" and self.manifest.dtype == torch.float16:
            unpack_half_(batch)  # all rows at once, for PyTorch to divide among its threads

    def _view(self, quantity: str, item: int) -> Tensor:
        """Return a view of the mapped file; views are kept, because making one takes longer than copying from it."""
        name = tensor_name(quantity, item)
        view = self._views.get(name)
        if view is None:
            if name not in self._tensors and quantity not in self.manifest.quantities:
                quantities = ", ".join(self.manifest.quantities) or "labels alone"
                raise UserError(f"the store has no {quantity!r}; it has {quantities}.")
            shard = self._tensors[name]
            # All of a shard at once: views made between batches would fragment the memory of the batches.
            self._views |= {other: shard.get_tensor(other) for other in shard.keys()}  # noqa: SIM118 - not a dict
            view = self._views[name]
        return view


def write_shard(
    path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, tensors: Iterable[tuple[str, Tensor]]
) -> str:
    """Write tensors to a safetensors file one at a time, and return the SHA-256 of the file.

    The safetensors library only writes tensors that are all in memory. The format
    (https://github.com/huggingface/safetensors#format) is the length of the header as eight bytes, a JSON header of
    name → type, shape and offsets, and the tensors one behind the other.

    Args:
        path: The new file.
        shapes: Shape of each tensor by name, in the order of the file.
        dtype: Type of all tensors.
        tensors: (Name, tensor) pairs in the same order.

    Raises:
        OSError: The disk cannot hold the file.
        ValueError: A tensor has another name, shape or type than announced, or there are more or fewer tensors.
    """
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        start = end
        end += prod(shape) * dtype.itemsize
        header[name] = {"dtype": _TYPES[dtype], "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    sha = hashlib.sha256()
    with path.open("wb") as file:
        for piece in (len(text).to_bytes(8, "little"), text):
            file.write(piece)
            sha.update(piece)
        for (name, tensor), (next_name, shape) in zip(tensors, shapes.items(), strict=True):
            if name != next_name or tuple(tensor.shape) != shape or tensor.dtype != dtype:
                raise ValueError(
                    f"tensor {name} has shape {tuple(tensor.shape)} and type {tensor.dtype}; expected {next_name} with "
                    f"shape {shape} and type {dtype}"
                )
            content = tensor.contiguous().numpy().data.cast("B")
            file.write(content)
            sha.update(content)
    return sha.hexdigest()


def pack_weights(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Return attention weights in the format of a store with the precision `dtype`.

    Single precision stores weights unchanged. Half precision alone would lose small weights: it has
    eleven bits only from 6.1e-5 to 65,504, and rounds numbers below 3e-8 to zero, but a sharp head gives
    most words still smaller weights. Weights need no sign, so the sign bit extends the range. A weight w
    is stored as 2¹⁵w or, if it is at most 2⁻²⁹, as −2⁴⁴w. This keeps eleven bits above 2⁻⁵⁸ (3.5e-18),
    and fewer bits down to 2⁻⁶⁸. Scaling by powers of two is exact.

    Args:
        weights: Attention weights, float32 in [0, 1], of any shape.
        dtype: Precision of the store, float16 or float32.
    """
    if dtype != torch.float16:
        return weights
    large = hardshrink(weights, _SMALL)  # zero up to _SMALL
    small = weights - large
    return large.mul_(_SCALE).sub_(small, alpha=_SCALE * _RAISE).half()


def unpack_weights(stored: Tensor) -> Tensor:
    """Return, in float32, the attention weights that `pack_weights` packed; no zero has a negative sign."""
    if stored.dtype == torch.float16:
        return unpack_half_(stored.float())
    return stored.clone()


def unpack_half_(weights: Tensor) -> Tensor:
    """Restore, in place, attention weights that `pack_weights` has packed in half precision.

    Args:
        weights: Packed weights, converted to float32.
    """
    leaky_relu_(weights, -1 / _RAISE)
    # Zeros are negative now; scaling by an addition to zero makes them positive, and costs no more than `mul_`.
    return torch.add(weights.new_zeros(()), weights, alpha=1 / _SCALE, out=weights)


def tensor_name(quantity: str, item: int) -> str:
    """Return the name under which a shard holds a quantity of an item, `<quantity>.<item>`."""
    return f"{quantity}.{item}"


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path}: this file of a store cannot be read ({error.strerror}). Move away what is there, or put the stores "
        f"elsewhere ({setting('data.cache')})."
    )


def _remove(path: Path, *, aside: bool = False) -> None:
    try:
        if aside:
            set_aside(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"{path}: the file does not fit its store, but cannot be removed ({error.strerror}). Make "
            f"its folder writable, or put the stores elsewhere ({setting('data.cache')})."
        ) from error
