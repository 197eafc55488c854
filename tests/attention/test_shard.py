import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from attention.shard import write_shard

SHAPES = {"attention.0": (1, 1, 3, 3), "attention.10": (2, 3, 1, 5), "attention.2": (1, 1, 1, 1), "attention.1": (7,)}
"""Odd numbers of cells, so that in half precision no tensor but the first begins at a multiple of four bytes."""


def drawn(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        yield name, torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_what_is_written_is_what_safetensors_reads(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "shard.safetensors"
    sha = write_shard(path, SHAPES, dtype, drawn(SHAPES, dtype))
    assert sha == hashlib.sha256(path.read_bytes()).hexdigest()
    found, expected = load_file(path), dict(drawn(SHAPES, dtype))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("attention.10"), expected["attention.10"])


def test_views_are_written_as_what_they_show(tmp_path: Path) -> None:
    whole = torch.arange(24.0).view(2, 3, 4)
    views = {"x": whole[1].T, "y": whole[0, :, 1:3]}
    write_shard(tmp_path / "shard", {"x": (4, 3), "y": (3, 2)}, torch.float32, views.items())
    found = load_file(tmp_path / "shard")
    assert all(torch.equal(found[name], view) for name, view in views.items())


def test_the_file_is_as_large_as_the_librarys_own(tmp_path: Path) -> None:
    write_shard(tmp_path / "shard", SHAPES, torch.float16, drawn(SHAPES, torch.float16))
    written = save({name: torch.zeros(shape, dtype=torch.float16) for name, shape in SHAPES.items()})
    assert (tmp_path / "shard").stat().st_size == len(written)


def test_tensors_begin_at_a_multiple_of_eight_bytes(tmp_path: Path) -> None:
    for count in range(1, 9):
        shapes = {"attention.0": (1, 1, 3, 3), "x" * count: (1,)}
        write_shard(tmp_path / "shard", shapes, torch.float32, drawn(shapes, torch.float32))
        content = (tmp_path / "shard").read_bytes()
        length = int.from_bytes(content[:8], "little")
        assert length % 8 == 0
        assert json.loads(content[8 : 8 + length])["x" * count]["data_offsets"] == [36, 40]


def test_a_disk_that_is_full_is_an_error(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "shard").symlink_to(full)
    with pytest.raises(OSError, match="No space left on device"):
        write_shard(tmp_path / "shard", SHAPES, torch.float32, drawn(SHAPES, torch.float32))


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ([("y", torch.zeros(2)), ("x", torch.zeros(1))], r"y \(2,\) .*came where \('x', \(1,\)\) was to come"),
        ([("x", torch.zeros(2))], r"x \(2,\) .*came where"),
        ([("x", torch.zeros(1).half())], r"x \(1,\) of torch.float16 came where"),
        ([("x", torch.zeros(1)), ("y", torch.zeros(2)), ("z", torch.zeros(1))], "z .*came where None"),
        ([("x", torch.zeros(1))], "y never came"),
    ],
    ids=["order", "shape", "type", "too many", "too few"],
)
def test_other_tensors_than_announced_are_refused(
    tensors: list[tuple[str, Tensor]], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=named):
        write_shard(tmp_path / "shard", {"x": (1,), "y": (2,)}, torch.float32, tensors)
