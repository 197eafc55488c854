import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from attention.shard import allocate

SHAPES = {"attention.0": (1, 1, 3, 3), "attention.1": (2, 3, 1, 5), "attention.10": (1, 1, 1, 1), "attention.2": (7,)}
"""Odd numbers of cells, so that in half precision no tensor but the first begins at a multiple of four bytes."""

each_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.float32])


@each_dtype
def test_what_is_written_into_the_tensors_is_what_safetensors_reads(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "shard.safetensors"
    tensors = allocate(path, SHAPES, dtype)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == SHAPES
    generator = torch.Generator().manual_seed(0)
    expected = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}
    for name, tensor in tensors.items():
        assert tensor.dtype == dtype
        tensor.copy_(expected[name])
    del tensor, tensors
    found = load_file(path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("attention.10"), expected["attention.10"])


@each_dtype
def test_tensors_begin_as_zeros(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "shard.safetensors"
    path.write_bytes(b"\xff" * 4096)  # left by another
    assert not any(tensor.any() for tensor in allocate(path, SHAPES, dtype).values())
    assert not any(tensor.any() for tensor in load_file(path).values())


def test_the_file_is_as_large_as_the_librarys_own(tmp_path: Path) -> None:
    allocate(tmp_path / "shard", SHAPES, torch.float16)
    written = save({name: torch.zeros(shape, dtype=torch.float16) for name, shape in SHAPES.items()})
    assert (tmp_path / "shard").stat().st_size == len(written)


def test_tensors_begin_at_a_multiple_of_eight_bytes(tmp_path: Path) -> None:
    for count in range(1, 9):
        allocate(tmp_path / "shard", dict(list(SHAPES.items())[:1]) | {"x" * count: (1,)}, torch.float32)
        content = (tmp_path / "shard").read_bytes()
        length = int.from_bytes(content[:8], "little")
        assert length % 8 == 0
        assert json.loads(content[8 : 8 + length])["x" * count]["data_offsets"] == [36, 40]


def test_a_disk_that_is_full_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "shard").symlink_to(full)
    with pytest.raises(OSError, match="No space left on device"):
        allocate(tmp_path / "shard", SHAPES, torch.float32)


def test_every_block_is_taken_beforehand(tmp_path: Path) -> None:
    allocate(tmp_path / "shard", {"large": (3, 1 << 20)}, torch.float32)
    stat = (tmp_path / "shard").stat()
    assert stat.st_blocks * 512 >= stat.st_size > 3 * 4 * (1 << 20)
