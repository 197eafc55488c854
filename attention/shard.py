"""A safetensors file that is written while it is computed, one tensor behind the other.

The format (https://github.com/huggingface/safetensors#format): the length of the header as eight bytes, a JSON header
of name → type, shape and place, and the tensors one behind the other. The library only writes tensors that are all
complete in memory; a shard need never be there whole.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

_ALIGNMENT = 8
_TYPES = {torch.float16: "F16", torch.float32: "F32"}


def write_shard(
    path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, tensors: Iterable[tuple[str, Tensor]]
) -> str:
    """Write the tensors of those names and shapes, which must come in that order; return the file's SHA-256.

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
