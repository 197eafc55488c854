"""A safetensors file that is computed in place, through a memory map: no second copy, and no anonymous memory.

The format (https://github.com/huggingface/safetensors#format): the length of the header as eight bytes, a JSON header
of name → type, shape and place, and the tensors one behind the other. The library only writes tensors that are already
complete in memory, of which a shard would need two copies beside the one that is being written.
"""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

_ALIGNMENT = 8
_CHUNK = 1 << 20
_TYPES = {torch.float16: "F16", torch.float32: "F32"}


def allocate(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, Tensor]:
    """Make a file with a tensor of zeros for every name; what is written into the tensors is written into the file.

    The zeros are written beforehand, because a map that runs out of disk ends the process.

    Raises:
        OSError: the disk cannot hold it.
    """
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": _TYPES[dtype], "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    first = 8 + len(text)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for written in range(0, end, _CHUNK):
            file.write(bytes(min(_CHUNK, end - written)))
    flat = torch.from_file(str(path), shared=True, size=(first + end) // dtype.itemsize, dtype=dtype)
    places = torch.split(flat[first // dtype.itemsize :], [prod(shape) for shape in shapes.values()])
    return {name: place.view(shape) for (name, shape), place in zip(shapes.items(), places, strict=True)}
