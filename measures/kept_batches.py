"""Numbers of batches that are kept on disk while a measurement runs, so that one that was interrupted goes on."""

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from attention_probing.results.files import keep, read_kept

Columns = dict[str, Tensor]
"""Numbers of the items of a batch, by name, each `[items, …]`."""

_SUFFIX = ".safetensors"


class KeptBatches:
    """Files with the numbers of batches, each with a checksum; a damaged one is made again.

    Args:
        folder: `Measure.kept_folder`, which is deleted at the end; None keeps nothing.

    Attributes:
        found: Number of batches that an earlier run has left.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.found = 0
        if folder is not None:
            self.found = len(list(folder.glob(f"*{_SUFFIX}")))

    def take(self, part: str, items: Tensor, compute: Callable[[], Columns]) -> Columns:
        """Return the numbers of a batch: those of an earlier run of the same command, else computed and kept.

        Args:
            part: Part of the measurement; with the items it identifies the numbers.
            items: Items of the batch, int64 `[items]`.
            compute: Function that computes the numbers.
        """
        if self._folder is None:
            return compute()
        path = self._folder / f"{_digest(part, items)}{_SUFFIX}"
        content = read_kept(path)
        if content is not None:
            on_disk = load(bytes(content))
            return {name: column.to(items.device) for name, column in on_disk.items()}
        columns = compute()
        on_host = {name: column.cpu().contiguous() for name, column in columns.items()}
        self._folder.mkdir(parents=True, exist_ok=True)
        keep(path, save(on_host))
        return columns


def has_batches(folder: Path) -> bool:
    """Return True if a folder, such as `Measure.kept`, has the numbers of a batch in it or below it."""
    return any(folder.rglob(f"*{_SUFFIX}"))


def _digest(part: str, items: Tensor) -> str:
    content = part.encode() + items.cpu().numpy().tobytes()
    return blake2b(content, digest_size=16).hexdigest()
