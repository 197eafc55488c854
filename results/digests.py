"""SHA-256 of files: of weights, stored by path and change times, and of the files of a result, beside its scores."""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from attention_probing.results.files import check_regular, keep, read_kept

RECORD = "results.json"
_NUMBERS = ("tables", "latex", "figure_data")  # entries of a record that name files with numbers
_INDEX = "digests/index.json"

log = logging.getLogger(__name__)


def digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
    """
    with check_regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def source_digest() -> str:
    """Return the SHA-256 of the program's source files; results of different versions have different digests."""
    root, digest = Path(__file__).parent.parent, hashlib.sha256()
    rooms = [path.parent for path in root.glob("*/__init__.py")]
    # Word lists and templates are YAML beside the code that reads them.
    for path in sorted(path for room in rooms for path in room.rglob("*") if path.suffix in (".py", ".yaml")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def checksums(folder: Path, content: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of a record, without its checksums, and of its config, tables and items, by file name.

    Args:
        folder: Folder of the record; files that it does not have are left out.
        content: Content of `results.json`.
    """
    said = {key: value for key, value in content.items() if key != "checksums"}
    found = {RECORD: digest(json.dumps(said, sort_keys=True).encode())}
    return found | {name: file_digest(folder / name) for name in _named(content) if (folder / name).is_file()}


def _named(content: Mapping[str, Any], kinds: Iterable[str] = _NUMBERS) -> list[str]:
    """Return the names of the items and the config, and of the files in some entries of a record."""
    names = [
        content.get("items"),
        content.get("config"),
        *(name for kind in kinds for name in content.get(kind, {}).values()),
    ]
    return [name for name in names if name is not None]


def find_alteration(path: Path, content: Mapping[str, Any]) -> str | None:
    """Return an error message if a record or a file that it names has another checksum than when it was written.

    A missing file is not an error. No file outside the folder is read.

    Args:
        path: Path of the `results.json`.
        content: Its content.
    """
    for name in _named(content, (*_NUMBERS, "figures")):
        if not (path.parent / name).resolve().is_relative_to(path.parent.resolve()):
            return f"{path} names {name}, which is not in its folder. Run the experiment again"
    known = content["checksums"]
    current = checksums(path.parent, content)
    if not has_config_checksum(content):
        current.pop(str(content.get("config")), None)
    names = [name for name, found in current.items() if found != known.get(name)]
    fault = f"was changed after the run: its SHA-256 differs from the one in {RECORD}. Restore it, or test again"
    return f"{path.parent / names[0]} {fault}" if names else None


def has_config_checksum(content: Mapping[str, Any]) -> bool:
    """Return True if a record has the SHA-256 of the config of its run, which versions before 1.1 did not write."""
    return content.get("config") in content["checksums"]


class Digests:
    """Cache of the SHA-256 of files.

    The checksum of a file is computed again only if the file's size, change times or inode have changed.

    Args:
        cache: Folder of the cache file. If two processes write it at once, entries may be lost, but it
            stays readable.
    """

    def __init__(self, cache: Path) -> None:
        self._path = cache / _INDEX
        self._known = self._read()

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            content = read_kept(self._path)
        except OSError:  # for instance another user's file in a shared folder: only time is lost
            content = None
        known: dict[str, dict[str, str]] = {} if content is None else json.loads(bytes(content))
        return known

    def of(self, paths: Iterable[Path]) -> dict[Path, str]:
        """Return the SHA-256 of several files in hexadecimal, by path, in the order of `paths`."""
        stamps = {path: (str(path.resolve()), _stamp(path)) for path in paths}
        new = {path: one for path, one in stamps.items() if self._known.get(one[0], {}).get("stamp") != one[1]}
        if new:
            with ThreadPoolExecutor(min(len(new), os.cpu_count() or 1)) as pool:  # hashing releases the lock of Python
                hashed = zip(new.values(), pool.map(file_digest, new), strict=True)
                self._keep({name: {"stamp": stamp, "sha256": sha256} for (name, stamp), sha256 in hashed})
        return {path: self._known[name]["sha256"] for path, (name, _) in stamps.items()}

    def remember(self, path: Path, sha256: str) -> None:
        """Store the SHA-256 of a file that the caller computed while writing it."""
        self._keep({str(path.resolve()): {"stamp": _stamp(path), "sha256": sha256}})

    def _keep(self, fresh: dict[str, dict[str, str]]) -> None:
        self._known |= self._read() | fresh
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            keep(self._path, json.dumps(self._known, indent=0, sort_keys=True).encode())
        except OSError as error:  # a full disk or a read-only folder: only time is lost
            why = error.strerror or error
            log.warning("%s: cannot write the checksum cache (%s); the next run recomputes checksums", self._path, why)

    def one(self, path: Path) -> str:
        """Return the SHA-256 of one file in hexadecimal."""
        return self.of([path])[path]


def _stamp(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size}-{stat.st_mtime_ns}-{stat.st_ctime_ns}-{stat.st_ino}"
